"""Log densities of posteriors over weights, for bounds on one drawn network."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from pacbayes_fl import tensors
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.posteriors.weights.distribution import FromDistribution
from pacbayes_fl.posteriors.weights.full_rank import FullRankNormal
from pacbayes_fl.posteriors.weights.laplace import DiagonalGaussian, SubnetworkGaussian
from pacbayes_fl.posteriors.weights.low_rank import LowRankNormal
from pacbayes_fl.posteriors.weights.mean_field import MeanField, log_softplus
from pacbayes_fl.posteriors.weights.spike_slab import BernoulliGaussian, SpikeSlab, SpikeSlabDraw

_LOG_ROOT = 0.5 * math.log(2.0 * math.pi)


def log_density(family: Any, theta: Tensor) -> Tensor:
    """Take the log density of weights under a family.

    With respect to Lebesgue measure on weights that are uncertain; a weight that is known, as most of a Laplace
    posterior over a subnetwork, counts 0 where it is that number, and minus infinity elsewhere; a spike is a unit mass.
    Densities of two families are to be compared where the same weights are uncertain in both.

    Args:
        family: a variational family or a Laplace posterior, leaves [K, D].
        theta: weights [K, D].

    Returns:
        [K], in nats, float64.

    Raises:
        AssumptionError: when the density of such a family is not known.
    """
    theta = theta.double()
    if isinstance(family, FromDistribution):
        made: Distribution = type(family)(*(leaf.double() for leaf in tensors.leaves(family).values())).distribution()
        value: Tensor = made.log_prob(theta)
        return value
    kinds: dict[type, Callable[[Any, Tensor], Tensor]] = {
        MeanField: _mean_field,
        SpikeSlab: _spike_slab,
        FullRankNormal: _full_rank,
        LowRankNormal: _low_rank,
        DiagonalGaussian: _diagonal,
        SubnetworkGaussian: _subnetwork,
    }
    if type(family) not in kinds:
        what = f"the density of a {type(family).__name__} at given weights is not known"
        raise AssumptionError(what, hint=f"one of {', '.join(kind.__name__ for kind in kinds)}, or from a distribution")
    return kinds[type(family)](tensors.tree_map(_double, family), theta)


def log_ratio(posterior: Any, prior: Any, draw: Any) -> tuple[Tensor, Tensor]:
    """Draw weights from a posterior, and take ln dQ/dP there.

    Args:
        posterior: Q, leaves [K, D].
        prior: P, of the same kind.
        draw: random numbers of Q, as its `draw` gives them.

    Returns:
        Weights theta [K, D], float64, and the logarithm [K] in nats.
    """
    own = tensors.tree_map(_double, posterior)
    base: object
    if isinstance(draw, SpikeSlabDraw):
        base = draw.map(_double)
    else:  # of a family made from a distribution several tensors, in no tree
        base = tuple(map(_double, draw)) if type(draw) is tuple else tensors.tree_map(_double, draw)
    theta = own.weights(base)
    return theta, log_density(own, theta) - log_density(prior, theta)


def _double(leaf: Tensor) -> Tensor:
    return leaf.double() if leaf.is_floating_point() else leaf


def _mean_field(family: MeanField, theta: Tensor) -> Tensor:
    standard = (theta - family.loc) / family.scale
    return -(0.5 * standard.square() + log_softplus(family.rho) + _LOG_ROOT).sum(-1)


def _spike_slab(family: SpikeSlab, theta: Tensor) -> Tensor:
    return BernoulliGaussian(family.loc, family.slab.scale, family.logit).log_prob(theta).sum(-1)


def _full_rank(family: FullRankNormal, theta: Tensor) -> Tensor:
    away = (theta - family.loc).unsqueeze(-1)
    standard: Tensor = torch.linalg.solve_triangular(family.factor, away, upper=False).squeeze(-1)
    return -(0.5 * standard.square() + log_softplus(family.rho) + _LOG_ROOT).sum(-1)


def _low_rank(family: LowRankNormal, theta: Tensor) -> Tensor:
    inner = family.factor / family.scale.unsqueeze(-1)
    identity = torch.eye(inner.shape[-1], dtype=inner.dtype, device=inner.device)
    root = torch.linalg.cholesky(identity + inner.mT @ inner)
    standard = ((theta - family.loc) / family.scale).unsqueeze(-1)
    explained = torch.linalg.solve_triangular(root, inner.mT @ standard, upper=False).square().sum((-2, -1))
    logs = (log_softplus(family.rho) + _LOG_ROOT).sum(-1) + root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    result: Tensor = -0.5 * (standard.square().sum((-2, -1)) - explained) - logs
    return result


def _diagonal(family: DiagonalGaussian, theta: Tensor) -> Tensor:
    return _independent(theta - family.loc, family.variance)


def _subnetwork(family: SubnetworkGaussian, theta: Tensor) -> Tensor:
    away = theta - family.loc
    own = away.gather(1, family.chosen)
    standard = (family.factor.mT @ own.unsqueeze(-1)).squeeze(-1)
    logs = family.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) - own.shape[1] * _LOG_ROOT
    return logs - 0.5 * standard.square().sum(-1) + _independent(away.scatter(1, family.chosen, 0.0), family.variance)


def _independent(away: Tensor, variance: Tensor) -> Tensor:
    """Log density of independent normals; of weights without variance 0 at their number."""
    known = variance == 0
    std = torch.where(known, 1.0, variance).sqrt()
    normal = -0.5 * (away / std).square() - std.log() - _LOG_ROOT
    return torch.where(known, torch.where(away == 0, 0.0, -torch.inf), normal).sum(-1)
