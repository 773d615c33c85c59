"""Betting: martingales by enumeration, the root from outside, its slopes, and rounding that costs and never gains."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch.autograd import gradcheck

from pacbayes_fl.bounds.betting import betting_upper, counted, grouped, log_capital


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_capital_has_mean_one_at_the_true_mean_and_is_a_product_in_a_loop() -> None:
    values, law = (0.0, 0.25, 1.0), (0.5, 0.3, 0.2)
    mean = sum(v * p for v, p in zip(values, law, strict=True))
    total = 0.0
    for rows in itertools.product(range(3), repeat=4):
        chance = math.prod(law[r] for r in rows)
        total += chance * log_capital(numbers(*(values[r] for r in rows)), numbers(mean)[0]).exp().item()
    assert total == pytest.approx(1.0, rel=1e-12)


def test_the_root_is_met_from_outside_and_capital_grows() -> None:
    losses = torch.rand(3, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) ** 3
    for nats in (0.1, 3.0, 60.0):
        upper = betting_upper(losses, torch.tensor(nats).double())
        assert bool((upper > losses.mean(-1)).all())
        assert bool((log_capital(losses, upper) >= nats).all())
        assert bool((log_capital(losses, upper - 1e-9) < nats).all())
    grid = torch.linspace(0.01, 0.99, 50).double()
    assert bool((log_capital(losses[:1], grid.unsqueeze(-1)).diff(dim=0) > 0).all())


def test_losses_of_one_bound_nothing_and_none_at_all_bound_as_coins_do() -> None:
    nats = torch.tensor(3.0).double()
    assert betting_upper(torch.ones(5).double(), nats).item() == 1.0
    assert 1 - torch.exp(-nats / 50) < betting_upper(torch.zeros(50).double(), nats) < 0.12


def test_slopes_are_those_of_the_values() -> None:
    losses = (0.8 * torch.rand(2, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))).requires_grad_()
    assert gradcheck(betting_upper, (losses, numbers(1.0, 4.0).requires_grad_()), eps=1e-6, atol=1e-6, rtol=1e-4)


def test_counting_equal_losses_changes_nothing_and_grouping_only_adds() -> None:
    losses, nats = numbers(0, 0.5, 0.5, 1, 0, 0).expand(2, -1), numbers(2, 5)
    values, counts = counted(losses, torch.ones_like(losses))
    assert values.shape == (2, 3) and counts[0].tolist() == [3, 2, 1]
    assert torch.allclose(betting_upper(values, nats, counts), betting_upper(losses, nats), rtol=1e-12)
    risks = torch.rand(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    groups = grouped(risks)
    assert groups.shape == (250,) and bool((groups.repeat_interleave(4) >= risks.sort().values).all())
    exact = betting_upper(risks, nats[0])
    assert exact < betting_upper(groups, nats[0], torch.full_like(groups, 4.0)) < exact + 0.005
    assert grouped(risks[:997]).shape == (997,)


@pytest.mark.slow
def test_newton_s_root_is_that_of_halving_an_interval_and_never_below_it() -> None:
    generator = torch.Generator().manual_seed(4)
    for n in (1, 7, 250):
        losses = torch.rand(4, n, dtype=torch.float64, generator=generator)
        for some in (losses, (losses < 0.1).double(), 1 - 1e-9 * losses, 1e-9 * losses, torch.ones_like(losses)):
            for count, nats in itertools.product((1.0, 4.0, 1e4), (1e-6, 3.0, 700.0)):
                counts, goal = torch.full_like(some, count), torch.tensor(nats).double()
                upper = betting_upper(some, goal, counts)
                halved = betting_upper(some, goal, counts, torch.zeros_like(some, dtype=torch.bool))  # nobody doubtful
                assert bool((upper - halved).abs().le(2e-14).all())
                reached = log_capital(some, upper.clamp_max(1.0 - 1e-16), counts) >= goal
                assert bool((reached | (upper == 1.0)).all())
