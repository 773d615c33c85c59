"""Per-FedAvg (Fallah et al., NeurIPS 2020), "MAML" of PAC-PFL's tables: weights that one step makes personal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.files import JsonTable
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.averaging import Server, Stateless, Update
from pacbayes_fl.methods.baselines.point import POINT_ESTIMATE
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import PAPER_ROUNDS, ROUNDS, SEARCH_NETWORK, LogUniform, MethodSummary, Recipe
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from pacbayes_fl.server import average


@final
@dataclass(frozen=True)
class PerFedAvg(Stateless):
    """Per-FedAvg (Algorithm 1): clients descend F_k(w) = f_k(w - alpha grad f_k(w)) with three minibatches a step.

    grad F_k(w) = (I - alpha grad^2 f_k(w; D'')) g with g = grad f_k(w - alpha grad f_k(w; D); D'). The
    minibatches are drawn one by one, so that they are independent; where one holds all rows they are the same rows.

    Args:
        local: steps on w, whose rate is beta.
        weighting: of clients in the average.
        adapt: alpha, rate of the step that makes the weights personal.
        variant: of the gradient: "first-order" leaves out the Hessian, "hessian-free" takes its product with g from a
            difference of gradients, "exact" differentiates twice.
        delta: half of that difference, in units of g.
        adapt_steps: steps of rate alpha on all rows of a client that make its personal model.
    """

    personal_model: ClassVar[str] = "personal models gradient steps from the global weights on the client's rows"

    local: LocalDescent = part(
        LocalDescent,
        paper={"optimiser": Paper("sgd", "Algorithm 1"), "rate": Paper(0.01, "pFedBayes, section 6.2, one rate")},
    )
    weighting: average.Weighting = option("uniform", paper=Paper("uniform", "Algorithm 1"))
    adapt: float = option(1e-3, low=0, symbol="alpha", paper=Paper(0.01, "pFedBayes, section 6.2, one rate"))
    variant: Literal["first-order", "hessian-free", "exact"] = option(
        "first-order", paper=Paper("exact", "Algorithm 1; the others approximate it")
    )
    delta: float = option(1e-3, above=0, symbol="delta")
    adapt_steps: int = option(100, low=0, paper=Paper(1, "the objective"))

    def about(self) -> JsonTable:
        """Say which gradient is descended."""
        return {**POINT_ESTIMATE, "gradient": f"{self.variant}, of the loss after a step"}

    def client(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> tuple[Update, Nothing]:
        """Descend the loss after a step of rate alpha from the global weights (Algorithm 1)."""

        def slope(w: Tensor, rows: ClientBatch) -> tuple[Tensor, Tensor]:
            loss, first = map_estimate.gradient(self.model, w, rows)
            near, other = w - self.adapt * first, map_estimate.minibatch(self.local, batch, noise)
            _, g = map_estimate.gradient(self.model, near, other)
            return loss, g if self.variant == "first-order" else g - self.adapt * self._curved(w, g, batch, noise)

        start = tensors.expand(message.theta, batch.clients)
        theta, _, loss = map_estimate.descend(self.local, start, batch, noise, slope)
        return self.sent(theta, loss, batch), state

    def _curved(self, w: Tensor, g: Tensor, batch: ClientBatch, noise: Noise) -> Tensor:
        rows = map_estimate.minibatch(self.local, batch, noise)
        if self.variant == "exact":
            return map_estimate.hessian_product(self.model, w, rows, g)
        _, above = map_estimate.gradient(self.model, w + self.delta * g, rows)
        _, below = map_estimate.gradient(self.model, w - self.delta * g, rows)
        return (above - below) / (2 * self.delta)

    def absorb(self, message: Server, state: Nothing, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> Nothing:
        """`personalise` steps along the gradient of all rows."""
        return state

    def personalise(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """Step from the global weights on all rows of each client, whether it took part or not."""
        theta = tensors.expand(message.theta, batch.clients)
        for _ in range(self.adapt_steps):
            theta = theta - self.adapt * map_estimate.gradient(self.model, theta, batch)[1]
        return self.posterior(theta, batch, noise)


RECIPE = Recipe(
    "Per-FedAvg: weights that one gradient step makes personal (MAML)",
    PerFedAvg,
    MethodSummary("network", "map_estimate.descend, after a step", "mean", "weights", "nothing"),
    model="weights",
    presets={
        "recommended": {"federation": ROUNDS},
        "paper": {"federation": PAPER_ROUNDS},
        "authors-code": {
            "method": {"optimiser": "sgd", "rate": 0.005, "adapt": 0.005, "adapt_steps": 1, "minibatch": 10},
            "federation": PAPER_ROUNDS,
        },
    },
    search={"method.adapt": LogUniform(1e-4, 1e-1), **SEARCH_NETWORK},
)
