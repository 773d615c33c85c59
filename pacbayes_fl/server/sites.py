"""A client's contribution to averaged Gaussians, and its removal by division, weight by weight."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.server.moments import Moments


class Site(NamedTuple):
    """A client's contribution to a Gaussian of independent weights, in natural parameters, float64.

    Args:
        precision: 1 / v - 1 / g of the posterior's variance v and the prior's g [K, R].
        linear: m / v - mu / g of their means [K, R].
    """

    precision: Tensor
    linear: Tensor


def contribution(prior: Moments, posterior: Moments) -> Site:
    """Divide a posterior by its prior, weight by weight: q / p of Gaussians, in natural parameters.

    Args:
        prior: leaves [K, D], D >= R.
        posterior: leaves [K, R]; weights of variance 0, which were not inferred, have contributed nothing.

    Returns:
        Leaves [K, R].

    Example:
        >>> import torch
        >>> from pacbayes_fl.server.moments import Moments
        >>> from pacbayes_fl.server.sites import contribution
        >>> prior = Moments(mean=torch.zeros(1, 1), variance=torch.ones(1, 1))
        >>> posterior = Moments(mean=torch.ones(1, 1), variance=torch.full((1, 1), 0.5))
        >>> contribution(prior, posterior).precision.tolist()  # 1 / 0.5 - 1 / 1
        [[1.0]]
    """
    mean, variance = (leaf.double() for leaf in posterior)
    mu, g = (leaf[:, : mean.shape[1]].double() for leaf in prior)
    inferred = variance > 0
    precision = torch.where(inferred, variance.reciprocal() - g.reciprocal(), 0.0)
    return Site(precision, torch.where(inferred, mean / variance - mu / g, 0.0))


def without(prior: Moments, site: Site, alpha: float) -> Moments:
    """Take a client's last contribution out of its prior, as far as the prior is still surer than before any rows.

    1 / g' = 1 / g - r s, mu' / g' = mu / g - r l, with the largest r in [0, 1] that leaves 1 / g' >= 1 / alpha.

    Where all weights are inferred, a precision that is averaged by variances then never exceeds 1 / alpha + max_k H_k:
    no row counts twice. The average of many clients may hold less of a client's contribution s than it sent, or
    nothing, if others have moved the prior since; r is then under 1.

    Args:
        prior: leaves [K, D], D >= R.
        site: s and l, of the first R weights, of the client's last round.
        alpha: variance before any rows, in squared units of a weight.

    Returns:
        Leaves [K, D], in the prior's dtype.
    """
    columns = site.precision.shape[1]
    mean, variance = (leaf[:, :columns].double() for leaf in prior)
    precision = variance.reciprocal()
    room = (precision - 1.0 / alpha).clamp_min(0.0)
    share = torch.where(site.precision > room, room / site.precision, 1.0)
    left = precision - share * site.precision
    moved = mean + share * (site.precision * mean - site.linear) / left
    changed = site.precision != 0
    divided = (torch.where(changed, moved, mean), torch.where(changed, left.reciprocal(), variance))
    return Moments(*(torch.cat((new.to(old), old[:, columns:]), 1) for new, old in zip(divided, prior, strict=True)))
