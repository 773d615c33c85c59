"""Numbers that no bound takes."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from pacbayes_fl.bounds.checks import checked, in_declared_range, whole
from pacbayes_fl.bounds.client import gibbs, seeger
from pacbayes_fl.bounds.losses import LossRange
from pacbayes_fl.bounds.premises import Premises, Provenance
from pacbayes_fl.bounds.table import BOUNDS
from pacbayes_fl.errors import AssumptionError, ShapeError
from tests.bounds.worlds import CLIENT_BOUNDS

FINE = Premises(Provenance("split"), independent=True)


def test_numbers_are_checked_client_by_client() -> None:
    with pytest.raises(AssumptionError, match=r"kl must be finite, at least 0, got inf \(client 2\)"):
        seeger(0.1, torch.tensor([1.0, 2.0, math.inf]), 100, 0.05, FINE)
    assert checked("risk", torch.tensor([1 + 1e-7, -1e-8], dtype=torch.float64), 0, 1).tolist() == [1, 0]
    for bad in (1.1, -0.1, math.nan):
        with pytest.raises(AssumptionError, match="risk must be finite, at least 0 and at most 1, got"):
            checked("risk", bad, 0.0, 1.0)
    with pytest.raises(AssumptionError, match="beta must be finite, above 0, got 0"):
        gibbs(-1.0, 100, 0.0, 0.05, FINE)


def test_counts_are_whole_numbers() -> None:
    assert whole("n", torch.tensor([1, 7])).tolist() == [1.0, 7.0] and whole("n", 3.0).item() == 3.0
    for bad in (0, -1, 1.5, math.inf, math.nan, True):
        with pytest.raises(AssumptionError, match="n must be at least 1 and a whole number, got"):
            whole("n", bad)
    for name in CLIENT_BOUNDS:
        numbers = {"risk": 0.1, "kl": 1.0, "n": torch.tensor([10, 9.5]), "beta": 3.0, "log_z": -0.3}
        with pytest.raises(AssumptionError, match=r"n must be at least 1 and a whole number, got 9.5 \(client 1\)"):
            prior = Provenance("row-level DP", 0.1) if BOUNDS[name].private else Provenance("split")
            BOUNDS[name].certify(numbers, 0.05, dataclasses.replace(FINE, prior=prior))


def test_a_loss_stays_in_its_range_on_every_row_that_counts() -> None:
    cost, every = LossRange("cost", 1.0, 3.0), torch.ones(2, 2, dtype=torch.bool)
    near = torch.tensor([[1 - 1e-6, 3 + 1e-6], [2.0, math.nan]], dtype=torch.float64)
    assert in_declared_range(cost, near, every)[0].tolist() == [1.0, 3.0]
    assert in_declared_range(cost, near, every).isnan().tolist() == [[False, False], [False, True]]
    padded = torch.tensor([[1.0, 3.0], [2.0, 0.0]])
    in_declared_range(cost, padded, torch.tensor([[True, True], [True, False]]))
    said = r"the loss 'cost' \(LossRange\) must lie in the range that it declares, \[1, 3\], got 0"
    with pytest.raises(AssumptionError, match=said):
        in_declared_range(cost, padded, every)
    with pytest.raises(ShapeError, match=r"'cost' \(LossRange\) must give a value for each row, \[2, 2\], got \[\]"):
        in_declared_range(cost, padded.mean(), every)
