"""Deep ensembles (Lakshminarayanan, Pritzel and Blundell, NeurIPS 2017): networks from several starts, mixed alike.

Members of numbers predict a mean and a variance, `[model] likelihood = "heteroscedastic"`; members of labels are
softmax networks. Adversarial examples, an option of the paper, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.blocks import blocks
from pacbayes_fl.files import JsonTable
from pacbayes_fl.inference import map_estimate
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.inference.optim import Adam, adam_init
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.centralised import CentralisedMethod, Rows
from pacbayes_fl.methods.baselines.point import POINT_ESTIMATE, initial_weights
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import ROUNDS, SEARCH_NETWORK, MethodSummary, OneOf, Recipe
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import check, option
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.weights.mixture import MixturePosterior


class Server(NamedTuple):
    """M networks, and what training goes on with.

    Args:
        theta: weights after the last round [M, D].
        adam: moments of their optimisers, leaves [M, D].
        best: weights after the round whose held-out rows were most likely [M, D]: those that predict.
        held_out: mean negative log likelihood of these rows under `best` [M], in nats.
        loss: of the last round's training rows [M], in nats.
        seed: of the minibatches [], int64.
        rounds: that were trained [], int64.
    """

    theta: Tensor
    adam: Adam[Tensor]
    best: Tensor
    held_out: Tensor
    loss: Tensor
    seed: Tensor
    rounds: Tensor


def mixture(model: WeightModel, members: Tensor, batch: ClientBatch, noise: Noise) -> MixturePosterior:
    """Mix networks with equal weights.

    p(y | x) = 1/M sum_m p(y | x, theta_m)      (section 2.4)

    Args:
        model: the likelihood.
        members: theta_m of every client [K, M, D].
        batch: the clients' training rows.
        noise: their streams.

    Returns:
        The posterior: a mixture of M normals for numbers, averaged probabilities for labels.
    """
    networks = members.unbind(1)
    shape = len(members), len(networks), 1
    alike = torch.full(shape, -math.log(len(networks)), dtype=torch.float64, device=members.device)
    return MixturePosterior(model, tuple(map(PointMass, networks)), alike, noise, networks, batch)


def labels_of(members: int) -> JsonTable:
    """Say what an ensemble is, for `labels.json`.

    Args:
        members: number of networks, M.

    Returns:
        Its entries.
    """
    return {**POINT_ESTIMATE, "average": f"{members} networks from independent starts, mixed with equal weights"}


@final
@dataclass(frozen=True)
class PooledEnsemble(CentralisedMethod[Server]):
    """A deep ensemble on everybody's rows; a round is as many steps of each network as a client's elsewhere.

    Every member begins at weights of its own, draws minibatches of its own, and leaves out one contiguous block of each
    client's rows; it predicts with the weights of the round after which that block was most likely.

    Args:
        model: the likelihood.
        local: steps of a member per round.
        members: number of networks, M.
        folds: blocks of a client's rows, of which member m leaves out number m, counted modulo this.
        init_std: spread of the initial weights.
    """

    personal_model: ClassVar[str] = "personal models are the pooled one"
    objective: ClassVar[str | None] = "loss"

    model: WeightModel
    local: LocalDescent = part(LocalDescent)
    members: int = option(5, low=1, symbol="M", paper=Paper(5, "section 3"))
    folds: int = option(5, low=2)
    init_std: float = option(0.1, above=0)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)

    def about(self) -> JsonTable:
        """Weights without uncertainty, of several networks."""
        return labels_of(self.members)

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw the start of every member, and the seed of the minibatches."""
        theta = torch.stack([initial_weights(self.model, self.init_std, generator) for _ in range(self.members)])
        seed = torch.randint(2**31, (), generator=generator)
        moments, none = adam_init(theta, self.members), torch.zeros(self.members, dtype=torch.float64)
        return Server(theta, moments, theta.clone(), none, none.clone(), seed, torch.zeros_like(seed))

    def server(self, server: Server, update: Rows, n_clients: int) -> Server:
        """Go on with every member on its share of the pooled rows."""
        real = update.real
        x, y, block = update.x[real], update.y[real], blocks(update.mask, self.folds)[real]
        if not len(y):  # every client was dropped, which the engine reports
            return server
        own = torch.arange(self.members, device=x.device).remainder(self.folds).unsqueeze(1)
        held = block == own  # [M, R]
        ids, names = tuple(range(self.members)), tuple(f"member {m}" for m in range(self.members))
        train = ClientBatch(x.expand(self.members, *x.shape), y.expand(self.members, -1), ~held, ids, names)
        # drawn on the CPU: the same numbers on every device
        noise = Noise(int(server.seed), int(server.rounds) + 1, ids, x.device, "generators")
        theta, moments, loss = map_estimate.fit(self.model, self.local, server.theta, train, noise, adam=server.adam)
        later = self._loss(theta, ClientBatch.stack([(x[one], y[one]) for one in held], names, ids))
        better = (later <= server.held_out) | ~held.any(1) | (server.rounds == 0)
        best = tensors.where(better, theta, server.best)
        kept = torch.where(better, later, server.held_out)
        return Server(theta, moments, best, kept, loss.double(), server.seed, server.rounds + 1)

    def _loss(self, theta: Tensor, rows: ClientBatch) -> Tensor:
        """Mean negative log likelihood of the members' own rows [M], in nats; 0 of a member without rows."""
        with torch.no_grad():
            return -self.model.log_likelihood(theta, rows).double() / rows.size.clamp_min(1.0)

    def position(self, message: Server) -> Tensor:
        """Weights of all members [M, D]."""
        return message.theta

    def personalise(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> MixturePosterior:
        """Give every client the same ensemble."""
        return self.global_model(message, state, batch, noise)

    def global_model(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> MixturePosterior:
        """The pooled ensemble."""
        return mixture(self.model, tensors.expand(message.best, batch.clients), batch, noise)

    def report(self, server: Server, update: Rows) -> Mapping[str, Tensor]:
        """Mean loss of the members' training rows."""
        return {"loss": server.loss.mean()}


RECIPE = Recipe(
    "Pooled deep ensemble: networks with a noise of their own from several starts, on all data",
    PooledEnsemble,
    MethodSummary("networks, mixed", "nothing", "map_estimate.fit of every member", "all rows", "nothing"),
    model="weights",
    presets={
        "recommended": {"model": {"likelihood": "heteroscedastic", "widths": [50, 50]}, "federation": ROUNDS},
        "paper": {"model": {"likelihood": "heteroscedastic", "widths": [50]}, "federation": ROUNDS},
    },
    search={"method.members": OneOf((3, 5, 10)), **SEARCH_NETWORK},
)
