"""The bound by the variance: its proof's steps by enumeration, exact failures, mutants, and where it is of use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import optimize, special, stats

from pacbayes_fl import bounds
from pacbayes_fl.bounds import MonteCarlo, Premises, Provenance, bernstein, client
from pacbayes_fl.bounds.coverage import MOST, coverage

FINE = Premises(Provenance("data-free"), independent=True)
RNG = np.random.default_rng(0)


def price(rate: float) -> float:
    return -math.log1p(-rate) - rate


def total(values: np.ndarray) -> float:
    """T of the docstring, by the mean over all orders of the squared distances from the mean of those before."""
    squares = []
    for order in itertools.permutations(values):
        before = [0.5, *(float(np.mean(order[:i])) for i in range(1, len(order)))]
        squares.append(sum((x - c) ** 2 for x, c in zip(order, before, strict=True)))
    return float(np.mean(squares))


def test_the_price_of_the_variance_is_its_mean_over_all_orders() -> None:
    for n in (1, 2, 5, 6):
        values = RNG.random(n)
        harmonic = sum(1 / i for i in range(1, n))
        closed = n * (1 + harmonic / max(1, n - 1)) * values.var() + ((values - 0.5) ** 2).mean()
        assert total(values) == pytest.approx(closed, rel=1e-12) and ((values - 0.5) ** 2).mean() <= 0.25


def test_the_exponential_has_a_mean_of_at_most_one_whatever_the_law_and_the_rate() -> None:
    """By enumeration of all rows, for laws on three values of [0, 1]; without the variance it exceeds 1."""
    largest, without = 0.0, 0.0
    for _ in range(60):
        values, law = np.sort(RNG.random(3)), RNG.dirichlet((0.4, 0.4, 0.4))
        values[0], values[2] = 0.0, 1.0
        mean, n = float(values @ law), int(RNG.integers(1, 6))
        for rate in (0.05, 0.5, 0.99):
            plain = priced = 0.0
            for rows in itertools.product(range(3), repeat=n):
                x, chance = values[list(rows)], math.prod(law[list(rows)])
                harmonic = sum(1 / i for i in range(1, n))
                spread = n * (1 + harmonic / max(1, n - 1)) * x.var() + 0.25
                gain = rate * n * (mean - x.mean())
                priced += chance * math.exp(gain - price(rate) * spread)
                plain += chance * math.exp(gain)
            largest, without = max(largest, priced), max(without, plain)
    assert largest <= 1 + 1e-12 and without > 1.5


def test_the_bound_is_the_root_that_another_solver_finds() -> None:
    n, nats, spread = 100.0, 5.0 + math.log(20), 100 * (1 + float(special.digamma(100) + np.euler_gamma) / 99) * 0.01
    rates = special.expit(np.linspace(-0.5, 1.0, 128) * math.log(n))

    def excess(d: float) -> float:
        exponents = rates * n * d - (-np.log1p(-rates) - rates) * (spread + 0.25)
        return float(special.logsumexp(exponents)) - math.log(128) - nats

    expected = 0.1 + optimize.brentq(excess, 0, 1, xtol=1e-14)
    value = bounds.empirical_bernstein(0.1, 0.01, 5.0, 100, 0.05, FINE).value.item()
    assert expected <= value == pytest.approx(expected, rel=1e-9)


def test_a_variance_by_few_draws_covers_however_many_trials_the_risk_has() -> None:
    """One of ten hypotheses errs on every second row, the others never: V^ = 0.025, by ten draws. As if the draws were
    the trials, the certified variance was below V^ in a third of all worlds; the risk of all rows is exact here."""
    draws, n, fails = 10, 10_000, 0.0
    for hits in range(draws + 1):
        variances = torch.where(torch.arange(draws) < hits, 0.25, 0.0).double()
        estimate = MonteCarlo(draws, 0.01, variances=variances, trials=draws * n)
        terms = bounds.empirical_bernstein(0.05, variances.mean(), 3.0, n, 0.05, FINE, monte_carlo=estimate).terms
        halved = {**terms, "mc_delta": 0.5 * terms["mc_delta"]}
        variance = bernstein._unit_variance(halved, client.unit_risk(halved)).item()
        fails += stats.binom.pmf(hits, draws, 0.1) if variance < 0.025 else 0.0
    assert fails <= 0.005


def failure(n: int, chance: float, delta: float, bound: Callable[[torch.Tensor], torch.Tensor]) -> float:
    """P[bound < chance] for one hypothesis that errs with a chance, by its number of errors."""
    pmf = torch.from_numpy(stats.binom.pmf(np.arange(n + 1), n, chance))
    return pmf[bound(torch.arange(n + 1).double() / n) < chance].sum().item()


@pytest.mark.slow
def test_it_fails_no_more_often_than_delta_at_the_worst_of_all_chances() -> None:
    for n, delta in itertools.product((1, 3, 20, 200), (0.5, 0.05, 1e-3)):

        def value(share: torch.Tensor, n: int = n, delta: float = delta) -> torch.Tensor:
            return bounds.empirical_bernstein(share, share * (1 - share), 0.0, n, delta, FINE).value

        every = value(torch.arange(n + 1).double() / n)
        worst = [failure(n, chance + 1e-9, delta, value) for chance in every.tolist() if chance < 1 - 1e-9]
        assert max(worst, default=0.0) <= delta


@pytest.mark.slow
@pytest.mark.parametrize("dropped", ["variance", "kl"])
def test_what_is_left_out_is_found_by_its_world(dropped: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record = bernstein.EMPIRICAL_BERNSTEIN
    assert max(result.failures for result in coverage(record)) <= MOST
    own = bernstein._bernstein
    monkeypatch.setattr(bernstein, "_bernstein", lambda terms: own({**terms, dropped: 0 * terms[dropped]}))
    assert max(result.failures for result in coverage(record)) > MOST


def test_it_is_below_the_kl_inverse_where_losses_vary_less_than_coins_do_and_hardly_above_elsewhere() -> None:
    still = bounds.empirical_bernstein(0.2, 0.01, 20.0, 2250, 0.05, FINE).value.item()
    coins = bounds.empirical_bernstein(0.2, 0.16, 20.0, 2250, 0.05, FINE).value.item()
    other = bounds.seeger(0.2, 20.0, 2250, 0.05, FINE).value.item()
    assert 0.2 + math.sqrt(0.02 * 23 / 2250) < still < 0.225 < 0.26 < other < coins < other + 0.005


def test_draws_pay_for_the_risk_and_the_variance_and_equal_ones_hardly_anything() -> None:
    exact = bounds.empirical_bernstein(0.2, 0.01, 3.0, 500, 0.04, FINE).value.item()
    plain = bounds.empirical_bernstein(0.2, 0.01, 3.0, 500, 0.05, FINE, monte_carlo=MonteCarlo(1000, 0.01))
    equal = torch.full((1000,), 0.2), torch.full((1000,), 0.01)
    drawn = MonteCarlo(1000, 0.01, *equal)
    known = bounds.empirical_bernstein(0.2, 0.01, 3.0, 500, 0.05, FINE, monte_carlo=drawn)
    assert exact < known.value.item() < exact + 0.02 < plain.value.item()
    nats, m = math.log(1 / 0.005), 1000
    risk, four = (bounds.kl_inverse_upper(torch.tensor(q), torch.tensor(nats / m)).item() for q in (0.2, 4 * 0.01))
    by_hand = bounds.empirical_bernstein(risk, four / 4, 3.0, 500, 0.04, FINE).value.item()
    assert plain.value.item() == pytest.approx(by_hand, rel=1e-7)
    largest = bounds.empirical_bernstein(0.2, 0.25, 3.0, 500, 0.05, FINE, monte_carlo=MonteCarlo(1000, 0.01))
    by_risk = bounds.empirical_bernstein(risk, risk * (1 - risk), 3.0, 500, 0.04, FINE).value.item()
    assert largest.value.item() == pytest.approx(by_risk, rel=1e-7)
    fixed = Premises(Provenance("data-free"), independent=True, predictor="fixed predictor")
    assert not bounds.empirical_bernstein(0.2, 0.01, 3.0, 500, 0.05, fixed).valid
