"""What a private prior and an estimated risk cost: published digits, and coverage that is barely there."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from pacbayes_fl.bounds.betting import betting_upper
from pacbayes_fl.bounds.costs import max_information, monte_carlo_risk

WORLDS = 2000


@pytest.mark.parametrize(
    ("epsilon", "rows", "value"), [(0.1, 20, 1.455115958877615), (0.5, 150, 28.507527986778054), (0, 9, math.log(2))]
)
def test_max_information_has_its_published_values(epsilon: float, rows: int, value: float) -> None:
    assert max_information(epsilon, rows, 0.05).item() == pytest.approx(value, rel=1e-14)


def test_an_estimated_risk_is_covered_from_its_one_side_and_red_without_its_slack() -> None:
    """A coin with p just above the bound of M draws without a loss, whose probability is (1 - p)^M."""
    draws, delta = 5, 0.05
    for slack, fails in ((delta, False), (0.999999, True), (math.sqrt(delta), True)):
        p = 1 - (0.99 * slack) ** (1 / draws)
        coins = torch.full((20 * WORLDS,), float(draws))
        estimate = torch.binomial(coins, torch.tensor(p), generator=torch.Generator().manual_seed(12)).double() / draws
        missed = int((monte_carlo_risk(estimate, draws, slack) < p).sum())
        assert bool(missed > stats.binom.isf(1e-6, 20 * WORLDS, delta)) is fails
        if not fails:
            assert missed > 0.9 * delta * 20 * WORLDS  # nothing is left to gain from one side


def test_losses_of_rows_with_hypotheses_of_their_own_count_one_by_one_and_only_those() -> None:
    """Rows of unequal risks p_i, in the mean L^: S draws of n networks each are S n trials, and S of one are S."""
    rows, draws, delta = 40, 3, 0.05
    generator = torch.Generator().manual_seed(5)
    p = torch.rand(rows, generator=generator, dtype=torch.float64) ** 3
    shape = 4 * WORLDS, draws
    apart = torch.rand(*shape, rows, generator=generator, dtype=torch.float64) < p
    one = torch.rand(*shape, 1, generator=generator, dtype=torch.float64) < p  # a network errs on the same rows at once
    limit = stats.binom.isf(1e-6, 4 * WORLDS, delta)
    for losses, trials, fails in ((apart, draws * rows, False), (one, draws * rows, True), (one, draws, False)):
        missed = int((monte_carlo_risk(losses.double().mean((1, 2)), trials, delta) < p.mean()).sum())
        assert bool(missed > limit) is fails, (trials, missed)
    tight = monte_carlo_risk(apart.double().mean((1, 2)), draws * rows, delta).mean()
    assert tight < monte_carlo_risk(one.double().mean((1, 2)), draws, delta).mean() - 0.2


def test_draws_that_look_at_different_rows_are_covered_as_long_as_all_rows_count_alike() -> None:
    """As many draws of either half of the rows, of risks 0 and .3: covered, and not where the first half has more."""
    delta, half, generator = 0.05, 300, torch.Generator().manual_seed(6)
    values = torch.tensor([0.0, 1.0], dtype=torch.float64).expand(WORLDS, 2)
    wrong = torch.binomial(torch.full((WORLDS,), half).double(), torch.tensor(0.3).double(), generator=generator)
    fewer = torch.binomial(wrong, torch.tensor(0.5).double(), generator=generator)
    for ones, draws, fails in ((wrong, 2 * half, False), (fewer, 3 * half // 2, True)):
        counts = torch.stack([draws - ones, ones], 1)
        missed = int((betting_upper(values, -torch.tensor(delta).double().log(), counts) < 0.15).sum())
        assert bool(missed > stats.binom.isf(1e-6, WORLDS, delta)) is fails, missed
