"""Vanilla BNN: each client alone fits a Bayesian network against a fixed prior (PAC-PFL section 6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods import private_steps
from pacbayes_fl.methods.base import Client, Server, Update
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import PAPER_ROUNDS, ROUNDS, SEARCH_NETWORK, LogUniform, MethodSummary, OneOf, Recipe
from pacbayes_fl.methods.variational import pfedbayes
from pacbayes_fl.methods.variational.base import PersonalPosteriors, Variational
from pacbayes_fl.methods.variational.pfedbayes import Fit, fit_of, mean_over_clients, start_clients, track_prior
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.weights.mean_field import MeanField, initial_mean_field, rho_of
from pacbayes_fl.server.step import SERVER_STEP

TUNED = Paper(..., "tuned by cross-validation, section 6")


class Took(NamedTuple):
    """Numbers of a round for its record; nothing of the weights is sent.

    Args:
        weight: 1 for a client with rows [K].
        clients: number of clients behind a row [K].
        fit: leaves [K].
    """

    weight: Tensor
    clients: Tensor
    fit: Fit


@dataclass(frozen=True)
class FixedPrior(Variational[Server, Client, Update], Generic[Server, Client, Update]):
    """Mean-field inference of networks against N(0, sigma_p^2) for every weight, which no round moves.

    Args:
        local: steps on q; with a KL divergence of weight 0.1 here, since under Bayes' rule, 1, the prior of some ten
            thousand weights outweighs a few hundred rows.
        prior_std: standard deviation of the prior of every weight.
    """

    local: LocalInference = part(partial(LocalInference, zeta=0.1), names={"draws": "train_draws"})
    prior_std: float = option(1.0, above=0, symbol="sigma_p", paper=TUNED)

    def start(self, generator: torch.Generator) -> MeanField:
        """Draw where q begins, leaves [D]."""
        return initial_mean_field(self.model, self.init_std, self.init_rho, generator)

    def train(
        self, state: pfedbayes.Client, batch: ClientBatch, noise: Noise, passes: int = 1
    ) -> tuple[pfedbayes.Client, Fit]:
        """Go on with the steps on q, min -ln p(D_k | theta) + zeta KL(q || N(0, sigma_p^2)).

        Args:
            state: q and its moments, leaves [K, *].
            batch: the clients' rows.
            noise: their streams.
            passes: times the minibatches of a round.

        Returns:
            The state after them, and how well q fits.
        """
        centre = self.model.centre().to(state.q.loc).expand_as(state.q.loc)
        prior = MeanField(centre, rho_of(torch.full_like(centre, self.prior_std**2)))
        total = state.q.loc.new_zeros(batch.clients)
        for _ in range(passes):
            state, _, fits = track_prior(self.model, self.local, self.tracking, state, prior, batch, noise, self.draw)
            total += fits / passes
        return state, fit_of(self.model, self.local.weight, total, state.q, prior, prior)


@final
@dataclass(frozen=True)
class VanillaBNN(
    FixedPrior[pfedbayes.Server, pfedbayes.Client, Took],
    PersonalPosteriors[pfedbayes.Server, pfedbayes.Client, Took],
):
    """Bayesian networks without a federation; fields as in `FixedPrior` and `methods.variational.base.Variational`.

    A client that never trained makes the steps of `join_passes` rounds when it joins.
    """

    def init_server(self, generator: torch.Generator) -> pfedbayes.Server:
        """Draw where all clients begin: all that they share, and nothing learned."""
        return pfedbayes.Server(self.start(generator))

    def init_clients(self, message: pfedbayes.Server, batch: ClientBatch) -> pfedbayes.Client:
        """Initialise at the common start."""
        return start_clients(tensors.expand(message.w, batch.clients), batch.clients, "moments")

    def client(
        self, message: pfedbayes.Server, state: pfedbayes.Client, batch: ClientBatch, noise: Noise
    ) -> tuple[Took, pfedbayes.Client]:
        """Go on with q."""
        state, fit = self.train(state, batch, noise)
        weight = self.weight(batch.size)
        return Took(weight, torch.ones_like(weight), fit), state

    def server(self, server: pfedbayes.Server, update: Took, n_clients: int) -> pfedbayes.Server:
        """The server state does not change."""
        return server

    def check_withheld(self) -> None:
        """Nothing to release: no weight leaves its client."""
        raise private_steps.no_release_error(type(self).__name__)

    def train_newcomers(
        self, message: pfedbayes.Server, state: pfedbayes.Client, batch: ClientBatch, noise: Noise
    ) -> pfedbayes.Client:
        """Make the steps of `join_passes` rounds."""
        return self.train(state, batch, noise.fork(), self.join_passes)[0]

    def reduce(self, update: Took) -> Took:
        """Sum the clients of a chunk."""
        return tensors.total(update)

    def report(self, server: pfedbayes.Server, update: Took) -> Mapping[str, Tensor]:
        """Mean log likelihood, KL divergence and evidence lower bound of the clients."""
        return mean_over_clients(update.fit, update.clients)


RECIPE = Recipe(
    "Vanilla BNN: each client alone fits a Bayesian network against a fixed prior",
    VanillaBNN,
    MethodSummary("Bayesian network, mean field", "svi", "nothing", "nothing", "q, its Adam"),
    model="weights",
    presets={"recommended": {"federation": ROUNDS}, "paper": {"federation": PAPER_ROUNDS}},
    search={
        "method.prior_std": LogUniform(0.1, 3.0),
        "method.zeta": LogUniform(0.03, 1.0),
        "method.init_rho": OneOf((-4.0, -3.0, -2.5)),
        **SEARCH_NETWORK,
    },
    fixed=(
        *("prior_rate", "prior_optimiser", "keep_moments", "restart", "aggregation", "weighting"),
        *SERVER_STEP.values(),
    ),
    paper={"rate": TUNED, "zeta": Paper(1.0, "section 8.6, beta = m_i"), "init_rho": TUNED},
)
