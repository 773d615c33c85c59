"""kNN-Per (Marfoq et al., ICML 2022): FedAvg's network, mixed with the nearest rows of each client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.files import JsonTable
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.averaging import Server, Stateless, Update
from pacbayes_fl.methods.baselines.point import POINT_ESTIMATE
from pacbayes_fl.methods.options import Paper
from pacbayes_fl.methods.recipe import (
    PAPER_ROUNDS,
    ROUNDS,
    SEARCH_NETWORK,
    HeldOutChoice,
    LogUniform,
    MethodSummary,
    OneOf,
    Recipe,
)
from pacbayes_fl.models.weights.bayesian_network import BayesianNetwork
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import check, option
from pacbayes_fl.posteriors.weights.neighbours import NeighbourPosterior


@final
@dataclass(frozen=True)
class KNNPer(Stateless):
    """kNN-Per: rounds of FedAvg, and personal models (1 - lambda) p(y | x, theta) + lambda p_kNN(y | x).

    Neighbours are a client's own training rows, by the inputs of the network's last layer; a client that never took
    part has them too.

    Args:
        model: the network.
        share: of the neighbours in a prediction; 0 is FedAvg.
        neighbours: rows that are looked at, k.
        scale: distance over which a neighbour's weight falls by e, in units of the embedding.
    """

    personal_model: ClassVar[str] = "personal models that mix the global network with each client's nearest rows"

    model: BayesianNetwork
    share: float = option(
        0.5, low=0, high=1, symbol="lambda", paper=Paper(..., "chosen by each client's held-out rows")
    )
    neighbours: int = option(10, low=1, symbol="k", paper=Paper(10, "experiments"))
    scale: float = option(1.0, above=0, symbol="sigma", paper=Paper(1.0, "section 3, plain distances"))

    def __post_init__(self) -> None:
        """Check the ranges, and that the model is a network of layers."""
        check(self)
        if not isinstance(self.model, BayesianNetwork):
            what = f"kNN-Per embeds rows by a network's last layer, and {type(self.model).__name__} has no layers"
            raise StudyError(what, hint="method.name = 'fedavg-ft'")

    def about(self) -> JsonTable:
        """Weights without uncertainty, and the share of the neighbours."""
        return {**POINT_ESTIMATE, "neighbours": f"{self.share:g} of a prediction is of {self.neighbours} rows nearby"}

    def client(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> tuple[Update, Nothing]:
        """Train from the global weights, as FedAvg does."""
        theta = tensors.expand(message.theta, batch.clients)
        theta, _, loss = map_estimate.fit(self.model, self.local, theta, batch, noise)
        return self.sent(theta, loss, batch), state

    def absorb(self, message: Server, state: Nothing, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> Nothing:
        """Neighbours are looked for among all rows."""
        return state

    def personalise(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> NeighbourPosterior:
        """Mix the global network with the rows of each client."""
        theta = tensors.expand(message.theta, batch.clients)
        return NeighbourPosterior(self.model, theta, batch, noise, self.share, self.neighbours, self.scale)


RECIPE = Recipe(
    "kNN-Per: FedAvg, mixed with the nearest rows of each client",
    KNNPer,
    MethodSummary("network, nearest rows", "map_estimate.fit", "weighted mean", "weights", "nothing"),
    model="weights",
    presets={"recommended": {"federation": ROUNDS}, "paper": {"federation": PAPER_ROUNDS}},
    search={
        "method.share": OneOf((0.25, 0.5, 0.75)),
        "method.scale": LogUniform(0.1, 10.0),
        **SEARCH_NETWORK,
    },
    held_out=(HeldOutChoice("share", (0.5, 0.25, 0.75, 0.9, 0.0), after=True, by_default=False),),
)
