"""Averaged means and variances, and the prior that they become."""

from __future__ import annotations

import pytest
import torch

from pacbayes_fl.server.moments import Moments, average, prior_variance
from tests.laplace import float64, randn


def published() -> Moments:
    mean = float64([[0.1, 0.2, 0.3, 0.4], [0.3, 0.0, 0.1, 0.2], [0.2, 0.4, -0.1, 0.0]])
    return Moments(mean, float64([[0.5, 0.0, 0.0, 0.2], [0.3, 0.0, 0.0, 0.0], [0.0, 0.0, 0.6, 0.0]]))


def test_published_numbers() -> None:
    found = average(published(), torch.ones(3, dtype=torch.float64))
    assert found.mean.tolist() == pytest.approx([0.2, 0.2, 0.1, 0.2], rel=1e-14)
    assert found.variance.tolist() == pytest.approx([0.8 / 3, 0.0, 0.2, 0.2 / 3], rel=1e-14)
    assert prior_variance(found.variance, 1e-4).tolist() == pytest.approx([0.8 / 3, 1e-4, 0.2, 0.2 / 3], rel=1e-14)


def test_weights_count_and_clients_without_any_do_not() -> None:
    moments, weight = Moments(randn(1, 3, 5), randn(2, 3, 5).square()), float64([2.0, 0.0, 6.0])
    found = average(moments, weight)
    for mine, leaf in zip(found, moments, strict=True):
        torch.testing.assert_close(mine, 0.25 * leaf[0] + 0.75 * leaf[2], rtol=1e-14, atol=1e-15)


def test_the_floor_lifts_what_somebody_is_uncertain_of_and_nothing_else() -> None:
    variance = float64([0.0, 1e-12, 1e-3, 0.5])
    assert prior_variance(variance, 2.0, 1e-3).tolist() == [2.0, 1e-3, 1e-3, 0.5]
    assert prior_variance(variance, 1e-4, 1e-3).tolist() == [1e-4, 1e-3, 1e-3, 0.5]
    assert prior_variance(variance, 2.0).tolist() == [2.0, 1e-12, 1e-3, 0.5]
    assert prior_variance(variance.float(), 2.0).dtype == torch.float32
