"""The federation's residuals from a noisy release: fewer bins than in the clear, and less trust in them."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from pacbayes_fl.posteriors.residuals import BINS, bin_values, standard_normal

CUTS: Final = (0.15, 0.35, 0.65, 1.0, 1.5, 2.2, 3.5)
"""Sizes |z| between which private residuals are counted, on both sides of 0."""

COORDINATES: Final = 2 * (len(CUTS) + 1)

LONGEST: Final = (1.0, 1.0)
"""L1 and L2 norm of one client's message: shares that are not negative and sum to at most 1."""

_WIDE: Final = 2.0  # standard deviation in the bins that are open, of errors with heavy tails


def coarse(histograms: Tensor) -> Tensor:
    """Add up the bins of clients' histograms.

    Args:
        histograms: of K clients [K, BINS].

    Returns:
        [K, COORDINATES]; sums are what they were, 1 or 0, so that |v|_1 <= 1 and |v|_2 <= 1.
    """
    return histograms @ _members(histograms)


def fine(released: Tensor, noise_std: float) -> Tensor:
    """Estimate the histogram of residuals from the noisy mean of the clients' messages.

    The shares p of the bins are drawn towards those q of a standard normal by the positive part of James and Stein,
    p + = q + (1 - (D - 2) s^2 / |p - q|^2)_+ (p - q), with s the noise's standard deviation; what is negative counts
    as 0. Within a bin residuals are distributed as the standard normal, in the outermost as one twice as wide. It is
    a function of the release alone.

    Args:
        released: noisy mean [COORDINATES].
        noise_std: s, public.

    Returns:
        [BINS], float64, not negative, sums to 1.
    """
    members, normal = _members(released), standard_normal(released)
    usual = normal @ members
    apart = released.double() - usual
    trust = 1.0 - (COORDINATES - 2) * noise_std**2 / apart.square().sum().clamp_min(torch.finfo(apart.dtype).tiny)
    shares = (usual + trust.clamp_min(0.0) * apart).clamp_min(0.0)
    wide = torch.exp(-0.5 * (bin_values(released) / _WIDE).square()) * torch.sqrt(1.0 + bin_values(released).square())
    inside = torch.where(bin_values(released).abs() > CUTS[-1], wide, normal)
    result = inside * (members @ (shares / (inside @ members)))
    total = result.sum()
    return torch.where(total > 0, result / total.clamp_min(torch.finfo(total.dtype).tiny), normal)


def _members(like: Tensor) -> Tensor:
    """Return which coarse bin each bin is in [BINS, COORDINATES], by the residual that stands for it."""
    cuts = torch.tensor([-cut for cut in reversed(CUTS)] + [0.0, *CUTS], dtype=torch.float64, device=like.device)
    at = torch.bucketize(bin_values(like), cuts)
    return torch.zeros(BINS, COORDINATES, dtype=torch.float64, device=like.device).scatter_(1, at.unsqueeze(1), 1.0)
