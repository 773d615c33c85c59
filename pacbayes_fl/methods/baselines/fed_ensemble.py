"""A federated deep ensemble: FedAvg (McMahan et al. 2017) of every member of Lakshminarayanan et al.'s (2017)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.files import JsonTable
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import Descended
from pacbayes_fl.methods.baselines import ensemble
from pacbayes_fl.methods.baselines.averaging import WeightAveraging
from pacbayes_fl.methods.baselines.ensemble import labels_of, mixture
from pacbayes_fl.methods.baselines.point import initial_weights
from pacbayes_fl.methods.options import Paper
from pacbayes_fl.methods.recipe import MethodSummary, OneOf
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.weights.mixture import MixturePosterior


@final
@dataclass(frozen=True)
class FedEnsemble(WeightAveraging):
    """M networks from independent starts, each averaged as in FedAvg and mixed with equal weights.

    theta_m <- sum_k w_k theta_km / sum_k w_k,  p(y | x) = 1/M sum_m p(y | x, theta_m)

    The networks stand one after the other in the M D weights that are sent, and a client takes the same minibatches for
    all of them: members differ by their starts.

    Args:
        members: number of networks, M.
        finetune: times the minibatches of a round that every member takes on the client's rows at personalisation; 0
            leaves the global networks.
    """

    personal_model: ClassVar[str] = "personal models are the global ensemble, fine-tuned where `finetune` says so"

    members: int = option(5, low=1, symbol="M", paper=Paper(5, "Lakshminarayanan et al., section 3"))

    def about(self) -> JsonTable:
        """Weights without uncertainty, of several networks."""
        return labels_of(self.members)

    def initial(self, generator: torch.Generator) -> Tensor:
        """Draw the weights of every member, [M * D]."""
        return torch.cat([initial_weights(self.model, self.init_std, generator) for _ in range(self.members)])

    def descend(self, theta: Tensor, batch: ClientBatch, noise: Noise, passes: int = 1) -> Descended:
        """Train every member from given weights, with a fresh optimiser.

        Args:
            theta: of all members [K, M * D]; left as it is.
            batch: the clients' rows.
            noise: their streams, for the minibatches.
            passes: times the minibatches of a round.

        Returns:
            Weights [K, M * D], and the mean loss of a row over members and steps [K], in nats.
        """

        def slope(at: Tensor, rows: ClientBatch) -> tuple[Tensor, Tensor]:
            loss, along = map_estimate.gradient(self.model, at.view(-1, self.model.dim), self._for_members(rows))
            return loss.view(-1, self.members).mean(1), along.view_as(at)

        return map_estimate.descend(self.local, theta, batch, noise, slope, passes)

    def _for_members(self, rows: ClientBatch) -> ClientBatch:
        """Repeat every client for each member: [K * M, N]."""
        x, y, mask = (leaf.repeat_interleave(self.members, 0) for leaf in (rows.x, rows.y, rows.mask))
        each = [k for k in range(rows.clients) for _ in range(self.members)]
        return ClientBatch(x, y, mask, tuple(rows.ids[k] for k in each), tuple(rows.names[k] for k in each))

    def predictor(self, theta: Tensor, batch: ClientBatch, noise: Noise) -> MixturePosterior:
        """Mix the members, theta [K, M * D], with equal weights."""
        return mixture(self.model, theta.unflatten(1, (self.members, self.model.dim)), batch, noise)

    def footprint(self, rows: int) -> int:
        """Numbers per client: those of M networks."""
        return self.members * self.model.footprint(rows)


RECIPE = replace(
    ensemble.RECIPE,
    title="Federated deep ensemble: FedAvg of networks with a noise of their own from several starts",
    method=FedEnsemble,
    summary=MethodSummary("networks, mixed", "map_estimate.descend of all members", "mean", "all networks", "nothing"),
    search={**ensemble.RECIPE.search, "method.finetune": OneOf((0, 1, 5))},
)
