"""A classical GP per client: Matern 5/2 with a lengthscale for every feature and a linear term, by its evidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference.evidence import maximise
from pacbayes_fl.methods.base import Nothing, RefinedPosterior
from pacbayes_fl.methods.baselines.local_method import LocalMethod
from pacbayes_fl.methods.recipe import LogUniform, MethodSummary, OneOf, Recipe
from pacbayes_fl.models.functions.ard import ARDMatern
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import check, option
from pacbayes_fl.posteriors.functions.gaussian_process import GPPosterior, condition, refined


class Start(NamedTuple):
    """Where every client's search begins, theta [D]; nothing in it is learned."""

    theta: Tensor


@final
@dataclass(frozen=True)
class ARDGP(LocalMethod[Start]):
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

    def personalise(self, message: Start, state: Nothing, batch: ClientBatch, noise: Noise) -> GPPosterior:
        """Ascend each client's log evidence, then condition on its rows."""
        return condition(self.prior, maximise(self.prior, message.theta, batch, self.rate, self.steps), batch)

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
        """Numbers per client: covariances on the way to the kernel, which autograd keeps."""
        return 8 * rows * rows + self.prior.dim


RECIPE = Recipe(
    "ARD GP: each client alone, Matern 5/2 with a lengthscale for every feature and a linear term",
    ARDGP,
    MethodSummary("GP, Matern 5/2 and linear", "evidence.particle_scores", "nothing", "nothing", "nothing"),
    rounds=False,
    search={"method.rate": LogUniform(0.02, 0.2), "method.steps": OneOf((40, 80, 160))},
)
