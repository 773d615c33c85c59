"""Standardisation by client."""

from __future__ import annotations

import re
import warnings
from typing import get_args

import pytest
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from pacbayes_fl.data import scaling
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.moments import moments_of
from pacbayes_fl.data.shrinkage import fit_population, shrunk


def federation(*sizes: int, seed: int = 0) -> ClientBatch:
    generator = torch.Generator().manual_seed(seed)

    def client(k: int, m: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(m, 2, generator=generator, dtype=torch.float64)
        y = torch.randn(m, generator=generator, dtype=torch.float64)
        return x * torch.tensor([1e-3, 50.0]) + k, 7 * y - 1000

    return ClientBatch.pad([client(k, m) for k, m in enumerate(sizes)], allow_empty=True)


def test_scaled_rows_are_scikit_learn_s_for_each_client() -> None:
    batch = federation(9, 30, 4)
    fitted = scaling.fit(batch)
    scaled = fitted.apply(batch)
    for k, m in enumerate((9, 30, 4)):
        raw = torch.cat((batch.x[k, :m], batch.y[k, :m, None]), 1).numpy()
        reference = StandardScaler().fit(raw)
        mine = torch.cat((scaled.x[k, :m], scaled.y[k, :m, None]), 1)
        torch.testing.assert_close(mine, torch.tensor(reference.transform(raw)), rtol=0, atol=1e-12)
        torch.testing.assert_close(mine.mean(0), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-12)
        torch.testing.assert_close(mine.square().mean(0), torch.ones(3, dtype=torch.float64), rtol=0, atol=1e-12)
    assert fitted.x_mean.shape == fitted.x_std.shape == (3, 2) and fitted.y_mean.shape == fitted.y_std.shape == (3,)


def test_padding_stays_zero_and_moves_nothing() -> None:
    batch, alone = federation(3, 8), federation(3)
    scaled = scaling.fit(batch).apply(batch)
    assert not scaled.x[~batch.mask].any() and not scaled.y[~batch.mask].any()
    own = scaling.fit(alone)
    for together, single in zip(scaling.fit(batch), own, strict=True):
        torch.testing.assert_close(together[:1], single, rtol=1e-15, atol=0)
    assert (scaled.ids, scaled.names) == (batch.ids, batch.names)


def test_test_rows_are_scaled_by_training_moments() -> None:
    train, test = federation(5, 6), federation(7, 2, seed=1)
    units = scaling.fit(train)
    scaled = units.apply(test)
    for k, m in enumerate((7, 2)):
        rows = train.y[k][train.mask[k]]
        expected = (test.y[k, :m] - rows.mean()) / rows.std(correction=0)
        torch.testing.assert_close(scaled.y[k, :m], expected, rtol=1e-12, atol=0)


def test_a_constant_target_warns_by_name_and_is_not_divided() -> None:
    batch = federation(4, 4, 4)
    batch.y[1] = 3.5
    with pytest.warns(UserWarning, match=r"^targets of client_01 do not vary: left unscaled \(std := 1\)$"):
        units = scaling.fit(batch)
    scaled = units.apply(batch)
    assert float(units.y_std[1]) == 1.0 and float(units.y_mean[1]) == 3.5 and not scaled.y[1].any()
    assert float(scaled.y[0].square().mean()) == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("value", [0.1, 101325.7, -3.3e9])
def test_a_constant_column_of_any_size_is_not_blown_up(value: float, dtype: torch.dtype) -> None:
    # the mean of equal numbers is off by rounding, and so is their standard deviation: 1e-11 for a pressure in Pa
    batch = federation(7, 30).to(dtype=dtype)
    batch.x[..., 0] = torch.where(batch.mask, value, 0.0)
    with pytest.warns(UserWarning, match="^features that do not vary .*: column 0 in every client$"):
        units = scaling.fit(batch)
    assert (units.x_std[:, 0] == 1).all()
    nearby = units.apply(ClientBatch(batch.x + 1, batch.y, batch.mask, batch.ids, batch.names))
    assert float(nearby.x[..., 0].abs().max()) < 2 + abs(value) * 2e-6


def test_one_row_and_no_row_are_left_finite() -> None:
    batch = federation(1, 0, 5)
    with pytest.warns(UserWarning, match="targets of client_00 do not vary"):
        units = scaling.fit(batch)
    assert all(torch.isfinite(part).all() for part in units)
    scaled = units.apply(batch)
    assert not scaled.x[:2].any() and not scaled.y[:2].any()
    assert torch.equal(units.x_mean[0], batch.x[0, 0]) and float(units.y_mean[0]) == float(batch.y[0, 0])
    assert not units.x_mean[1].any() and units.y_mean[1] == 0
    for std in (units.x_std[:2], units.y_std[:2]):
        assert (std == 1).all()


def test_identity_changes_nothing() -> None:
    batch = federation(3, 5)
    units = scaling.identity(batch)
    same = units.apply(batch)
    assert torch.equal(same.x, batch.x) and torch.equal(same.y, batch.y)
    assert [part.shape for part in units] == [part.shape for part in scaling.fit(batch)]


def test_inputs_are_left_as_they_are() -> None:
    batch = federation(3, 5)
    x, y = batch.x.clone(), batch.y.clone()
    scaling.fit(batch).apply(batch)
    assert torch.equal(batch.x, x) and torch.equal(batch.y, y)


def test_labels_are_left_as_they_are_without_a_warning() -> None:
    x = torch.tensor([[1.0, 10.0], [3.0, 30.0], [5.0, 80.0]], dtype=torch.float64)
    batch = ClientBatch.pad([(x, torch.tensor([2, 2, 2]))], classes=3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = scaling.fit(batch)
    scaled = fitted.apply(batch)
    assert torch.equal(scaled.y, batch.y) and scaled.y.dtype == torch.int64
    torch.testing.assert_close(scaled.x[0], (x - x.mean(0)) / x.std(0, correction=0))


def test_images_keep_their_units() -> None:
    random = torch.Generator().manual_seed(0)
    clients = [(torch.rand(m, 1, 4, 4, generator=random), torch.zeros(m, dtype=torch.int64)) for m in (3, 2)]
    batch = ClientBatch.pad(clients, classes=2, dtype=torch.float32)
    fitted = scaling.identity(batch)
    assert fitted.x_mean.shape == (2, 1, 4, 4) and fitted.y_std.tolist() == [1.0, 1.0]
    assert torch.equal(fitted.apply(batch).x, batch.x)


UNITS = [5e-324, 1e-310, 1e-200, 0.5e-12, 1e-12, 1.0, 1e12, 1e155, 1e200, 1e303]


@pytest.mark.parametrize("unit", UNITS)
def test_moments_are_relative_and_never_overflow(unit: float) -> None:
    """The same rows in any unit: the same standardised rows, but for what a number of that size cannot hold."""
    batch = federation(9, 30, 4)
    batch.x[..., 0] *= 1e3  # of order 1, as the second column is of order 50
    scaled = scaling.fit(batch).apply(batch)
    other = ClientBatch(batch.x * unit, batch.y * unit, batch.mask, batch.ids, batch.names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if unit < 1e-300 else "error")
        again = scaling.fit(other).apply(other)
    if unit >= 1e-300:
        torch.testing.assert_close(again.x, scaled.x, rtol=0, atol=1e-11)
        torch.testing.assert_close(again.y, scaled.y, rtol=0, atol=1e-11)
    assert again.x.isfinite().all() and again.y.isfinite().all()


@pytest.mark.parametrize("power", [-1000, -300, -1, 1, 40, 600, 900])
def test_a_unit_that_is_a_power_of_two_changes_no_bit(power: int) -> None:
    batch = federation(9, 30, 4)
    fitted, unit = scaling.fit(batch), 2.0**power
    other = ClientBatch(batch.x * unit, batch.y * unit, batch.mask, batch.ids, batch.names)
    again = scaling.fit(other)
    assert all(torch.equal(a * unit, b) for a, b in zip(fitted, again, strict=True))
    assert torch.equal(again.apply(other).x, fitted.apply(batch).x)
    assert torch.equal(again.apply(other).y, fitted.apply(batch).y)


def test_the_largest_numbers_of_opposite_signs_are_scaled() -> None:
    x = torch.tensor([[1.7e308], [-1.7e308], [0.0]], dtype=torch.float64)
    batch = ClientBatch.pad([(x, x[:, 0])])
    scaled = scaling.fit(batch).apply(batch)
    expected = torch.tensor([1.5, -1.5, 0.0], dtype=torch.float64).sqrt().nan_to_num(nan=-(1.5**0.5))
    torch.testing.assert_close(scaled.x[0, :, 0], expected)
    torch.testing.assert_close(scaled.y[0], expected)


@pytest.mark.parametrize("size", [1e-200, 0.3, 1e5, 1e200])
def test_a_column_that_is_constant_but_for_rounding_does_not_vary(size: float) -> None:
    jitter = 1.0 + torch.finfo(torch.float64).eps * torch.tensor([0, 1, -1, 2, 0, 3, 0, 0], dtype=torch.float64)
    real = 1.0 + 1e-12 * torch.tensor([0, 1, -1, 2, 0, 3, 0, 0], dtype=torch.float64)
    rows = torch.stack((size * jitter, size * real), 1)
    batch = ClientBatch.pad([(rows, torch.arange(8, dtype=torch.float64))], ["a"])
    with pytest.warns(UserWarning, match="do not vary .*: x in a$"):
        scaled = scaling.fit(batch, columns=("x", "z", "y")).apply(batch)
    assert scaled.x[0, :, 0].abs().max() <= 1e-14 * size and scaled.x[0, :, 1].std() > 0.9


def test_features_that_do_not_vary_are_named_by_client_and_shortened() -> None:
    batch = federation(*[5] * 9)
    wide = ClientBatch(batch.x.repeat(1, 1, 4), batch.y, batch.mask, batch.ids, batch.names)
    wide.x[:, :, 0] = 3.0  # in every client
    wide.x[:, :, 7] = 4.0
    wide.x[2, :, 1] = 1.0  # in one
    wide.x[:7, :, 3] = 2.0  # in seven
    names = [f"f{j}" for j in range(8)]
    with pytest.warns(UserWarning) as said:
        scaling.fit(wide, columns=[*names, "y"])
    (text,) = [str(one.message) for one in said]
    assert text == (
        "features that do not vary tell a client nothing, and become 0: f0, f7 in every client; f1 in client_02; "
        "f3 in client_00, client_01, client_02, client_03, client_04 and 2 more"
    )
    wide.x[:] = 1.0
    with pytest.warns(UserWarning, match="f0, f1, f2, f3, f4 and 3 more in every client$"):
        scaling.fit(wide, columns=[*names, "y"])


def houses(*sizes: int) -> ClientBatch:
    """Clients with an irradiance, a capacity and an orientation of their own, and a column that is the same for all."""
    batch = federation(*sizes, seed=3)
    own = torch.arange(len(sizes), dtype=torch.float64).view(-1, 1).expand(batch.mask.shape)
    x = torch.stack((batch.x[..., 1], 4.0 + own**2, (own == 1).double(), torch.full_like(own, 7.0)), -1)
    return ClientBatch(torch.where(batch.mask.unsqueeze(-1), x, 0.0), batch.y, batch.mask, batch.ids, batch.names)


OPEN: tuple[None, ...] = (None, None, None, None)


def test_what_tells_clients_apart_is_scaled_across_them_as_by_scikit_learn() -> None:
    batch = houses(9, 30, 4)
    shared = scaling.settle(batch, [*OPEN, "client"])
    assert shared.kinds == ("client", "pooled", "pooled", "client", "client")
    with pytest.warns(UserWarning, match="column 3 in every client$"):
        units = scaling.fit(batch, shared)
    scaled = shared.impose(units).apply(batch)
    reference = StandardScaler().fit(batch.x[batch.mask][:, 1:3].numpy()).transform(batch.x[batch.mask][:, 1:3].numpy())
    torch.testing.assert_close(scaled.x[batch.mask][:, 1:3], torch.tensor(reference), rtol=0, atol=1e-12)
    torch.testing.assert_close(scaled.x[..., 0], units.apply(batch).x[..., 0], rtol=0, atol=0)
    assert not scaled.x[..., 3].any() and not scaled.x[~batch.mask].any()


@pytest.mark.parametrize("kind", ["pooled", "none"])
def test_every_column_may_be_scaled_across_clients_or_left_alone(kind: scaling.ColumnScale) -> None:
    batch = federation(9, 30, 4)
    shared = scaling.settle(batch, [kind] * 3)
    scaled = shared.impose(scaling.fit(batch, shared)).apply(batch)
    rows = torch.cat((batch.x, batch.y.unsqueeze(-1)), -1)[batch.mask].numpy()
    expected = StandardScaler().fit(rows).transform(rows) if kind == "pooled" else rows
    mine = torch.cat((scaled.x, scaled.y.unsqueeze(-1)), -1)[batch.mask]
    torch.testing.assert_close(mine, torch.tensor(expected), rtol=1e-12, atol=1e-12)


def test_shrunk_columns_stand_between_the_clients_own_and_the_federation_s() -> None:
    batch = houses(9, 30, 4, 1, 12)
    shared = scaling.settle(batch, ["shrunk"] * 5)
    assert shared.kinds == ("shrunk", "pooled", "pooled", "pooled", "shrunk")  # what varies inside nobody is no scale
    units = scaling.fit(batch.select(torch.tensor([0, 1, 2, 4])), shared)
    used = shared.used(scaling.fit(batch, shared), batch)
    columns = torch.stack((batch.x[..., 0], batch.y), -1)
    moments = moments_of(columns, batch.mask)
    mean, std = shrunk(moments, batch.size, fit_population(moments, batch.size))
    torch.testing.assert_close(torch.stack((used.x_mean[:, 0], used.y_mean), -1), mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.stack((used.x_std[:, 0], used.y_std), -1), std, rtol=1e-12, atol=0)
    own, apart = units.y_std.log(), (used.y_std[[0, 1, 2, 4]].log() - shared.std[4].log()).abs()
    assert (apart <= (own - shared.std[4].log()).abs() + 0.2).all() and used.y_std[3] == shared.std[4]
    assert torch.equal(used.x_mean[:, 1], shared.mean[1].expand(5))
    unknown = shared.impose(units)  # of whose rows nothing may be known
    assert (unknown.y_mean == shared.mean[4]).all() and (unknown.y_std == shared.std[4]).all()


@pytest.mark.parametrize("kind", get_args(scaling.ColumnScale))
@pytest.mark.parametrize("power", [-600, 600])
def test_no_scale_but_the_data_s_own_knows_a_unit(kind: scaling.ColumnScale, power: int) -> None:
    batch, unit = federation(9, 30, 4), 2.0**power
    other = ClientBatch(batch.x * unit, batch.y * unit, batch.mask, batch.ids, batch.names)
    first, second = (
        shared.used(scaling.fit(one, shared), one).apply(one)
        for one in (batch, other)
        for shared in [scaling.settle(one, [kind] * 3)]
    )
    factor = unit if kind == "none" else 1.0
    assert torch.equal(first.x * factor, second.x) and torch.equal(first.y * factor, second.y)


@pytest.mark.parametrize("kind", get_args(scaling.ColumnScale))
def test_a_client_needs_the_shared_moments_and_its_own_rows_alone(kind: scaling.ColumnScale) -> None:
    """What a client on another machine makes of its rows is what it is given among all others."""
    batch = houses(9, 30, 4)
    shared = scaling.settle(batch, ["shrunk", None, "none", "pooled", kind])
    together = shared.used(scaling.fit(batch, shared), batch).apply(batch)
    for k, m in enumerate((9, 30, 4)):
        own = batch.select(torch.tensor([k])).trim()
        alone = shared.used(scaling.fit(own, shared), own).apply(own)
        torch.testing.assert_close(alone.x[0], together.x[k, :m], rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(alone.y[0], together.y[k, :m], rtol=1e-13, atol=1e-13)


def test_clients_of_one_row_do_not_say_what_is_constant() -> None:
    assert scaling.settle(houses(1, 1, 1), [*OPEN, "client"]).kinds == ("client",) * 5
    assert scaling.settle(houses(1, 5, 1), [*OPEN, "client"]).kinds[:3] == ("client", "pooled", "pooled")
    assert scaling.settle(houses(8), [*OPEN, "client"]).kinds == ("client",) * 5  # nobody to differ from
    assert scaling.settle(houses(0, 5, 4), [*OPEN, "client"]).kinds[1] == "pooled"


def test_who_may_not_know_others_rows_is_told_what_is_lost() -> None:
    batch = houses(9, 30, 4)
    with pytest.warns(
        UserWarning, match="^cap, east: constant inside clients and different between them.*; a secret, so"
    ):
        shared = scaling.settle(batch, [*OPEN, "client"], ("sun", "cap", "east", "seven", "y"), alone="a secret")
    assert shared.kinds == ("client",) * 5 and not shared.mean.any() and (shared.std == 1).all()


@pytest.mark.parametrize("clients", [1, 3])
def test_who_knows_of_no_others_is_told_what_may_be_lost(clients: int) -> None:
    """One client's capacity is as lost as those of several: what others have is not known."""
    batch, names = houses(*[9] * clients), ("sun", "cap", "east", "seven", "y")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        scaling.settle(batch, [*OPEN, "client"], names, alone="a secret", elsewhere=True)
    lost = r"seven: constant .* perhaps .*; a secret, so .*data\.column_scale = 'none' keeps"
    every = [rf"^cap, east, {lost}"] if clients == 1 else ["^cap, east: constant .* different between them", f"^{lost}"]
    assert len(said) == len(every)
    for one, pattern in zip(said, every, strict=True):
        assert re.search(pattern, str(one.message))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaling.settle(batch, ["none"] * 5, names, alone="a secret", elsewhere=True)


def test_a_pooled_column_that_varies_nowhere_is_named() -> None:
    with pytest.warns(UserWarning, match=r"^seven does not vary over all clients: left unscaled"):
        shared = scaling.settle(houses(9, 4), [None, None, None, "pooled", "client"], ("a", "b", "c", "seven", "y"))
    assert shared.std[3] == 1 and shared.mean[3] == 7


def test_labels_are_nobody_s_to_scale() -> None:
    batch = ClientBatch.pad([(torch.rand(4, 1, dtype=torch.float64), torch.tensor([0, 1, 1, 0]))], classes=2)
    assert scaling.settle(batch, [None, "pooled"]).kinds == ("client", "none")


@pytest.mark.parametrize("kind", ["pooled", "shrunk"])
def test_a_client_in_another_unit_keeps_its_own_map_in_that_column(kind: scaling.ColumnScale) -> None:
    generator = torch.Generator().manual_seed(3)
    x, y = torch.randn(6, 20, 2, generator=generator).double(), torch.randn(6, 20, generator=generator).double()
    shared = scaling.settle(ClientBatch.pad(list(zip(x[:5], y[:5], strict=True))), [kind] * 3)
    late = ClientBatch.pad([(x[5], y[5]), (x[5], 1e4 * y[5] + 5e6), (x[5], torch.full((20,), 1e7).double())])
    own = scaling.fit(late, shared)
    used = shared.used(own, late)
    assert torch.equal(used.y_mean[1], own.y_mean[1]) and torch.equal(used.y_std[1], own.y_std[1])
    assert torch.equal(used.x_mean[1], used.x_mean[0]) and torch.equal(used.x_std[1], used.x_std[0])
    assert used.y_std[0] != own.y_std[0]
    assert used.y_mean[2] != own.y_mean[2]  # a constant says how large a client is, and nothing of its unit
