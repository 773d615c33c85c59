"""Local-only: each client trains its own network; nothing is shared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.inference.optim import Adam, adam_init
from pacbayes_fl.methods import private_steps
from pacbayes_fl.methods.baselines.averaging import Server
from pacbayes_fl.methods.baselines.point import BPFED_BASELINES, PointEstimate, initial_weights
from pacbayes_fl.methods.newcomers import TrainsNewcomers
from pacbayes_fl.methods.options import part
from pacbayes_fl.methods.recipe import PAPER_ROUNDS, ROUNDS, SEARCH_NETWORK, MethodSummary, Recipe
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior


class Client(NamedTuple):
    """A client's weights theta [K, D], and the moments of its optimiser."""

    theta: Tensor
    adam: Adam[Tensor]


class Update(NamedTuple):
    """Numbers of a round for its record; weights are not sent.

    Args:
        weight: 1 [K].
        loss: mean negative log likelihood per row over the local steps [K], in nats.
    """

    weight: Tensor
    loss: Tensor

    @property
    def clients(self) -> Tensor:
        """Number of clients behind a row [K], each of weight 1."""
        return self.weight


@final
@dataclass(frozen=True)
class LocalOnly(TrainsNewcomers[Server, Client, WeightPosterior], PointEstimate[Server, Server, Client, Update]):
    """Training without a federation, on the network and for as many steps as the federated methods.

    Args:
        model: the likelihood.
        local: steps of a client per round.
        init_std: spread of the initial weights, the same for all clients.
        join_passes: times the minibatches of a round, for a client that never trained.

    Example:
        >>> import torch
        >>> from pacbayes_fl import BayesianMLP, ClientBatch, FederationPlan, Gaussian, LocalOnly, run_rounds
        >>> from pacbayes_fl.inference.map_estimate import LocalDescent
        >>> x = torch.linspace(-1, 1, 8).unsqueeze(1)
        >>> batch = ClientBatch.pad([(x, slope * x[:, 0]) for slope in (0.0, 1.0, 2.0)])
        >>> method = LocalOnly(BayesianMLP((1, 1), Gaussian()), local=LocalDescent(rate=0.1))
        >>> theta = run_rounds(method, batch, FederationPlan(rounds=10)).clients.theta
        >>> [abs(round(slope, 1)) for slope in theta[:, 0].tolist()]  # a line for each client
        [0.0, 1.0, 2.0]
    """

    local: LocalDescent = part(LocalDescent, paper=BPFED_BASELINES)
    init_std: float = option(0.1, above=0)
    join_passes: int = option(10, low=1)

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw the weights with which every client begins."""
        return Server(initial_weights(self.model, self.init_std, generator))

    def init_clients(self, message: Server, batch: ClientBatch) -> Client:
        """Initialise at the common weights."""
        theta = tensors.expand(message.theta, batch.clients).clone()
        return Client(theta, adam_init(theta, batch.clients))

    def broadcast(self, server: Server) -> Server:
        """Send the start, for clients that are new."""
        return server

    def client(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> tuple[Update, Client]:
        """Go on training."""
        theta, adam, loss = map_estimate.fit(self.model, self.local, state.theta, batch, noise, adam=state.adam)
        return Update(torch.ones_like(batch.size), loss.double()), Client(theta, adam)

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """The server state does not change."""
        return server

    def check_private(self) -> None:
        """Nothing to release: no weight leaves its client."""
        raise private_steps.no_release_error(type(self).__name__)

    def train_newcomers(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> Client:
        """Train from the common weights."""
        theta = map_estimate.fit(self.model, self.local, state.theta, batch, noise, self.join_passes).theta
        return state._replace(theta=theta)

    def is_new(self, state: Client) -> Tensor:
        """Which clients have not taken a step: bool [K]."""
        return state.adam.steps == 0

    def personalise_trained(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """Give the client's weights."""
        return self.posterior(state.theta, batch, noise)

    def reduce(self, update: Update) -> Update:
        """Sum the clients of a chunk."""
        return tensors.total(update)


RECIPE = Recipe(
    "Local-only: each client trains its own network",
    LocalOnly,
    MethodSummary("network", "map_estimate.fit", "nothing", "nothing", "weights, Adam"),
    model="weights",
    presets={"recommended": {"federation": ROUNDS}, "paper": {"federation": PAPER_ROUNDS}},
    search=SEARCH_NETWORK,
)
