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
_REACH: Final = 14.0  # standard deviations, beyond which a distribution function is 0 or 1
_RULE: Final = tuple(zip(*(values.tolist() for values in np.polynomial.legendre.leggauss(8)), strict=True))


@dataclass(frozen=True, eq=False)
class TransformedMixture:
    """Distribution of (g^-1(z) - centre) / spread, z of a mixture of normals, censored at bounds where there are any.

    Quantiles, the distribution function and the log density ln p_z(g(y)) + ln g'(y) are exact. Mean, variance and CRPS
    are integrals by Gauss-Legendre rules of 8 points over parts of few standard deviations of the components, cut where
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
        means, stds = self.inner.means.double(), self.inner.stds.double()
        low, high = self._ends()
        left = (means - _REACH * stds).amin(1).maximum(low).minimum(high)
        most = (means + _REACH * stds).amax(1).maximum(low).minimum(high)
        t = self.transform.forward(self._raw(y)).maximum(left).minimum(most)
        knots = means.new_tensor(self.transform.kind.knots).view(-1, 1, 1).expand(-1, *left.shape)
        breaks = torch.cat((knots, t.unsqueeze(0)))  # where the integrand bends or jumps
        total = (y - self._back(t)).abs()  # where all probability lies on one side
        total = torch.where((most - left).isfinite(), total, torch.nan)
        weights = self.inner.log_weights.double().exp().unsqueeze(-1)
        while bool((left < most).any()):
            right = self._next(left, breaks).minimum(most)
            side = torch.where(left < t, 1.0, -1.0).unsqueeze(1)
            for node, weight in _between(left, right):
                beyond = torch.special.ndtr(side * (node.unsqueeze(1) - means) / stds)
                slope = torch.exp(-self.transform.log_slope(self.transform.inverse(node))) / self.spread.unsqueeze(-1)
                share = weight * (weights * beyond).sum(1).square() * slope
                total = total + torch.where(weight > 0, share, 0.0)
            left = right
        return self._large(total, 1.0).masked_fill(self.inner.undefined, torch.nan)

    def _next(self, left: Tensor, breaks: Tensor) -> Tensor:
        """End of the part from `left` [K, N] on that a rule integrates: no component changes much, and nothing bends.

        A part is 1.5 standard deviations of a component wide near its mean, and wider further away, so that components
        that lie on each other, such as those of Student-t noise, share their parts.
        """
        stds = self.inner.stds.double()
        off = (left.unsqueeze(1) - self.inner.means.double()) / stds
        width = (1.5 + 0.4 * (off.abs() - 3.0).clamp_min(0.0)).clamp_max(5.0)
        width = torch.where(off < -_REACH, 1.0 - _REACH - off, torch.where(off < _REACH, width, torch.inf))
        right = (left + (width * stds).amin(1)).maximum(left.nextafter(torch.full_like(left, torch.inf)))
        return right.minimum(torch.where(breaks > left, breaks, torch.inf).amin(0))

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
        yield from _between(left, right)


def _between(left: Tensor, right: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield nodes and weights of one rule, in the shape of its ends."""
    width = right - left
    for node, weight in _RULE:
        yield left + 0.5 * (node + 1.0) * width, 0.5 * weight * width
