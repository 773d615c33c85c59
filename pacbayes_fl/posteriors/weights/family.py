"""Distributions over weights as alternative guides: the interface for variational methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise

Draw = Any
"""The random numbers behind one draw of all weights: a tree of tensors [K, D] that the family chooses."""


class Precomputed(Protocol):
    """A family with the common terms of its gradients precomputed: the hot path. Gradients are families of leaves."""

    def weights(self, draw: Draw) -> Tensor:
        """Weights theta [K, D] of a draw."""

    def vjp(self, draw: Draw, grad_weights: Tensor) -> Any:
        """Gradient by the parameters, from the gradient grad_weights [K, D] by the weights of a draw."""

    def kl(self, prior: Any) -> Tensor:
        """KL(self || prior) [K], in nats, float64 sums of terms in the dtype of the leaves."""

    def kl_gradient(self, prior: Any) -> Any:
        """Gradient of KL(self || prior) by the parameters of self, leaves [K, D]."""

    def kl_gradient_wrt_prior(self, prior: Any) -> Any:
        """Gradient of KL(self || prior) by the parameters of the prior, leaves [K, D]."""


class WeightDistribution(Protocol):
    """A distribution over D weights held as flat tensors: leaves [K, D] of clients, or [D] of a shared prior.

    It is a NamedTuple of tensors. One whose slopes nobody has written out inherits `precompute` from
    `posteriors.weights.by_autograd.ByAutograd`.
    """

    @property
    def loc(self) -> Tensor:
        """Centre [*, D] of every weight."""

    def draw(self, noise: Noise) -> Draw:
        """Take the random numbers of one draw [K, D] from the clients' streams."""

    def weights(self, draw: Draw) -> Tensor:
        """Weights theta [K, D] of a draw."""

    def mean(self) -> Tensor:
        """Mean of the weights [*, D]."""

    def precompute(self) -> Precomputed:
        """Scales and other terms that the slopes share, computed once."""

    def kl(self, prior: Self) -> Tensor:
        """KL(self || prior) [K], in nats, float64."""

    def bounded(self) -> Self:
        """The family with its parameters inside the range in which nothing overflows, changed in place."""

    def site(self, span: slice, shape: tuple[int, ...], draw: Draw | None) -> TorchDistribution:
        """Pyro distribution of the weights in a span, with a draw one whose `rsample` gives that draw."""


class VariationalFamily(Protocol):
    """All distributions over weights of one kind, as named by a method's `family`, and their initialisation."""

    def initial(self, model: WeightModel, std: float, rho: float, generator: torch.Generator) -> Any:
        """A member with leaves [*]: means from N(centre, std^2), standard deviations softplus(rho)."""

    def held(self, dim: int) -> int:
        """Numbers that a client holds beside mean and scale of D weights."""

    def check(self, model: WeightModel) -> None:
        """Raise StudyError where it does not go with a model."""


def check_families(state: Any) -> None:
    """Refuse a family of one's own that lacks a part, wherever it stands in a tree of states.

    A family is told by its `draw` and its `kl`.

    Args:
        state: NamedTuples of tensors and of others, such as a server's state.

    Raises:
        StudyError: naming the family and the missing members.
    """
    if not isinstance(state, tuple):
        return
    for child in state:
        check_families(child)
    if not (hasattr(state, "draw") and hasattr(state, "kl")):
        return
    whole: Any = state
    _complete(whole, WeightDistribution)
    _complete(whole.precompute(), Precomputed)


def _complete(part: object, protocol: type[Any]) -> None:
    wanted = [name for name in vars(protocol) if not name.startswith("_")]
    missing = [name for name in wanted if not hasattr(part, name)]
    if missing:
        raise StudyError(
            f"a distribution over weights, {type(part).__name__}, lacks {', '.join(missing)}",
            hint=f"posteriors/weights/family.py says in {protocol.__name__} what each of them gives",
        )


AnyFamily = TypeVar("AnyFamily", bound=WeightDistribution)


@dataclass(frozen=True, eq=False)
class Sites(Generic[AnyFamily]):
    """A family as distributions over the sites of a model: the prior of a Pyro program, or its guide.

    Args:
        family: leaves [K, D], or [D] of a prior that all clients share.
        model: names the sites.
        draw: random numbers [K, D] of the sites' draws, for a guide.
    """

    family: AnyFamily
    model: WeightModel
    draw: Draw | None = None

    def site(self, name: str) -> TorchDistribution:
        """Distribution of one site."""
        return self.family.site(self.model.span(name), tuple(self.model.shapes[name]), self.draw)


def site_view(flat: Tensor, span: slice, shape: tuple[int, ...]) -> Tensor:
    """Take a site out of a flat tensor.

    Args:
        flat: [*, D].
        span: where the site stands.
        shape: its event shape.

    Returns:
        [*, *shape].
    """
    part = flat[..., span]
    return part.unflatten(-1, shape) if shape else part.squeeze(-1)
