"""Bounds of targets: those of rows, and what contradicts them."""

from __future__ import annotations

import math

import pytest
import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.target_bounds import Bounds
from pacbayes_fl.errors import DataError

BY_ROW = Bounds(low=0.0, high_at=1)


def batch(*targets: float) -> ClientBatch:
    """Two clients, of whom the second has these targets under the capacities 5, 6, ... and fewer rows."""
    x = torch.tensor([[0.1, 5.0 + row] for row in range(len(targets))], dtype=torch.float64)
    first = torch.full((len(targets) + 2, 2), 9.0, dtype=torch.float64)
    rows = [(first, first[:, 0]), (x, torch.tensor(targets, dtype=torch.float64))]
    return ClientBatch.pad(rows, ["first", "second"])


def test_ends_are_numbers_or_those_of_every_row() -> None:
    x = batch(1.0, 2.0).x
    low, high = Bounds(low=-1.0).ends(x)
    assert low.shape == high.shape == (2, 1) and low.eq(-1.0).all() and high.eq(math.inf).all()
    low, high = BY_ROW.ends(x)
    assert low.eq(0.0).all() and high[1, :2].tolist() == [5.0, 6.0] and low.shape == high.shape == (2, 4)
    assert Bounds(low_at=0, high_at=1).words(["floor", "capacity"]) == "column floor and column capacity"
    assert BY_ROW.words(["sun", "capacity"]) == "0 and column capacity" and Bounds(high=3.5).words([]) == "3.5"


def test_targets_at_their_bounds_are_allowed_and_beyond_them_refused() -> None:
    BY_ROW.check(batch(0.0, 6.0))  # whose padding, where both bounds are 0, does not count
    Bounds(low=0.0, high=9.0).check(batch(0.0, 6.0))
    with pytest.raises(DataError, match=r"'second': has a target of 6.5, beyond its row's bounds \[0, 6\] \(row 1\)"):
        BY_ROW.check(batch(0.0, 6.5))
    with pytest.raises(DataError, match=r"'first': has targets from 9 to 9, beyond the bounds \[0, 6\]"):
        Bounds(low=0.0, high=6.0).check(batch(0.0, 6.5))


def test_bounds_that_are_not_in_order_are_refused_and_missing_ones_are_not_looked_at() -> None:
    x = batch(1.0, 2.0).x[1, :2].clone()
    x[0, 1] = torch.nan
    BY_ROW.check_rows("second", x)
    x[1, 1] = 0.0
    with pytest.raises(DataError, match="'second': its bounds are 0 and 0 in row 1, the lower not below the upper"):
        BY_ROW.check_rows("second", x)
    Bounds(low=1.0, high=0.0).check_rows("second", x)  # numbers are checked once, by the study
