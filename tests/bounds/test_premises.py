"""Premises: what counts as broken, and what cannot be."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pacbayes_fl.bounds.bound import Bound
from pacbayes_fl.bounds.certificate import MonteCarlo
from pacbayes_fl.bounds.client import seeger
from pacbayes_fl.bounds.laws import numbers_of
from pacbayes_fl.bounds.losses import LossRange, ZeroOne
from pacbayes_fl.bounds.premises import Premises, Provenance
from pacbayes_fl.bounds.size_weighted import size_weighted
from pacbayes_fl.bounds.table import BOUNDS
from pacbayes_fl.errors import AssumptionError

FINE = Premises(Provenance("split"), independent=True)
BY_ROW = MonteCarlo(9, 0.01, trials=torch.full((2,), 450))


def test_nothing_said_is_nothing_certified() -> None:
    certificate = seeger(0.03, 500.0, 30_000, 0.05, Premises())
    assert not certificate.valid
    assert "nobody said where the prior came from" in str(certificate)
    assert "not declared independent" in str(certificate)
    assert "0.07" not in str(certificate)
    assert not any(character.isdigit() for character in str(certificate))


@pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
@pytest.mark.parametrize("given", [None, "split", Provenance("split")], ids=["none", "text", "provenance"])
def test_what_says_nothing_of_the_assumptions_is_refused_by_every_bound(bound: Bound, given: Any) -> None:
    with pytest.raises(AssumptionError, match="premises must be Premises, what the bound rests on, got") as caught:
        bound.certify(numbers_of(bound, 0.1, 2.0, 100, 10.0), 0.05, given)
    assert "Premises(Provenance('split'), independent=True)" in str(caught.value)


def test_what_cannot_be_is_refused() -> None:
    for build, what in (
        (lambda: Provenance("hearsay"), "source must be one of"),  # type: ignore[arg-type]
        (lambda: Provenance("split", simulated="no"), "simulated must be True or False, got 'no'"),  # type: ignore[arg-type]
        (lambda: Premises(independent="no"), "independent must be True or False, got 'no'"),  # type: ignore[arg-type]
        (lambda: Premises(drawn_clients=1), "drawn_clients must be True or False, got 1"),  # type: ignore[arg-type]
        (lambda: Provenance("row-level DP"), "epsilon of a private prior"),
        (lambda: Provenance("row-level DP", math.inf), "epsilon of a private prior"),
        (lambda: Provenance("row-level DP", -0.1), "epsilon of a private prior"),
        (lambda: Provenance("data-free", 0.5), "epsilon is of a private prior, got 0.5 with a prior of source 'data-f"),
        (lambda: Provenance(epsilon=0.0), "epsilon is of a private prior, got 0 with a prior of source 'unknown'"),
        (lambda: Provenance("split", delta=0.1), "delta is of a private prior, got 0.1 with a prior of source 'split'"),
        (lambda: Provenance("client-level DP", 0.1, 1.0), "delta of a private prior must be at least 0 and below 1"),
        (lambda: Provenance("client-level DP", 0.1, -0.1), "delta of a private prior must be at least 0 and below 1"),
        (lambda: Provenance("row-level DP", 0.1, draws=0), "draws must be at least 1 and a whole number, got 0"),
        (lambda: Provenance("row-level DP", 0.1, rows=1.5), "rows must be at least 1 and a whole number, got 1.5"),  # type: ignore[arg-type]
        (lambda: Premises("split"), "prior must say where it came from, a Provenance, got 'split'"),  # type: ignore[arg-type]
        (lambda: Premises(loss="0-1"), "loss must be a loss, got '0-1'"),  # type: ignore[arg-type]
        (lambda: Premises(loss=ZeroOne), r"loss must be a loss, got the class ZeroOne \(ZeroOne\(\.\.\.\)\)"),
        (lambda: Premises(loss=torch.square), "loss must have name, low, high, convex, and this .* has no name, low"),  # type: ignore[arg-type]
        (lambda: Premises(predictor="oracle"), "predictor must be one of"),  # type: ignore[arg-type]
        (lambda: Premises(average="all"), "average must be one of"),  # type: ignore[arg-type]
        (lambda: Premises(tried=0), "tried must be at least 1 and a whole number, got 0"),
        (lambda: Premises(tried=True), "tried must be at least 1 and a whole number, got True"),
        (lambda: Premises(tried=1.5), "tried must be at least 1 and a whole number, got 1.5"),  # type: ignore[arg-type]
        (lambda: MonteCarlo(1.5, 0.01), "draws must be at least 1 and a whole number, got 1.5"),  # type: ignore[arg-type]
        (lambda: MonteCarlo(True, 0.01), "draws must be at least 1 and a whole number, got True"),
        (lambda: MonteCarlo(9, 0.01, trials=8), "trials must be at least the 9 draws, got 8"),
        (lambda: MonteCarlo(9, 0.01, trials=90.5), "trials must be at least 1 and a whole number"),
        (
            lambda: seeger(0.1, 1.0, 100, 0.05, FINE, monte_carlo=MonteCarlo(9, 0.01, trials=901)),
            "trials must be at most the draws times the rows, 900.0, got 901",
        ),
        (
            lambda: size_weighted(*[torch.full((2,), 0.1)] * 2, torch.full((2,), 50), 0.05, FINE, monte_carlo=BY_ROW),
            "trials must be at most the draws times the rows, 900.0, got .450.0, 450.0.",
        ),
        (lambda: LossRange("a loss", 0.0, math.inf), "must be bounded"),
    ):
        with pytest.raises(AssumptionError, match=what):
            build()
