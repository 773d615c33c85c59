"""The federation's residuals from a noisy release: bounded messages, and an estimate that noise pulls to the normal."""

from __future__ import annotations

import math

import torch

from pacbayes_fl.posteriors.private_residuals import COORDINATES, CUTS, LONGEST, coarse, fine
from pacbayes_fl.posteriors.residuals import Residuals, bin_values, fit, histogram, standard_normal


def residuals(z: torch.Tensor) -> torch.Tensor:
    """Histograms of K clients of one component."""
    return histogram(Residuals(torch.zeros(len(z), 1), z.unsqueeze(1), torch.ones_like(z, dtype=torch.bool)))


def test_a_message_is_no_longer_than_is_said_and_counts_sizes_on_both_sides() -> None:
    z = torch.cat((torch.full((1, 8), 1e9), -torch.rand(1, 8), torch.randn(6, 8)))
    sent = coarse(residuals(z))
    assert sent.shape == (8, COORDINATES)
    assert bool((sent.norm(1, dim=1) <= LONGEST[0] + 1e-12).all() & (sent.norm(2, dim=1) <= LONGEST[1] + 1e-12).all())
    assert sent[0, -1] == 1 and sent[0].norm() == 1, "the bound is reached"
    assert not bool(coarse(torch.zeros(1, 128, dtype=torch.float64)).any())
    torch.testing.assert_close(sent[1, : COORDINATES // 2].sum(), torch.tensor(1.0, dtype=torch.float64))


def test_without_noise_the_shares_of_the_bins_are_those_that_were_sent() -> None:
    z = torch.distributions.StudentT(3.0).sample((40, 400))
    mean = coarse(residuals(z)).mean(0)
    estimate = fine(mean, 0.0)
    torch.testing.assert_close(coarse(estimate.unsqueeze(0))[0], mean, rtol=1e-9, atol=1e-12)
    assert bool((estimate >= 0).all()) and math.isclose(float(estimate.sum()), 1.0)


def test_a_standard_normal_comes_back_and_noise_alone_is_taken_for_one() -> None:
    normal = standard_normal(torch.empty(0))
    kept = fine(coarse(normal.unsqueeze(0))[0], 0.0)
    inner = bin_values(normal).abs() < CUTS[-1]
    torch.testing.assert_close(kept[inner], normal[inner], rtol=1e-9, atol=1e-12)
    generator = torch.Generator().manual_seed(0)
    far = 0
    for _ in range(50):
        noise = 0.2 * torch.randn(COORDINATES, dtype=torch.float64, generator=generator)
        estimate = fine(coarse(normal.unsqueeze(0))[0] + noise, 0.2)
        assert bool((estimate >= 0).all()) and math.isclose(float(estimate.sum()), 1.0)
        far += int((estimate - normal).abs().sum() > 0.7)
    assert far < 10, "without the factor of James and Stein nearly all would be as far"


def test_heavy_tails_are_seen_through_some_noise() -> None:
    z = 1.5 * torch.distributions.StudentT(3.0).sample((100, 200))
    mean = coarse(residuals(z)).mean(0)
    noisy = mean + 0.005 * torch.randn(COORDINATES, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    values = bin_values(mean)
    own, normal = (
        float((residuals(z).mean(0) * fit(shape.unsqueeze(0), values).log_prob(values.unsqueeze(0))[0]).sum())
        for shape in (fine(noisy, 0.005), standard_normal(mean))
    )
    sent = residuals(z).mean(0)
    best = float((sent * fit(sent.unsqueeze(0), values).log_prob(values.unsqueeze(0))[0]).sum())
    assert best - own < 0.1 * (best - normal)
