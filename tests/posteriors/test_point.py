"""A linear prediction with Gaussian residuals, and weights without uncertainty."""

from __future__ import annotations

import torch
from torch.distributions import Normal

from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.point import LinearPoint, PointMass


def test_every_row_is_a_normal_around_the_line_of_its_client() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((3, 2), (3, 4, 2)))
    bias, variance = torch.tensor([[1.0, -2.0, 0.0], [0.25, 4.0, 1.0]], dtype=torch.float64)
    predictive = LinearPoint(weight, bias, variance).predict(x)
    y = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4)
    assert predictive.mean.shape == predictive.variance.shape == (3, 4)
    for k in range(3):
        for n in range(4):
            line = float(weight[k] @ x[k, n] + bias[k])
            normal = Normal(torch.tensor(line, dtype=torch.float64), variance[k].sqrt())
            for mine, expected in (
                (predictive.mean, normal.mean),
                (predictive.variance, normal.variance),
                (predictive.log_prob(y), normal.log_prob(y[k, n])),
                (predictive.cdf(y), normal.cdf(y[k, n])),
            ):
                torch.testing.assert_close(mine[k, n], expected, rtol=1e-12, atol=1e-14)
    assert float(predictive.weights.sum()) == 3.0


def test_a_point_mass_draws_nothing_and_is_its_own_mean() -> None:
    theta, noise = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)), Noise(0, 0, (1, 2, 3))
    point = PointMass(theta)
    assert point.weights(point.draw(noise)) is theta and point.mean() is theta  # type: ignore[func-returns-value]
    untouched = Noise(0, 0, (1, 2, 3))
    assert torch.equal(noise.normal(theta), untouched.normal(theta))
