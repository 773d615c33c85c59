"""Newcomers in other units than the federation's are named, wherever its moments scale them."""

import warnings
from dataclasses import replace

import pytest
import torch

from pacbayes_fl.data import scaling
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.foreign_units import say_foreign
from pacbayes_fl.data.scaling import ColumnScale, Shared

NAMES = ["a", "b", "y"]


def clients(seed: int, factor: float = 1.0, count: int = 8) -> ClientBatch:
    generator = torch.Generator().manual_seed(seed)
    x, y = torch.randn(count, 20, 2, generator=generator).double(), torch.randn(count, 20, generator=generator).double()
    return ClientBatch.pad([(x[k], factor * (y[k] + 0.3 * k)) for k in range(count)], [f"n{k}" for k in range(count)])


def settled(kind: ColumnScale) -> Shared:
    return scaling.settle(clients(0), [kind] * 3, NAMES)


@pytest.mark.parametrize("kind", ["pooled", "shrunk"])
def test_targets_in_another_unit_are_said_where_the_federation_scales_them(kind: ColumnScale) -> None:
    with pytest.warns(UserWarning, match="^n0: far in y from what the clients of the training have, so that its own"):
        say_foreign(clients(1, 1000.0, 1), settled(kind), NAMES)


@pytest.mark.parametrize("kind", ["pooled", "shrunk"])
@pytest.mark.parametrize("factor", [0.1, 1.0, 3.0])
def test_clients_as_others_are_not_spoken_of(kind: ColumnScale, factor: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        say_foreign(clients(2, factor), settled(kind), NAMES)


@pytest.mark.parametrize("kind", ["client", "none"])
def test_of_columns_that_others_do_not_scale_nothing_is_known(kind: ColumnScale) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        say_foreign(clients(3, 1000.0), settled(kind), NAMES)


def test_one_wrong_cell_and_clients_without_rows() -> None:
    batch = clients(4)
    batch.y[3, 5] = 1e6
    with pytest.warns(UserWarning, match="^n3: far in y"):
        say_foreign(batch, settled("pooled"), NAMES)
    empty = replace(batch, mask=torch.zeros_like(batch.mask))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        say_foreign(empty, settled("pooled"), NAMES)
