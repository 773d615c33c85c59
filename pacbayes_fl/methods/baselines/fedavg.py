"""FedAvg (McMahan et al. 2017), and FedAvg-FT, which fine-tunes the global weights on each client's rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import Descended, LocalDescent
from pacbayes_fl.methods.baselines.averaging import WeightAveraging
from pacbayes_fl.methods.baselines.point import BPFED_BASELINES
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import PAPER_ROUNDS, ROUNDS, SEARCH_NETWORK, MethodSummary, OneOf, Recipe
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.server import average


@final
@dataclass(frozen=True)
class FedAvg(WeightAveraging):
    """FedAvg on the network of the Bayesian methods; with `finetune` FedAvg-FT.

    Args:
        local: steps of a client.
        weighting: of clients in the average; by rows, as McMahan et al. have it.

    Example:
        >>> import torch
        >>> from pacbayes_fl import BayesianMLP, ClientBatch, FedAvg, FederationPlan, Gaussian, run_rounds
        >>> from pacbayes_fl.inference.map_estimate import LocalDescent
        >>> x = torch.linspace(-1, 1, 8).unsqueeze(1)
        >>> batch = ClientBatch.pad([(x, slope * x[:, 0]) for slope in (0.0, 1.0, 2.0)])
        >>> method = FedAvg(BayesianMLP((1, 1), Gaussian()), local=LocalDescent(rate=0.1))
        >>> slope, intercept = run_rounds(method, batch, FederationPlan(rounds=10)).server.theta
        >>> round(slope.item(), 1)  # one line for all clients
        1.0
    """

    local: LocalDescent = part(
        LocalDescent,
        paper={
            **BPFED_BASELINES,
            "rate": Paper(0.01, "pFedBayes, section 6.2"),
            "optimiser": Paper("sgd", "McMahan et al., Algorithm 1"),
        },
    )
    weighting: average.Weighting = option("rows", paper=Paper("rows", "McMahan et al., Algorithm 1"))

    def descend(self, theta: Tensor, batch: ClientBatch, noise: Noise, passes: int = 1) -> Descended:
        """Descend the clients' loss from theta [K, D] (Algorithm 1, ClientUpdate)."""
        return map_estimate.fit(self.model, self.local, theta, batch, noise, passes)


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
