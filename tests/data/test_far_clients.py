"""Clients that are far from all others are left out of what is common, by medians that they cannot move."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path

import pytest
import torch

from pacbayes_fl.data import scaling
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.far_clients import far
from pacbayes_fl.data.moments import moments_of
from pacbayes_fl.data.scaling import ColumnScale
from pacbayes_fl.errors import NumericalError
from pacbayes_fl.study.run import run
from tests import tiny


def rows(clients: int = 12, spread: float = 1.0) -> torch.Tensor:
    """Two columns [K, 10, 2] of clients whose scales differ by factors of e^spread."""
    random = torch.Generator().manual_seed(0)
    scale = (spread * torch.randn(clients, 1, 2, generator=random, dtype=torch.float64)).exp()
    return scale * (1.0 + torch.randn(clients, 10, 2, generator=random, dtype=torch.float64))


def batch_of(columns: torch.Tensor) -> ClientBatch:
    clients = range(len(columns))
    parts = [(one[:, :1], one[:, 1]) for one in columns]
    return ClientBatch.stack(parts, [f"c{k}" for k in clients], [*clients])


def away(columns: torch.Tensor) -> list[list[bool]]:
    mask = torch.ones(columns.shape[:2], dtype=torch.bool)
    found: list[list[bool]] = far(moments_of(columns, mask), mask.any(1)).tolist()
    return found


@pytest.mark.parametrize("value", [1e12, -1e200, 1e308])
@pytest.mark.parametrize("count", [1, 5])
def test_fewer_than_half_of_the_clients_are_found_whatever_they_send(value: float, count: int) -> None:
    columns = rows()
    columns[:count, ::2, 1] = value
    assert away(columns) == [[False, k < count] for k in range(12)]


@pytest.mark.parametrize("spread", [0.0, 0.5, 1.5])
@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200])
def test_clients_that_differ_as_all_do_are_not_far(spread: float, unit: float) -> None:
    assert not any(map(any, away(unit * rows(40, spread))))


def test_few_clients_and_columns_of_one_value_are_not_judged() -> None:
    columns = rows(3)
    columns[0] = 1e12
    assert not any(map(any, away(columns)))
    flags = torch.zeros(9, 10, 2, dtype=torch.float64)
    flags[0] = 1.0
    assert not any(map(any, away(flags)))


@pytest.mark.parametrize("flagged", [2, 5, 9])
@pytest.mark.parametrize("clients", [20, 33])
def test_a_column_that_tells_clients_apart_is_not_judged_by_its_rounding(clients: int, flagged: int) -> None:
    """Standardised across clients, 0 and 1 have standard deviations of 1e-17 inside them."""
    share = flagged / clients
    flags = torch.zeros(clients, 9, 1, dtype=torch.float64)
    flags[:flagged] = 1.0
    standard = (flags - share) / (share * (1 - share)) ** 0.5
    assert not any(map(any, away(standard))) and not any(map(any, away(standard.float())))


@pytest.mark.parametrize("kind", ["pooled", "shrunk"])
def test_moments_are_those_of_the_others_and_a_warning_says_of_whom(kind: ColumnScale) -> None:
    columns = rows()
    hostile = torch.cat((columns, torch.full((1, 10, 2), 1e12, dtype=torch.float64)))
    with pytest.warns(UserWarning, match="^c12: columns a, y are far from those of all other clients, and left out of"):
        shared = scaling.settle(batch_of(hostile), [kind, kind], ["a", "y"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clean = scaling.settle(batch_of(columns), [kind, kind], ["a", "y"])
        scaling.settle(batch_of(hostile), ["client", "client"], ["a", "y"])
    assert torch.equal(shared.mean, clean.mean) and torch.equal(shared.std, clean.std)


def test_a_client_that_is_far_in_columns_of_no_scale_is_named_and_stays() -> None:
    columns = rows()
    hostile = torch.cat((columns, columns[:1]))
    hostile[12, 3, 0] = 1e30
    said = "^c12: column a is far from that of all other clients, and in no common units, column_scale 'none', can"
    with pytest.warns(UserWarning, match=said):
        shared = scaling.settle(batch_of(hostile), ["none", "none"], ["a", "y"])
    assert shared.kinds == ("none", "none")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scaling.settle(batch_of(columns), ["none", "none"], ["a", "y"])
        scaling.settle(batch_of(hostile), ["client", "none"], ["a", "y"])
        scaling.settle(batch_of(hostile), ["none", "none"], ["a", "y"], alone="private")  # nothing is told of others


@pytest.mark.parametrize("method", ["pooled-ridge", "pooled-gp", "pooled-gbt"])
def test_a_run_names_the_client_whose_input_moves_what_all_learn(method: str, tmp_path: Path) -> None:
    table = tiny.rows(sizes=(9, 12, 8, 10, 9))
    next(row for row in table if row["client"] == "existing_2")["wind"] = 1e30
    sets = [*tiny.quick(method), "data.scale=none"]
    with pytest.warns(
        UserWarning, match="^existing_2: column wind is far from that of all other clients, and in no common units"
    ):
        with contextlib.suppress(NumericalError):  # some methods stop, and not all by the name of the culprit
            run(tiny.on_csv(tiny.write_csv(tmp_path / "rows.csv", table), *sets))


def test_a_client_that_is_none_of_the_population_keeps_its_own_units() -> None:
    columns = torch.cat((rows(), 1e12 * rows(1)))
    batch = batch_of(columns)
    with pytest.warns(UserWarning, match="^c12: "):
        shared = scaling.settle(batch, ["shrunk", "shrunk"], ["a", "y"])
    own = scaling.fit(batch, shared)
    used = shared.used(own, batch)
    assert torch.equal(used.x_mean[12], own.x_mean[12]) and torch.equal(used.y_std[12], own.y_std[12])
    assert not bool((used.x_mean[:12] == own.x_mean[:12]).any())
