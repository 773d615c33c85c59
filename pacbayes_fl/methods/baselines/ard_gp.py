"""A classical GP per client: Matern 5/2 with a lengthscale for every feature and a linear term, by its evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from pacbayes_fl.methods.baselines.local_gp import LocalGP, Start
from pacbayes_fl.methods.recipe import LogUniform, MethodSummary, OneOf, Recipe
from pacbayes_fl.models.functions.ard import ARDMatern
from pacbayes_fl.options import check, option


@final
@dataclass(frozen=True)
class ARDGP(LocalGP):
    """Type-II maximum likelihood of `ARDMatern` per client; the table [model] does not count.

    Args:
        features: names of the d features.
        rate: learning rate of Adam.
        steps: Adam steps of every client.
    """

    features: tuple[str, ...]
    rate: float = option(0.08, above=0)
    steps: int = option(80, low=0)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)

    @property
    def prior(self) -> ARDMatern:
        """The prior over functions of the features."""
        return ARDMatern(len(self.features))

    def init_server(self, generator: torch.Generator) -> Start:
        """Begin where the prior is centred; nothing is drawn."""
        return Start(self.prior.location())

    def footprint(self, rows: int) -> int:
        """Numbers per client: covariances on the way to the kernel, which autograd keeps."""
        return 8 * rows * rows + self.prior.dim


RECIPE = Recipe(
    "ARD GP: each client alone, Matern 5/2 with a lengthscale for every feature and a linear term",
    ARDGP,
    MethodSummary("GP, Matern 5/2 and linear", "evidence.particle_scores", "nothing", "nothing", "nothing"),
    rounds=False,
    search={"method.rate": LogUniform(0.02, 0.2), "method.steps": OneOf((40, 80, 160))},
)
