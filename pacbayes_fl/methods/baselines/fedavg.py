"""FedAvg (McMahan et al. 2017), and FedAvg-FT, which fine-tunes the global weights on each client's rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods import private_steps
from pacbayes_fl.methods.base import Method, Nothing
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import PAPER_ROUNDS, ROUNDS, SEARCH_NETWORK, MethodSummary, OneOf, Recipe
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


@final
@dataclass(frozen=True)
class FedAvg(Method[Server, Server, Nothing, Update]):
    """FedAvg on the network of the Bayesian methods; with `finetune` FedAvg-FT.

    Args:
        model: the likelihood.
        local: steps of a client.
        weighting: of clients in the average; by rows, as McMahan et al. have it.
        finetune: times the minibatches of a round on the client's rows at personalisation; 0 is FedAvg.
        init_std: spread of the initial weights.
    """

    personal_model: ClassVar[str] = "personal models are the global one, fine-tuned where `finetune` says so"

    objective: ClassVar[str | None] = "loss"

    model: WeightModel
    local: LocalDescent = part(
        LocalDescent,
        paper={
            "steps": Paper(None, "10 epochs instead"),
            "epochs": Paper(10, "BPFed, section VI, for all baselines"),
            "minibatch": Paper(50, "BPFed, section VI, for all baselines"),
            "rate": Paper(0.01, "pFedBayes, section 6.2"),
            "optimiser": Paper("sgd", "McMahan et al., Algorithm 1"),
        },
    )
    weighting: average.Weighting = option("rows", paper=Paper("rows", "McMahan et al., Algorithm 1"))
    finetune: int = option(0, low=0)
    init_std: float = option(0.1, above=0)

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
        """Train from the global weights, with a fresh optimiser."""
        start = tensors.expand(message.theta, batch.clients)
        theta, _, loss = map_estimate.fit(self.model, self.local, start, batch, noise)
        weight = self.weight(batch.size)
        return Update(theta, weight, torch.ones_like(weight), loss.double()), state

    def weight(self, rows: Tensor) -> Tensor:
        """As `weighting` says, of rows [K]: [K]."""
        return average.client_weight(rows, self.weighting)

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """Average."""
        return Server(tensors.weighted_mean(update.theta, update.weight))

    def client_steps(self, message: Server, update: Update) -> Server:
        """How far the weights went in a round [K, D]."""
        return private_steps.steps(Server(update.theta), message)

    def check_private(self) -> None:
        """Refuse clients that weigh by their rows."""
        private_steps.alike(self.weighting)

    def received(self, message: Server, mean: Server, clients: float) -> Update:
        """Go as far as the clients' mean step [1, D]."""
        theta, unknown = private_steps.arrived(mean, message).theta, private_steps.withheld(mean.theta)
        return Update(theta, private_steps.ones(theta), unknown, unknown)

    def personalise(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """Give the global weights, fine-tuned on the client's rows where that is asked for."""
        theta = tensors.expand(message.theta, batch.clients)
        if self.finetune:
            theta = map_estimate.fit(self.model, self.local, theta, batch, noise, self.finetune).theta
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


RECIPE = Recipe(
    "FedAvg: one network for all, averaged",
    FedAvg,
    MethodSummary("network", "map_estimate.fit", "weighted mean", "weights", "nothing"),
    model="weights",
    presets={"recommended": {"federation": ROUNDS}, "paper": {"federation": PAPER_ROUNDS}},
    search=SEARCH_NETWORK,
    fixed=("finetune",),
)

FINE_TUNED = replace(
    RECIPE,
    title="FedAvg-FT: FedAvg, fine-tuned on each client's rows",
    search={"method.finetune": OneOf((1, 5, 20)), **SEARCH_NETWORK},
    variant={"finetune": 5},
    fixed=(),
)
