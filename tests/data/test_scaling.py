"""Standardisation by client."""

from __future__ import annotations

import warnings

import pytest
import torch
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from pacbayes_fl.data import scaling
from pacbayes_fl.data.batch import ClientBatch


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
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a feature that does not vary inside a client is no news
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
