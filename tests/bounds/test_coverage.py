"""Worlds of coverage: their exact expectations, and that they tell a bound that misses from one that does not."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch

from pacbayes_fl.bounds.client import CATONI
from pacbayes_fl.bounds.coverage import DRAWN, WORLDS, TwoKinds, coverage, labellings
from pacbayes_fl.bounds.divergence import discrete_kl, gibbs_weights
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


@pytest.mark.parametrize("beta", [0.5, 4.0, 60.0])
def test_all_labellings_of_the_rows_are_their_sum(beta: float) -> None:
    rows = 5
    wrong = torch.tensor([*itertools.product((0.0, 1.0), repeat=rows)]).double()
    weights, log_z = gibbs_weights(wrong.mean(1), beta)
    share = weights @ wrong
    expected = {
        "risk": share.mean(),
        "variance": weights @ (wrong.mean(1) * (1 - wrong.mean(1))),
        "kl": discrete_kl(weights),
        "log_z": log_z,
        "tandem_risk": share.square().mean(),
    }
    every = labellings(rows, beta)
    for name, value in expected.items():
        got = every.numbers[name]
        assert isinstance(got, torch.Tensor) and got.shape == (WORLDS,)
        torch.testing.assert_close(got, value.expand(WORLDS), rtol=1e-9, atol=1e-15)
    one = every.drawn(torch.Generator().manual_seed(0))
    risk, ratio = (torch.as_tensor(one[name]) for name in ("risk", "log_ratio"))
    at = (wrong.mean(1) - risk.unsqueeze(1)).abs().argmin(1)  # any with as many errors is as likely
    torch.testing.assert_close(ratio, (2**rows * weights[at]).log(), rtol=1e-9, atol=1e-12)
    assert risk.mean().item() == pytest.approx(share.mean().item(), abs=0.03)


def test_a_bound_that_cannot_be_tested_in_its_world_says_what_the_world_has() -> None:
    wrong = dataclasses.replace(CATONI, world="finite federation")
    with pytest.raises(AssumptionError, match=r"the world 'finite federation' has no risk, n, which .*'catoni' needs"):
        coverage(wrong)
