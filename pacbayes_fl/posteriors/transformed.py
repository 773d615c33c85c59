"""Predictions of targets y whose increasing transform t = g(y) was learned: a mixture of normals, pushed forward."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl.data.transforms import Transform
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.censored import by_row
from pacbayes_fl.posteriors.predictive import NormalMixture, at_levels

_CUTS: Final = (-24.0, -16.0, -11.0, -8.0, -6.0, -4.0, -2.5, -1.2, 0.0, 1.2, 2.5, 4.0, 6.0, 8.0, 11.0, 16.0, 24.0)
_FEW_CUTS: Final = (-14.0, -9.0, -5.0, -3.0, -1.5, 0.0, 1.5, 3.0, 5.0, 9.0, 14.0)
_RULE: Final = tuple(zip(*(values.tolist() for values in np.polynomial.legendre.leggauss(8)), strict=True))


@dataclass(frozen=True, eq=False)
class TransformedMixture:
    """Distribution of (g^-1(z) - centre) / spread, z of a mixture of normals, censored at bounds where there are any.

    Quantiles, the distribution function and the log density ln p_z(g(y)) + ln g'(y) are exact. Mean, variance and CRPS
    are integrals by Gauss-Legendre rules of 8 points between cuts in standard deviations of the components and where
    g^-1 bends: of a lognormal within a share 1e-8 up to s = 4, the standard deviation of its logarithm. What is too
    large for a number is infinite.

    Args:
        inner: distribution of z, [K, N], in units of t.
        transform: g.
        centre: [K], in the data's own units.
        spread: [K], positive, likewise: the unit of y.
        low: lower bounds [K] or, row by row, [K, N], in units of y; minus infinity for none.
        high: upper bounds likewise; infinity for none.
    """

    inner: NormalMixture
    transform: Transform
    centre: Tensor
    spread: Tensor
    low: Tensor
    high: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean [K, N], in units of y."""
        return self._moments[0]

    @property
    def variance(self) -> Tensor:
        """Variance [K, N], in squared units of y: within the components and between them."""
        return self._moments[1]

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density between the bounds, and the logarithm of a bound's probability at it.

        Args:
            y: targets [K, N], in units of y.

        Returns:
            [K, N], in nats; minus infinity beyond the bounds and outside the domain of the transform.
        """
        (low, high), (least, most) = self._bounds(), self.transform.domain
        own = self._raw(y)
        centre = self.centre.unsqueeze(-1)
        slack = 8.0 * torch.finfo(own.dtype).eps * (centre.abs() + (own - centre).abs())
        outside = (own < least - slack) | (own > most + slack) | (y < low) | (y > high)
        first, last = math.nextafter(least, math.inf), math.nextafter(most, -math.inf)
        own = own.clamp(first, last)  # rounding may have brought it to an end
        t = self.transform.forward(own)
        result = self.inner.log_prob(t) + self.transform.log_slope(own) + self.spread.log().unsqueeze(-1)
        result = torch.where(y <= low, self._mass(t, 1.0), torch.where(y >= high, self._mass(t, -1.0), result))
        result = torch.where((y <= low) & (y >= high), 0.0, result)  # there is nothing else
        return torch.where(outside, -torch.inf, result).masked_fill(self.inner.undefined, torch.nan)

    def cdf(self, y: Tensor) -> Tensor:
        """Probability of a target up to y, which jumps at the bounds.

        Args:
            y: targets [K, N], in units of y; a leading [L] is allowed.

        Returns:
            [K, N], or [L, K, N].
        """
        low, high = self._bounds()
        result = torch.where(y < low, 0.0, self.inner.cdf(self.transform.forward(self._raw(y))))
        return torch.where(y >= high, 1.0, result).masked_fill(self.inner.undefined, torch.nan)

    def below(self, y: Tensor) -> Tensor:
        """Probability of a target less than y.

        Args:
            y: targets [K, N], in units of y.

        Returns:
            [K, N].
        """
        low, high = self._bounds()
        result = torch.where(y <= low, 0.0, self.inner.cdf(self.transform.forward(self._raw(y))))
        return torch.where(y > high, 1.0, result).masked_fill(self.inner.undefined, torch.nan)

    @at_levels
    def quantile(self, level: Tensor) -> Tensor:
        """Quantiles of z, brought back.

        Args:
            level: [L], from 0 to 1, whose quantiles are the ends of what is possible; or a number, for [K, N].

        Returns:
            [L, K, N], in units of y.
        """
        return self._back(self.inner.quantile(level))

    def sample(self, draws: int, noise: Noise | int) -> Tensor:
        """Independent draws, row by row.

        Args:
            draws: S.
            noise: streams of the K clients, or a seed.

        Returns:
            [S, K, N], in units of y.
        """
        return self._back(self.inner.sample(draws, noise))

    def rescale(self, loc: Tensor, scale: Tensor) -> TransformedMixture:
        """Change units.

        Args:
            loc: [K], added after scaling.
            scale: [K], positive.

        Returns:
            The distribution of loc + scale * y.
        """
        spread = self.spread / scale
        bounds = (loc.unsqueeze(-1) + scale.unsqueeze(-1) * end for end in self._bounds())
        return TransformedMixture(self.inner, self.transform, self.centre - loc * spread, spread, *bounds)

    def ranked_score(self, y: Tensor) -> Tensor:
        """Continuous ranked probability score int (F(z) - 1{z >= g(y)})^2 dg^-1(z) / spread.

        Args:
            y: targets [K, N], in units of y.

        Returns:
            [K, N], in units of y.
        """
        low, high = (end.unsqueeze(1) for end in self._ends())
        cuts = torch.cat([self.inner.means + cut * self.inner.stds for cut in _FEW_CUTS], 1).double()
        least, most = (end.maximum(low.squeeze(1)).minimum(high.squeeze(1)) for end in (cuts.amin(1), cuts.amax(1)))
        t = self.transform.forward(self._raw(y)).maximum(least).minimum(most)
        knots = cuts.new_tensor(self.transform.kind.knots).view(1, -1, 1).expand(len(cuts), -1, cuts.shape[2])
        knots = knots.maximum(least.unsqueeze(1)).minimum(most.unsqueeze(1))
        cuts = torch.cat((cuts, knots, t.unsqueeze(1)), 1).maximum(low).minimum(high).sort(1).values
        negative = NormalMixture(self.inner.log_weights, -self.inner.means, self.inner.variances)
        total = (y - self._back(t)).abs()  # where all probability lies on one side
        for z, weight in _nodes(cuts):
            error = torch.where(z < t, self.inner.cdf(z), negative.cdf(-z))
            slope = torch.exp(-self.transform.log_slope(self.transform.inverse(z))) / self.spread.unsqueeze(-1)
            total = total + torch.where(weight > 0, weight * error.square() * slope, 0.0)
        return self._large(total, 1.0).masked_fill(self.inner.undefined, torch.nan)

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance [K, N]."""
        means, stds = self.inner.means.double(), self.inner.stds.double()
        tiny = torch.finfo(stds.dtype).tiny
        ends = torch.stack(torch.broadcast_tensors(*self._ends())).unsqueeze(2)
        knots = means.new_tensor(self.transform.kind.knots).view(-1, 1, 1, 1).expand(-1, *ends.shape[1:])
        knots = torch.cat((knots, ends))
        bends = ((knots - means) / stds.clamp_min(tiny)).nan_to_num(0.0, _CUTS[-1], _CUTS[0])
        cuts = means.new_tensor(_CUTS).view(-1, 1, 1, 1).expand(-1, *means.shape)
        cuts = torch.cat((cuts, bends.clamp(_CUTS[0], _CUTS[-1])), 0).sort(0).values
        centre = self._back(means.transpose(0, 1)).transpose(0, 1)
        first = second = torch.zeros_like(means)
        for u, width in _nodes(cuts.movedim(0, 1)):
            weight = width * torch.exp(-0.5 * u.square()) / (2.0 * torch.pi) ** 0.5
            step = self._back((means + stds * u).transpose(0, 1)).transpose(0, 1) - centre
            first, second = first + weight * step, second + weight * step.square()
        weights = self.inner.log_weights.double().exp().unsqueeze(-1)
        mean = (weights * (centre + first)).sum(1)
        within = (second - first.square()).clamp_min(0.0)
        variance = (weights * (within + (centre + first - mean.unsqueeze(1)).square())).sum(1)
        down, up = self.transform.growth  # what is too large lies where targets grow faster
        return self._large(mean, 1.0 if up >= down else -1.0), self._large(variance, 1.0)

    def _large(self, values: Tensor, sign: float) -> Tensor:
        """Make infinite what was too large for a number on its way [K, N]; a mixture of no numbers stays none."""
        known = (self.inner.means.isfinite() & self.inner.variances.isfinite()).all(1)
        return torch.where(values.isnan() & known, torch.inf * sign, values)

    def _raw(self, y: Tensor) -> Tensor:
        """Return targets [*, K, N] in the data's own units."""
        return self.centre.unsqueeze(-1) + self.spread.unsqueeze(-1) * y

    def _back(self, z: Tensor) -> Tensor:
        """Return targets [*, K, N] with these transforms, in units of y and between the bounds."""
        y = (self.transform.inverse(z) - self.centre.unsqueeze(-1)) / self.spread.unsqueeze(-1)
        low, high = self._bounds()
        return y.maximum(low).minimum(high)

    def _bounds(self) -> tuple[Tensor, Tensor]:
        return by_row(self.low), by_row(self.high)

    def _ends(self) -> tuple[Tensor, Tensor]:
        """Transforms of the bounds [K, 1] or [K, N]."""
        low, high = (self.transform.forward(self._raw(end)) for end in self._bounds())
        return low, high

    def _mass(self, t: Tensor, sign: float) -> Tensor:
        """Log probability [K, N] of all z below (sign 1) or above (-1) t."""
        ends = sign * (t.unsqueeze(1) - self.inner.means) / self.inner.stds
        return torch.logsumexp(self.inner.log_weights.unsqueeze(-1) + torch.special.log_ndtr(ends), 1)


def _nodes(cuts: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield nodes [K, *] and weights [K, *] of the rules between sorted cuts [K, C, *]."""
    for left, right in pairwise(cuts.unbind(1)):
        width = right - left
        for node, weight in _RULE:
            yield left + 0.5 * (node + 1.0) * width, 0.5 * weight * width
