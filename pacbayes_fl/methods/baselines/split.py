"""Networks of which one part is averaged and the other a client's own: FedPer, FedRep, LG-FedAvg, FedBABU and FedBN."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.files import JsonTable
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import Descended, LocalDescent
from pacbayes_fl.inference.parts import Personal
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.averaging import AveragedWeights, Server, Update
from pacbayes_fl.methods.baselines.point import BPFED_BASELINES, POINT_ESTIMATE
from pacbayes_fl.methods.fine_tuning import FineTuned
from pacbayes_fl.methods.newcomers import TrainsNewcomers
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import (
    OWN_LAYER_ROUNDS,
    PAPER_ROUNDS,
    ROUNDS,
    SEARCH_NETWORK,
    MethodSummary,
    OneOf,
    Recipe,
)
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior

Part = Literal["own", "shared", "all"]


class Client(NamedTuple):
    """State of a client: its own weights [K, E], and in how many rounds it has taken part [K], int64."""

    own: Tensor
    rounds: Tensor


@final
@dataclass(frozen=True)
class Split(
    FineTuned[Client | Nothing],
    TrainsNewcomers[Server, Client | Nothing, WeightPosterior],
    AveragedWeights[Client | Nothing],
):
    """Clients send theta_S, the server averages it, and theta_O stays at home (FedPer, Algorithms 1 and 2).

    The server's step is taken in theta_S.

    Args:
        local: steps of a client.
        own: which weights are a client's own.
        schedule: what a client trains: all its weights "together" (FedPer, LG-FedAvg, FedBN), its own ones first and
            then, with these fixed, the "shared-last" ones (FedRep, Algorithm 1), or only the "shared" ones, while the
            others stay where they began (FedBABU, Algorithm 1).
        own_passes: times the minibatches of a round on a client's own weights, where these are trained first.
        finetune: times the minibatches of a round at personalisation.
        finetune_part: weights that are fine-tuned.
        join_passes: times the minibatches of a round on the own weights of a client that never trained.
    """

    personal_model: ClassVar[str] = "personal models of the averaged weights and each client's own ones"

    local: LocalDescent = part(LocalDescent, paper=BPFED_BASELINES)
    own: Personal = part(Personal, names={"sites": "personal_sites"}, others=False)
    schedule: Literal["together", "shared-last", "shared"] = "together"
    own_passes: int = option(1, low=1)
    finetune: int = option(0, low=0)
    finetune_part: Part = "own"
    join_passes: int = option(10, low=1)

    @cached_property
    def _own(self) -> Tensor:
        """Marks a client's own weights, bool [D], on the CPU."""
        return self.own.mask(self.model)

    def about(self) -> JsonTable:
        """Weights without uncertainty, and how many are a client's own."""
        own = int(self._own.sum())
        return {**POINT_ESTIMATE, "own_weights": f"{own} of {self.model.dim} weights stay with their client"}

    def init_clients(self, message: Server, batch: ClientBatch) -> Client | Nothing:
        """Begin at the common start; without weights that are trained and its own a client keeps nothing."""
        if self.schedule == "shared" or not bool(self._own.any()):
            return Nothing()
        own = tensors.expand(message.theta, batch.clients)[:, self._at("own", message.theta)].clone()
        return Client(own, torch.zeros_like(batch.size, dtype=torch.int64))

    def client(
        self, message: Server, state: Client | Nothing, batch: ClientBatch, noise: Noise
    ) -> tuple[Update, Client | Nothing]:
        """Train the weights of the schedule, from the shared and the client's own ones."""
        theta = self._joined(message, state, batch)
        if self.schedule == "shared-last":
            # With epochs a descent draws as long as the longest client of the call needs.
            theta = self._descend("own", theta, batch, noise.fork(), self.own_passes).theta
        theta, _, loss = self._descend("all" if self.schedule == "together" else "shared", theta, batch, noise)
        if isinstance(state, Client):
            state = Client(theta[:, self._at("own", theta)], state.rounds + 1)
        return self.sent(theta, loss, batch), state

    def shared(self, theta: Tensor) -> Tensor:
        """Choose of all weights theta [*, D] those that are not a client's own, [*, R]."""
        return theta[..., self._at("shared", theta)]

    def with_shared(self, theta: Tensor, shared: Tensor) -> Tensor:
        """Put averaged weights, shared [R], in their place among theta [D]; the own ones stay the common start."""
        return theta.index_copy(0, self._at("shared", theta), shared)

    def global_model(self, message: Server, state: Client | Nothing, batch: ClientBatch, noise: Noise) -> None:
        """None: nobody has trained the whole of the server's weights."""

    def train_newcomers(self, message: Server, state: Client | Nothing, batch: ClientBatch, noise: Noise) -> Client:
        """Train own weights beside the shared ones, which stay."""
        theta = self._joined(message, state, batch)
        theta = self._descend("own", theta, batch, noise.fork(), self.join_passes).theta
        return Client(theta[:, self._at("own", theta)], torch.zeros_like(batch.size, dtype=torch.int64))

    def is_new(self, state: Client | Nothing) -> Tensor | None:
        """Which clients have not taken part: bool [K]; None for stateless clients."""
        return state.rounds == 0 if isinstance(state, Client) else None

    def personalise_trained(
        self, message: Server, state: Client | Nothing, batch: ClientBatch, noise: Noise
    ) -> WeightPosterior:
        """Join the shared weights and the client's own, fine-tuned where that is asked for."""
        theta = self._joined(message, state, batch)
        if self.finetune:
            theta = self._descend(self.finetune_part, theta, batch, noise, self.finetune).theta
        return self.posterior(theta, batch, noise)

    def _at(self, which: Literal["own", "shared"], like: Tensor) -> Tensor:
        """Positions of weights among all D, int64, where `like` is."""
        return (self._own if which == "own" else ~self._own).nonzero().squeeze(1).to(like.device)

    def _joined(self, message: Server, state: Client | Nothing, batch: ClientBatch) -> Tensor:
        """Weights [K, D] with which clients begin."""
        theta = tensors.expand(message.theta, batch.clients)
        return theta.index_copy(1, self._at("own", theta), state.own) if isinstance(state, Client) else theta

    def _descend(self, which: Part, theta: Tensor, batch: ClientBatch, noise: Noise, passes: int = 1) -> Descended:
        """Descend the loss of a row in some of the weights [K, D]."""
        free = {"all": None, "own": self._own, "shared": ~self._own}[which]
        free = free if free is None else free.to(theta.device)
        return map_estimate.fit(self.model, self.local, theta, batch, noise, passes, free=free)


RECIPE = Recipe(
    "FedPer: a shared representation, and a last layer of each client's own",
    Split,
    MethodSummary("network", "map_estimate.fit", "weighted mean", "shared weights", "own weights"),
    model="weights",
    presets={"recommended": {"federation": OWN_LAYER_ROUNDS}, "paper": {"federation": PAPER_ROUNDS}},
    search={**SEARCH_NETWORK, "federation.rounds": OneOf((10, 20, 40, 80, 160))},
    fixed=("schedule", "own_passes", "finetune", "finetune_part"),
)

FEDREP = replace(
    RECIPE,
    title="FedRep: as FedPer, where clients train their last layer first and then the shared representation",
    variant={"schedule": "shared-last", "finetune": 1},
    presets={
        **RECIPE.presets,
        "authors-code": {
            "method": {
                **{"steps": None, "epochs": 1, "own_passes": 10, "finetune": 10, "weighting": "uniform"},
                **{"minibatch": 10, "rate": 0.01, "optimiser": "sgd", "momentum": 0.5},
            },
            "federation": PAPER_ROUNDS,
        },
    },
    search={"method.own_passes": OneOf((1, 2, 5)), **RECIPE.search},
    fixed=("schedule", "finetune_part"),
    paper={"weighting": Paper("uniform", "Collins et al., Algorithm 1")},
)

LG_FEDAVG = replace(
    RECIPE,
    title="LG-FedAvg: a representation of each client's own below shared last layers",
    variant={"own": Personal(which="first")},
    presets={
        **RECIPE.presets,
        "recommended": {"federation": ROUNDS},
        "authors-code": {
            "method": {"rate": 0.05, "optimiser": "sgd", "weighting": "uniform"},
            "federation": PAPER_ROUNDS,
        },
    },
    search=SEARCH_NETWORK,
)

FEDBABU = replace(
    RECIPE,
    title="FedBABU: a shared representation below a last layer that stays as it began, fine-tuned at the end",
    summary=MethodSummary("network", "map_estimate.fit", "weighted mean", "shared weights", "nothing"),
    variant={"schedule": "shared", "finetune": 5},
    presets={
        **RECIPE.presets,
        "recommended": {"federation": ROUNDS},
        "authors-code": {
            "method": {
                **{"steps": None, "epochs": 10, "minibatch": 50, "rate": 0.1, "optimiser": "sgd", "momentum": 0.9},
                **{"weighting": "uniform", "finetune": 5, "finetune_part": "all"},
            },
            "federation": PAPER_ROUNDS,
        },
    },
    search={"method.finetune": OneOf((1, 5, 20)), **SEARCH_NETWORK},
    fixed=("schedule", "own_passes", "join_passes"),
)

FEDBN = replace(
    RECIPE,
    title="FedBN: all weights are shared but the scales and shifts of batch norms",
    variant={"own": Personal(which="normalisation")},
    presets={**RECIPE.presets, "recommended": {"federation": ROUNDS}},
    search=SEARCH_NETWORK,
    fixed=("schedule", "own_passes", "finetune", "finetune_part", "personal_sites"),
)
