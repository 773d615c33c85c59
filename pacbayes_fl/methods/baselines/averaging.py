"""Base of methods whose server averages the weights of networks: all but the client's training."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference.map_estimate import Descended
from pacbayes_fl.methods import private_steps
from pacbayes_fl.methods.base import Client, Nothing
from pacbayes_fl.methods.baselines.point import PointEstimate, initial_weights
from pacbayes_fl.methods.fine_tuning import FineTuned
from pacbayes_fl.methods.options import part
from pacbayes_fl.models.base import default
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.predictive import Posterior
from pacbayes_fl.server import average
from pacbayes_fl.server.step import SERVER_STEP, Memoryless, ServerStep, State


class Server(NamedTuple):
    """Global weights theta [D], and the state of the server's optimiser, which is not sent."""

    theta: Tensor
    moments: State = Memoryless()


class Update(NamedTuple):
    """Locally trained weights of clients, or their mean with the sums of the rest.

    Args:
        theta: those that are shared [K, R], all D where a client keeps none for itself.
        weight: in the server's average [K].
        clients: number of clients behind a row [K].
        loss: mean negative log likelihood per row over the local steps [K], in nats.
    """

    theta: Tensor
    weight: Tensor
    clients: Tensor
    loss: Tensor


@dataclass(frozen=True)
class AveragedWeights(PointEstimate[Server, Server, Client, Update]):
    """A method whose clients send weights that the server averages: the server's half, whatever clients keep.

    Args:
        model: the likelihood.
        local: steps of a client.
        weighting: of clients in the average.
        init_std: spread of the initial weights.
        step: how far the server goes towards the average.
    """

    weighting: average.Weighting = "rows"
    init_std: float = option(0.1, above=0)
    step: ServerStep = part(ServerStep, names=SERVER_STEP)

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw the initial weights."""
        theta = self.initial(generator)
        return Server(theta, self.step.start(self.shared(theta)))

    @default
    def initial(self, generator: torch.Generator) -> Tensor:
        """Draw all weights of the server [D]."""
        return initial_weights(self.model, self.init_std, generator)

    @default
    def shared(self, theta: Tensor) -> Tensor:
        """Choose of all weights theta [*, D] those that clients send, [*, R]."""
        return theta

    @default
    def with_shared(self, theta: Tensor, shared: Tensor) -> Tensor:
        """Put averaged weights, shared [R], in their place among all weights, theta [D]."""
        return shared

    def broadcast(self, server: Server) -> Server:
        """Send the weights."""
        return Server(server.theta)

    def sent(self, theta: Tensor, loss: Tensor, batch: ClientBatch) -> Update:
        """Send trained weights.

        Args:
            theta: [K, D], of which the shared ones are sent.
            loss: mean negative log likelihood per row over the local steps [K], in nats.
            batch: the clients' rows, by which they may weigh.

        Returns:
            The update.
        """
        weight = self.weight(batch.size)
        return Update(self.shared(theta), weight, torch.ones_like(weight), loss.double())

    def weight(self, rows: Tensor) -> Tensor:
        """As `weighting` says, of rows [K]: [K]."""
        return average.client_weight(rows, self.weighting)

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """Go to the average, or as far as `step` says."""
        mean = tensors.weighted_mean(update.theta, update.weight)
        theta, moments = self.step(self.shared(server.theta), mean, server.moments)
        return Server(self.with_shared(server.theta, theta), moments)

    def client_deltas(self, message: Server, update: Update) -> Server:
        """How far the shared weights went in a round [K, R]."""
        return private_steps.deltas(Server(update.theta), Server(self.shared(message.theta)))

    def check_private(self) -> None:
        """Refuse weights by rows, which are private."""
        private_steps.alike(self.weighting)

    def from_release(self, message: Server, mean: Server, clients: float) -> Update:
        """Apply the released mean step [1, R]."""
        theta, unknown = self.shared(message.theta) + mean.theta, private_steps.unknown(mean.theta)
        return Update(theta, private_steps.unit_weights(theta), unknown, unknown)

    @default
    def global_model(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> Posterior | None:
        """The global weights themselves."""
        return self.predictor(tensors.expand(message.theta, batch.clients), batch, noise)

    @default
    def predictor(self, theta: Tensor, batch: ClientBatch, noise: Noise) -> Posterior:
        """Predict with trained weights, theta [K, D]: those of one network, or of all that the server averages."""
        return self.posterior(theta, batch, noise)

    def reduce(self, update: Update) -> Update:
        """Average the clients of a chunk."""
        return average.reduced(update, "theta")


@dataclass(frozen=True)
class Stateless(AveragedWeights[Nothing]):
    """A method whose clients keep nothing between rounds."""

    def init_clients(self, message: Server, batch: ClientBatch) -> Nothing:
        """No client state."""
        return Nothing()


@dataclass(frozen=True)
class WeightAveraging(FineTuned[Nothing], Stateless):
    """A method whose clients train the server's weights, keep nothing, and fine-tune in the same way.

    Args:
        finetune: times the minibatches of a round on the client's rows at personalisation; 0 leaves the global weights.
    """

    personal_model: ClassVar[str] = "personal models are the global one, fine-tuned where `finetune` says so"

    finetune: int = option(0, low=0)

    @abstractmethod
    def descend(self, theta: Tensor, batch: ClientBatch, noise: Noise, passes: int = 1) -> Descended:
        """Train from the global weights theta [K, D] on the clients' rows, with a fresh optimiser.

        `passes` counts the minibatches of a round that are taken. The weights are [K, D].
        """

    def client(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> tuple[Update, Nothing]:
        """Train from the global weights."""
        theta, _, loss = self.descend(tensors.expand(message.theta, batch.clients), batch, noise)
        return self.sent(theta, loss, batch), state

    def personalise(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> Posterior:
        """Give the global weights, fine-tuned on the client's rows where that is asked for."""
        theta = tensors.expand(message.theta, batch.clients)
        if self.finetune:
            theta = self.descend(theta, batch, noise, self.finetune).theta
        return self.predictor(theta, batch, noise)
