"""APFL (Deng, Kamani and Mahdavi, 2020): every client mixes weights of its own with the global ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.methods.base import RATE
from pacbayes_fl.methods.baselines.averaging import AveragedWeights, Server, Update
from pacbayes_fl.methods.newcomers import TrainsNewcomers
from pacbayes_fl.methods.options import Paper
from pacbayes_fl.methods.recipe import ROUNDS, SEARCH_NETWORK, MethodSummary, OneOf, Recipe
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from pacbayes_fl.server import average


class Mixing(NamedTuple):
    """A client's own weights v [K, D], their share alpha [K] in its model, and its number of rounds [K], int64."""

    theta: Tensor
    share: Tensor
    rounds: Tensor


@final
@dataclass(frozen=True)
class APFL(TrainsNewcomers[Server, Mixing, WeightPosterior], AveragedWeights[Mixing]):
    """APFL (Algorithm 1): w descends f_k(w), and v at the same time f_k(u) of the mixture u = alpha v + (1 - alpha) w.

    v <- v - rate alpha grad f_k(u),  alpha <- alpha - share_rate <v - w, grad f_k(u)> on all rows after a round

    Args:
        weighting: of clients in the average.
        mixing: share of the own weights in the first round, alpha.
        share_rate: of the steps on alpha, which stays between 0 and 1; 0 leaves it as it is.
        join_passes: times the minibatches of a round, for a client that never took part.
    """

    personal_model: ClassVar[str] = "personal models that mix the global weights with the clients' own"

    weighting: average.Weighting = option("uniform", paper=Paper("uniform", "Algorithm 1"))
    mixing: float = option(0.5, low=0, high=1, symbol="alpha")
    share_rate: float = option(0.0, low=0, metadata=RATE)
    join_passes: int = option(10, low=1)

    def init_clients(self, message: Server, batch: ClientBatch) -> Mixing:
        """Begin at the global weights."""
        theta = tensors.expand(message.theta, batch.clients).clone()
        share = theta.new_full((batch.clients,), self.mixing)
        return Mixing(theta, share, torch.zeros(batch.clients, dtype=torch.int64, device=theta.device))

    def client(self, message: Server, state: Mixing, batch: ClientBatch, noise: Noise) -> tuple[Update, Mixing]:
        """Train the global weights and the own ones on the same minibatches, and then their mixture."""
        w, v, loss = self._trained(tensors.expand(message.theta, batch.clients), state, batch, noise)
        share = state.share
        if self.share_rate:
            _, slope = map_estimate.gradient(self.model, _mixture(v, w, share), batch)
            share = (share - self.share_rate * ((v - w) * slope).sum(1)).clamp(0.0, 1.0)
        return self.sent(w, loss, batch), Mixing(v, share, state.rounds + 1)

    def _trained(
        self, w: Tensor, state: Mixing, batch: ClientBatch, noise: Noise, passes: int = 1, hold: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Descend by both weights, side by side in one vector; `hold` leaves w where it is."""

        def slope(both: Tensor, rows: ClientBatch) -> tuple[Tensor, Tensor]:
            one, own = both.chunk(2, 1)
            loss, by_w = map_estimate.gradient(self.model, one, rows)
            _, by_u = map_estimate.gradient(self.model, _mixture(own, one, state.share), rows)
            return loss, torch.cat((torch.zeros_like(by_w) if hold else by_w, state.share.unsqueeze(1) * by_u), 1)

        both, _, loss = map_estimate.descend(self.local, torch.cat((w, state.theta), 1), batch, noise, slope, passes)
        w, v = both.chunk(2, 1)
        return w, v, loss

    def train_newcomers(self, message: Server, state: Mixing, batch: ClientBatch, noise: Noise) -> Mixing:
        """Train own weights from the global ones, which stay."""
        w = tensors.expand(message.theta, batch.clients)
        _, v, _ = self._trained(w, state._replace(theta=w), batch, noise, self.join_passes, hold=True)
        return state._replace(theta=v)

    def personalise_trained(self, message: Server, state: Mixing, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """Mix the global weights and the client's own."""
        w = tensors.expand(message.theta, batch.clients)
        return self.posterior(_mixture(state.theta, w, state.share), batch, noise)


def _mixture(v: Tensor, w: Tensor, share: Tensor) -> Tensor:
    return torch.lerp(w, v, share.unsqueeze(1))


RECIPE = Recipe(
    "APFL: every client mixes its own weights with the global ones",
    APFL,
    MethodSummary("network", "map_estimate.descend, of a mixture", "mean", "weights", "own weights, their share"),
    model="weights",
    presets={
        "recommended": {"federation": ROUNDS},
        "paper": {"method": {"optimiser": "sgd", "rate": 0.1}, "federation": ROUNDS},
    },
    search={"method.mixing": OneOf((0.25, 0.5, 0.75)), **SEARCH_NETWORK},
)
