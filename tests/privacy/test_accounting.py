"""Accounts against closed forms, published numbers and one another."""

from __future__ import annotations

import logging
import math
import sys
from dataclasses import replace
from typing import Any

import dp_accounting
import pytest
from dp_accounting import rdp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.privacy.accounting import Budget, delta, epsilon, noise_multiplier, rounds_within
from pacbayes_fl.privacy.charges import Charge, pure_epsilon, zcdp
from pacbayes_fl.privacy.guarantees import statement
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


TABLE = [
    # sigma, clients, size, rounds, delta, RDP, PLD
    pytest.param(1.0, 10_000, 100, 1000, 1e-5, 2.1013665254, 1.8282436, id="A"),
    pytest.param(10.0, 1000, None, 100, 1e-5, 4.7285070672, 4.3771781, id="C"),
    pytest.param(2.0, 120, 12, 500, 1e-3, 4.5101846674, 3.9803026, id="D"),
]


@pytest.mark.law
@pytest.mark.parametrize(("sigma", "clients", "size", "rounds", "at", "rdp", "pld"), TABLE)
def test_subsampled_gaussian_noise(
    sigma: float, clients: int, size: int | None, rounds: int, at: float, rdp: float, pld: float
) -> None:
    charges = [gaussian(sigma, Cohorts(clients, size, "all" if size is None else "poisson"))] * rounds
    assert epsilon(charges, at, "rdp") == pytest.approx(rdp, abs=1e-8)
    assert epsilon(charges, at, "pld") == pytest.approx(pld, abs=2e-3)
    assert epsilon(charges, at) == pytest.approx(pld, abs=2e-3)
    assert delta(charges, pld, "pld") == pytest.approx(at, rel=1e-3)
    assert delta(charges, rdp, "rdp") == pytest.approx(at, rel=1e-2)


@pytest.mark.law
@pytest.mark.parametrize("multiplier", [0.01, 0.3, 30.0])
def test_the_closed_form_holds_for_much_and_for_little_noise(multiplier: float) -> None:
    charges = [gaussian(multiplier)] * 4
    assert epsilon(charges, 1e-8) == pytest.approx(epsilon(charges, 1e-8, "pld"), rel=2e-4)
    assert epsilon(charges, 1e-8) <= epsilon(charges, 1e-8, "rdp")
    assert delta(charges, epsilon(charges, 1e-8)) == pytest.approx(1e-8, rel=1e-4)


def test_gaussian_noise_of_twenty_sensitivities_a_hundred_times() -> None:
    charges = [gaussian(20.0)] * 100
    exact = gaussian_epsilon(0.5, 1e-5)
    assert exact == pytest.approx(1.9930914044151173, abs=1e-10)
    assert zcdp(charges) == pytest.approx(0.125, rel=1e-14)
    assert epsilon(charges, 1e-5, "zcdp") == pytest.approx(2.5242629560940406, rel=1e-14)
    assert exact <= epsilon(charges, 1e-5, "pld") <= exact + 1e-4
    # a grid of 14 orders, whose best is 10, gives 2.168010636783972
    assert exact <= epsilon(charges, 1e-5, "rdp") <= 2.168010636783972
    assert delta(charges, 2.5242629560940406, "zcdp") == pytest.approx(1e-5, rel=1e-12)


@pytest.mark.slow
def test_replacing_a_client_costs_what_half_the_noise_does() -> None:
    charges = [gaussian(10.0, ANY)] * 100
    assert epsilon(charges, 1e-5, "rdp") == pytest.approx(10.7255096964, abs=1e-8)
    assert epsilon(charges, 1e-5, "pld") == pytest.approx(9.9973, abs=2e-3)
    assert gaussian_epsilon(2.0, 1e-5) == pytest.approx(9.9973, abs=1e-4)
    assert epsilon(charges, 1e-5, "pld") == pytest.approx(epsilon([gaussian(5.0)] * 100, 1e-5, "pld"), abs=1e-9)


def test_fixed_cohorts_are_accounted_for_replacing() -> None:
    """12 of 120, noise 2 clips, 500 rounds: 11.1699 forgets that replacing moves the sum by two clips."""
    charges = [gaussian(2.0, Cohorts(120, 12, "fixed", "replace"))] * 500
    assert epsilon(charges, 1e-3, "rdp") == pytest.approx(31.9911, abs=1e-3)
    assert epsilon(charges, 1e-3) == epsilon(charges, 1e-3, "rdp")
    known = [gaussian(2.0, Cohorts(120, 12, "all", "replace"))] * 500
    assert epsilon(known, 1e-3, "rdp") == pytest.approx(331.84, abs=1e-2)
    with pytest.raises(PrivacyError, match=r"fixed cohorts .* have no account by PLD \(method = 'rdp'\)"):
        epsilon(charges, 1e-3, "pld")


@pytest.mark.slow
def test_large_fixed_cohorts_cost_no_more_than_known_ones() -> None:
    """20 of 24, noise 5 clips, 40 rounds: 19.9 by the account of subsampling, which is of no use here."""
    fixed, known = (gaussian(5.0, Cohorts(24, 20, kind, "replace")) for kind in ("fixed", "all"))  # type: ignore[arg-type]
    exact = gaussian_epsilon(math.sqrt(40) / 2.5, 4e-3)
    assert epsilon([fixed] * 40, 4e-3) == pytest.approx(exact, rel=1e-9) and exact <= 9.24
    assert epsilon([fixed] * 40, 4e-3, "rdp") > 15
    assert delta([fixed] * 40, exact) == pytest.approx(4e-3, rel=1e-6)
    multipliers = [noise_multiplier("gaussian", Budget(9.24, 4e-3), 40, each.cohorts) for each in (fixed, known)]
    assert multipliers[0] == pytest.approx(5.0, rel=5e-3) and multipliers[0] <= multipliers[1] * 1.002


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "cohorts"),
    [
        *((kind, Cohorts(24, 6, "poisson")) for kind in ("gaussian", "laplace")),
        ("laplace", Cohorts(24, 6, "fixed", "replace")),
    ],
)
def test_an_absurd_epsilon_has_an_account_and_one_by_pld_says_why_not(kind: Any, cohorts: Cohorts) -> None:
    multiplier = noise_multiplier(kind, Budget(1e6, 4e-3), 40, cohorts)
    charges = [Charge(kind, multiplier, 10, cohorts)] * 40
    assert 0.99e6 <= epsilon(charges, 4e-3) <= 1e6 and epsilon(charges, 4e-3) <= epsilon(charges, 4e-3, "rdp")
    assert delta(charges, 1e6) <= 4.1e-3
    with pytest.raises(PrivacyError, match=r"no account by PLD: its epsilon is too large .*\(method = 'rdp'"):
        epsilon([replace(charges[0], multiplier=1e-5)], 4e-3, "pld")


@pytest.mark.quick
def test_laplace_noise_of_a_hundred_clips_a_hundred_times() -> None:
    charges = [Charge("laplace", 100.0, 7, ALL)] * 100
    assert pure_epsilon(charges) == pytest.approx(1.0, rel=1e-14)
    assert epsilon(charges, 0.0) == epsilon(charges, 1e-5, "pure") == pure_epsilon(charges)
    assert epsilon(charges, 1e-5) == pytest.approx(0.336693, abs=1e-6)
    assert epsilon(charges, 1e-5) < epsilon(charges, 1e-5, "rdp") < epsilon(charges, 1e-5, "zcdp")
    assert epsilon([Charge("laplace", 200.0, 7, ANY)] * 100, 1e-5) == pytest.approx(0.336693, abs=1e-6)


def test_any_pure_mechanism_is_at_worst_randomised_response() -> None:
    """Composed exactly: T answers, k of them true, lose (2 k - T) eps with binomial probability."""
    charges, eps, rounds = [Charge("knorm", 100.0, 7, ALL)] * 100, 0.01, 100
    k = range(rounds + 1)
    chance = stats.binom.pmf(k, rounds, 1 / (1 + math.exp(-eps)))

    def excess(at: float) -> float:
        return (
            sum(p * max(0.0, -math.expm1(at - (2 * i - rounds) * eps)) for i, p in zip(k, chance, strict=True)) - 1e-5
        )

    assert epsilon(charges, 1e-5) == pytest.approx(optimize.brentq(excess, 0, 1), abs=1e-6)
    assert pure_epsilon(charges) == pytest.approx(1.0)
    one = charges[:1]
    assert delta(one, 0.004, "pure") == pytest.approx((math.exp(0.01) - math.exp(0.004)) / (1 + math.exp(0.01)))
    assert delta(one, 0.004) == pytest.approx(delta(one, 0.004, "pure"), rel=1e-6)
    assert delta(one, 0.01) == 0


@pytest.mark.parametrize(
    ("claimed", "rounds", "true"),
    [(1, 100, 0.794), (1, 1000, 0.229), (10, 100, 10.72), (10, 1000, 2.81), (100, 1000, 48.8)],
)
def test_algorithm_3_is_better_than_it_prints_with_a_delta_only_over_many_rounds(
    claimed: float, rounds: int, true: float
) -> None:
    charges = algorithm_3(claimed, rounds, 3300, ANY)
    assert epsilon(charges, 1e-5) == pytest.approx(true, rel=3e-3)


def test_secret_cohorts_help_a_little() -> None:
    """D = 3300, T = 500, a tenth of the clients a round, claimed epsilon 1."""
    known = algorithm_3(1.0, 500, 3300, Cohorts(120, 12, "all", "replace"))
    secret = algorithm_3(1.0, 500, 3300, Cohorts(120, 12, "fixed", "replace"))
    assert pure_epsilon(known) == pytest.approx(114.9, abs=0.05)
    assert pure_epsilon(secret) == pytest.approx(12.8, abs=0.06)
    assert statement(secret, 1e-3).pure == pytest.approx(114.9, abs=0.05)


def test_opacus_own_number() -> None:
    """Noise 1.5, sampling .04, 2250 steps: 7.32911117143 by RDP there, 6.777395712150674 by PRV."""
    charges = [gaussian(1.5, Cohorts(10_000, 400, "poisson"))] * 2250
    assert epsilon(charges, 1e-5, "rdp") == pytest.approx(7.32911117143, rel=1e-2)
    assert epsilon(charges, 1e-5, "pld") == pytest.approx(6.777395712150674, abs=2e-2)


def test_different_releases_add_up() -> None:
    parts = [gaussian(10.0)] * 50 + [gaussian(5.0)] * 2
    assert zcdp(parts) == pytest.approx(50 / 200 + 2 / 50)
    mu = math.sqrt(50 / 100 + 2 / 25)
    assert epsilon(parts, 1e-5, "pld") == pytest.approx(gaussian_epsilon(mu, 1e-5), abs=5e-4)
    assert epsilon(parts[::-1], 1e-5, "pld") == pytest.approx(epsilon(parts, 1e-5, "pld"), abs=1e-9)
    assert pure_epsilon(parts) == math.inf and pure_epsilon([]) == epsilon([], 1e-5) == delta([], 1.0) == 0
    with pytest.raises(PrivacyError, match="the same change"):
        zcdp([gaussian(1.0), gaussian(1.0, ANY)])


def test_little_noise_takes_no_time() -> None:
    """An epsilon of thousands on a grid for an epsilon of one would have 10^7 cells."""
    charges = [gaussian(0.05, Cohorts(1000, 100, "poisson"))] * 10
    assert 1299 < epsilon(charges, 1e-5, "pld") < 1300.5


@pytest.mark.parametrize("kind", ["laplace", "knorm"])
@pytest.mark.parametrize("cohorts", [ALL, ANY, Cohorts(120, 12, "poisson"), Cohorts(120, 12, "fixed", "replace")])
def test_the_noise_for_a_pure_epsilon(kind: Any, cohorts: Cohorts) -> None:
    multiplier = noise_multiplier(kind, Budget(3.0, 0.0), 40, cohorts)
    charge = Charge(kind, multiplier, 100, cohorts)
    assert pure_epsilon([charge] * 40) == pytest.approx(3.0, rel=1e-12)
    assert rounds_within(charge, Budget(3.0, 0.0)) == 40
    if cohorts.kind == "all":
        assert multiplier == pytest.approx(40 * cohorts.sensitivity / 3)  # T Delta_1 / epsilon


def test_algorithm_3_would_need_this_noise_for_what_it_prints() -> None:
    """T = 50, epsilon = 10, c = 20, D = 100: scale 5 on the mean, where it prints .25."""
    cohorts = Cohorts(1000, 20, "all", "replace")
    assert noise_multiplier("paper_algorithm_3", Budget(10.0, 0.0), 50, cohorts, 100) / 20 == pytest.approx(5.0)


@pytest.mark.law
@pytest.mark.parametrize("method", ["zcdp", "rdp", "auto"])
@pytest.mark.parametrize(("kind", "cohorts"), [("gaussian", ALL), ("gaussian", ANY), ("paper_algorithm_3", ANY)])
def test_the_least_noise_of_a_budget_is_within_it_and_less_is_not(method: Any, kind: Any, cohorts: Cohorts) -> None:
    budget = Budget(2.0, 1e-5, method)
    multiplier = noise_multiplier(kind, budget, 30, cohorts, 100)
    charge = Charge(kind, multiplier, 100, cohorts)
    assert epsilon([charge] * 30, 1e-5, method) <= 2.0 * (1 + 1e-9)
    assert epsilon([Charge(kind, multiplier / 1.0015, 100, cohorts)] * 30, 1e-5, method) > 2.0
    assert rounds_within(charge, budget) == 30
    assert rounds_within(charge, budget, [charge] * 12) == 18
    assert rounds_within(charge, budget, [charge] * 31) == 0
    assert rounds_within(charge, budget, most=7) == 7


@pytest.mark.slow
def test_the_noise_for_poisson_cohorts() -> None:
    multiplier = noise_multiplier("gaussian", Budget(3.9803026, 1e-3), 500, Cohorts(120, 12, "poisson"))
    assert multiplier == pytest.approx(2.0, rel=2e-3)


@pytest.mark.law
@pytest.mark.parametrize(("sigma", "share"), [(0.5, 0.03), (0.7, 0.1), (2.0, 0.2), (3.0, 0.5), (30.0, 0.5), (8.0, 0.6)])
def test_cohorts_of_any_share_are_accounted_for_without_a_word(
    logged: list[logging.LogRecord], sigma: float, share: float
) -> None:
    """dp-accounting gives up on some orders, says so of each, and leaves them out; here they are not asked for."""
    mine = epsilon([Charge("gaussian", sigma, 3, Cohorts(1000, 1000 * share, "poisson"))] * 40, 1e-4, "rdp")
    assert not logged
    accountant = rdp.RdpAccountant()
    event = dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(sigma))
    theirs = float(accountant.compose(event, 40).get_epsilon(1e-4))
    assert theirs * (1 - 1e-9) <= mine <= 1.01 * theirs


GAUSSIANS = st.tuples(st.floats(0.5, 20), st.integers(1, 500), st.integers(1, 100))


@pytest.mark.slow
@settings(max_examples=25)
@given(GAUSSIANS, st.floats(1.01, 3), st.integers(1, 500), st.floats(1e-8, 5e-3), st.sampled_from(["rdp", "zcdp"]))
def test_more_noise_fewer_rounds_smaller_cohorts_and_a_larger_delta_cost_no_more(
    base: tuple[float, int, int], more: float, rounds: int, at: float, method: Any
) -> None:
    multiplier, count, size = base

    def spent(multiplier: float = multiplier, count: int = count, size: float = size, at: float = at) -> float:
        return epsilon([gaussian(multiplier, Cohorts(100, size, "poisson"))] * count, at, method)

    here = spent()
    assert spent(multiplier=multiplier * more) <= here * (1 + 1e-9)
    assert spent(count=count + rounds) >= here * (1 - 1e-9)
    assert spent(size=size / more) <= here * (1 + 1e-9)
    assert spent(at=min(at * more, 9e-3)) <= here * (1 + 1e-9)
    replaced = epsilon([gaussian(multiplier, Cohorts(100, None, "all", "replace"))] * count, at, method)
    assert here <= replaced * (1 + 1e-9)


@pytest.mark.parametrize(
    ("at", "method", "message"),
    [
        (1e-3, "auto", r"delta must be below 1 / N = 0.001, got 0.001 \(with more"),
        (0.5, "zcdp", "delta must be below"),
        (-1e-9, "auto", r"delta must be in \[0, 1\)"),
        (math.nan, "auto", r"delta must be in \[0, 1\)"),
        (1e-5, "moments", "method must be one of auto, pure, zcdp, rdp, pld, got 'moments'"),
    ],
)
def test_values_out_of_range_are_refused(at: float, method: Any, message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        epsilon([gaussian(1.0)], at, method)


def test_budgets_out_of_range_are_refused() -> None:
    for bad in ({"epsilon": 0.0}, {"epsilon": math.inf}, {"delta": 1.0}, {"method": "moments"}):
        with pytest.raises(PrivacyError):
            Budget(**{"epsilon": 1.0, "delta": 1e-5} | bad)
    with pytest.raises(PrivacyError, match=r"Gaussian noise has no pure epsilon \(give a delta"):
        noise_multiplier("gaussian", Budget(1.0, 0.0), 10, ALL)
    with pytest.raises(PrivacyError, match="rounds must be at least 1, got 0"):
        noise_multiplier("laplace", Budget(1.0, 0.0), 0, ALL)
    with pytest.raises(PrivacyError, match="epsilon must be at least 0, got nan"):
        delta([gaussian(1.0)], math.nan)
    assert epsilon([gaussian(1.0)], 0.0) == math.inf


def test_without_dp_accounting_closed_forms_work_and_the_rest_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    charges = [gaussian(10.0, Cohorts(1000, 10, "poisson"))] * 100
    assert epsilon([gaussian(10.0)], 1e-5) > 0 and epsilon(charges, 1e-5, "zcdp") > 0
    assert pure_epsilon([Charge("laplace", 1.0, 3, ALL)]) == 1
    for method in ("auto", "rdp", "pld"):
        with pytest.raises(PrivacyError, match=r"needs dp-accounting.*pip install 'pacbayes_fl\[privacy\]'"):
            epsilon(charges, 1e-5, method)  # type: ignore[arg-type]
