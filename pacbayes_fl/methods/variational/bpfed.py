"""BPFed: shared and personal uncertain layers, and priors that go on from round to round (BPFed, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.optim import Adam
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import PAPER_ROUNDS, ROUNDS, SEARCH_NETWORK, MethodSummary, Recipe
from pacbayes_fl.methods.variational import pfedbayes
from pacbayes_fl.methods.variational.base import (
    OWN_LABELS,
    OWN_ROWS,
    PUBLIC_CODE,
    SEARCH,
    TRIALS,
    PersonalPosteriors,
    moments_of,
    towards,
    zeta_among,
)
from pacbayes_fl.methods.variational.pfedbayes import (
    Update,
    apply_delta_to,
    deltas_of,
    fit_of,
    mean_over_clients,
    start_clients,
    track_prior,
    update_from_release,
)
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import option
from pacbayes_fl.posteriors.weights.mean_field import MeanField, initial_mean_field
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from pacbayes_fl.server import average, moments
from pacbayes_fl.server.step import Memoryless, State
from pacbayes_fl.tensors import AnyTree

PersonalPrior = Literal["cumulative", "divide"]


class Server(NamedTuple):
    """Both factors' distributions, leaves [D]: the shared part zeta is learned, the rest is where clients begin.

    With the state of the server's optimiser, of the shared part.
    """

    w: MeanField
    moments: State = Memoryless()


class Client(NamedTuple):
    """State of a client.

    Args:
        personal: eta_i, distribution of the personal part [K, E].
        adam_q: moments of the steps on q [K, *].
        adam_w: moments of the steps on the prior [K, *].
    """

    personal: MeanField
    adam_q: Adam[AnyTree]
    adam_w: Adam[AnyTree]


@final
@dataclass(frozen=True)
class BPFed(PersonalPosteriors[Server, Client, Update]):
    """BPFed (Algorithm 1, eqs. 7-11); fields as in `methods.variational.base.Variational`, and some more.

    The steps on the prior are those of eq. 11.

    Args:
        local: steps on q; here with a KL divergence of weight 1 (eq. 10).
        personal_sites: number of last sites that are personal; 2 are the last layer's weight and bias.
        upload: the shared part of the "posterior" q, or of the "tracked" prior as the public code does.
        prior: of the personal part. "cumulative" (the paper's): the client's last posterior, so that the same rows are
            counted again in every round, and after T rounds a conjugate posterior has the precision 1/alpha + T H.
            "divide": the client's own last contribution is taken out of it before the next fit. As nobody else adds to
            the personal part, what is left is eta^0, exactly; fits still begin at the last posterior.

    Example:
        >>> import torch
        >>> from pacbayes_fl import BayesianMLP, BPFed, ClientBatch, FederationPlan, Gaussian, run_rounds
        >>> x, network = torch.linspace(-1, 1, 8).unsqueeze(1), BayesianMLP((1, 4, 1), Gaussian())
        >>> batch = ClientBatch.pad([(x, k * x[:, 0]) for k in range(3)])
        >>> state = run_rounds(BPFed(network), batch, FederationPlan(rounds=2))
        >>> network.dim, state.clients.personal.loc.shape  # of 13 weights the last layer's 5 are a client's own
        (13, torch.Size([3, 5]))
    """

    personal_model: ClassVar[str] = "personal models of the aggregated shared part and each client's own last part"

    personal_sites: int = option(2, low=1, paper=Paper(2, "section VI, model settings"))
    upload: Literal["posterior", "tracked"] = option("posterior", paper=Paper("posterior", "Algorithm 1"))
    prior: PersonalPrior = option("cumulative", paper=Paper("cumulative", "section IV"))
    local: LocalInference = part(partial(LocalInference, zeta=1.0), names={"draws": "train_draws"})

    def __post_init__(self) -> None:
        """Check the ranges, and that upload and aggregation are compatible."""
        super().__post_init__()
        if self.sends_moments and self.upload == "tracked":
            what = f"aggregation = {self.aggregation!r} sends moments of q, and upload = 'tracked' the prior"
            raise StudyError(what, hint="upload = 'posterior'")
        self.model.shared(self.personal_sites)  # refuses a number of sites that leaves one part empty

    @property
    def shared(self) -> int:
        """Number of shared weights, which come first."""
        return self.model.shared(self.personal_sites)

    def about_own(self) -> dict[str, str]:
        """What the personal part's variances stand for."""
        texts = {
            "cumulative": "the last posterior: rows of the personal part are counted once per round",
            "divide": "the first one: rows of the personal part are counted once",
        }
        return {"personal_prior": texts[self.prior]}

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw zeta^0 and the eta^0 with which every client begins."""
        server = Server(initial_mean_field(self.model, self.init_std, self.init_rho, generator))
        return server._replace(moments=self.step.start(self._sent(server)))

    def init_clients(self, message: Server, batch: ClientBatch) -> Client:
        """Initialise at the server's distribution."""
        start = start_clients(tensors.expand(message.w, batch.clients), batch.clients, self.aggregation)
        return Client(self._personal(start.q), start.adam_q, start.adam_w)

    def client(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> tuple[Update, Client]:
        """Fit both factors against the last personal posterior and the global shared part (Algorithm 1)."""
        last = self._joined(message.w, state.personal)
        prior, follows = last, None
        if self.prior == "divide":  # the server keeps eta^0, and what a prior has followed is counted too
            prior = tensors.expand(message.w, batch.clients)
            follows = torch.arange(self.model.dim, device=last.loc.device) < self.shared
        before = pfedbayes.Client(last, state.adam_q, state.adam_w)
        new, w, log_likelihood = track_prior(
            self.model, self.local, self.tracking, before, prior, batch, noise, self.draw, follows
        )
        sent = tensors.tree_map(lambda leaf: leaf[:, : self.shared], new.q if self.upload == "posterior" else w)
        if self.sends_moments:
            sent = moments_of(sent)
        weight = self.weight(batch.size)
        fit = fit_of(self.model, self.local.weight, log_likelihood, new.q, w, prior)
        update = Update(sent, weight, torch.ones_like(weight), fit)
        return update, Client(self._personal(new.q), new.adam_q, new.adam_w)

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """Average the shared part (Algorithm 1, last line of the server), or match its moments, and step there."""
        if self.sends_moments:
            result, stochastic = moments.match(update.w, update.weight), self.model.stochastic_columns()[: self.shared]
            mean = towards(self._sent(server), result, 1.0, stochastic)
        else:
            mean = tensors.weighted_mean(update.w, update.weight)
        w, state = self.step(self._sent(server), mean, server.moments)
        own = tensors.tree_map(lambda leaf: leaf[self.shared :], server.w)
        return Server(tensors.tree_map(lambda *parts: torch.cat(parts), w.bounded(), own), state)

    def client_deltas(self, message: Server, update: Update) -> AnyTree:
        """How far the shared part went in a round, mean and rho [K, R], or its moments."""
        return deltas_of(update.w, self._sent(message))

    def from_release(self, message: Server, mean: AnyTree, clients: float) -> Update:
        """Apply the released mean step [1, R]."""
        return update_from_release(apply_delta_to(mean, self._sent(message)))

    def train_newcomers(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> Client:
        """Fit the personal part alone (VI.C)."""
        q = self._joined(message.w, state.personal)
        own = torch.arange(self.model.dim, device=q.loc.device) >= self.shared
        fitted = self.fit_against(self.refining, q, batch, noise.fork(), self.draw, own)
        return state._replace(personal=self._personal(fitted))

    def absorb(self, message: Server, state: Client, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> Client:
        """Fit the personal part to the later rows, with itself before them as prior; the shared part is everybody's."""
        own = torch.arange(self.model.dim, device=state.personal.loc.device) >= self.shared
        return state._replace(personal=self._personal(self.filtered(message, state, seen, rows, noise, own)))

    def personalise_trained(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """Join the global shared part and the client's own."""
        return self.posterior(self._joined(message.w, state.personal), batch, noise)

    def reduce(self, update: Update) -> Update:
        """Average the clients of a chunk."""
        join = moments.match if self.sends_moments else tensors.weighted_mean
        return average.reduced(update, "w", join)

    def report(self, server: Server, update: Update) -> Mapping[str, Tensor]:
        """Mean scaled log likelihood of the clients, KL divergence from the tracked priors, evidence lower bound."""
        return mean_over_clients(update.fit, update.clients)

    def _sent(self, message: Server) -> MeanField:
        return tensors.tree_map(lambda leaf: leaf[: self.shared], message.w)

    def _personal(self, q: MeanField) -> MeanField:
        return tensors.tree_map(lambda leaf: leaf[:, self.shared :].clone(), q)

    def _joined(self, w: MeanField, personal: MeanField) -> MeanField:
        clients = len(personal.loc)
        return tensors.tree_map(
            lambda shared, own: torch.cat((shared[: self.shared].expand(clients, -1), own), 1), w, personal
        )


RECIPE = Recipe(
    "BPFed: shared and personal uncertain layers, priors that go on from round to round",
    BPFed,
    MethodSummary("Bayesian network, mean field", "svi", "average.mean", "shared part", "personal part"),
    model="weights",
    presets={
        "recommended": {"federation": ROUNDS},
        "paper": {"federation": PAPER_ROUNDS},
        "authors-code": {
            "method": {
                **PUBLIC_CODE,
                **{"zeta": 5e-5, "data_scale": "mean", "divergence": "reverse", "upload": "tracked"},
            },
            "federation": PAPER_ROUNDS,
        },
    },
    search={**SEARCH, **SEARCH_NETWORK},
    held_out=(zeta_among(1.0, 0.1, 0.01),),
    trials=TRIALS,
    own_rows=OWN_ROWS,
    own_labels=OWN_LABELS,
    paper={
        "steps": Paper(None, "10 epochs instead"),
        "epochs": Paper(10, "section VI, model settings"),
        "minibatch": Paper(50, "section VI, hyperparameters"),
        "rate": Paper(1e-3, "section VI, hyperparameters"),
        "prior_rate": Paper(1e-3, "section VI, hyperparameters"),
        "optimiser": Paper("adam", "section VI, hyperparameters"),
        "prior_optimiser": Paper("adam", "section VI, hyperparameters"),
        "zeta": Paper(1.0, "eq. 10"),
        "data_scale": Paper("rows", "eq. 10"),
        "noise_std": Paper(1.0, "eqs. 8-9"),
        "divergence": Paper("forward", "eq. 10"),
        "init_rho": Paper(..., "not stated"),
    },
)
