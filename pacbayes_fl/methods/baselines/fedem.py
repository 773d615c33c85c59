"""FedEM (Marfoq et al., NeurIPS 2021): shared networks that every client mixes in proportions of its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.files import JsonTable
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.methods.baselines.averaging import AveragedWeights, Server, Update
from pacbayes_fl.methods.baselines.point import POINT_ESTIMATE, initial_weights
from pacbayes_fl.methods.newcomers import TrainsNewcomers
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import ROUNDS, SEARCH_NETWORK, LogUniform, MethodSummary, OneOf, Recipe
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.weights.mixture import MixturePosterior


class Proportions(NamedTuple):
    """Logarithms of a client's proportions pi_km [K, M], float64, and in how many rounds it took part [K], int64."""

    log_share: Tensor
    rounds: Tensor


@final
@dataclass(frozen=True)
class FedEM(TrainsNewcomers[Server, Proportions, MixturePosterior], AveragedWeights[Proportions]):
    """FedEM (Algorithm 1): p_k(y | x) = sum_m pi_km p(y | x, theta_m), by a step of expectation-maximisation a round.

    q_i(m) ~ pi_km p(y_i | x_i, theta_m),  pi_km <- mean_i q_i(m),  theta_m descends -mean_i q_i(m) ln p(y_i | x_i, .)

    q is that of the weights and proportions with which the round began, and all networks see the same minibatches. The
    networks stand one after the other in the M D weights that are sent; the proportions stay at home.

    Args:
        local: steps of a client. The steps of Adam do not know by how much q scales a gradient: a network would move as
            far for a client to whose rows it means nothing as for its own, and networks would stay alike.
        components: number of networks, M.
        join_steps: steps on the proportions of a client that never took part, from equal ones and with the networks as
            they are.
    """

    personal_model: ClassVar[str] = "personal models that mix the global networks in each client's proportions"

    local: LocalDescent = part(partial(LocalDescent, rate=0.1, optimiser="sgd"))
    components: int = option(3, low=1, symbol="M", paper=Paper(3, "section 4"))
    join_steps: int = option(10, low=1)

    def about(self) -> JsonTable:
        """Weights without uncertainty, of several networks."""
        return {**POINT_ESTIMATE, "average": f"the weights are known: {self.components} forward passes, mixed"}

    def initial(self, generator: torch.Generator) -> Tensor:
        """Draw the weights of every network, [M * D]; equal ones would stay so for ever."""
        return torch.cat([initial_weights(self.model, self.init_std, generator) for _ in range(self.components)])

    def init_clients(self, message: Server, batch: ClientBatch) -> Proportions:
        """Begin with equal proportions."""
        share = torch.zeros(batch.clients, self.components, dtype=torch.float64, device=message.theta.device)
        return Proportions(share.log_softmax(1), torch.zeros_like(batch.size, dtype=torch.int64))

    def client(
        self, message: Server, state: Proportions, batch: ClientBatch, noise: Noise
    ) -> tuple[Update, Proportions]:
        """Say which network each row is of, and train every network on its rows (Algorithm 1, lines 6 to 10)."""
        start = tensors.expand(message.theta, batch.clients)

        def slope(theta: Tensor, rows: ClientBatch) -> tuple[Tensor, Tensor]:
            log_q = self._joint(start, state, rows).log_softmax(-1)
            with torch.enable_grad():
                leaf = theta.detach().requires_grad_(True)
                by_row = self._log_likelihoods(leaf, rows)
                expected = torch.where(rows.mask, (log_q.exp() * by_row).sum(-1), 0.0).sum(1)
                (along,) = torch.autograd.grad((-expected / rows.size.clamp_min(1.0)).sum(), leaf)
            mixed = (by_row.detach() + state.log_share.unsqueeze(1)).logsumexp(-1)
            return -torch.where(rows.mask, mixed, 0.0).sum(1).to(theta) / rows.size.clamp_min(1.0).to(theta), along

        theta, _, loss = map_estimate.descend(self.local, start, batch, noise, slope)
        return self.sent(theta, loss, batch), Proportions(self._maximised(start, state, batch), state.rounds + 1)

    def train_newcomers(self, message: Server, state: Proportions, batch: ClientBatch, noise: Noise) -> Proportions:
        """Find proportions of the networks as they are."""
        theta = tensors.expand(message.theta, batch.clients)
        for _ in range(self.join_steps):
            state = state._replace(log_share=self._maximised(theta, state, batch))
        return state

    def personalise_trained(
        self, message: Server, state: Proportions, batch: ClientBatch, noise: Noise
    ) -> MixturePosterior:
        """Mix the networks in each client's proportions."""
        networks = tensors.expand(message.theta, batch.clients).chunk(self.components, 1)
        masses = tuple(map(PointMass, networks))
        return MixturePosterior(self.model, masses, state.log_share.unsqueeze(-1), noise, networks, batch)

    def global_model(self, message: Server, state: Proportions, batch: ClientBatch, noise: Noise) -> None:
        """None: the networks are mixed in no proportions but those of clients."""

    def footprint(self, rows: int) -> int:
        """Numbers per client: those of M networks."""
        return self.components * self.model.footprint(rows)

    def _log_likelihoods(self, theta: Tensor, rows: ClientBatch) -> Tensor:
        """Give ln p(y_i | x_i, theta_m) [K, N, M], in nats, float64."""
        each = [self.model.log_likelihood_by_row(one, rows) for one in theta.chunk(self.components, 1)]
        return torch.stack(each, -1).double()

    def _joint(self, theta: Tensor, state: Proportions, rows: ClientBatch) -> Tensor:
        """Give ln pi_km p(y_i | x_i, theta_m) [K, N, M], whose softmax are the responsibilities q."""
        with torch.no_grad():
            return self._log_likelihoods(theta, rows) + state.log_share.unsqueeze(1)

    def _maximised(self, theta: Tensor, state: Proportions, batch: ClientBatch) -> Tensor:
        """Take the mean of all rows' q, in logarithms [K, M]; a client without rows keeps its proportions."""
        log_q = self._joint(theta, state, batch).log_softmax(-1)
        total = torch.where(batch.mask.unsqueeze(-1), log_q, -torch.inf).logsumexp(1)
        return torch.where((batch.size > 0).unsqueeze(1), total.log_softmax(1), state.log_share)


RECIPE = Recipe(
    "FedEM: several global networks, which every client mixes in proportions of its own",
    FedEM,
    MethodSummary("networks", "responsibilities, map_estimate.descend", "weighted mean", "all networks", "proportions"),
    model="weights",
    presets={
        "recommended": {"federation": ROUNDS},
        "paper": {
            "method": {"steps": None, "epochs": 1, "minibatch": 128, "optimiser": "sgd", "rate": 0.1},
            "federation": {"rounds": 200},
        },
    },
    search={"method.components": OneOf((1, 2, 3, 4)), **SEARCH_NETWORK, "method.rate": LogUniform(0.03, 0.3)},
)
