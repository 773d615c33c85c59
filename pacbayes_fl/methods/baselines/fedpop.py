"""FedPop (Kotelevskii et al., NeurIPS 2022), also called FedSOUL: heads are random effects, drawn by Langevin steps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.files import JsonTable
from pacbayes_fl.inference import map_estimate, turns
from pacbayes_fl.inference.langevin import Draws, Langevin
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.inference.optim import adam_init, step_
from pacbayes_fl.inference.parts import Personal
from pacbayes_fl.methods import private_steps
from pacbayes_fl.methods.base import Method, RefinedPosterior
from pacbayes_fl.methods.baselines.point import initial_weights, mean_loss
from pacbayes_fl.methods.newcomers import TrainsNewcomers
from pacbayes_fl.methods.options import Paper, part
from pacbayes_fl.methods.recipe import (
    OWN_LAYER_ROUNDS,
    PAPER_ROUNDS,
    SEARCH_NETWORK,
    LogUniform,
    MethodSummary,
    Recipe,
)
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import check, option
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.weights.mixture import WeightedSamples
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from pacbayes_fl.server import average, moments
from pacbayes_fl.server.moments import Moments
from pacbayes_fl.server.step import SERVER_STEP, Memoryless, ServerStep, State


class Server(NamedTuple):
    """What the server has learned.

    Args:
        theta: shared weights phi, and the mean mu of the clients' own ones, each in its place [D].
        variance: tau^2 of the own weights [E].
        moments: state of the server's optimiser of phi, which is not sent.
    """

    theta: Tensor
    variance: Tensor
    moments: State = Memoryless()


class Client(NamedTuple):
    """State of a client: where its chain is, z [K, E], and in how many rounds it took part [K], int64."""

    own: Tensor
    rounds: Tensor


class Sent(NamedTuple):
    """What clients send: where phi went [K, R], and the moments of their draws of z, leaves [K, E]."""

    phi: Tensor
    z: Moments


class Update(NamedTuple):
    """Updates of clients, or their mean with the sums of the rest.

    Args:
        sent: leaves [K, *].
        weight: in the server's average [K].
        clients: number of clients behind a row [K].
        loss: mean negative log likelihood per row over the local steps [K], in nats.
    """

    sent: Sent
    weight: Tensor
    clients: Tensor
    loss: Tensor


class Drawn(NamedTuple):
    """A draw of the own weights [K, E] beside shared ones, theta [D]: a point, which is put together when it is used.

    Args:
        theta: [D].
        own: z [K, E].
        at: where it stands among the D weights [E], int64.
    """

    theta: Tensor
    own: Tensor
    at: Tensor

    def draw(self, noise: Noise) -> None:
        """Draw nothing."""

    def weights(self, draw: None = None) -> Tensor:
        """All weights [K, D]."""
        return self.theta.expand(len(self.own), -1).index_copy(1, self.at, self.own)


def join(sent: Sent, weight: Tensor) -> Sent:
    """Average phi over clients, and match the moments of the mixture of their draws.

    Args:
        sent: leaves [K, *].
        weight: of the clients [K].

    Returns:
        Leaves [*].
    """
    return Sent(tensors.weighted_mean(sent.phi, weight), moments.match(sent.z, weight))


@final
@dataclass(frozen=True)
class FedPop(TrainsNewcomers[Server, Client, WeightedSamples], Method[Server, Server, Client, Update]):
    """y ~ p(y | x, phi, z_k) with z_k ~ N(mu, tau^2): maximise the marginal likelihood by draws of z_k (Algorithm 1).

    Clients go on with chains that draw z_k from p(z | D_k, phi, mu, tau), and move phi along grad ln p(D_k | phi, z_k)
    (Fisher's identity). The server averages phi; mu and tau^2 go to the moments of all draws, a step of stochastic
    approximation EM. A personal model averages over further draws of its chain, under the last phi, which are its
    posterior: certificates reweight them by other rows. That of a client without rows is the prior N(mu, tau^2).

    Args:
        model: the likelihood.
        local: steps of a client; `rate` and `optimiser` are those of phi.
        chain: of the own weights.
        sampler: of the own weights, "langevin" or, as the public code has it, "adam" with the chain's rate, no sampler.
        own: which weights are a client's own.
        phi: whether phi moves at "every-step", or "once", along the mean gradient over the draws that count.
        prior: what of N(mu, tau^2) is "learned", the "scale" alone or nothing ("fixed"). tau^2 does not fall below the
            rate of the chain, which would be unstable.
        prior_std: tau before the first round.
        prior_step: how far mu and tau^2 go in a round towards the moments of the draws.
        draws: of a personal model.
        thin: steps between them.
        join_passes: times the minibatches of a round before the first draw, for a client that never took part.
        weighting: of clients in the averages.
        init_std: spread of the initial weights, the same for all clients.
        step: how far the server goes towards the average of phi.
    """

    objective: ClassVar[str | None] = "loss"
    personal_model: ClassVar[str] = "personal models of the averaged phi, over draws of each client's own weights"

    model: WeightModel
    local: LocalDescent = part(
        LocalDescent,
        names={name: name for name in ("steps", "epochs", "minibatch", "rate", "optimiser")},
        others=False,
        paper={"rate": Paper(1e-3, "FedSI, section IV"), "minibatch": Paper(50, "FedSI, section IV")},
    )
    chain: Langevin = part(
        partial(Langevin, rate=5e-4),
        names={"rate": "chain_rate", "temperature": "temperature", "burn_in": "burn_in", "longest": "longest_step"},
        paper={
            "rate": Paper(1e-3, "FedSI, section IV"),
            "temperature": Paper(1.0, "Algorithm 1"),
            "burn_in": Paper(0.5, "authors' code, 5 of 10 steps"),
        },
    )
    sampler: Literal["langevin", "adam"] = option("langevin", paper=Paper("langevin", "Algorithm 1"))
    own: Personal = part(Personal, names={"sites": "personal_sites"}, others=False)
    phi: Literal["every-step", "once"] = option("every-step", paper=Paper("once", "Algorithm 1"))
    prior: Literal["learned", "scale", "fixed"] = option("learned", paper=Paper("learned", "Algorithm 1"))
    prior_std: float = option(0.1, above=0, symbol="tau_0")
    prior_step: float = option(0.1, above=0, high=1)
    draws: int = option(20, low=1)
    thin: int = option(2, low=1)
    join_passes: int = option(10, low=1)
    weighting: average.Weighting = option("uniform", paper=Paper("uniform", "Algorithm 1"))
    init_std: float = option(0.1, above=0)
    step: ServerStep = part(ServerStep, names=SERVER_STEP)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)

    @cached_property
    def _own(self) -> Tensor:
        """Marks a client's own weights, bool [D], on the CPU."""
        return self.own.mask(self.model)

    @property
    def finite_posterior(self) -> bool:
        """Whether hypotheses are draws: always."""
        return True

    def about(self) -> JsonTable:
        """Over how many draws it predicts, and how they are made."""
        text = f"predictions averaged over {self.draws} draws of the own weights; mean_weights: over their mean"
        inference = "Langevin steps" if self.sampler == "langevin" and self.chain.temperature else "descent, no draws"
        own = f"{int(self._own.sum())} of {self.model.dim} weights stay with their client"
        return {"draws": self.draws, "average": text, "inference": inference, "own_weights": own}

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw phi, and the mu at which every chain begins."""
        theta = initial_weights(self.model, self.init_std, generator)
        variance = theta.new_full((int(self._own.sum()),), self.prior_std**2)
        return Server(theta, variance, self.step.start(theta[self._at("shared", theta)]))

    def init_clients(self, message: Server, batch: ClientBatch) -> Client:
        """Begin at mu."""
        own = tensors.expand(self._prior(message).mean, batch.clients).clone()
        return Client(own, torch.zeros_like(batch.size, dtype=torch.int64))

    def broadcast(self, server: Server) -> Server:
        """Send phi, mu and tau^2."""
        return Server(server.theta, server.variance)

    def client(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> tuple[Update, Client]:
        """Go on with the chain, and with phi along its draws (Algorithm 1)."""
        own, phi, draws, loss = self._run(message, state.own, batch, noise)
        weight = self.weight(batch.size)
        update = Update(Sent(phi, Moments(draws.mean(), draws.variance())), weight, torch.ones_like(weight), loss)
        return update, Client(own, state.rounds + 1)

    def weight(self, rows: Tensor) -> Tensor:
        """As `weighting` says, of rows [K]: [K]."""
        return average.client_weight(rows, self.weighting)

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """Average phi, and go towards the moments of the draws: the M step of EM for mu and tau^2."""
        mean, shared = join(update.sent, update.weight), self._at("shared", server.theta)
        phi, state = self.step(server.theta[shared], mean.phi, server.moments)
        old, new = self._prior(server), mean.z
        if self.prior == "scale":
            new = Moments(old.mean, new.variance + (new.mean - old.mean).square())
        if self.prior != "fixed":
            new = new._replace(variance=moments.repaired(new.variance, old.variance))
            old = moments.extrapolate(old, new, self.prior_step)
            old = old._replace(variance=old.variance.clamp_min(self.chain.rate))
        theta = server.theta.index_copy(0, shared, phi).index_copy(0, self._at("own", phi), old.mean)
        return Server(theta, old.variance, state)

    def client_deltas(self, message: Server, update: Update) -> Sent:
        """How far phi went in a round [K, R], and how the moments of the draws deviate from the prior's [K, E]."""
        phi = update.sent.phi - message.theta[self._at("shared", message.theta)]
        return Sent(phi, moments.deviations(update.sent.z, self._prior(message)))

    def check_private(self) -> None:
        """Refuse weights by rows, which are private."""
        private_steps.alike(self.weighting)

    def from_release(self, message: Server, mean: Sent, clients: float) -> Update:
        """Apply the released mean step, leaves [1, *]."""
        phi = message.theta[self._at("shared", message.theta)] + mean.phi
        unknown = private_steps.unknown(phi)
        sent = Sent(phi, moments.from_deviations(mean.z, self._prior(message)))
        return Update(sent, private_steps.unit_weights(phi), unknown, unknown)

    def train_newcomers(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> Client:
        """Let the chain of a new client forget its start, under the last phi."""
        return state._replace(own=self._run(message, state.own, batch, noise.fork(), self.join_passes, hold=True)[0])

    def personalise_trained(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> WeightedSamples:
        """Draw from the client's chain under the last phi, one point after another."""
        kept, at, each = noise.copy(), self._at("own", message.theta), list[Drawn]()
        short = replace(self, local=replace(self.local, steps=self.thin, epochs=None))
        own = state.own
        for _ in range(self.draws):
            own = short._run(message, own, batch, noise, hold=True)[0]
            each.append(Drawn(message.theta, own, at))
        mean = Drawn(message.theta, torch.stack([one.own for one in each]).mean(0), at).weights()
        level = torch.full((batch.clients, self.draws, 1), -math.log(self.draws), dtype=torch.float64)
        return WeightedSamples(self.model, tuple(each), level.to(mean.device), kept, (mean,) * self.draws, batch)

    def absorb(self, message: Server, state: Client, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> Client:
        """The chain goes on under the likelihood of all rows."""
        return state

    def refine(self, prior: Any, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> RefinedPosterior:
        """Reweight the same draws by the likelihood of more rows, as Bayes' rule on a finite list says.

        Args:
            prior: P, of draws that weigh alike.
            seen: rows that P was conditioned on; unused, since P determines the update.
            rows: the others.
            noise: not used.

        Returns:
            Q on the same draws, and KL(Q || P) [K], in nats, float64: exact, at most ln S.
        """
        with torch.no_grad():
            values = [self.model.log_likelihood(one.weights(), rows).double() for one in prior.components]
        log_weights = (prior.log_weights + torch.stack(values, 1).unsqueeze(-1)).log_softmax(1)
        posterior = replace(prior, log_weights=log_weights)
        return RefinedPosterior(posterior, posterior.kl(prior))

    def global_model(self, message: Server, state: Client, batch: ClientBatch, noise: Noise) -> WeightPosterior:
        """The network of phi and mu."""
        theta = tensors.expand(message.theta, batch.clients)
        return WeightPosterior(self.model, PointMass(theta), 1, noise, batch)

    def reduce(self, update: Update) -> Update:
        """Join the clients of a chunk."""
        return average.reduced(update, "sent", join)

    def report(self, server: Server, update: Update) -> Mapping[str, Tensor]:
        """Mean training loss of the clients."""
        return mean_loss(update)

    def footprint(self, rows: int) -> int:
        """Numbers per client, as the model counts them."""
        return self.model.footprint(rows)

    def _at(self, which: Literal["own", "shared"], like: Tensor) -> Tensor:
        """Positions of weights among all D, int64, where `like` is."""
        return (self._own if which == "own" else ~self._own).nonzero().squeeze(1).to(like.device)

    def _prior(self, message: Server) -> Moments:
        """The prior of the own weights, leaves [E]."""
        return Moments(message.theta[self._at("own", message.theta)], message.variance)

    def _run(
        self, message: Server, own: Tensor, batch: ClientBatch, noise: Noise, passes: int = 1, hold: bool = False
    ) -> tuple[Tensor, Tensor, Draws, Tensor]:
        """Go on with chains from z [K, E]; where it is held, phi stays.

        Returns:
            The last z [K, E], phi [K, R], the draws of z that count, and the loss per row [K].
        """
        at, shared = self._at("own", own), self._at("shared", own)
        theta = Drawn(message.theta, own, at).weights()
        phi, own, prior = theta[:, shared], own.clone(), self._prior(message)
        moves, draws = self.phi == "every-step" and not hold, Draws.none(own)
        number = turns.counts(self.local, batch, passes)
        first, slopes, losses = (self.chain.burn_in * number).floor(), torch.zeros_like(phi), own.new_zeros(len(own))
        adam, own_adam = adam_init(phi, len(phi)), adam_init(own, len(own))
        for t, active in enumerate(turns.turns(self.local, batch, passes)):
            index = noise.rows(batch.mask, self.local.minibatch)  # drawn always: padding must not move later draws
            rows = batch.rows(index) if self.local.minibatch < batch.mask.shape[1] else batch
            loss, slope = map_estimate.gradient(self.model, theta, rows)
            counts = (first <= t) & (number > t)
            draws = draws.add(own, counts)
            slopes += slope[:, shared] * counts.unsqueeze(1)
            losses += loss if active is None else torch.where(active, loss, 0.0)
            drift = slope[:, at] * batch.size.to(slope).unsqueeze(1) + (own - prior.mean) / prior.variance
            if self.sampler == "adam":
                own_adam = step_(own, drift, own_adam, self.chain.rate, "adam", active)
            else:
                moved = self.chain.step(own, drift, noise)
                own = moved if active is None else tensors.where(active, moved, own)
            if moves:
                adam = step_(phi, slope[:, shared], adam, self.local.rate, self.local.optimiser, active)
            theta = theta.index_copy(1, at, own).index_copy(1, shared, phi)
        if self.phi == "once":
            phi = phi - self.local.rate * slopes / (number - first).clamp_min(1.0).unsqueeze(1).to(phi)
        return own, phi, draws, turns.mean_over(self.local, batch, losses, passes).double()


RECIPE = Recipe(
    "FedPop: a shared representation below heads that are drawn from a learned distribution (FedSOUL)",
    FedPop,
    MethodSummary(
        "network", "Langevin steps", "weighted mean, EM", "shared weights, moments of the own", "own weights"
    ),
    model="weights",
    presets={
        "recommended": {"federation": OWN_LAYER_ROUNDS},
        "paper": {"method": {"server": "adam", "server_rate": 0.01}, "federation": PAPER_ROUNDS},
        "authors-code": {
            "method": {
                **{"sampler": "adam", "chain_rate": 0.1, "temperature": 0.0, "prior": "fixed", "prior_std": 1.0},
                **{"steps": 10, "burn_in": 0.5},
            },
            "federation": PAPER_ROUNDS,
        },
    },
    search={
        "method.chain_rate": LogUniform(5e-5, 2e-3),
        "method.prior_std": LogUniform(0.03, 1.0),
        **SEARCH_NETWORK,
    },
)
