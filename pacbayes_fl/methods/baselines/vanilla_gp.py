"""Vanilla GP: each client alone fits its hyper-parameters to its own log evidence (PAC-PFL section 8.6.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference.evidence import maximise
from pacbayes_fl.methods.base import Nothing, RefinedPosterior
from pacbayes_fl.methods.baselines.local_method import LocalMethod
from pacbayes_fl.methods.pac_pfl.gp import GP_SEARCH, STDS, STEPS
from pacbayes_fl.methods.recipe import MethodSummary, Recipe
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import check, option
from pacbayes_fl.posteriors.functions.gaussian_process import GPPosterior, condition, refined
from pacbayes_fl.posteriors.hyper_posterior import CentredFlatHyperPrior


class Start(NamedTuple):
    """Starting point of every client's search, theta [D]: all that is shared, and nothing learned."""

    theta: Tensor


@final
@dataclass(frozen=True)
class VanillaGP(LocalMethod[Start]):
    """Type-II maximum likelihood per client, without any help from others.

    Args:
        model: prior with hyper-parameters theta.
        init_std: spread of the initial draw of theta.
        rate: learning rate of Adam.
        steps: Adam steps of every client.
    """

    model: FunctionModel
    init_std: float = option(0.3, above=0)
    rate: float = option(1e-2, above=0)
    steps: int = option(200, low=0)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)

    def init_server(self, generator: torch.Generator) -> Start:
        """Draw the common starting point."""
        return Start(CentredFlatHyperPrior(self.init_std)(self.model).sample(1, generator).squeeze(0))

    def personalise(self, message: Start, state: Nothing, batch: ClientBatch, noise: Noise) -> GPPosterior:
        """Ascend each client's log evidence (eq. 33), then condition on its rows."""
        return condition(self.model, maximise(self.model, message.theta, batch, self.rate, self.steps), batch)

    def refine(self, prior: GPPosterior, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> RefinedPosterior:
        """Condition on all rows under the hyper-parameters that P was fitted with; they have not seen `rows`.

        Args:
            prior: P, of the rows `seen`.
            seen: rows of K clients.
            rows: later rows of theirs.
            noise: not used.

        Returns:
            Q, and KL(Q || P) [K]; see `posteriors.functions.gaussian_process.refined`.
        """
        return RefinedPosterior(*refined(prior, seen, rows))

    def footprint(self, rows: int) -> int:
        """Numbers per client: one covariance."""
        return rows * rows + self.model.dim


RECIPE = Recipe(
    "Vanilla GP: each client alone",
    VanillaGP,
    MethodSummary("deep-kernel GP", "evidence.particle_scores", "nothing", "nothing", "nothing"),
    rounds=False,
    search={"method.init_std": STDS, "method.steps": STEPS, **GP_SEARCH},
)
