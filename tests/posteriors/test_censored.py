"""Censored mixtures against numerical integration, draws and scipy."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from pacbayes_fl.metrics.calibration import calibration_error
from pacbayes_fl.metrics.regression import crps, nlpd
from pacbayes_fl.posteriors.censored import CensoredMixture
from pacbayes_fl.posteriors.predictive import NormalMixture

F64 = torch.float64
INF = math.inf


def mixture() -> NormalMixture:
    weights = torch.tensor([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]], dtype=F64)
    means = torch.tensor([[[0.1, 3.0], [-0.4, -2.0], [2.0, 0.0]], [[0.0, 1.0], [0.5, 1.0], [-3.0, 9.0]]], dtype=F64)
    stds = torch.tensor([[[0.5, 0.1], [1.0, 2.0], [0.02, 1.0]], [[1.0, 3.0], [0.1, 0.1], [4.0, 0.5]]], dtype=F64)
    return NormalMixture(weights.log(), means, stds.square())


def censored(low: float, high: float) -> CensoredMixture:
    return CensoredMixture(mixture(), torch.full((2,), low, dtype=F64), torch.full((2,), high, dtype=F64))


ENDS = pytest.mark.parametrize(("low", "high"), [(0.0, INF), (-INF, 1.2), (-0.3, 0.9), (-INF, INF)])


def cell(one: CensoredMixture, k: int, n: int) -> tuple[list[float], list[stats.norm]]:
    inner = one.inner
    normals = [stats.norm(float(inner.means[k, p, n]), float(inner.stds[k, p, n])) for p in range(3)]
    return inner.weights[k].tolist(), normals


@ENDS
def test_moments_are_those_of_numerical_integration(low: float, high: float) -> None:
    one = censored(low, high)
    for k in range(2):
        for n in (k,):
            raw = []
            for power in (1, 2):
                total = 0.0
                for weight, normal in zip(*cell(one, k, n), strict=True):
                    total += weight * low**power * normal.cdf(low) if low > -INF else 0.0
                    total += weight * high**power * normal.sf(high) if high < INF else 0.0
                    a, b = max(low, normal.mean() - 12 * normal.std()), min(high, normal.mean() + 12 * normal.std())
                    if a < b:
                        inside = integrate.quad(
                            lambda z, normal=normal, power=power: z**power * normal.pdf(z), a, b, epsabs=1e-12
                        )
                        total += weight * inside[0]
                raw.append(total)
            assert float(one.mean[k, n]) == pytest.approx(raw[0], abs=1e-9)
            assert float(one.variance[k, n]) == pytest.approx(raw[1] - raw[0] ** 2, abs=1e-8)


def test_a_bound_has_the_probability_of_what_lies_beyond() -> None:
    one, y = censored(0.0, 1.0), torch.tensor([[0.0, 1.0], [0.4, -0.1]], dtype=F64)
    weights, normals = cell(one, 0, 0)
    assert float(one.log_prob(y)[0, 0].exp()) == pytest.approx(
        sum(w * n.cdf(0) for w, n in zip(weights, normals, strict=True))
    )
    weights, normals = cell(one, 0, 1)
    assert float(one.log_prob(y)[0, 1].exp()) == pytest.approx(
        sum(w * n.sf(1) for w, n in zip(weights, normals, strict=True))
    )
    assert one.log_prob(y)[1, 0] == one.inner.log_prob(y)[1, 0] and one.log_prob(y)[1, 1] == -INF


def test_far_beyond_a_bound_the_logarithm_is_finite() -> None:
    inner = NormalMixture(
        torch.zeros(1, 1, dtype=F64), torch.full((1, 1, 1), 60.0, dtype=F64), torch.ones(1, 1, 1, dtype=F64)
    )
    one = CensoredMixture(inner, torch.zeros(1, dtype=F64), torch.full((1,), INF, dtype=F64))
    assert float(one.log_prob(torch.zeros(1, 1, dtype=F64))) == pytest.approx(stats.norm.logcdf(-60))


@ENDS
def test_distribution_function_quantiles_and_draws_agree(low: float, high: float) -> None:
    one = censored(low, high)
    level = torch.tensor([0.03, 0.3, 0.5, 0.8, 0.97], dtype=F64)
    quantile = one.quantile(level)
    assert (one.cdf(quantile) >= level.view(-1, 1, 1) - 1e-9).all()
    assert torch.stack([one.below(q) for q in quantile]).le(level.view(-1, 1, 1) + 1e-9).all()
    draws = one.sample(20000, 3)
    torch.testing.assert_close(draws.mean(0), one.mean, rtol=0, atol=0.08)
    torch.testing.assert_close(draws.var(0).sqrt(), one.variance.sqrt(), rtol=0.03, atol=0.01)
    assert draws.min() >= low and draws.max() <= high


@ENDS
def test_crps_is_the_integral_of_squared_differences(low: float, high: float) -> None:
    one = censored(low, high)
    a, b = max(low, -25.0), min(high, 25.0)
    z = torch.linspace(a, b, 40001, dtype=F64)
    for y in (max(low, -1.0), 0.3, min(high, 2.0)):
        target = torch.full((2, 2), y, dtype=F64)
        mask = torch.ones(2, 2, dtype=torch.bool)
        below = torch.cat([one.inner.cdf(c.view(-1, 1, 1).expand(-1, 2, 2)) for c in z.split(20000)])
        squares = (below - (z >= y).double().view(-1, 1, 1)).square()
        expected = torch.trapezoid(squares, z, dim=0).mean(1)
        torch.testing.assert_close(crps(one, target, mask), expected, rtol=0, atol=1e-3)


def test_units_change_what_they_should() -> None:
    one, loc, scale = censored(-0.3, 0.9), torch.tensor([5.0, -1.0], dtype=F64), torch.tensor([2.0, 0.5], dtype=F64)
    other = one.rescale(loc, scale)
    y = torch.tensor([[-0.3, 0.9], [0.1, 0.4]], dtype=F64)
    moved: Tensor = loc[:, None] + scale[:, None] * y
    torch.testing.assert_close(other.mean, loc[:, None] + scale[:, None] * one.mean)
    torch.testing.assert_close(other.variance, scale[:, None].square() * one.variance)
    expected = one.log_prob(y) - torch.stack((torch.zeros(2, dtype=F64), scale[1].log().expand(2)))
    torch.testing.assert_close(other.log_prob(moved), expected)  # a probability has no unit


def test_targets_on_a_bound_are_calibrated_where_their_probability_is_right() -> None:
    """Half of the targets are at 0, as they should be: the jump counts for the levels that it spans."""
    inner = NormalMixture(torch.zeros(1, 1), torch.zeros(1, 1, 4000, dtype=F64), torch.ones(1, 1, 4000, dtype=F64))
    one = CensoredMixture(inner, torch.zeros(1, dtype=F64), torch.full((1,), INF, dtype=F64))
    y, mask = one.sample(1, 5)[0], torch.ones(1, 4000, dtype=torch.bool)
    assert float(calibration_error(one, y, mask)) < 0.01
    assert float(calibration_error(inner, y, mask)) > 0.05
    assert float(nlpd(one, y, mask)) < float(nlpd(inner, y, mask))


def test_bounds_of_rows_are_those_of_each_alone() -> None:
    low, high = torch.tensor([[-0.3, 0.0], [0.1, -2.0]], dtype=F64), torch.tensor([[0.9, INF], [1.2, 4.0]], dtype=F64)
    one, y = CensoredMixture(mixture(), low, high), torch.tensor([[0.9, 0.5], [0.1, 9.0]], dtype=F64)
    level, mask = torch.tensor([0.1, 0.5, 0.9], dtype=F64), torch.ones(2, 2, dtype=torch.bool)
    loc, scale = torch.tensor([1.0, -2.0], dtype=F64), torch.tensor([2.0, 0.5], dtype=F64)
    for k in range(2):
        for n in range(2):
            alone = censored(float(low[k, n]), float(high[k, n]))
            for name in ("mean", "variance"):
                torch.testing.assert_close(getattr(one, name)[k, n], getattr(alone, name)[k, n], rtol=0, atol=0)
            for name in ("log_prob", "cdf", "below"):
                assert getattr(one, name)(y)[k, n] == getattr(alone, name)(y)[k, n]
            assert torch.equal(one.quantile(level)[:, k, n], alone.quantile(level)[:, k, n])
            assert one.hidden_score()[k, n] == pytest.approx(float(alone.hidden_score()[k, n]), abs=1e-12)
            moved = one.rescale(loc, scale).mean[k, n], alone.rescale(loc, scale).mean[k, n]
            assert float(moved[0]) == pytest.approx(float(moved[1]))
    assert crps(one, y.clamp(low, high), mask).isfinite().all()


def test_between_bounds_that_are_one_there_is_nothing_else() -> None:
    one = censored(0.5, 0.5)
    y = torch.tensor([[0.5, 0.4], [0.6, 0.5]], dtype=F64)
    assert one.log_prob(y).tolist() == [[0.0, -INF], [-INF, 0.0]] and one.cdf(y).tolist() == [[1.0, 0.0], [1.0, 1.0]]
