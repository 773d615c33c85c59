"""Costs of single releases in closed forms."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from pacbayes_fl.privacy.accounting import delta, epsilon
from pacbayes_fl.privacy.charges import Charge
from pacbayes_fl.privacy.mechanisms import Cohorts

ALL = Cohorts(clients=1000)
ANY = Cohorts(clients=1000, neighbours="replace")


def gaussian(multiplier: float, cohorts: Cohorts = ALL) -> Charge:
    return Charge("gaussian", multiplier, 100, cohorts)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of the Gaussian mechanism with sensitivity / scale = mu (Balle and Wang 2018, Theorem 8)."""

    def excess(eps: float) -> float:
        far, near = stats.norm.cdf(mu / 2 - eps / mu), stats.norm.logcdf(-mu / 2 - eps / mu)
        return float(far - math.exp(eps + near)) - delta

    return float(optimize.brentq(excess, 0, 1000, xtol=1e-12))


@given(st.sampled_from(["laplace", "knorm", "paper_algorithm_3"]), st.floats(0.1, 100), st.integers(1, 100))
def test_pure_privacy_is_monotone_and_chance_never_hurts(kind: Any, multiplier: float, size: int) -> None:
    def pure(multiplier: float, cohorts: Cohorts, coordinates: int = 50) -> float:
        return Charge(kind, multiplier, coordinates, cohorts).pure

    poisson, everybody = Cohorts(100, size, "poisson"), Cohorts(100, size)
    assert 0 < pure(2 * multiplier, poisson) < pure(multiplier, poisson)
    assert pure(multiplier, poisson) <= pure(multiplier, everybody) * (1 + 1e-12)
    assert pure(multiplier, poisson) <= pure(multiplier, Cohorts(100, size, "fixed", "replace"))
    grows = pure(multiplier, everybody, 200) / pure(multiplier, everybody)
    assert grows == pytest.approx(2.0 if kind == "paper_algorithm_3" else 1.0)


def test_without_chance_gaussian_noise_has_a_closed_form() -> None:
    assert gaussian_epsilon(1.0, 1e-5) == pytest.approx(4.377178095681, abs=1e-9)
    charges = [gaussian(10.0)] * 100
    assert epsilon(charges, 1e-5) == pytest.approx(4.377178095681, abs=1e-11)
    assert delta(charges, 4.377178095681) == pytest.approx(1e-5, rel=1e-9)
    assert epsilon([gaussian(1e3)], 9e-4) == 0.0 and delta([gaussian(1e3)], 0.0) == pytest.approx(4e-4, rel=3e-3)
    assert epsilon(charges, 1e-5, "pld") == pytest.approx(4.377178095681, abs=1e-4)
    assert epsilon(charges, 1e-5, "pld") >= 4.377178095681
