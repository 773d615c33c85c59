"""Gaussian processes of each client alone: what they share is the search for the hyper-parameters."""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference.evidence import maximise
from pacbayes_fl.methods.base import Nothing, RefinedPosterior
from pacbayes_fl.methods.baselines.local_method import LocalMethod
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.functions.conditioning import Conditioned, condition, refined


class Start(NamedTuple):
    """Starting point of every client's search, theta [D]: all that is shared, and nothing learned."""

    theta: Tensor


class LocalGP(LocalMethod[Start]):
    """Type-II maximum likelihood per client, max_theta ln Z_k(theta) (PAC-PFL eq. 33), without any help from others.

    Args:
        rate: learning rate of Adam.
        steps: Adam steps of every client.
    """

    rate: float
    steps: int

    @property
    @abstractmethod
    def prior(self) -> FunctionModel:
        """The prior over functions, with hyper-parameters theta."""

    def personalise(self, message: Start, state: Nothing, batch: ClientBatch, noise: Noise) -> Conditioned:
        """Ascend each client's log evidence, then condition on its rows."""
        return condition(self.prior, maximise(self.prior, message.theta, batch, self.rate, self.steps), batch)

    def refine(self, prior: Conditioned, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> RefinedPosterior:
        """Condition on all rows under the hyper-parameters that P was fitted with; they have not seen `rows`.

        Args:
            prior: P, of the rows `seen`.
            seen: rows of K clients.
            rows: later rows of theirs.
            noise: not used.

        Returns:
            Q, and KL(Q || P) [K]; see `posteriors.functions.conditioning.refined`.
        """
        return RefinedPosterior(*refined(prior, seen, rows))
