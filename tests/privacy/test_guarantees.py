"""What is said of releases, and what they tell of a client who is replaced."""

from __future__ import annotations

import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.privacy.accounting import Budget, delta, epsilon, noise_multiplier
from pacbayes_fl.privacy.charges import Charge, pure_epsilon
from pacbayes_fl.privacy.guarantees import Replacement, Statement, replacement, rounded, statement
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism

ALL = Cohorts(clients=1000)
ANY = Cohorts(clients=1000, neighbours="replace")


def gaussian(multiplier: float, cohorts: Cohorts = ALL) -> Charge:
    return Charge("gaussian", multiplier, 100, cohorts)


def algorithm_3(claimed: float, rounds: int, coordinates: int, cohorts: Cohorts) -> list[Charge]:
    return [Charge.of(Mechanism.claimed("paper_algorithm_3", 1.0, claimed, rounds), cohorts, coordinates)] * rounds


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Epsilon of the Gaussian mechanism with sensitivity / scale = mu (Balle and Wang 2018, Theorem 8)."""

    def excess(eps: float) -> float:
        far, near = stats.norm.cdf(mu / 2 - eps / mu), stats.norm.logcdf(-mu / 2 - eps / mu)
        return float(far - math.exp(eps + near)) - delta

    return float(optimize.brentq(excess, 0, 1000, xtol=1e-12))


def test_a_statement_says_no_number_less_than_it_is() -> None:
    said = Statement(math.inf, 0.123401, 1.23449, 1 / 30)
    assert str(said) == "(1.235, 0.03334)-DP; 0.1235-zCDP"
    assert str(Statement(math.inf, 4.0, 10.0, 0.025)) == "(10, 0.025)-DP; 4-zCDP"
    assert str(Statement(math.inf, 4.0, 10.0, 1e-8)) == "(10, 1e-08)-DP; 4-zCDP"
    assert str(Statement(math.inf, 1e-9 / 3, 12345.6, 1e-8 / 3)) == "(1.235e+04, 3.334e-09)-DP; 3.334e-10-zCDP"


@given(st.floats(1e-300, 1e300))
def test_rounding_goes_up_and_not_far(value: float) -> None:
    assert value <= float(rounded(value)) <= value * 1.001
    assert len(rounded(value).split("e")[0].lstrip("0.").replace(".", "")) <= 4


def test_a_statement_of_secret_cohorts_says_which_number_needs_no_secret() -> None:
    secret = statement([Charge("laplace", 5.0, 7, Cohorts(120, 12, "poisson"))] * 50, 0.0)
    assert secret.secret and secret.epsilon < secret.pure == pytest.approx(10.0)
    assert str(secret).endswith("-zCDP; pure epsilon = 10 where the cohorts are known")
    known = [Charge("laplace", 5.0, 7, Cohorts(120, 12))] * 50
    assert str(statement(known, 0.0)) == "(10, 0)-DP; 1-zCDP"
    assert str(statement(known, 1e-3)).endswith("-DP; 1-zCDP; pure epsilon = 10")


def test_algorithm_3_gives_this_and_not_what_it_prints() -> None:
    """T = 50, claimed epsilon 10, c = 20, D = 100, one client or row replaced."""
    said = statement(algorithm_3(10.0, 50, 100, Cohorts(1000, 20, "all", "replace")), 1e-5)
    assert said.pure == pytest.approx(200.0, rel=1e-14)  # 2 sqrt(D) epsilon
    assert said.rho == pytest.approx(4.0, rel=1e-14)  # 2 epsilon^2 / T
    charges = algorithm_3(10.0, 50, 100, ANY)
    assert epsilon(charges, 1e-5, "zcdp") == pytest.approx(17.572280848830225, rel=1e-14)
    assert 10 < said.epsilon < 17.572280848830225
    assert "-DP; 4-zCDP; pure epsilon = 200" in str(said)
    assert statement(algorithm_3(10.0, 50, 100, ALL), 1e-5)[:2] == pytest.approx((100.0, 1.0))
    with pytest.raises(PrivacyError, match="Algorithm 3, have no account by PLD"):
        epsilon(charges, 1e-5, "pld")


@pytest.mark.parametrize(
    ("budget", "nats"), [((1.0, 0.0042), 2.3), ((0.5, 0.0042), 1.24), ((3.0, 0.0042), 6.72), ((0.01, 0.0042), 0.09)]
)
def test_gaussian_noise_pays_for_a_replaced_client_at_the_best_point_of_its_curve(
    budget: tuple[float, float], nats: float
) -> None:
    cohorts = Cohorts(24)
    multiplier = noise_multiplier("gaussian", Budget(*budget), 50, cohorts)
    result = replacement([gaussian(multiplier, cohorts)] * 50, 0.05)
    mu = 2 * math.sqrt(50) / multiplier  # zeros, and from them to other data: one step of twice the length

    def paid(logarithm: float) -> float:
        spent = math.exp(logarithm)
        exact = stats.norm.cdf(mu / 2) - stats.norm.cdf(-mu / 2) <= spent
        return (0.0 if exact else gaussian_epsilon(mu, spent)) - math.log1p(-spent / 0.05)

    best = optimize.minimize_scalar(paid, bounds=(math.log(1e-12), math.log(0.0499)), method="bounded").fun
    assert best - 1e-9 <= result.nats(0.05) <= best + 0.02 and result.nats(0.05) <= nats
    if result.epsilon > 0:
        assert result.epsilon == pytest.approx(gaussian_epsilon(mu, result.delta), rel=1e-6)
    known = [gaussian(multiplier, Cohorts(24, neighbours="replace"))] * 50
    assert result.delta >= delta(known, result.epsilon) * (1 - 1e-9)


def test_pure_noise_costs_at_most_its_epsilon_twice_and_less_over_many_rounds() -> None:
    for kind in ("laplace", "knorm"):
        many = [Charge(kind, 100.0, 7, ALL)] * 100
        result = replacement(many, 0.05)
        assert result.nats(0.05) < 0.6 < 2.0 == pytest.approx(2 * pure_epsilon(many))
        assert result.delta >= delta([replace(c, cohorts=ANY) for c in many], result.epsilon, "pld") * (1 - 1e-6)
        one = replacement([Charge(kind, 2.0, 7, ALL)], 0.05)
        assert one.nats(0.05) <= 1.0 and replacement(many[:1], 1e-9) == pytest.approx((0.02, 0.0))
    replaced = [Charge("laplace", 2.0, 7, ANY)]
    assert replacement(replaced, 1e-9).epsilon == pytest.approx(1.0)
    paper = algorithm_3(1.0, 100, 2340, ALL)
    assert replacement(paper, 0.05).nats(0.05) < 1.0 < pure_epsilon(paper)


def hockey_stick(sigma: float, share: float, eps: float) -> float:
    """E_Q[(dP/dQ - e^eps)_+] of one Poisson release whose client sends 1 under P and -1 under Q."""
    x = np.linspace(-1 - 12 * sigma, 1 + 12 * sigma, 400_001)
    here, gone, there = (stats.norm.pdf(x, mean, sigma) for mean in (1.0, 0.0, -1.0))
    p, q = (1 - share) * gone + share * here, (1 - share) * gone + share * there
    return float(np.trapezoid(np.maximum(p - math.exp(eps) * q, 0.0), x))


@pytest.mark.slow
@pytest.mark.parametrize(("sigma", "share"), [(1.0, 0.1), (0.5, 0.5), (3.0, 0.05), (0.8, 0.02)])
def test_a_client_replaced_in_a_poisson_cohort_is_hidden_as_said(sigma: float, share: float) -> None:
    result = replacement([gaussian(sigma, Cohorts(1000, 1000 * share, "poisson"))], 0.05)
    assert hockey_stick(sigma, share, result.epsilon) <= result.delta * (1 + 1e-6) + 1e-12
    everybody = replacement([gaussian(sigma, Cohorts(1000))], 0.05)
    assert result.nats(0.05) <= everybody.nats(0.05) * (1 + 1e-9)
    if share < 0.2:
        assert result.nats(0.05) < 0.5 * everybody.nats(0.05)


def test_a_bound_pays_for_what_it_may_fail_with() -> None:
    charges = [gaussian(20.0)] * 10
    costs = [replacement(charges, at).nats(at) for at in (0.5, 0.05, 1e-3, 1e-9)]
    assert costs == sorted(costs) and costs[0] > 0
    assert Replacement(0.3, 0.01).nats(0.05) == pytest.approx(0.3 + math.log(5 / 4))
    assert Replacement(0.3, 0.05).nats(0.05) == math.inf
    assert replacement([], 0.05) == (0.0, 0.0)
    louder = [replacement([gaussian(m)] * 10, 0.05).nats(0.05) for m in (100.0, 10.0, 1.0, 0.1, 1e-3)]
    assert louder == sorted(louder) and all(map(math.isfinite, louder))
    fixed = replacement([gaussian(5.0, Cohorts(1000, 10, "fixed", "replace"))] * 10, 0.05)
    assert fixed == replacement([gaussian(5.0, Cohorts(1000, 10, "all", "replace"))] * 10, 0.05)
    mixed = replacement([gaussian(5.0), Charge("laplace", 5.0, 3, ALL)], 0.05)
    assert mixed.nats(0.05) > replacement([gaussian(5.0)], 0.05).nats(0.05)
    for at in (0.0, 1.0):
        with pytest.raises(PrivacyError, match="strictly between 0 and 1"):
            replacement(charges, at)
    with pytest.raises(PrivacyError, match="hide the same change"):
        replacement([gaussian(1.0), gaussian(1.0, ANY)], 0.05)


def test_without_dp_accounting_a_replaced_client_costs_what_closed_forms_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    few, many = [Charge("laplace", 100.0, 7, ALL)], [Charge("laplace", 100.0, 7, ALL)] * 100
    assert replacement(few, 1e-9) == pytest.approx((0.02, 0.0))
    assert replacement(many, 0.05).nats(0.05) < 1.0
