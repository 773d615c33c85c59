"""Predictions of targets that end at bounds, such as a power that is 0 at night: what lies beyond is at the bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.predictive import NormalMixture, at_levels

_CUTS: Final = (-9.0, -5.0, -3.0, -1.5, 0.0, 1.5, 3.0, 5.0, 9.0)  # in standard deviations of each component
_RULE: Final = tuple(zip(*(values.tolist() for values in np.polynomial.legendre.leggauss(8)), strict=True))


@dataclass(frozen=True, eq=False)
class CensoredMixture:
    """Distribution of min(max(z, low), high), z of a mixture of normals (Tobin, Econometrica 26, 1958).

    A bound has the probability of all that lies beyond it; between the bounds the density is the mixture's.

    Args:
        inner: distribution of z, [K, N].
        low: lower bounds [K] or, row by row, [K, N], in units of y; minus infinity for none.
        high: upper bounds likewise; infinity for none.

    Example:
        >>> import torch
        >>> from pacbayes_fl.posteriors.censored import CensoredMixture
        >>> from pacbayes_fl.posteriors.predictive import NormalMixture
        >>> zero = torch.zeros(1, 1, 1, dtype=torch.float64)
        >>> inner = NormalMixture(zero[0], zero, zero + 1.0)
        >>> censored = CensoredMixture(inner, low=torch.zeros(1).double(), high=torch.full((1,), torch.inf).double())
        >>> censored.cdf(zero[0]).item(), censored.below(zero[0]).item()  # half of the probability lies at the bound
        (0.5, 0.0)
    """

    inner: NormalMixture
    low: Tensor
    high: Tensor

    @property
    def mean(self) -> Tensor:
        """Mean [K, N]: E[z] + E[(low - z)+] - E[(z - high)+], of each component in closed form."""
        return torch.einsum("kp,kpn->kn", self.inner.weights, self._moments()[0])

    @property
    def variance(self) -> Tensor:
        """Variance [K, N]: within the components and between them."""
        means, variances = self._moments()
        between = (means - self.mean.unsqueeze(1)).square()
        return torch.einsum("kp,kpn->kn", self.inner.weights, variances + between)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density between the bounds, and the logarithm of a bound's probability at it.

        Args:
            y: targets [K, N], in units of y.

        Returns:
            [K, N], in nats; minus infinity beyond the bounds.
        """
        low, high = self._bounds()
        below, above = (torch.special.log_ndtr(sign * end) for sign, end in zip((1.0, -1.0), self._ends(), strict=True))
        masses = (torch.logsumexp(self.inner.log_weights.unsqueeze(-1) + log, 1) for log in (below, above))
        at_low, at_high = masses
        result = torch.where(y <= low, at_low, torch.where(y >= high, at_high, self.inner.log_prob(y)))
        result = torch.where((y <= low) & (y >= high), 0.0, result)  # there is nothing else
        result = torch.where((y < low) | (y > high), -torch.inf, result)
        return result.masked_fill(self.inner.undefined, torch.nan)

    def cdf(self, y: Tensor) -> Tensor:
        """Probability of a target up to y, which jumps at the bounds.

        Args:
            y: targets [K, N], in units of y; a leading [L] is allowed.

        Returns:
            [K, N], or [L, K, N].
        """
        low, high = self._bounds()
        result = torch.where(y < low, 0.0, self.inner.cdf(y))
        return torch.where(y >= high, 1.0, result).masked_fill(self.inner.undefined, torch.nan)

    def below(self, y: Tensor) -> Tensor:
        """Probability of a target less than y.

        Args:
            y: targets [K, N], in units of y.

        Returns:
            [K, N].
        """
        low, high = self._bounds()
        result = torch.where(y <= low, 0.0, self.inner.cdf(y))
        return torch.where(y > high, 1.0, result).masked_fill(self.inner.undefined, torch.nan)

    @at_levels
    def quantile(self, level: Tensor) -> Tensor:
        """Quantiles of z, moved to the bounds.

        Args:
            level: [L], from 0 to 1, whose quantiles are the ends of what is possible; or a number, for [K, N].

        Returns:
            [L, K, N], in units of y.
        """
        return self._within(self.inner.quantile(level))

    def sample(self, draws: int, noise: Noise | int) -> Tensor:
        """Independent draws, row by row.

        Args:
            draws: S.
            noise: streams of the K clients, or a seed.

        Returns:
            [S, K, N], in units of y.
        """
        return self._within(self.inner.sample(draws, noise))

    def rescale(self, loc: Tensor, scale: Tensor) -> CensoredMixture:
        """Change units.

        Args:
            loc: [K], added after scaling.
            scale: [K], positive.

        Returns:
            The distribution of loc + scale * y.
        """
        ends = (loc.unsqueeze(-1) + scale.unsqueeze(-1) * end for end in self._bounds())
        return CensoredMixture(self.inner.rescale(loc, scale), *ends)

    def hidden_score(self) -> Tensor:
        """What the continuous ranked probability score of z, at a target between the bounds, counts beyond them.

        int_{-inf}^low F(z)^2 dz + int_high^inf (1 - F(z))^2 dz,
        by Gauss-Legendre rules of 8 points between cuts at up to 9 standard deviations of every component.

        Returns:
            [K, N], in units of y.
        """
        negative = NormalMixture(self.inner.log_weights, -self.inner.means, self.inner.variances)
        low, high = self._bounds()
        return _squared_tail(self.inner, low) + _squared_tail(negative, -high)

    def _within(self, y: Tensor) -> Tensor:
        low, high = self._bounds()
        return y.maximum(low).minimum(high)

    def _bounds(self) -> tuple[Tensor, Tensor]:
        """Bounds [K, 1] or [K, N]."""
        return by_row(self.low), by_row(self.high)

    def _ends(self) -> tuple[Tensor, Tensor]:
        """Bounds [K, P, N] in standard deviations from the components' means."""
        std = self.inner.stds.clamp_min(torch.finfo(self.inner.means.dtype).tiny)
        low, high = ((end.unsqueeze(1) - self.inner.means) / std for end in self._bounds())
        return low, high

    def _moments(self) -> tuple[Tensor, Tensor]:
        """Means and variances [K, P, N] of each component between the bounds."""
        (low, high), std = self._ends(), self.inner.stds
        shift = _excess(low) - _excess(-high)  # of the mean, in standard deviations
        second = _square(low) + _square(-high) + torch.special.ndtr(high) - torch.special.ndtr(low)
        return self.inner.means + std * shift, self.inner.variances * (second - shift.square()).clamp_min(0.0)


def by_row(end: Tensor) -> Tensor:
    """Give bounds a dimension of rows.

    Args:
        end: [K], or [K, N] of every row.

    Returns:
        [K, 1], or [K, N].
    """
    return end.unsqueeze(-1) if end.dim() == 1 else end


def _density(end: Tensor) -> Tensor:
    return torch.exp(-0.5 * end.square()) / math.sqrt(2.0 * math.pi)


def _excess(end: Tensor) -> Tensor:
    """Return E[(end - u)+] for u ~ N(0, 1)."""
    there = end > -torch.inf
    end = torch.where(there, end, 0.0)
    return torch.where(there, _density(end) + end * torch.special.ndtr(end), 0.0)


def _square(end: Tensor) -> Tensor:
    """Return end^2 P(u < end) + end phi(end) for u ~ N(0, 1), 0 without an end."""
    there = end > -torch.inf
    end = torch.where(there, end, 0.0)
    return torch.where(there, end * (end * torch.special.ndtr(end) + _density(end)), 0.0)


def _squared_tail(mixture: NormalMixture, end: Tensor) -> Tensor:
    """Return int_{-inf}^end F(z)^2 dz [K, N] for ends [K, 1] or [K, N], 0 without an end."""
    there = end > -torch.inf
    top = torch.where(there, end, 0.0).unsqueeze(1).expand(-1, 1, mixture.means.shape[2])
    cuts = torch.cat([mixture.means + cut * mixture.stds for cut in _CUTS], 1)
    cuts = torch.cat((cuts.minimum(top), top), 1).sort(1).values
    left, width = cuts[:, :-1].transpose(0, 1), cuts.diff(dim=1).transpose(0, 1)  # [L, K, N]
    total = torch.zeros_like(left[0])
    for node, weight in _RULE:
        for start, step in zip(left.split(16), width.split(16), strict=True):
            height = mixture.cdf(start + 0.5 * (node + 1.0) * step).square()
            total = total + 0.5 * weight * (step * height).sum(0)
    return torch.where(there, total, 0.0)
