"""FedProx (Li et al., MLSys 2020): FedAvg whose clients stay near the weights that they were sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import Descended, GaussianPrior
from pacbayes_fl.methods.baselines.averaging import WeightAveraging
from pacbayes_fl.methods.options import Paper
from pacbayes_fl.methods.recipe import PAPER_ROUNDS, ROUNDS, SEARCH_NETWORK, LogUniform, MethodSummary, Recipe
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option


@final
@dataclass(frozen=True)
class FedProx(WeightAveraging):
    """FedProx (Algorithm 2): clients descend f_k(theta) + (mu / 2) |theta - theta^t|^2, f_k the mean loss of a row.

    Args:
        mu: strength of the pull towards the global weights; 0 is FedAvg.

    Example:
        >>> import torch
        >>> from pacbayes_fl import BayesianMLP, ClientBatch, FedAvg, FederationPlan, FedProx, Gaussian, run_rounds
        >>> x, plan = torch.linspace(-1, 1, 8).unsqueeze(1), FederationPlan(rounds=2)
        >>> batch = ClientBatch.pad([(x, slope * x[:, 0]) for slope in (0.0, 1.0, 2.0)])
        >>> free = FedProx(BayesianMLP((1, 1), Gaussian()), mu=0.0)
        >>> same = FedAvg(free.model, local=free.local)
        >>> torch.equal(run_rounds(free, batch, plan).server.theta, run_rounds(same, batch, plan).server.theta)
        True
    """

    mu: float = option(0.001, low=0, symbol="mu", paper=Paper(0.001, "pFedBayes, Table 3; Li et al. try 0.001 to 1"))

    def descend(self, theta: Tensor, batch: ClientBatch, noise: Noise, passes: int = 1) -> Descended:
        """Descend the clients' loss and the pull towards theta [K, D], where they start."""
        pull = GaussianPrior(theta, torch.ones_like(theta), self.mu) if self.mu else None
        return map_estimate.fit(self.model, self.local, theta, batch, noise, passes, prior=pull)


RECIPE = Recipe(
    "FedProx: FedAvg whose clients stay near the global weights",
    FedProx,
    MethodSummary("network", "map_estimate.fit, proximal", "weighted mean", "weights", "nothing"),
    model="weights",
    presets={
        "recommended": {"federation": ROUNDS},
        "paper": {"method": {"optimiser": "sgd", "rate": 0.01}, "federation": PAPER_ROUNDS},
    },
    search={"method.mu": LogUniform(1e-3, 1.0), **SEARCH_NETWORK},
)
