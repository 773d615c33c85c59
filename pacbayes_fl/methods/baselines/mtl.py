"""Regularised multi-task learning (Evgeniou and Pontil, KDD 2004), "MTL" of PAC-PFL's tables, in rounds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.files import JsonTable
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import GaussianPrior
from pacbayes_fl.methods.baselines.personal import PersonalWeights, Trained
from pacbayes_fl.methods.baselines.point import POINT_ESTIMATE
from pacbayes_fl.methods.options import Paper
from pacbayes_fl.methods.recipe import ROUNDS, SEARCH_NETWORK, LogUniform, MethodSummary, Recipe
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.server import average


@final
@dataclass(frozen=True)
class MTL(PersonalWeights):
    """Every client its own weights w_k, near a centre w_0 that is learned with them.

    min sum_k f_k(w_k) + (lambda_1 / 2) sum_k |w_k - w_0|^2 + (K lambda_2 / 2) |w_0|^2; clients descend it by w_k, and
    the server minimises it by w_0 = lambda_1 / (lambda_1 + lambda_2) mean_k w_k.

    Args:
        weighting: of clients in the average.
        lambda1: strength of the pull of the clients' weights towards the centre; 0 is training alone.
        lambda2: strength of the pull of the centre towards 0.
    """

    weighting: average.Weighting = option("uniform", paper=Paper("uniform", "Evgeniou and Pontil, section 2"))
    lambda1: float = option(0.1, low=0, symbol="lambda_1", paper=Paper(..., "PAC-PFL prints none"))
    lambda2: float = option(0.0, low=0, symbol="lambda_2")

    def about(self) -> JsonTable:
        """Say where nobody learns from anybody."""
        return {**POINT_ESTIMATE, **({} if self.lambda1 else {"pull": "none: every client trains alone"})}

    def train(self, theta: Tensor, own: Tensor, batch: ClientBatch, noise: Noise) -> Trained:
        """Descend from `own` [K, D] with a pull towards the centre theta [K, D]; send what it is the mean of."""
        own, loss = self._pulled(own, theta, batch, noise)
        share = self.lambda1 / (self.lambda1 + self.lambda2) if self.lambda2 else 1.0
        return Trained(share * own, own, loss)

    def newcomer(self, theta: Tensor, batch: ClientBatch, noise: Noise) -> Tensor:
        """Descend from the centre theta [K, D], for a client that never took part."""
        return self._pulled(theta, theta, batch, noise, self.join_passes)[0]

    def _pulled(
        self, own: Tensor, theta: Tensor, batch: ClientBatch, noise: Noise, passes: int = 1
    ) -> tuple[Tensor, Tensor]:
        pull = GaussianPrior(theta, torch.ones_like(theta), self.lambda1) if self.lambda1 else None
        result, _, loss = map_estimate.fit(self.model, self.local, own, batch, noise, passes, prior=pull)
        return result, loss


RECIPE = Recipe(
    "MTL: every client its own network, near a learned centre",
    MTL,
    MethodSummary("network", "map_estimate.fit, proximal", "mean", "weights", "own weights"),
    model="weights",
    presets={
        "recommended": {"federation": ROUNDS},
        "paper": {"federation": ROUNDS},
        "authors-code": {"method": {"lambda1": 0.0, "optimiser": "sgd"}, "federation": ROUNDS},
    },
    search={"method.lambda1": LogUniform(1e-3, 10.0), **SEARCH_NETWORK},
)
