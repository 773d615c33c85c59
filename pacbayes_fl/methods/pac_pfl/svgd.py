"""What PAC-PFL on functions and on networks share: the server's half of Algorithm 1, SVGD on particles that are priors.

A subclass says what the priors are: how a client differentiates its log evidence by them (Algorithm 2), and what
posterior it has under them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.optim import Adam, adam, adam_init, sgd
from pacbayes_fl.methods.base import Method, Nothing
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.hyper_posterior import HyperPosterior, HyperPrior, gibbs_tau
from pacbayes_fl.server import svgd

Model = TypeVar("Model")
MinibatchScale = Literal["inside", "outside", "none"]


class Server(NamedTuple):
    """Particles phi [P, D] and the moments of their optimiser."""

    particles: Tensor
    adam: Adam[Tensor]


class Message(NamedTuple):
    """Particles phi [P, D]: the moments stay at home."""

    particles: Tensor


class Scored(Protocol):
    """What the server reads of an update: scores of clients, or their sum over `weight` of them."""

    @property
    def score(self) -> Tensor:
        """Gradient of the log evidence [K, P, D], in nats per unit of phi."""

    @property
    def log_evidence(self) -> Tensor:
        """Log evidence ln Z [K, P], in nats."""

    @property
    def weight(self) -> Tensor:
        """Number of clients behind a row [K]."""


Update = TypeVar("Update", bound=Scored)


@dataclass(frozen=True)
class FederatedSVGD(Method[Server, Message, Nothing, Update], Generic[Model, Update]):
    """Algorithm 1 of PAC-PFL for priors of any kind; clients keep nothing.

    Args:
        model: what phi are the parameters of a prior of.
        hyper_prior: distribution of phi.
        particles: k.
        tau: exponent of the evidence in the hyper-posterior (eq. 40), or None to take it from lam, beta and n2. Those
            of Corollary 4.4 are in (0, 1); 1, which counts every row once, is the limit as n2 + v goes to 0.
        lam: lambda of Theorem 4.2.
        beta: temperature of the clients' posteriors.
        n2: clients that expect new samples.
        v: small constant of Theorem 4.2.
        rate: learning rate eta.
        optimiser: "adam" on the SVGD direction, or "ascent" (eq. 39 as printed).
        bandwidth: rule of the SVGD kernel, or its h.
        minibatch: rows b per client and round, all when None.
        minibatch_scale: what the b rows count for. With Z(c) the prior expectation of the product of their likelihoods
            to the power c, "inside" takes ln Z(m_k / b), Algorithm 2 as printed (beta = m_k on the mean loss of the b
            rows; for a GP the noise s^2 becomes s^2 b / m_k), "outside" m_k / b ln Z(1), and "none" ln Z(1), whose tau
            depends on b. They agree where b is at least m_k; elsewhere no one of them is unbiased for ln Z.
        cohort_scale: "sum" restores the sum over all n clients when a cohort is drawn (eq. 40); "mean" averages over
            the cohort, which makes tau depend on n (Algorithm 1, line 7, as printed).
        weighting: of the priors' posteriors in the predictive mixture, by "evidence" (eq. 37) or "equal".
    """

    objective: ClassVar[str | None] = "log_evidence"
    beta_tempers: ClassVar[bool] = False
    """True where beta is the clients' temperature too, and not only a number behind tau."""
    personal_messages: ClassVar[bool] = False
    """True where `client` and `personalise` take particles that differ between clients, [K, P, D]."""

    model: Model
    hyper_prior: HyperPrior
    particles: int = 4
    tau: float | None = 1.0
    lam: float | None = None
    beta: float | None = None
    n2: float = 0.0
    v: float = 1e-4
    rate: float = 1e-2
    optimiser: Literal["adam", "ascent"] = "adam"
    bandwidth: svgd.Bandwidth | float = "off-diagonal"
    minibatch: int | None = None
    minibatch_scale: MinibatchScale = "inside"
    cohort_scale: Literal["sum", "mean"] = "sum"
    weighting: Literal["evidence", "equal"] = "evidence"

    def __post_init__(self) -> None:
        """Refuse hyper-parameters that mean nothing."""
        if self.particles < 1 or not self.rate > 0 or (self.minibatch is not None and self.minibatch < 1):
            raise StudyError("particles, rate and minibatch must be positive")
        if self.n2 < 0 or self.v < 0:
            raise StudyError(f"n2 and v must not be negative, got {self.n2:g} and {self.v:g}")
        if self.tau is None and (self.lam is None or self.beta is None):
            raise StudyError("tau is None, so lam and beta are needed", hint="tau = lam / (lam + beta n (n2 + v))")
        if self.tau is not None and not self.tau > 0:
            raise StudyError(f"tau must be positive, got {self.tau:g}")
        idle = self.lam is not None or (self.beta is not None and not self.beta_tempers)
        if self.tau is not None and idle:
            raise StudyError("tau is given, so lam and beta would not count", hint="tau = 'none' takes it from them")
        if self.tau is None and self.lam is not None and self.beta is not None:
            gibbs_tau(self.lam, self.beta, 1, self.n2, self.v)  # refuses a lambda that Theorem 4.2 does not allow
        for name, kind in get_type_hints(type(self)).items():
            if get_origin(kind) is Literal and getattr(self, name) not in get_args(kind):
                raise StudyError(f"{name} must be one of {', '.join(get_args(kind))}, got {getattr(self, name)!r}")

    def init_server(self, generator: torch.Generator) -> Server:
        """Draw the particles from the hyper-prior (Algorithm 1, line 2)."""
        particles = self.hyper_prior.sample(self.particles, generator)
        return Server(particles, adam_init(particles))

    def init_clients(self, message: Message, batch: ClientBatch) -> Nothing:
        """Keep nothing."""
        return Nothing()

    def broadcast(self, server: Server) -> Message:
        """Send the particles (Algorithm 1, line 6)."""
        return Message(server.particles)

    def server(self, server: Server, update: Update, n_clients: int) -> Server:
        """Move the particles along the SVGD direction (Algorithm 1, lines 7-11; eqs. 39-40)."""
        present = update.weight.sum().clamp_min(1.0).to(update.score.dtype)
        restored = (n_clients if self.cohort_scale == "sum" else 1.0) / present
        tau = gibbs_tau(self.lam or 0.0, self.beta or 0.0, n_clients, self.n2, self.v) if self.tau is None else self.tau
        hyper_posterior = HyperPosterior(server.particles, self.hyper_prior)
        score = hyper_posterior.score() + tau * restored * update.score.sum(0)
        downhill = -svgd.direction(server.particles, score, self.bandwidth)
        if self.optimiser == "ascent":
            return Server(sgd(server.particles, downhill, self.rate), server.adam)
        return Server(*adam(server.particles, downhill, server.adam, self.rate))

    def client_steps(self, message: Message, update: Update) -> dict[str, Tensor]:
        """The score of all particles together [K, P, D]: one vector, so that one clip bounds it."""
        return {"score": update.score}

    def check_private(self) -> None:
        """Scores may be released, whatever the options."""

    def drawn_rows(self, batch: ClientBatch, noise: Noise) -> ClientBatch:
        """Draw a minibatch of every client's rows (Algorithm 2, line 2).

        Args:
            batch: all rows.
            noise: the clients' streams; nothing is drawn from them where all rows are asked for.

        Returns:
            The rows; the batch itself where no client has more of them.
        """
        if self.minibatch is None:
            return batch
        at = noise.rows(batch.mask, self.minibatch)  # also where all rows are taken: padding must not move later draws
        return batch.rows(at) if self.minibatch < batch.mask.shape[1] else batch

    def minibatch_weights(self, batch: ClientBatch, rows: ClientBatch) -> tuple[Tensor, Tensor]:
        """Give what a minibatch's rows count for (Algorithm 2, line 4).

        Args:
            batch: all rows of K clients.
            rows: those that `drawn_rows` took of them.

        Returns:
            The power of every row's likelihood inside the expectation, and the factor of its logarithm [K], float64.
        """
        ratio = torch.where(rows.size > 0, batch.size / rows.size.clamp_min(1.0), 1.0)
        one = torch.ones_like(ratio)
        return {"inside": (ratio, one), "outside": (one, ratio), "none": (one, one)}[self.minibatch_scale]

    def reduce(self, update: Update) -> Update:
        """Sum the clients of a chunk: the server needs no more."""
        return tensors.total(update)

    def report(self, server: Server, update: Update) -> Mapping[str, Tensor]:
        """Mean log evidence per client, size of the summed score, spread of the particles."""
        present = update.weight.sum().clamp_min(1.0)
        return {
            "log_evidence": update.log_evidence.sum(0).mean() / present,
            "score_norm": update.score.sum(0).norm(),
            "spread": svgd.spread(server.particles),
        }
