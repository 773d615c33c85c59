"""Which weights stay uncertain: ways to choose a subnetwork."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.noise import Noise


class Candidates(NamedTuple):
    """Input of a choice rule.

    Args:
        mean: MAP estimates [K, D].
        variance: marginal posterior variances under a diagonal Laplace approximation, 1 / (H_rr + 1 / g_r) [K, D].
        curvature: diagonal H_rr of the generalised Gauss-Newton matrix of a client's negative log likelihood, summed
            over rows [K, D], in nats per squared unit of a weight; 0 where no row depends on a weight.
        prior: variances g_r [K, D], in squared units of a weight.
        representation: bool [D] on the CPU, which is to know how many are chosen; True for weights of the
            representation layers.
        decision: bool [D] on the CPU, True for weights of the decision layers.
    """

    mean: Tensor
    variance: Tensor
    curvature: Tensor
    prior: Tensor
    representation: Tensor
    decision: Tensor


class SubnetworkChoice(Protocol):
    """A rule that says which weights of every client are uncertain; `choose` takes those with the largest scores."""

    def size(self, candidates: Candidates) -> int:
        """Number of weights, B, the same for every client."""

    def scores(self, candidates: Candidates, noise: Noise) -> Tensor:
        """Scores [K, D] by which weights are ranked, -inf for excluded ones."""


def choose(rule: SubnetworkChoice, candidates: Candidates, noise: Noise) -> Tensor:
    """Choose the subnetwork of every client: the largest scores; ties are broken by position.

    Scores that agree but for rounding are equal: weights without curvature share one variance, whose last bit depends
    on how clients were averaged.

    Args:
        rule: how.
        candidates: weights and their curvature.
        noise: the clients' streams, for a rule that draws.

    Returns:
        Positions [K, B], int64, in ascending order.
    """
    scores = rule.scores(candidates, noise)
    ranked = torch.argsort(_rounded(scores), dim=1, descending=True, stable=True)
    return ranked[:, : rule.size(candidates)].sort(1).values


def _rounded(scores: Tensor) -> Tensor:
    """Leave out the last bits of every number [K, D]."""
    mantissa, exponent = torch.frexp(scores)
    steps = 2.0**-8 / torch.finfo(scores.dtype).eps
    return torch.where(scores.isfinite(), torch.ldexp((mantissa * steps).round() / steps, exponent), scores)


def curved(index: Tensor, ggn: Tensor) -> Tensor:
    """Take the chosen weights on which training rows depend: all that a covariance can correlate.

    Args:
        index: positions of the subnetwork [K, B].
        ggn: diagonal curvature [K, D].

    Returns:
        Positions [K, A], A the largest number of such weights of a client, or B where only a device knows that; others'
        rows are filled up with weights without curvature, which changes nothing.
    """
    flat = ggn.gather(1, index) == 0
    if not tensors.on_host(flat):  # how many there are is on the device: all of them, then
        return index
    count = max(1, int((~flat).sum(1).max()))
    return index.gather(1, torch.argsort(flat, dim=1, stable=True)[:, :count])


@dataclass(frozen=True)
class _Share:
    """A share E of the representation.

    Args:
        fraction: E; the number of weights is rounded down, but at least 1.
    """

    fraction: float

    def __post_init__(self) -> None:
        """Check that the fraction is in (0, 1]."""
        if not 0 < self.fraction <= 1:
            raise StudyError(f"fraction must be in (0, 1], got {self.fraction:g}")

    def size(self, candidates: Candidates) -> int:
        """Number of weights."""
        return max(1, math.floor(self.fraction * int(candidates.representation.sum()) + 1e-9))


@dataclass(frozen=True)
class LargestVariance(_Share):
    """The paper's rule: it minimises the 2-Wasserstein distance to the whole posterior if weights were independent.

    W_2^2 = sum_r sigma_r^2 (1 - 1[r in S])      (FedSI eq. 14)
    """

    def scores(self, candidates: Candidates, noise: Noise) -> Tensor:
        """Marginal variances [K, D]."""
        return torch.where(candidates.representation.to(candidates.mean.device), candidates.variance, -torch.inf)


@dataclass(frozen=True)
class LargestCurvature(_Share):
    """The weights that the rows say most about: those whose uncertainty moves the outputs where labels are undecided.

    Weights of largest variance are mostly those on which no row depends: their uncertainty moves no prediction either.
    """

    def scores(self, candidates: Candidates, noise: Noise) -> Tensor:
        """Diagonal of the generalised Gauss-Newton matrix [K, D]."""
        return torch.where(candidates.representation.to(candidates.mean.device), candidates.curvature, -torch.inf)


@dataclass(frozen=True)
class LargestMagnitude(_Share):
    """The weights farthest from zero."""

    def scores(self, candidates: Candidates, noise: Noise) -> Tensor:
        """Absolute values [K, D]."""
        return torch.where(candidates.representation.to(candidates.mean.device), candidates.mean.abs(), -torch.inf)


@dataclass(frozen=True)
class RandomShare(_Share):
    """Weights drawn at random, for every client anew."""

    def scores(self, candidates: Candidates, noise: Noise) -> Tensor:
        """Uniform numbers [K, D]."""
        drawn = noise.weights(candidates.mean, "uniform")
        return torch.where(candidates.representation.to(candidates.mean.device), drawn, -torch.inf)


@dataclass(frozen=True)
class LastLayer:
    """All weights of the decision layers, which stay personal: the last-layer Laplace approximation."""

    def size(self, candidates: Candidates) -> int:
        """Number of weights."""
        return int(candidates.decision.sum())

    def scores(self, candidates: Candidates, noise: Noise) -> Tensor:
        """0 inside [K, D]."""
        return torch.where(candidates.decision.to(candidates.mean.device), 0.0, -torch.inf).expand_as(candidates.mean)


@dataclass(frozen=True, eq=False)
class Mask:
    """A subnetwork of the user's own, the same for every client.

    Args:
        keep: bool [D], True for its weights; `WeightModel.span` says where a site stands.
    """

    keep: Tensor

    def size(self, candidates: Candidates) -> int:
        """Number of weights."""
        return int(self.keep.sum())

    def scores(self, candidates: Candidates, noise: Noise) -> Tensor:
        """0 inside [K, D].

        Raises:
            ShapeError: when the mask is not one bool per weight, or keeps none or one that must not be uncertain.
        """
        known = candidates.representation | candidates.decision
        if self.keep.dtype != torch.bool or self.keep.shape != known.shape or not self.keep.any():
            got = f"{list(self.keep.shape)} {self.keep.dtype}"
            raise ShapeError(f"keep must be bool {list(known.shape)} with at least one True, got {got}")
        if (self.keep.to(known.device) & ~known).any():
            raise ShapeError("keep holds weights that the model has as numbers without uncertainty")
        return torch.where(self.keep.to(candidates.mean.device), 0.0, -torch.inf).expand_as(candidates.mean)


Rule = Literal["variance", "curvature", "last-layer", "random", "magnitude"]
"""A rule by its name; "variance" is the paper's."""

_SHARES: Mapping[str, Callable[[float], SubnetworkChoice]] = MappingProxyType(
    {
        "variance": LargestVariance,
        "curvature": LargestCurvature,
        "random": RandomShare,
        "magnitude": LargestMagnitude,
    }
)


def rule(name: Rule, fraction: float) -> SubnetworkChoice:
    """Make a rule of its name.

    Args:
        name: of the rule.
        fraction: share of the representation that it chooses, E.

    Returns:
        The rule; that of the last layer has no share.
    """
    return LastLayer() if name == "last-layer" else _SHARES[name](fraction)
