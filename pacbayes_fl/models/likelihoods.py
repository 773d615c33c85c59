"""Observation models: how a raw hyper-parameter becomes the noise."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

NOISE_STD = 0.4
"""Hyper-prior centre of the noise standard deviation, in standardised units (PAC-PFL section 8.6.2)."""


def inverse_softplus(value: float) -> float:
    """Solve softplus(raw) = value.

    Args:
        value: positive.

    Returns:
        raw = ln(exp(value) - 1).
    """
    return value + math.log(-math.expm1(-value))


def gaussian_noise(raw: Tensor) -> Tensor:
    """Turn the raw noise parameter into a variance.

    sigma^2 = softplus(raw)^2, never under 1e-8 (float64) or 1e-4 (float32): below that a kernel matrix cannot be
    factored at that precision.

    Args:
        raw: unconstrained [*].

    Returns:
        Variance [*], in squared units of y.
    """
    return softplus(raw).square().clamp_min(_floor(raw))


def gaussian_noise_slope(raw: Tensor) -> Tensor:
    """Differentiate `gaussian_noise`: 2 softplus(raw) sigmoid(raw), and 0 at the floor.

    Args:
        raw: unconstrained [*].

    Returns:
        d sigma^2 / d raw [*], in squared units of y.
    """
    slope = 2.0 * softplus(raw) * torch.sigmoid(raw)
    return torch.where(gaussian_noise(raw) > _floor(raw), slope, 0.0)


def _floor(raw: Tensor) -> float:
    return 1e-8 if raw.dtype == torch.float64 else 1e-4
