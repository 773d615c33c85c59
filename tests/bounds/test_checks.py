"""Numbers that no bound takes."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pacbayes_fl.bounds.bernstein import empirical_bernstein
from pacbayes_fl.bounds.certificate import Certificate, MonteCarlo
from pacbayes_fl.bounds.checks import checked, in_declared_range, of_library, row_by_row, whole
from pacbayes_fl.bounds.client import catoni, gibbs, seeger
from pacbayes_fl.bounds.loss_table import loss_named
from pacbayes_fl.bounds.losses import LOSSES, LossRange, SaturatingSquare
from pacbayes_fl.bounds.premises import Premises, Provenance
from pacbayes_fl.bounds.record import from_record, to_record
from pacbayes_fl.bounds.sweep import rows_needed
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
    assert whole("n", 2.0**24 + 1.0).item() == 2.0**24 + 1.0  # which float32 rounds
    for bad in (0, -1, 1.5, math.inf, math.nan, True):
        with pytest.raises(AssumptionError, match="n must be at least 1 and a whole number, got"):
            whole("n", bad)
    for name in CLIENT_BOUNDS:
        numbers = {"risk": 0.1, "kl": 1.0, "n": torch.tensor([10, 9.5]), "beta": 3.0, "log_z": -0.3}
        with pytest.raises(AssumptionError, match=r"n must be at least 1 and a whole number, got 9.5 \(client 1\)"):
            prior = Provenance("row-level DP", 0.1) if BOUNDS[name].private else Provenance("split")
            BOUNDS[name].certify(numbers, 0.05, dataclasses.replace(FINE, prior=prior))


@pytest.mark.parametrize("wrong", ["0.1", None, {"a": 0.1}, ["0.1"], [[0.1], [0.1, 0.2]]])
@pytest.mark.parametrize("name", ["risk", "kl", "n", "beta", "log_z", "target"])
def test_what_is_no_number_is_refused_by_the_name_of_its_argument(name: str, wrong: Any) -> None:
    exact = dataclasses.replace(FINE, posterior="exact Gibbs")
    known = {"risk": 0.1, "kl": 1.0, "n": 10, "beta": 3.0, "log_z": -0.3, name: wrong}
    calls: list[Callable[[], object]] = [
        lambda: catoni(known["risk"], known["kl"], known["n"], known["beta"], 0.05, FINE),
        lambda: gibbs(known["log_z"], 10, 3.0, 0.05, exact),
        lambda: rows_needed(known.get("target", 0.5), risk=0.1, kl=1.0, delta=0.05, premises=FINE),
    ]
    call = calls[1 if name == "log_z" else 2 if name == "target" else 0]
    with pytest.raises(AssumptionError, match=f"^{name} must be one number, or a tensor of one a client .*, got "):
        call()


def test_shapes_that_would_broadcast_to_a_third_are_refused() -> None:
    said = r"kl must be one number \[\] or one a client, \[2, 1\] as risk is, got \[3\]"
    with pytest.raises(ShapeError, match=said):
        seeger(torch.zeros(2, 1), torch.zeros(3), 10, 0.05, FINE)
    assert seeger(torch.zeros(2, 3), 1.0, torch.full((2, 3), 10), 0.05, FINE).value.shape == (2, 3)
    for wrong in (
        MonteCarlo(5, torch.full((2,), 0.01)),
        MonteCarlo(5, 0.01, risks=torch.zeros(2, 5)),
        MonteCarlo(5, 0.01, trials=torch.full((2,), 10)),
    ):
        with pytest.raises(ShapeError, match=r"must be one number \[\] or one a client, \[3\] as risk is, got \[2\]"):
            seeger(torch.zeros(3), 1.0, 10, 0.05, FINE, monte_carlo=wrong)


@pytest.mark.parametrize("make", [seeger, lambda risk, *more, **draws: empirical_bernstein(risk, 0.01, *more, **draws)])
def test_delta_is_a_number_of_any_library_or_refused(make: Callable[..., Certificate]) -> None:
    plain = make(0.1, 5.0, 100, 0.05, FINE)
    for same in (np.float32(0.05), np.float64(0.05), np.array(0.05)):
        certificate = make(0.1, 5.0, 100, same, FINE)
        assert certificate.value.item() == pytest.approx(plain.value.item(), rel=1e-6)
        assert "probability at least 0.95" in str(certificate) and json.loads(certificate.to_json())["valid"]
        assert from_record(json.loads(json.dumps(to_record(certificate)))).value == certificate.value
    several = make(0.1, 5.0, 100, np.array([0.05, 0.1]), FINE, monte_carlo=MonteCarlo(10, np.float32(0.01)))
    tensors = make(0.1, 5.0, 100, torch.tensor([0.05, 0.1]).double(), FINE, monte_carlo=MonteCarlo(10, 0.01))
    assert several.value.tolist() == pytest.approx(tensors.value.tolist(), rel=1e-6) and json.loads(several.to_json())
    for wrong in ([0.05, 0.1], "0.05", None, np.array(["0.05"])):
        with pytest.raises(AssumptionError, match="delta must be one number, or a tensor of one a client"):
            make(0.1, 5.0, 100, wrong, FINE)
        with pytest.raises(AssumptionError, match="delta of draws must be one number, or a tensor"):
            make(0.1, 5.0, 100, 0.05, FINE, monte_carlo=MonteCarlo(10, wrong))  # type: ignore[arg-type]


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
    with pytest.raises(ShapeError, match=r"must give a value for each row, \[2, 2\], got \[2, 2, 2\] \(without averag"):
        in_declared_range(SaturatingSquare(), SaturatingSquare()(torch.zeros(2, 2, 1), torch.zeros(2, 2)), every)


@pytest.mark.parametrize("name", LOSSES)
def test_a_subclass_of_a_loss_is_not_of_the_library(name: str) -> None:
    settings = {"limit": 2.0} if name == "clipped-square" else {}
    assert of_library(loss_named(name, **settings)) and not of_library(LossRange(name, 0.0, 1.0))
    assert not of_library(type("Own", (LOSSES[name],), {})(**settings))


class Scaled(SaturatingSquare):
    """Errors by the largest of the call."""

    def __call__(self, prediction: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        error = (prediction - y).abs()
        return error / error.max().clamp_min(1e-12)


class Own(SaturatingSquare):
    """As the library's, and looked at."""


def test_a_loss_of_ones_own_is_of_each_row_alone() -> None:
    """Padding counts nowhere: it may be what the call looks at, as long as no row does."""
    prediction, y = torch.tensor([[9.0, 0.5], [1.0, 0.0]]).double(), torch.zeros(2, 2).double()
    rows = torch.tensor([[False, True], [True, True]])
    for loss in (Own(), SaturatingSquare()):
        assert torch.equal(row_by_row(loss, loss, rows, prediction, y), loss(prediction, y))
        got = row_by_row(loss, loss.expected, rows, prediction, prediction.square(), y)
        assert torch.equal(got, loss.expected(prediction, prediction.square(), y))
    said = r"the loss .* \(Scaled\) of a row must not depend on the others, got 0.111111 among 3 rows and 1 alone"
    with pytest.raises(AssumptionError, match=said):
        row_by_row(Scaled(), Scaled(), rows, prediction, y)
    nowhere = torch.zeros(2, 2, dtype=torch.bool)
    assert row_by_row(Scaled(), Scaled(), nowhere, prediction, y).shape == (2, 2)


class Trimmed(SaturatingSquare):
    """Distances of more than a half, those of the worst tenth of the call left out."""

    def __call__(self, prediction: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = ((prediction - y).abs() - 0.5).clamp(0.0, 1.0)
        return torch.where(loss > loss.quantile(0.9), 0.0, loss)


def test_a_loss_that_trims_its_call_is_found_though_its_ends_are_what_they_are_alone() -> None:
    """Alone the row of the least value, an honest 0, has 0, and so has that of the largest that is left its own."""
    y = torch.zeros(200).double()
    prediction = 0.7 * torch.randn(200, generator=torch.Generator().manual_seed(0)).double()
    rows = torch.ones(200, dtype=torch.bool)
    with pytest.raises(AssumptionError, match=r"must not depend on the others, got .* among 200 rows and .* among 100"):
        row_by_row(Trimmed(), Trimmed(), rows, prediction, y)


def test_a_loss_may_write_into_what_it_is_given() -> None:
    class InPlace(SaturatingSquare):
        def __call__(self, prediction: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return prediction.sub_(y).abs_().clamp_(0.0, 1.0)

    prediction, y = torch.tensor([0.25, 3.0, 0.0]).double(), torch.zeros(3).double()
    got = row_by_row(InPlace(), InPlace(), torch.ones(3, dtype=torch.bool), prediction, y)
    assert got.tolist() == [0.25, 1.0, 0.0] and prediction.tolist() == [0.25, 3.0, 0.0]


@pytest.mark.parametrize("values", [None, 0.5, np.zeros(2)])
def test_a_loss_gives_a_tensor(values: object) -> None:
    said = r"'cost' \(LossRange\) must give a tensor with a value for each row, \[2\], got .*torch.as_tensor"
    with pytest.raises(ShapeError, match=said):
        in_declared_range(LossRange("cost", 0.0, 1.0), values, torch.ones(2, dtype=torch.bool))  # type: ignore[arg-type]
