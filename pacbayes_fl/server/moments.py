"""Means and variances that clients send, averaged; and the prior that the average becomes (FedSI, Algorithm 1)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors


class Moments(NamedTuple):
    """Independent Gaussian weights, those without uncertainty with variance 0: a degenerate Gaussian.

    Args:
        mean: mu [*, D].
        variance: sigma^2 [*, D], in squared units of a weight.
    """

    mean: Tensor
    variance: Tensor


def average(moments: Moments, weight: Tensor) -> Moments:
    """Average means and variances over clients.

    mu = sum_k w_k mu_k / sum_k w_k, sigma^2 likewise      (FedSI, Algorithm 1, last line of the server)

    Args:
        moments: leaves [K, D].
        weight: of the clients [K].

    Returns:
        Leaves [D].
    """
    return tensors.weighted_mean(moments, weight)


def prior_variance(variance: Tensor, alpha: float, floor: float = 0.0) -> Tensor:
    """Variance of the next round's prior: weights that nobody found uncertain get alpha (FedSI section III.B).

    Args:
        variance: averaged [D].
        alpha: prior variance of a deterministic weight, in squared units of a weight.
        floor: least variance of the others.

    Returns:
        [D], positive.
    """
    return torch.where(variance > 0, variance.clamp_min(floor), alpha)
