"""Averaged means and variances, and the prior that they become."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.optimize import minimize

from pacbayes_fl.server.moments import (
    LEAST,
    Moments,
    average,
    deviations,
    extrapolate,
    from_deviations,
    match,
    prior_variance,
)
from tests.laplace import float64, randn


def published() -> Moments:
    mean = float64([[0.1, 0.2, 0.3, 0.4], [0.3, 0.0, 0.1, 0.2], [0.2, 0.4, -0.1, 0.0]])
    return Moments(mean, float64([[0.5, 0.0, 0.0, 0.2], [0.3, 0.0, 0.0, 0.0], [0.0, 0.0, 0.6, 0.0]]))


@pytest.mark.quick
def test_published_numbers() -> None:
    result = average(published(), torch.ones(3, dtype=torch.float64))
    assert result.mean.tolist() == pytest.approx([0.2, 0.2, 0.1, 0.2], rel=1e-14)
    assert result.variance.tolist() == pytest.approx([0.8 / 3, 0.0, 0.2, 0.2 / 3], rel=1e-14)
    assert prior_variance(result.variance, 1e-4).tolist() == pytest.approx([0.8 / 3, 1e-4, 0.2, 0.2 / 3], rel=1e-14)


def test_weights_count_and_clients_without_any_do_not() -> None:
    moments, weight = Moments(randn(1, 3, 5), randn(2, 3, 5).square()), float64([2.0, 0.0, 6.0])
    result = average(moments, weight)
    for mine, leaf in zip(result, moments, strict=True):
        torch.testing.assert_close(mine, 0.25 * leaf[0] + 0.75 * leaf[2], rtol=1e-14, atol=1e-15)


def test_the_floor_lifts_what_somebody_is_uncertain_of_and_nothing_else() -> None:
    variance = float64([0.0, 1e-12, 1e-3, 0.5])
    assert prior_variance(variance, 2.0, 1e-3).tolist() == [2.0, 1e-3, 1e-3, 0.5]
    assert prior_variance(variance, 1e-4, 1e-3).tolist() == [1e-4, 1e-3, 1e-3, 0.5]
    assert prior_variance(variance, 2.0).tolist() == [2.0, 1e-12, 1e-3, 0.5]
    assert prior_variance(variance.float(), 2.0).dtype == torch.float32


@pytest.mark.quick
def test_matching_is_the_minimiser_of_the_summed_divergences() -> None:
    """Against scipy on sum_k w_k KL(q_k || w), weight by weight (pFedBayes, journal eqs. A.6-A.7)."""
    sent, weight = Moments(randn(1, 4, 3), 0.1 + randn(2, 4, 3).square()), float64([1.0, 2.0, 0.0, 0.5])
    result = match(sent, weight)
    for d in range(3):

        def loss(v: Any, d: int = d) -> float:
            mean, variance = v[0], math.exp(2 * v[1])
            ratio = sent.variance[:, d] / variance
            kl = 0.5 * (ratio + (sent.mean[:, d] - mean).square() / variance - 1 - ratio.log())
            return float((weight * kl).sum())

        best = minimize(loss, [0.1, 0.1], method="BFGS", options={"gtol": 1e-9}).x
        assert (result.mean[d].item(), result.variance[d].item()) == pytest.approx(
            (best[0], math.exp(2 * best[1])), rel=1e-6
        )


def test_matches_of_matches_are_the_match_of_all() -> None:
    sent, share = Moments(randn(1, 5, 3), randn(2, 5, 3).square()), randn(3, 5, 3).square()
    share[:, 2] = 0.0
    parts = [torch.tensor([0, 3]), torch.tensor([1]), torch.tensor([2, 4])]
    chunks = [match(Moments(*(leaf[part] for leaf in sent)), share[part]) for part in parts]
    joined = match(
        Moments(*(torch.stack(leaves) for leaves in zip(*chunks, strict=True))),
        torch.stack([share[part].sum(0) for part in parts]),
    )
    for mine, whole in zip(joined, match(sent, share), strict=True):
        torch.testing.assert_close(mine, whole, rtol=1e-13, atol=1e-15)
        assert whole[2] == 0


def test_tiny_variances_survive_means_that_are_far_away() -> None:
    """E theta^2 - (E theta)^2 would leave nothing of them in float32."""
    sent = Moments(torch.full((3, 1), 1e3), torch.full((3, 1), 1e-6))
    assert match(sent, torch.ones(3)).variance.item() == pytest.approx(1e-6, rel=1e-6)
    centre = Moments(torch.tensor([1e3]), torch.tensor([2e-6]))
    mean = Moments(*(leaf.mean(0) for leaf in deviations(sent, centre)))
    assert from_deviations(mean, centre).variance.item() == pytest.approx(1e-6, rel=1e-5)


@pytest.mark.parametrize("beta", [0.3, 1.0, 1.6])
def test_extrapolation_is_of_first_and_second_moments(beta: float) -> None:
    old, new = Moments(randn(1, 4), 1.0 + randn(2, 4).square()), Moments(randn(3, 4), 1.0 + randn(4, 4).square())
    result = extrapolate(old, new, beta)
    first = (1 - beta) * old.mean + beta * new.mean
    second = (1 - beta) * (old.variance + old.mean**2) + beta * (new.variance + new.mean**2)
    torch.testing.assert_close(result.mean, first, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(
        result.variance, (second - first**2).maximum(LEAST * old.variance), rtol=1e-12, atol=1e-13
    )


def test_deviations_are_linear_and_noise_leaves_a_variance() -> None:
    sent, centre = Moments(randn(1, 6, 4), randn(2, 6, 4).square()), Moments(randn(3, 4), 0.5 + randn(4, 4).square())
    apart = deviations(sent, centre)
    back = from_deviations(Moments(*(leaf.mean(0) for leaf in apart)), centre)
    for mine, whole in zip(back, match(sent, torch.ones(6, dtype=torch.float64)), strict=True):
        torch.testing.assert_close(mine, whole, rtol=1e-12, atol=1e-13)
    still = deviations(Moments(*(leaf.expand(2, 4) for leaf in centre)), centre)
    assert not any(leaf.any() for leaf in still)
    noisy = from_deviations(Moments(float64([3.0] * 4), float64([-9.0] * 4)), centre)
    assert torch.equal(noisy.variance, LEAST * centre.variance)
