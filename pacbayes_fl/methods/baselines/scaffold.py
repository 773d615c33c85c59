"""SCAFFOLD (Karimireddy et al., ICML 2020): FedAvg whose clients correct their steps by those of all the others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference import map_estimate, turns
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods import private_steps
from pacbayes_fl.methods.baselines.point import PointEstimate, initial_weights
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import PAPER_ROUNDS, ROUNDS, LogUniform, MethodSummary, OneOf, Recipe
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import check, option
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from pacbayes_fl.server import average
from pacbayes_fl.server.aggregations import AggregationRule
from pacbayes_fl.server.step import SERVER_STEP, Memoryless, ServerStep, State


class Pair(NamedTuple):
    """Weights and a control variate [*, D], or steps of both."""

    theta: Tensor
    control: Tensor


class Server(NamedTuple):
    """Global weights x and control variate c [D], and what the server's optimiser remembers, which is not sent."""

    pair: Pair
    moments: State = Memoryless()


class Client(NamedTuple):
    """A client's control variate c_k [K, D]: its mean gradient in the last round."""

    control: Tensor


class Update(NamedTuple):
    """What clients send.

    Args:
        pair: their weights, and how far their control variates moved [K, D].
        weight: in the server's average [K].
        clients: number of clients behind a row [K].
        loss: mean negative log likelihood per row over the local steps [K], in nats.
    """

    pair: Pair
    weight: Tensor
    clients: Tensor
    loss: Tensor


@final
@dataclass(frozen=True)
class Scaffold(PointEstimate[Server, Server, Client, Update]):
    """SCAFFOLD (Algorithm 1, option II): y <- y - eta (g(y) - c_k + c) by plain descent, R steps a round.

    c_k <- c_k - c + (x - y) / (R eta),  x <- x + eta_g mean_k (y_k - x),  c <- c + (S / K) mean_k (new c_k - old c_k)

    Args:
        model: the likelihood.
        local: plain steps of a client.
        init_std: spread of the initial weights.
        step: how far the server goes towards the average.
    """

    objective: ClassVar[str | None] = "loss"
    personal_model: ClassVar[str] = "personal models are the global one"

    local: LocalDescent = part(
        partial(LocalDescent, rate=0.01, optimiser="sgd"),
        names={name: name for name in ("steps", "minibatch", "rate", "epochs")},
        others=False,
    )
    init_std: float = option(0.1, above=0)
    step: ServerStep = part(ServerStep, names=SERVER_STEP, paper={"rate": Paper(1.0, "experiments, eta_g")})

    def __post_init__(self) -> None:
        """Check the ranges, and that steps are those whose mean is a gradient."""
        check(self)
        if self.local.optimiser != "sgd" or self.local.momentum:
            what = f"optimiser = {self.local.optimiser!r} and momentum = {self.local.momentum:g}"
            raise StudyError(f"SCAFFOLD corrects plain descent, got {what}", hint="optimiser = 'sgd', momentum = 0")

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw the initial weights; nobody knows a gradient yet."""
        theta = initial_weights(self.model, self.init_std, generator)
        return Server(Pair(theta, torch.zeros_like(theta)), self.step.start(theta))

    def init_clients(self, message: Server, batch: ClientBatch) -> Client:
        """Begin without a gradient."""
        return Client(torch.zeros_like(tensors.expand(message.pair.control, batch.clients)))

    def broadcast(self, server: Server) -> Server:
        """Send the weights and the control variate."""
        return Server(server.pair)

    def client(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> tuple[Update, Client]:
        """Descend with corrected gradients, and take the mean of the plain ones (Algorithm 1, lines 7 to 13)."""
        x, c = (tensors.expand(leaf, batch.clients) for leaf in message.pair)

        def slope(y: Tensor, rows: ClientBatch) -> tuple[Tensor, Tensor]:
            loss, gradient = map_estimate.gradient(self.model, y, rows)
            return loss, gradient - state.control + c

        y, _, loss = map_estimate.descend(self.local, x, batch, noise, slope)
        taken = turns.counts(self.local, batch).to(x).unsqueeze(1)
        shift = torch.where(taken > 0, (x - y) / (taken.clamp_min(1) * self.local.rate) - c, 0.0)
        weight = self.weight(batch.size)
        return Update(Pair(y, shift), weight, torch.ones_like(weight), loss.double()), Client(state.control + shift)

    def weight(self, rows: Tensor) -> Tensor:
        """All clients with rows [K] weigh alike: [K]."""
        return average.client_weight(rows, "uniform")

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """Go along the mean step, and keep c the mean of all clients' c_k (Algorithm 1, lines 16 and 17)."""
        mean = tensors.weighted_mean(update.pair, update.weight)
        theta, moments = self.step(server.pair.theta, mean.theta, server.moments)
        share = update.clients.sum().to(theta) / n_clients
        return Server(Pair(theta, server.pair.control + share * mean.control), moments)

    def client_deltas(self, message: Server, update: Update) -> Pair:
        """How far the weights and the control variates went in a round [K, D]."""
        return Pair(update.pair.theta - message.pair.theta, update.pair.control)

    def check_private(self) -> None:
        """Both steps are averaged with equal weights, so that one clip bounds them."""

    def check_robust(self, rule: AggregationRule) -> None:
        """Refuse every rule: what bounds a step bounds no control variate, which stays in all steps that follow."""
        what = f"aggregate = {rule.name!r} joins clients' steps, and those of SCAFFOLD send control variates that stay"
        raise StudyError(what, hint="federation.aggregate = 'mean', or method.name = 'fedavg'")

    def from_release(self, message: Server, mean: Pair, clients: float) -> Update:
        """Go as far as the clients' mean steps [1, D]."""
        one = private_steps.unit_weights(mean.theta)
        pair = Pair(message.pair.theta + mean.theta, mean.control)
        return Update(pair, one, clients * one, private_steps.unknown(mean.theta))

    def personalise(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """Give the global weights."""
        theta = tensors.expand(message.pair.theta, batch.clients)
        return self.posterior(theta, batch, noise)

    def global_model(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """The global weights themselves."""
        return self.personalise(message, state, batch, noise)

    def reduce(self, update: Update) -> Update:
        """Average the clients of a chunk."""
        reduced: Update = average.reduced(update, "pair")
        return reduced


RECIPE = Recipe(
    "SCAFFOLD: FedAvg with steps corrected by control variates",
    Scaffold,
    MethodSummary("network", "map_estimate.descend, corrected", "mean", "weights, control variate", "control variate"),
    model="weights",
    presets={"recommended": {"federation": ROUNDS}, "paper": {"federation": PAPER_ROUNDS}},
    search={"method.rate": LogUniform(1e-3, 1e-1), "federation.rounds": OneOf((40, 80, 160))},
)
