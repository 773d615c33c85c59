"""Base of methods whose clients keep personal weights beside the averaged global ones."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.methods.baselines.averaging import AveragedWeights, Server, Update
from pacbayes_fl.methods.newcomers import TrainsNewcomers
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior


class Kept(NamedTuple):
    """A client's own weights theta [K, D], and in how many rounds it took part [K], int64."""

    theta: Tensor
    rounds: Tensor


class Trained(NamedTuple):
    """Results of the clients' half of a round.

    Args:
        sent: weights for the server's average [K, D].
        own: weights of the personal models [K, D].
        loss: mean negative log likelihood per row over the local steps [K], in nats.
    """

    sent: Tensor
    own: Tensor
    loss: Tensor


@dataclass(frozen=True)
class PersonalWeights(TrainsNewcomers[Server, Kept, WeightPosterior], AveragedWeights[Kept]):
    """A method whose clients keep weights of their own, and send weights that the server averages.

    Args:
        join_passes: times the minibatches of a round, for a client that never took part.
    """

    personal_model: ClassVar[str] = "personal models of the weights that the clients keep for themselves"

    join_passes: int = option(10, low=1)

    @abstractmethod
    def train(self, theta: Tensor, own: Tensor, batch: ClientBatch, noise: Noise) -> Trained:
        """Train in a round, from the global weights theta [K, D] and the clients' own [K, D]."""

    @abstractmethod
    def newcomer(self, theta: Tensor, batch: ClientBatch, noise: Noise) -> Tensor:
        """Find the own weights [K, D] of clients that never took part, near the global weights theta [K, D]."""

    def init_clients(self, message: Server, batch: ClientBatch) -> Kept:
        """Initialise at the global weights."""
        theta = tensors.expand(message.theta, batch.clients).clone()
        return Kept(theta, torch.zeros(batch.clients, dtype=torch.int64, device=theta.device))

    def client(self, message: Server, state: Kept, batch: ClientBatch, noise: Noise) -> tuple[Update, Kept]:
        """Train, send the one and keep the other."""
        sent, own, loss = self.train(tensors.expand(message.theta, batch.clients), state.theta, batch, noise)
        return self.sent(sent, loss, batch), Kept(own, state.rounds + 1)

    def train_newcomers(self, message: Server, state: Kept, batch: ClientBatch, noise: Noise) -> Kept:
        """Train own weights from the global ones."""
        return state._replace(theta=self.newcomer(tensors.expand(message.theta, batch.clients), batch, noise))

    def personalise_trained(self, message: Server, state: Kept, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """Give the client's own weights."""
        return self.posterior(state.theta, batch, noise)
