"""Pooled BNN: one Bayesian network on everybody's rows (PAC-PFL section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines import vanilla_bnn
from pacbayes_fl.methods.baselines.centralised import POOLING, Rows, pool, rows_leave_error, send
from pacbayes_fl.methods.baselines.vanilla_bnn import FixedPrior
from pacbayes_fl.methods.recipe import MethodSummary
from pacbayes_fl.methods.variational import pfedbayes
from pacbayes_fl.methods.variational.pfedbayes import Fit, start_clients
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior


class Server(NamedTuple):
    """The pooled fit.

    Args:
        state: q and its moments, as of one client that has all rows, leaves [1, *].
        fit: of the last round, leaves [1].
        seed: of the draws [], int64.
        rounds: that were trained [], int64.
    """

    state: pfedbayes.Client
    fit: Fit
    seed: Tensor
    rounds: Tensor


@final
@dataclass(frozen=True)
class PooledBNN(FixedPrior[Server, Nothing, Rows]):
    """One Bayesian network for all, trained where all rows are; a round is as many steps as a client's elsewhere."""

    federated: ClassVar[bool] = False
    host_bound: ClassVar[str | None] = POOLING
    personal_model: ClassVar[str] = "personal models are the pooled one"

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw where q begins, and the seed of its draws."""
        seed = torch.randint(2**31, (), generator=generator)
        zero = torch.zeros(1, dtype=torch.float64)
        start = start_clients(tensors.expand(self.start(generator), 1), 1, "moments")
        return Server(start, Fit(zero, zero, zero), seed, torch.zeros_like(seed))

    def broadcast(self, server: Server) -> Server:
        """Send the whole model."""
        return server

    def init_clients(self, message: Server, batch: ClientBatch) -> Nothing:
        """No client state."""
        return Nothing()

    def client(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> tuple[Rows, Nothing]:
        """Send all rows."""
        return send(batch), state

    def server(self, server: Server, update: Rows, n_clients: int) -> Server:
        """Go on with q on the pooled rows."""
        x, y = pool(update)
        if not len(y):  # every client was dropped, which the engine reports
            return server
        everybody = ClientBatch(x[None], y[None], torch.ones_like(y[None], dtype=torch.bool), (0,), ("everybody",))
        # drawn on the CPU: the same numbers on every device, and for one client no slower
        noise = Noise(int(server.seed), int(server.rounds) + 1, everybody.ids, x.device, "generators")
        return Server(*self.train(server.state, everybody, noise), server.seed, server.rounds + 1)

    def check_withheld(self) -> None:
        """Nothing private: the rows themselves leave."""
        raise rows_leave_error(type(self).__name__)

    def position(self, message: Server) -> MeanField:
        """The distribution of the weights, leaves [1, D]."""
        q: MeanField = message.state.q
        return q

    def personalise(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """Give every client the same q."""
        return self.global_model(message, state, batch, noise)

    def global_model(self, message: Server, state: Nothing, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """The pooled q."""
        q = tensors.tree_map(lambda leaf: leaf.expand(batch.clients, -1), message.state.q)
        return self.posterior(q, batch, noise)

    def report(self, server: Server, update: Rows) -> Mapping[str, Tensor]:
        """Log likelihood of all rows, KL divergence and evidence lower bound."""
        return {name: value.sum() for name, value in server.fit._asdict().items()}


RECIPE = replace(
    vanilla_bnn.RECIPE,
    title="Pooled BNN: one Bayesian network on all data, against a fixed prior",
    method=PooledBNN,
    summary=MethodSummary("Bayesian network, mean field", "nothing", "svi", "all rows", "nothing"),
)
