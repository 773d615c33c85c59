"""One drawn hypothesis, all numbers of rows at once, votes: exact failures, mutants, and the proofs' own steps."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import special, stats

from pacbayes_fl import bounds
from pacbayes_fl.bounds import MonteCarlo, Premises, Provenance
from pacbayes_fl.bounds.kl_inverse import binary_kl
from pacbayes_fl.bounds.moment import log_moment
from pacbayes_fl.errors import AssumptionError

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


@pytest.mark.slow
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


@pytest.mark.slow
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
    nats = torch.tensor(math.log(1000) + log_moment(torch.tensor(30.0)).item() - math.log(0.5), dtype=torch.float64)
    expected = bounds.kl_inverse_upper(torch.tensor(0.3, dtype=torch.float64), nats / 30).item()
    assert bounds.one_draw(0.3, math.log(1000), 30, 0.5, FINE).value.item() == pytest.approx(expected, rel=1e-12)


def best_of(hypotheses: float, name: str, n: int, delta: float, nats: float = 1.0, rows: int = 1) -> float:
    """Failures, as a share of delta, where Q is a point mass on the best of many independent coins: exact, no draws.

    P is uniform, so that KL = ln H, of which the bound is told `nats` times as much, and of n `rows` times as many. The
    best has k errors or fewer with 1 - (1 - F(k))^H. Of a vote each of the H is a pair: in a row whose coin falls one
    of the two errs, so that the vote is lost there, and their tandem risk is a quarter of the share of such rows.

    The chance of an error is the worst one, just above a value of the bound: failures fall as it grows up to the next.
    """
    k = np.arange(n + 1)
    risk, paid = torch.from_numpy(k / n), nats * math.log(hypotheses)
    known = {"risk": risk, "tandem_risk": 0.25 * risk, "kl": paid, "log_ratio": paid, "n": rows * n}
    record = bounds.BOUNDS[name]
    value = record.certify({each: known[each] for each in record.needs}, delta, FINE).value.numpy()
    assert (np.diff(value) > 0).all()
    below = value < 1
    failing = -np.expm1(hypotheses * np.log1p(-stats.binom.cdf(k[below], n, value[below])))
    return float(failing.max(initial=0.0)) / delta


ON_THE_BEST = ("seeger", "anytime", "one-draw", "mcallester", "pbb-quadratic", "pbb-lambda", "tandem")


@pytest.mark.parametrize("name", ON_THE_BEST)
@pytest.mark.parametrize("n", [5, 30, 200])
def test_the_best_of_many_hypotheses_is_covered_exactly(name: str, n: int) -> None:
    for hypotheses in (1, 2, 1e3, 1e6, 1e9):
        for delta in (0.05, 0.5):
            assert best_of(hypotheses, name, n, delta) <= 1.0


# Of a vote one KL in place of two stays within delta here: its factor 4 leaves that much, and at 5 rows it is no bound.
@pytest.mark.parametrize(
    ("name", "n", "delta"),
    [
        *((name, n, DELTA) for name in ON_THE_BEST if name != "tandem" for n in (30, 200)),
        *((name, 5, 0.5) for name in ON_THE_BEST if name != "tandem"),
        *(("tandem", n, 0.5) for n in (30, 200)),
    ],
)
def test_the_best_of_a_billion_hypotheses_fails_nearly_always_without_the_divergence(
    name: str, n: int, delta: float
) -> None:
    assert best_of(1e9, name, n, delta, nats=0.0) * delta > 0.99


@pytest.mark.parametrize("name", [name for name in ON_THE_BEST if name != "tandem"])
def test_the_best_of_a_billion_hypotheses_fails_nearly_always_with_rows_counted_three_times(name: str) -> None:
    assert best_of(1e9, name, 200, DELTA, rows=3) * DELTA > 0.99


# Where the PBB forms and the vote do not pay delta no enumeration here shows it: asked at delta = 1 they fail with less
# than .05, whatever the chance (the PBB forms with .031 at 5 rows and .0043 at 200). Their term B is that of `seeger`.
@pytest.mark.parametrize("name", ["seeger", "anytime", "one-draw", "mcallester"])
def test_one_hypothesis_fails_too_often_where_delta_is_not_paid(name: str) -> None:
    assert best_of(1, name, 5, 1 - 1e-12) > 2 * DELTA


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


def test_rows_of_clients_that_are_not_alike_have_no_one_mean() -> None:
    pooled = replace(FINE, average="size-weighted clients")
    with pytest.raises(AssumptionError, match=r"the anytime bound is on one client's rows, whose losses have one mean"):
        bounds.anytime(0.1, 5.0, 100, 0.05, pooled)
