"""Means and variances that clients send: averaged (FedSI, Algorithm 1), or matched by one distribution (pFedBayes)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors

LEAST = 0.01
"""Share of its variance that a weight keeps at least where noise or extrapolation would leave it less."""


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

    Example:
        >>> import torch
        >>> from pacbayes_fl.server import moments
        >>> two = moments.Moments(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [1.0]]))
        >>> moments.average(two, torch.ones(2))
        Moments(mean=tensor([1.]), variance=tensor([1.]))
    """
    return tensors.weighted_mean(moments, weight)


def match(moments: Moments, weight: Tensor) -> Moments:
    """Match the moments of a mixture of Gaussians.

    mu = sum_k w_k m_k / sum_k w_k, sigma^2 = sum_k w_k [s_k^2 + (m_k - mu)^2] / sum_k w_k
    (pFedBayes, journal eqs. A.6-A.7)

    That is the exact minimiser over w of sum_k w_k KL(q_k || w), and with exact posteriors q_k a step of the EM
    algorithm (Dempster et al. 1977; variational, Neal and Hinton 1998). Matches of matches are the match of all.

    Args:
        moments: leaves [K, D].
        weight: of the clients [K], or of each of their weights [K, D]; not negative.

    Returns:
        Leaves [D]; 0 where all weights are 0.

    Example:
        >>> import torch
        >>> from pacbayes_fl.server import moments
        >>> two = moments.Moments(torch.tensor([[0.0], [2.0]]), torch.tensor([[1.0], [1.0]]))
        >>> moments.match(two, torch.ones(2))  # with the spread of the means
        Moments(mean=tensor([1.]), variance=tensor([2.]))
    """
    mean = tensors.weighted_mean(moments.mean, weight)
    return Moments(mean, tensors.weighted_mean(moments.variance + (moments.mean - mean).square(), weight))


def extrapolate(old: Moments, new: Moments, beta: float) -> Moments:
    """Go from the server's distribution towards another one, or beyond it, in E theta and E theta^2.

    E <- (1 - beta) E + beta E_new of both, so that
    sigma^2 = (1 - beta) sigma_old^2 + beta sigma_new^2 + beta (1 - beta) (mu_new - mu_old)^2

    Args:
        old: leaves [*].
        new: leaves [*].
        beta: 1 takes the new one; above 1 the variance may be none, see `repaired`.

    Returns:
        Leaves [*].

    Example:
        >>> import torch
        >>> from pacbayes_fl.server.moments import Moments, extrapolate
        >>> old, new = Moments(torch.zeros(1), torch.ones(1)), Moments(torch.full((1,), 2.0), torch.ones(1))
        >>> extrapolate(old, new, beta=0.5)  # the mixture of both: the way between the means is in its variance
        Moments(mean=tensor([1.]), variance=tensor([2.]))
    """
    if beta == 1.0:
        return new
    mean = torch.lerp(old.mean, new.mean, beta)
    between = beta * (1.0 - beta) * (new.mean - old.mean).square()
    return Moments(mean, repaired(torch.lerp(old.variance, new.variance, beta) + between, old.variance))


def deviations(moments: Moments, centre: Moments) -> Moments:
    """Take a client's moments about a distribution that everybody knows: linear in q, so that their mean says all.

    E_q[theta] - mu and E_q[(theta - mu)^2] - sigma^2; as E_q[theta^2] would, but without its cancelling digits

    Args:
        moments: of q, leaves [K, D].
        centre: mu and sigma^2, leaves [D] or [K, D].

    Returns:
        Leaves [K, D]; 0 for q = centre.
    """
    difference = moments.mean - centre.mean
    return Moments(difference, moments.variance - centre.variance + difference.square())


def from_deviations(mean: Moments, centre: Moments) -> Moments:
    """Make a distribution of the mean of clients' `deviations`, which noise may have moved.

    Args:
        mean: leaves [*, D].
        centre: mu and sigma^2, leaves [D] or [*, D].

    Returns:
        Leaves [*, D], with variances that `repaired` lets pass.
    """
    variance = centre.variance + mean.variance - mean.mean.square()
    return Moments(centre.mean + mean.mean, repaired(variance, centre.variance))


def repaired(variance: Tensor, old: Tensor) -> Tensor:
    """Raise variances that noise or a long step has made too small, or negative.

    Args:
        variance: [*].
        old: the previous value [*], positive.

    Returns:
        [*], at least the share `LEAST` of the old one.
    """
    return variance.maximum(LEAST * old)


def prior_variance(variance: Tensor, alpha: float, floor: float = 0.0) -> Tensor:
    """Variance of the next round's prior: alpha for weights that are uncertain at no client (FedSI section III.B).

    Args:
        variance: averaged [D].
        alpha: prior variance of a deterministic weight, in squared units of a weight.
        floor: least variance of the others.

    Returns:
        [D], positive.

    Example:
        >>> import torch
        >>> from pacbayes_fl.server import moments
        >>> moments.prior_variance(torch.tensor([0.0, 0.2]).double(), alpha=1.0).numpy().round(4).tolist()
        [1.0, 0.2]
    """
    return torch.where(variance > 0, variance.clamp_min(floor), alpha)
