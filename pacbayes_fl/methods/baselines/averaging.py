"""What methods share whose server averages the weights of networks: all but how a client trains from them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference.map_estimate import Descended, LocalDescent
from pacbayes_fl.methods import private_steps
from pacbayes_fl.methods.base import Method, Nothing
from pacbayes_fl.methods.options import part
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import check, option
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from pacbayes_fl.server import average
from pacbayes_fl.server.robust import Aggregate


class Server(NamedTuple):
    """Global weights theta [D]."""

    theta: Tensor


class Update(NamedTuple):
    """Locally trained weights of clients, or their mean with the sums of the rest.

    Args:
        theta: [K, D].
        weight: in the server's average [K].
        clients: number of clients behind a row [K].
        loss: mean negative log likelihood per row over the local steps [K], in nats.
    """

    theta: Tensor
    weight: Tensor
    clients: Tensor
    loss: Tensor


POINT_ESTIMATE: Mapping[str, Any] = MappingProxyType(
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


@dataclass(frozen=True)
class WeightAveraging(Method[Server, Server, Nothing, Update]):
    """A method whose clients train the server's weights and whose server averages what they made of them.

    Args:
        model: the likelihood.
        local: steps of a client.
        weighting: of clients in the average.
        finetune: times the minibatches of a round on the client's rows at personalisation; 0 leaves the global weights.
        init_std: spread of the initial weights.
    """

    personal_model: ClassVar[str] = "personal models are the global one, fine-tuned where `finetune` says so"

    objective: ClassVar[str | None] = "loss"

    model: WeightModel
    local: LocalDescent = part(LocalDescent)
    weighting: average.Weighting = "rows"
    finetune: int = option(0, low=0)
    init_std: float = option(0.1, above=0)

    @abstractmethod
    def descend(self, theta: Tensor, batch: ClientBatch, noise: Noise, passes: int = 1) -> Descended:
        """Train from the global weights theta [K, D] on the clients' rows, with a fresh optimiser.

        `passes` counts the minibatches of a round that are taken. The weights are [K, D].
        """

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)

    def about(self) -> dict[str, Any]:
        """Weights without uncertainty."""
        return {**POINT_ESTIMATE}

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw the initial weights."""
        return Server(initial_weights(self.model, self.init_std, generator))

    def init_clients(self, message: Server, batch: ClientBatch) -> Nothing:
        """Keep nothing."""
        return Nothing()

    def broadcast(self, server: Server) -> Server:
        """Send the weights."""
        return server

    def client(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> tuple[Update, Nothing]:
        """Train from the global weights."""
        start = tensors.expand(message.theta, batch.clients)
        theta, _, loss = self.descend(start, batch, noise)
        weight = self.weight(batch.size)
        return Update(theta, weight, torch.ones_like(weight), loss.double()), state

    def weight(self, rows: Tensor) -> Tensor:
        """As `weighting` says, of rows [K]: [K]."""
        return average.client_weight(rows, self.weighting)

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """Average."""
        return Server(tensors.weighted_mean(update.theta, update.weight))

    def client_deltas(self, message: Server, update: Update) -> Server:
        """How far the weights went in a round [K, D]."""
        return private_steps.deltas(Server(update.theta), message)

    def check_private(self) -> None:
        """Refuse clients that weigh by their rows."""
        private_steps.alike(self.weighting)

    def from_release(self, message: Server, mean: Server, clients: float) -> Update:
        """Go as far as the clients' mean step [1, D]."""
        theta, unknown = private_steps.apply_delta(mean, message).theta, private_steps.unknown(mean.theta)
        return Update(theta, private_steps.unit_weights(theta), unknown, unknown)

    def personalise(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """Give the global weights, fine-tuned on the client's rows where that is asked for."""
        theta = tensors.expand(message.theta, batch.clients)
        if self.finetune:
            theta = self.descend(theta, batch, noise, self.finetune).theta
        return WeightPosterior(self.model, PointMass(theta), 1, noise, batch)

    def global_model(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """The global weights themselves."""
        theta = tensors.expand(message.theta, batch.clients)
        return WeightPosterior(self.model, PointMass(theta), 1, noise, batch)

    def check_robust(self, aggregate: Aggregate) -> None:
        """Refuse weights by rows where a rule knows none."""
        super().check_robust(aggregate)
        average.check_robust(self.weighting, aggregate)

    def reduce(self, update: Update) -> Update:
        """Average the clients of a chunk."""
        reduced: Update = average.reduced(update, "theta")
        return reduced

    def report(self, server: Server, update: Update) -> Mapping[str, Tensor]:
        """Mean training loss of the clients."""
        return {"loss": update.loss.sum() / update.clients.sum().clamp_min(1.0)}

    def footprint(self, rows: int) -> int:
        """Numbers per client, as the model counts them."""
        return self.model.footprint(rows)
