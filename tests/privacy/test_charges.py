"""Costs of single releases in closed forms."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special, stats

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


@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace"])
def test_a_choice_costs_no_more_than_its_epsilon_at_any_pair_and_reaches_it(neighbours: Any) -> None:
    """Every client's regrets at the corners of [0, 1]^4, over sums of others; and Renyi's divergences by summing."""
    charge = Charge("exponential", 1.3, 4, Cohorts(5, neighbours=neighbours))
    corners = np.array(list(itertools.product((0.0, 1.0), repeat=4)))
    worst = 0.0
    for rest in ((0, 0, 0, 0), (9, 0, 1, 0), (20, 0, 0, 0), (0, 20, 20, 20)):
        odds = special.log_softmax(-(np.array(rest) + corners) / 1.3, axis=1)
        p, q = odds[:, None], odds[None, : len(odds) if neighbours == "replace" else 1]
        worst = max(worst, float(np.abs(p - q).max()))
        for order in (1.5, 3.0, 20.0):
            divergence = special.logsumexp(order * p + (1 - order) * q, axis=-1) / (order - 1)
            assert divergence.max() <= order * charge.zcdp * (1 + 1e-12)
    assert worst == pytest.approx(charge.pure, rel=1e-6) and worst <= charge.pure * (1 + 1e-12)
    assert charge.zcdp == pytest.approx(charge.pure**2 / 8)
    assert epsilon([charge] * 7, 0.0) == pytest.approx(7 * charge.pure)
