"""Laws of predicted targets, for every transform with every bound and every noise: one distribution, told in many ways.

The oracle knows the mixture of normals by scipy, the inverse of the transform, and sums over a fine grid of t.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from pacbayes_fl.data.transforms import Transform
from pacbayes_fl.metrics.regression import crps
from pacbayes_fl.posteriors.censored import CensoredMixture
from pacbayes_fl.posteriors.functions.conformal import Banded
from pacbayes_fl.posteriors.functions.student_noise import over_scales
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.transformed import TransformedMixture
from tests.data.test_transforms import EACH

F64 = torch.float64
INF = math.inf
LEVELS = torch.tensor([0.004, 0.025, 0.2, 0.5, 0.8, 0.975, 0.996], dtype=F64)
TARGETS = (0.3, -0.4, 0.9)

NOISES = ("gaussian", "mixture", "student-t", "conformal")
BOUNDS = {"none": (-INF, INF), "below": (-0.4, INF), "both": (-0.4, 1.5), "by row": ((-0.4, -1.0), (0.9, 4.0))}


def normals(noise: str) -> NormalMixture:
    """Return the distribution of t of one client's two rows, as models with such a noise predict it."""
    weights, means = torch.tensor([[0.7, 0.3]], dtype=F64), torch.tensor([[[0.2, 0.8], [0.6, -0.3]]], dtype=F64)
    function = NormalMixture(weights.log(), means, torch.tensor([[[0.04, 0.3], [0.01, 0.09]]], dtype=F64))
    if noise == "student-t":
        one = NormalMixture(torch.zeros(1, 1, dtype=F64), means[:, :1], function.variances[:, :1])
        return over_scales(one, torch.full((1, 1, 2), 0.05, dtype=F64), torch.tensor([[2.5]], dtype=F64))
    if noise == "mixture":  # three normals around each mean
        scales = torch.tensor([0.05, 1.0, 4.0], dtype=F64).view(1, 1, 3, 1)
        share = torch.tensor([0.2, 0.7, 0.1], dtype=F64)
        variances = (function.variances.unsqueeze(2) * scales).flatten(1, 2)
        log_weights = (function.log_weights.unsqueeze(-1) + share.log()).flatten(1)
        return NormalMixture(log_weights, means.repeat_interleave(3, 1), variances)
    if noise == "conformal":
        band = torch.tensor([[[-0.6, -0.9]], [[1.3, 1.8]]], dtype=F64)
        return Banded(function.log_weights, function.means, function.variances, band)
    return function


def targets(inner: NormalMixture, of: Transform | None, ends: tuple[Tensor, Tensor]) -> Any:
    """Return the distribution of y."""
    if of is None:
        return CensoredMixture(inner, *ends)
    one = torch.ones(1, dtype=F64)
    return TransformedMixture(inner, of, 0.0 * one, one, *ends)


class Oracle:
    """One row's distribution on a grid of t: probability below each point, and y there."""

    def __init__(self, inner: NormalMixture, of: Transform | None, low: float, high: float, row: int) -> None:
        each = (inner.weights[0], inner.means[0, :, row], inner.stds[0, :, row])
        parts = list(zip(*(one.tolist() for one in each), strict=True))
        far = max(abs(mean) + 12.0 * std for _, mean, std in parts)
        steps = torch.tensor([low, high, *TARGETS], dtype=F64)  # where sums over cells would be rough
        steps = steps if of is None else of.forward(steps)
        z: Any = np.sinh(np.linspace(-np.arcsinh(far), np.arcsinh(far), 10_001))
        z = np.sort(np.append(z, steps[steps.abs() < far].numpy()))
        self.below: Any = sum(weight * stats.norm.cdf((z - mean) / std) for weight, mean, std in parts)
        self.y: Any = np.clip(z if of is None else of.inverse(torch.as_tensor(z)).numpy(), low, high)

    def mean_of(self, power: int) -> float:
        """Return E y^power."""
        share, middle = np.diff(self.below), 0.5 * (self.y[1:] + self.y[:-1])
        return float((share * np.where(share > 0, middle, 0.0) ** power).sum())

    def score(self, y: float) -> float:
        """Return int (F(u) - 1{u >= y})^2 du."""
        height = 0.5 * (self.below[1:] + self.below[:-1]) - (0.5 * (self.y[1:] + self.y[:-1]) >= y)
        return float((np.diff(self.y) * height**2).sum())


def cases() -> Iterator[Any]:
    """Yield what a study runs: Student-t noise needs bounds where |y| grows faster than |t|."""
    for of in (None, *EACH[:2], *EACH[2::2]):
        for bounds in BOUNDS:
            for noise in NOISES:
                ended = of is None or max(of.growth) <= 1 or bounds in ("both", "by row")
                if noise != "student-t" or ended:
                    yield pytest.param(of, bounds, noise, id=f"{of and of.title}, {bounds}, {noise}")


def ends_of(bounds: str, of: Transform | None) -> tuple[Tensor, Tensor]:
    """Return bounds [1, 2], inside of what the transform allows."""
    low, high = (torch.tensor(end, dtype=F64).expand(1, 2) for end in BOUNDS[bounds])
    least, most = (-INF, INF) if of is None or of.name != "logit" else of.domain
    return low.clamp(least, most), high.clamp(least, most)


def expanded(one: Any, row: int, count: int) -> Any:
    """Return the distribution of one row, at many places."""

    def wide(leaf: Tensor) -> Tensor:
        return leaf[..., row : row + 1].expand(*leaf.shape[:-1], count)

    inner = NormalMixture(one.inner.log_weights, wide(one.inner.means), wide(one.inner.variances))
    return replace(one, inner=inner, low=wide(one.low), high=wide(one.high))


@pytest.mark.law
@pytest.mark.parametrize(("of", "bounds", "noise"), cases())
def test_density_quantiles_score_and_moments_are_of_one_distribution(
    of: Transform | None, bounds: str, noise: str
) -> None:
    inner, (low, high) = normals(noise), ends_of(bounds, of)
    one = targets(inner, of, (low, high))
    quantiles = one.quantile(LEVELS)[:, 0]
    assert bool((quantiles.diff(dim=0) >= 0).all() & (quantiles >= low).all() & (quantiles <= high).all())
    for n in range(2):
        oracle = Oracle(inner, of, float(low[0, n]), float(high[0, n]), n)
        first = oracle.mean_of(1)
        assert float(one.mean[0, n]) == pytest.approx(first, rel=1e-5, abs=1e-6)
        assert float(one.variance[0, n]) == pytest.approx(oracle.mean_of(2) - first**2, rel=1e-3, abs=1e-6)
        mask = torch.arange(2).view(1, 2) == n
        for y in TARGETS[: 1 if noise == "student-t" else None]:
            got = crps(one, torch.full((1, 2), y, dtype=F64), mask)
            assert float(got) == pytest.approx(oracle.score(y), rel=1e-4, abs=1e-6)
        near = oracle.y[(oracle.below > 1e-9) & (oracle.below < 1 - 1e-9)]
        grid = torch.as_tensor(np.append(near[::8], near[-1])).view(1, -1)
        many = expanded(one, n, grid.shape[1])
        between = grid.clamp(math.nextafter(float(low[0, n]), INF), math.nextafter(float(high[0, n]), -INF))
        masses = [float(one.log_prob(end)[0, n].exp()) if end[0, n].isfinite() else 0.0 for end in (low, high)]
        total = float(torch.trapezoid(many.log_prob(between).exp(), grid)) + sum(masses)
        assert total == pytest.approx(1.0, abs=1e-3)
        own = many.cdf(grid), many.below(grid)
        for level, quantile in zip(LEVELS.tolist(), quantiles[:, n].tolist(), strict=True):
            if noise == "conformal" and not 0.025 < level < 0.975:
                continue  # at and beyond these levels the interval may stand in their place
            at = torch.full((1, 2), quantile, dtype=F64)
            assert float(one.below(at)[0, n]) - 1e-9 <= level <= float(one.cdf(at)[0, n]) + 1e-9
        assert bool((own[0] >= own[1] - 1e-15).all() & (own[0].diff() >= 0).all())
