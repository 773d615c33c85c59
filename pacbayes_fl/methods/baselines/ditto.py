"""Ditto (Li et al., ICML 2021): FedAvg, and beside it every client's own weights that stay near the global ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import GaussianPrior
from pacbayes_fl.methods.baselines.personal import PersonalWeights, Trained
from pacbayes_fl.methods.options import Paper
from pacbayes_fl.methods.recipe import ROUNDS, SEARCH_NETWORK, LogUniform, MethodSummary, Recipe
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.server import average


@final
@dataclass(frozen=True)
class Ditto(PersonalWeights):
    """Ditto (Algorithm 1): v_k descends f_k(v) + (lambda / 2) |v - w^t|^2 as many steps as w descends f_k.

    Args:
        weighting: of clients in the average.
        lam: strength of the pull of the own weights towards the global ones; 0 trains them alone.
    """

    weighting: average.Weighting = option("uniform", paper=Paper("uniform", "Algorithm 1"))
    lam: float = option(0.1, low=0, symbol="lambda", paper=Paper(..., "chosen by each client's held-out rows"))

    def train(self, theta: Tensor, own: Tensor, batch: ClientBatch, noise: Noise) -> Trained:
        """Descend the global objective from theta [K, D], and each client's own one from `own` [K, D]."""
        forked = noise.fork()  # with epochs the first descent draws as long as the longest client of the call needs
        sent, _, loss = map_estimate.fit(self.model, self.local, theta, batch, noise)
        return Trained(sent, self._pulled(own, theta, batch, forked), loss)

    def newcomer(self, theta: Tensor, batch: ClientBatch, noise: Noise) -> Tensor:
        """Descend the own objective from the global weights theta [K, D], for a client that never took part."""
        return self._pulled(theta, theta, batch, noise, self.join_passes)

    def _pulled(self, own: Tensor, theta: Tensor, batch: ClientBatch, noise: Noise, passes: int = 1) -> Tensor:
        pull = GaussianPrior(theta, torch.ones_like(theta), self.lam) if self.lam else None
        return map_estimate.fit(self.model, self.local, own, batch, noise, passes, prior=pull).theta


RECIPE = Recipe(
    "Ditto: FedAvg, and own weights that stay near the global ones",
    Ditto,
    MethodSummary("network", "map_estimate.fit, plain and proximal", "mean", "weights", "own weights"),
    model="weights",
    presets={
        "recommended": {"federation": ROUNDS},
        "paper": {"method": {"optimiser": "sgd", "rate": 0.1}, "federation": ROUNDS},
    },
    search={"method.lam": LogUniform(1e-2, 2.0), **SEARCH_NETWORK},
)
