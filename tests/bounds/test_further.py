"""One drawn hypothesis, all numbers of rows at once, votes: exact failures, mutants, and the proofs' own steps."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from pacbayes_fl import bounds
from pacbayes_fl.bounds import MonteCarlo, Premises, Provenance
from pacbayes_fl.bounds.kl_inverse import binary_kl
from pacbayes_fl.bounds.moment import log_moment

FINE = Premises(Provenance("data-free"), independent=True)
DELTA = 0.05


def test_the_mixture_of_coins_is_never_below_its_bound_whatever_the_losses() -> None:
    """The step behind `anytime`: ln B(k + 1/2, n - k + 1/2) / pi + n h(k / n) >= -ln(pi n + 1) / 2, real k included."""
    for n in (1, 2, 7, 100, 10**5):
        k = np.linspace(0, n, 2001)
        entropy = special.entr(k / n) + special.entr(1 - k / n)
        left = special.betaln(k + 0.5, n - k + 0.5) - math.log(math.pi) + n * entropy
        assert left.min() >= -0.5 * math.log(math.pi * n + 1) - 1e-12
        assert left.min() == pytest.approx(left[0], abs=1e-9)


def failures(bound: list[float], chance: float, rows: int) -> float:
    """P[some n up to `rows` has a bound below the chance], by the paths of errors; bound[n][k]."""
    alive, failed = np.ones(1), 0.0
    for n in range(1, rows + 1):
        grown = np.zeros(n + 1)
        grown[:-1] += alive * (1 - chance)
        grown[1:] += alive * chance
        wrong = np.array(bound[n - 1]) < chance
        failed += grown[wrong].sum()
        alive = np.where(wrong, 0.0, grown)
    return float(failed)


@pytest.mark.parametrize("chance", [0.5, 0.1])
def test_a_bound_for_all_numbers_of_rows_holds_at_all_of_them_where_others_do_not(chance: float) -> None:
    rows = 120

    def values(name: str, delta: float) -> list[float]:
        function = getattr(bounds, name)
        result = []
        for n in range(1, rows + 1):
            result.append(function(torch.arange(n + 1).double() / n, 0.0, n, delta, FINE).value.tolist())
        return result

    assert failures(values("anytime", DELTA), chance, rows) <= DELTA
    assert failures(values("anytime", 0.9), chance, rows) > DELTA  # mutant: delta is not paid
    one = bounds.anytime(0.1, 2.0, 1000, DELTA, FINE).value.item()
    fixed = bounds.seeger(0.1, 2.0, 1000, DELTA, FINE).value.item()
    assert fixed < one < fixed + 0.003
    assert 0.5 * math.log(math.pi * 1000 + 1) - log_moment(torch.tensor(1000.0)).item() < 0.5 * math.log(2)


@pytest.mark.parametrize("known", [False, True])
def test_estimates_at_all_numbers_of_rows_mislead_together_as_often_as_one_may(known: bool) -> None:
    """Half of the posterior, which is the prior, always errs, and half never: at every n 20 draws estimate 1/2."""
    draws, n = 20, torch.arange(1, 2001).double().expand(21, -1)
    wrong = torch.arange(draws + 1).double().unsqueeze(1)
    risks = (torch.arange(draws) < wrong).double().unsqueeze(1).expand(-1, 2000, -1) if known else None
    estimate = MonteCarlo(draws, 0.5 * DELTA, risks)
    risk = (wrong / draws).expand(-1, 2000)
    value = bounds.anytime(risk, 0.0, n, DELTA, FINE, monte_carlo=estimate).value
    pmf = torch.from_numpy(stats.binom.pmf(np.arange(draws + 1), draws, 0.5)).unsqueeze(1)
    ever = 1.0 - (1.0 - (pmf * (value < 0.5)).sum(0)).prod().item()
    assert ever <= 0.5 * DELTA  # .81, and with the risks known .27, where every estimate has the whole share


def test_one_draw_covers_exactly_and_needs_its_ratio_and_its_moment() -> None:
    """Two hypotheses with independent coins in n rows, and the best of them, ties to the first: all by enumeration."""
    for n, chance in ((1, 0.5), (6, 0.7), (30, 0.5), (30, 0.95)):
        k = torch.arange(n + 1)
        pmf = torch.from_numpy(stats.binom.pmf(k.numpy(), n, chance))
        joint = pmf.unsqueeze(1) * pmf
        best = torch.minimum(k.unsqueeze(1), k).double() / n  # Q is a point mass on it, P puts 1/2 on each
        for delta in (0.5, 0.05):
            value = bounds.one_draw(best, math.log(2), n, delta, FINE).value
            assert joint[value < chance].sum().item() <= delta
    n, delta, chance = 30, 0.5, 0.5
    pmf = torch.from_numpy(stats.binom.pmf(np.arange(n + 1), n, chance))
    share = torch.arange(n + 1).double() / n

    def fails(hypotheses: int, nats: float) -> float:
        """Best of many independent coins, under a bound that pays these nats."""
        tail = pmf.flip(0).cumsum(0).flip(0)
        least = tail**hypotheses - torch.cat((tail[1:], torch.zeros(1).double())) ** hypotheses
        above = bounds.kl_inverse_upper(share, torch.tensor(max(0.0, nats) / n).double())
        return least[above < chance].sum().item()

    moment = log_moment(torch.tensor(float(n))).item()
    assert fails(1000, math.log(1000) + moment - math.log(delta)) <= delta
    assert fails(1000, moment - math.log(delta)) > delta  # without the ratio
    nats = torch.tensor(math.log(1000) + moment - math.log(delta), dtype=torch.float64)
    expected = bounds.kl_inverse_upper(torch.tensor(0.3, dtype=torch.float64), nats / n).item()
    assert bounds.one_draw(0.3, math.log(1000), n, delta, FINE).value.item() == pytest.approx(expected, rel=1e-12)


def test_a_draw_that_is_likelier_under_the_prior_costs_less_and_never_less_than_nothing() -> None:
    one, other = (bounds.one_draw(0.2, ratio, 50, DELTA, FINE).value.item() for ratio in (-1.0, 0.0))
    assert one < other == bounds.seeger(0.2, 0.0, 50, DELTA, FINE).value.item()
    assert bounds.one_draw(0.2, -1e3, 50, DELTA, FINE).value.item() == pytest.approx(0.2)
    vote = dataclasses.replace(FINE, predictor="majority vote")
    assert not bounds.one_draw(0.2, 1.0, 50, DELTA, vote).valid


def test_certificates_name_the_predictor_that_they_are_on_and_no_other_bound_speaks_of_it() -> None:
    ones = {
        "one hypothesis that was drawn from the posterior": bounds.one_draw(0.2, 1.0, 50, DELTA, FINE),
        "majority vote": bounds.tandem(0.1, 1.0, 50, DELTA, FINE),
        "predictor that was fixed before the rows": bounds.holdout_binomial(0.2, 50, DELTA, FINE),
    }
    for name, one in ones.items():
        assert one.valid and f"of the {name}, each client" in str(one) and "Gibbs" not in str(one)
        assert not bounds.seeger(0.2, 1.0, 50, DELTA, one.premises).valid
        assert bounds.from_record(bounds.to_record(one)).premises == one.premises
    assert bounds.one_draw(0.2, 1.0, 50, DELTA, ones["one hypothesis that was drawn from the posterior"].premises).valid


def test_the_tandem_bound_pays_for_both_draws_and_is_sharp_where_half_of_the_mass_errs() -> None:
    tandem, kl, n = 0.05, 3.0, 400
    value = bounds.tandem(tandem, kl, n, DELTA, FINE).value.item()
    budget = n * binary_kl(*torch.tensor([tandem, value / 4], dtype=torch.float64)).item()
    nats = 2 * kl + log_moment(torch.tensor(float(n))).item() + math.log(1 / DELTA)
    assert budget == pytest.approx(nats, rel=1e-9)
    # In a share p of rows a half of the hypotheses err, at random which: the vote errs there, and T = p / 4 exactly.
    p, rows = 0.3, 2000
    hard = torch.arange(rows + 1).double()
    chance = torch.from_numpy(stats.binom.pmf(hard.numpy(), rows, p))
    bound = bounds.tandem(hard / rows / 4, 0.0, rows, DELTA, FINE).value
    assert chance[bound < p].sum().item() <= DELTA
    assert chance[0.5 * bound < p].sum().item() > DELTA  # mutant: the factor 2 of a Gibbs predictor
    uncorrelated = bounds.tandem(0.01, 1.0, 5000, DELTA, FINE)
    factor_two = dataclasses.replace(FINE, predictor="majority vote")
    assert uncorrelated.value < bounds.seeger(0.1, 1.0, 5000, DELTA, factor_two).value
    wrong = dataclasses.replace(FINE, loss=bounds.SaturatingSquare())
    assert any("no 0-1 loss" in reason for reason in bounds.tandem(0.1, 1.0, 50, DELTA, wrong).reasons)


def test_all_pairs_of_drawn_hypotheses_are_half_as_many_draws() -> None:
    """A posterior, its own prior, of which .7 always errs: 200 draws, of which the pairs that both err are counted."""
    size, chance, share = 200, 0.7, 0.8 * DELTA
    wrong = torch.arange(size + 1).double()
    pairs, pmf = wrong * (wrong - 1) / (size * (size - 1)), stats.binom.pmf(wrong.numpy(), size, chance)

    def misled(draws: int) -> float:
        value = bounds.tandem(pairs, 0.0, 10**9, DELTA, FINE, monte_carlo=MonteCarlo(draws, share)).value
        return float(pmf[(value < 4 * chance**2).numpy()].sum())

    assert misled(size // 2) <= share < misled(size * (size - 1) // 2)
