"""Base of methods that train networks without uncertainty: what all of them say of their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final, Protocol, TypeVar

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.files import JsonTable
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.base import Client, Message, Method, Server
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.models.base import WeightModel, default
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import check
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior

POINT_ESTIMATE: Mapping[str, object] = MappingProxyType(
    {
        "draws": 1,
        "average": "the weights are known: one forward pass",
        "inference": "gradient descent on the log likelihood",
    }
)
"""What labels say of a method without uncertainty."""


def initial_weights(model: WeightModel, std: float, generator: torch.Generator) -> Tensor:
    """Draw starting weights theta [D] ~ N(centre, std^2)."""
    theta = model.centre() + std * torch.randn(model.dim, generator=generator, dtype=torch.float64)
    return theta.to(model.dtype)


BPFED_BASELINES: Final[Mapping[str, Paper]] = MappingProxyType(
    {
        "steps": Paper(None, "10 epochs instead"),
        "epochs": Paper(10, "BPFed, section VI, for all baselines"),
        "minibatch": Paper(50, "BPFed, section VI, for all baselines"),
        "rate": Paper(1e-3, "BPFed, section VI, for all baselines"),
        "optimiser": Paper("adam", "BPFed, section VI, for all baselines"),
    }
)
"""How clients descend in BPFed's experiments."""


class Losses(Protocol):
    """Clients' training losses in their updates."""

    @property
    def loss(self) -> Tensor:
        """Loss of the clients behind a row, together [K], in nats per row of theirs."""

    @property
    def clients(self) -> Tensor:
        """Number of clients behind a row [K]."""


Sent = TypeVar("Sent", bound=Losses)


def mean_loss(update: Losses) -> dict[str, Tensor]:
    """Mean training loss [] of the clients of a round, for its record."""
    return {"loss": update.loss.sum() / update.clients.sum().clamp_min(1.0)}


@dataclass(frozen=True)
class PointEstimate(Method[Server, Message, Client, Sent]):
    """A method whose clients descend the log likelihood of a network to one weight each.

    Args:
        model: the likelihood.
        local: steps of a client.
    """

    objective: ClassVar[str | None] = "loss"

    model: WeightModel
    local: LocalDescent = part(LocalDescent)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)

    @default
    def about(self) -> JsonTable:
        """Weights without uncertainty."""
        return {**POINT_ESTIMATE}

    def posterior(self, theta: Tensor, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """Predict with given weights, without uncertainty.

        Args:
            theta: [K, D].
            batch: the clients' training rows.
            noise: their streams.

        Returns:
            A posterior with all its mass at these weights.
        """
        return WeightPosterior(self.model, PointMass(theta), 1, noise, batch)

    @default
    def report(self, server: Server, update: Sent) -> Mapping[str, Tensor]:
        """Mean training loss of the clients."""
        return mean_loss(update)

    @default
    def footprint(self, rows: int) -> int:
        """Numbers per client, as the model counts them."""
        return self.model.footprint(rows)
