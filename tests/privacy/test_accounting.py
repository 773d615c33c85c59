"""Accounts against closed forms, published numbers and one another."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting import rdp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.privacy import accounting
from pacbayes_fl.privacy.accounting import (
    Budget,
    Charge,
    Replacement,
    Statement,
    delta,
    epsilon,
    noise_multiplier,
    pure_epsilon,
    replacement,
    rounded,
    rounds_within,
    statement,
    zcdp,
)
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism

ALL = Cohorts(clients=1000)
ANY = Cohorts(clients=1000, neighbours="replace")


def gaussian(multiplier: float, cohorts: Cohorts = ALL) -> Charge:
    return Charge("gaussian", multiplier, 100, cohorts)


def algorithm_3(claimed: float, rounds: int, coordinates: int, cohorts: Cohorts) -> list[Charge]:
    return [Charge.of(Mechanism.algorithm_3(1.0, claimed, rounds), cohorts, coordinates)] * rounds


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


@pytest.mark.parametrize(
    ("sigma", "share", "at"),
    [(1.0, 0.01, (1.71813422e-4, 8.93643908e-4, 11.2462759)), (2.0, 0.1, (2.83622827e-3, 1.37254301e-2, 1.62720230))],
)
def test_one_round_in_renyi_divergence(sigma: float, share: float, at: tuple[float, ...]) -> None:
    charge = gaussian(sigma, Cohorts(10_000, 10_000 * share, "poisson"))
    accountant = accounting._rdp([charge])
    orders = [int(round(float(order), 9)) if float(order).is_integer() else 0 for order in accountant._orders]
    assert [float(accountant._rdp[orders.index(order)]) for order in (2, 8, 32)] == pytest.approx(at, rel=1e-8)


def test_without_chance_gaussian_noise_has_a_closed_form() -> None:
    assert gaussian_epsilon(1.0, 1e-5) == pytest.approx(4.377178095681, abs=1e-9)
    charges = [gaussian(10.0)] * 100
    assert epsilon(charges, 1e-5) == pytest.approx(4.377178095681, abs=1e-11)
    assert delta(charges, 4.377178095681) == pytest.approx(1e-5, rel=1e-9)
    assert epsilon([gaussian(1e3)], 9e-4) == 0.0 and delta([gaussian(1e3)], 0.0) == pytest.approx(4e-4, rel=3e-3)
    assert epsilon(charges, 1e-5, "pld") == pytest.approx(4.377178095681, abs=1e-4)
    assert epsilon(charges, 1e-5, "pld") >= 4.377178095681


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


def test_large_fixed_cohorts_cost_no_more_than_known_ones() -> None:
    """20 of 24, noise 5 clips, 40 rounds: 19.9 by the account of subsampling, which is of no use here."""
    fixed, known = (gaussian(5.0, Cohorts(24, 20, kind, "replace")) for kind in ("fixed", "all"))  # type: ignore[arg-type]
    exact = gaussian_epsilon(math.sqrt(40) / 2.5, 4e-3)
    assert epsilon([fixed] * 40, 4e-3) == pytest.approx(exact, rel=1e-9) and exact <= 9.24
    assert epsilon([fixed] * 40, 4e-3, "rdp") > 15
    assert delta([fixed] * 40, exact) == pytest.approx(4e-3, rel=1e-6)
    multipliers = [noise_multiplier("gaussian", Budget(9.24, 4e-3), 40, each.cohorts) for each in (fixed, known)]
    assert multipliers[0] == pytest.approx(5.0, rel=5e-3) and multipliers[0] <= multipliers[1] * 1.002


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


def test_the_noise_for_poisson_cohorts() -> None:
    multiplier = noise_multiplier("gaussian", Budget(3.9803026, 1e-3), 500, Cohorts(120, 12, "poisson"))
    assert multiplier == pytest.approx(2.0, rel=2e-3)


@pytest.mark.parametrize(("sigma", "share"), [(0.5, 0.03), (0.7, 0.1), (2.0, 0.2), (3.0, 0.5), (30.0, 0.5), (8.0, 0.6)])
def test_cohorts_of_any_share_are_accounted_for_without_a_word(
    caplog: pytest.LogCaptureFixture, sigma: float, share: float
) -> None:
    """dp-accounting gives up on some orders, says so of each, and leaves them out; here they are not asked for."""
    mine = epsilon([Charge("gaussian", sigma, 3, Cohorts(1000, 1000 * share, "poisson"))] * 40, 1e-4, "rdp")
    assert not caplog.records
    accountant = rdp.RdpAccountant()
    event = dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(sigma))
    theirs = float(accountant.compose(event, 40).get_epsilon(1e-4))
    assert theirs * (1 - 1e-9) <= mine <= 1.01 * theirs


GAUSSIANS = st.tuples(st.floats(0.5, 20), st.integers(1, 500), st.integers(1, 100))


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


def test_pld_grows_with_rounds_and_shrinks_with_delta_and_noise() -> None:
    poisson = Cohorts(120, 12, "poisson")
    for charge, less in (
        (gaussian(2.0, poisson), gaussian(2.5, poisson)),
        (Charge("laplace", 5.0, 9, poisson), Charge("laplace", 6.0, 9, poisson)),
        (Charge("knorm", 5.0, 9, ALL), Charge("knorm", 6.0, 9, ALL)),
    ):
        here = epsilon([charge] * 50, 1e-4, "pld")
        assert epsilon([charge] * 60, 1e-4, "pld") > here > epsilon([charge] * 50, 8e-4, "pld")
        assert here > epsilon([less] * 50, 1e-4, "pld")
        assert 0 < delta([charge] * 50, here * 1.1, "pld") < delta([charge] * 50, here, "pld") <= 1.001e-4


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
def test_what_means_nothing_is_refused(at: float, method: Any, message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        epsilon([gaussian(1.0)], at, method)


def test_budgets_that_mean_nothing_are_refused() -> None:
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


# a client whose data are replaced -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "nats"), [((1.0, 0.0042), 2.3), ((0.5, 0.0042), 1.24), ((3.0, 0.0042), 6.72), ((0.01, 0.0042), 0.09)]
)
def test_gaussian_noise_pays_for_a_replaced_client_at_the_best_point_of_its_curve(
    budget: tuple[float, float], nats: float
) -> None:
    cohorts = Cohorts(24)
    multiplier = noise_multiplier("gaussian", Budget(*budget), 50, cohorts)
    found = replacement([gaussian(multiplier, cohorts)] * 50, 0.05)
    mu = 2 * math.sqrt(50) / multiplier  # zeros, and from them to other data: one step of twice the length

    def paid(logarithm: float) -> float:
        spent = math.exp(logarithm)
        exact = stats.norm.cdf(mu / 2) - stats.norm.cdf(-mu / 2) <= spent
        return (0.0 if exact else gaussian_epsilon(mu, spent)) - math.log1p(-spent / 0.05)

    best = optimize.minimize_scalar(paid, bounds=(math.log(1e-12), math.log(0.0499)), method="bounded").fun
    assert best - 1e-9 <= found.nats(0.05) <= best + 0.02 and found.nats(0.05) <= nats
    if found.epsilon > 0:
        assert found.epsilon == pytest.approx(gaussian_epsilon(mu, found.delta), rel=1e-6)
    known = [gaussian(multiplier, Cohorts(24, neighbours="replace"))] * 50
    assert found.delta >= delta(known, found.epsilon) * (1 - 1e-9)


def test_pure_noise_costs_at_most_its_epsilon_twice_and_less_over_many_rounds() -> None:
    for kind in ("laplace", "knorm"):
        many = [Charge(kind, 100.0, 7, ALL)] * 100
        found = replacement(many, 0.05)
        assert found.nats(0.05) < 0.6 < 2.0 == pytest.approx(2 * pure_epsilon(many))
        assert found.delta >= delta([replace(c, cohorts=ANY) for c in many], found.epsilon, "pld") * (1 - 1e-6)
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


@pytest.mark.parametrize(("sigma", "share"), [(1.0, 0.1), (0.5, 0.5), (3.0, 0.05), (0.8, 0.02)])
def test_a_client_replaced_in_a_poisson_cohort_is_hidden_as_said(sigma: float, share: float) -> None:
    found = replacement([gaussian(sigma, Cohorts(1000, 1000 * share, "poisson"))], 0.05)
    assert hockey_stick(sigma, share, found.epsilon) <= found.delta * (1 + 1e-6) + 1e-12
    everybody = replacement([gaussian(sigma, Cohorts(1000))], 0.05)
    assert found.nats(0.05) <= everybody.nats(0.05) * (1 + 1e-9)
    if share < 0.2:
        assert found.nats(0.05) < 0.5 * everybody.nats(0.05)


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
