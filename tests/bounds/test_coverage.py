"""Worlds of coverage: their exact expectations, and that they tell a bound that misses from one that does not."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from pacbayes_fl.bounds.client import CATONI
from pacbayes_fl.bounds.coverage import DRAWN, WORLDS, TwoKinds, coverage
from pacbayes_fl.bounds.divergence import gibbs_weights
from pacbayes_fl.errors import AssumptionError


def test_a_world_is_drawn_from_its_seed() -> None:
    first, again, other = (next(DRAWN["fair coins"](seed)) for seed in (0, 0, 1))
    assert torch.equal(first.numbers["risk"], again.numbers["risk"])
    assert not torch.equal(first.numbers["risk"], other.numbers["risk"])
    assert first.numbers["risk"].shape == (WORLDS,)
    assert first.numbers["risk"].mean().item() == pytest.approx(0.5, abs=0.003)


def test_a_client_with_two_kinds_of_rows_is_the_sum_over_its_rows() -> None:
    chances, losses = torch.tensor([0.3, 0.7]).double(), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]).double()
    world, beta, m = TwoKinds(chances, losses, torch.tensor([0.2, 0.5, 0.3]).double()), 4.0, 3
    energy, risk = world.energies(beta, m)
    totals = torch.zeros(3).double()
    for rows in itertools.product((0, 1), repeat=m):
        weights, log_z = gibbs_weights(losses[:, list(rows)].mean(1), beta, world.prior)
        chance = chances[list(rows)].prod()
        totals += chance * torch.stack((torch.ones(()).double(), -log_z / beta, weights @ (losses @ chances)))
    counts = world.counts(m)
    expected = torch.stack((counts.sum(), counts @ energy, counts @ risk))
    torch.testing.assert_close(totals, expected, rtol=1e-12, atol=0)


def test_a_bound_that_cannot_be_tested_in_its_world_says_what_the_world_has() -> None:
    wrong = dataclasses.replace(CATONI, world="finite federation")
    with pytest.raises(AssumptionError, match=r"the world 'finite federation' has no risk, n, which .*'catoni' needs"):
        coverage(wrong)
