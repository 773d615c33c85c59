"""Vanilla GP: each client alone fits its hyper-parameters to its own log evidence (PAC-PFL section 8.6.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from pacbayes_fl.methods.baselines.local_gp import LocalGP, Start
from pacbayes_fl.methods.gp_choices import GP_SEARCH, STDS, STEPS
from pacbayes_fl.methods.recipe import MethodSummary, Recipe
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.options import check, option
from pacbayes_fl.posteriors.hyper_posterior import CentredFlatHyperPrior


@final
@dataclass(frozen=True)
class VanillaGP(LocalGP):
    """Type-II maximum likelihood per client, without any help from others.

    Args:
        model: prior with hyper-parameters theta.
        init_std: spread of the initial draw of theta.
        rate: learning rate of Adam.
        steps: Adam steps of every client.

    Example:
        >>> import torch
        >>> from pacbayes_fl import ClientBatch, DeepKernelGP, FederationPlan, VanillaGP, join, run_rounds
        >>> x = torch.linspace(-1, 1, 8, dtype=torch.float64).unsqueeze(1)
        >>> batch = ClientBatch.pad([(x, torch.sin(3 * x[:, 0]))])
        >>> method = VanillaGP(DeepKernelGP(1, (4,), (4,)), steps=20)
        >>> server = run_rounds(method, batch, FederationPlan(rounds=1)).server
        >>> predictive = join(method, server, batch, seed=0).predict(torch.tensor([[[0.0], [9.0]]]).double())
        >>> near, far = predictive.variance[0].tolist()
        >>> near < far
        True
    """

    model: FunctionModel
    init_std: float = option(0.3, above=0)
    rate: float = option(1e-2, above=0)
    steps: int = option(200, low=0)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)

    @property
    def prior(self) -> FunctionModel:
        """The study's model."""
        return self.model

    def init_server(self, generator: torch.Generator) -> Start:
        """Draw the common starting point."""
        return Start(CentredFlatHyperPrior(self.init_std)(self.model).sample(1, generator).squeeze(0))

    def footprint(self, rows: int) -> int:
        """Numbers per client: one covariance."""
        return self.model.footprint(rows) + self.model.dim


RECIPE = Recipe(
    "Vanilla GP: each client alone",
    VanillaGP,
    MethodSummary("deep-kernel GP", "evidence.particle_scores", "nothing", "nothing", "nothing"),
    rounds=False,
    search={"method.init_std": STDS, "method.steps": STEPS, **GP_SEARCH},
)
