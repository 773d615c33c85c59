"""PAC-PFL with Gaussian processes: a distribution over priors, learned by federated SVGD (Algorithms 1 and 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, final, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError, StudyError
from pacbayes_fl.inference import evidence
from pacbayes_fl.methods.base import Method, Nothing
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.optim import Adam, adam, adam_init, sgd
from pacbayes_fl.posteriors.gaussian_process import GPPosterior, condition
from pacbayes_fl.posteriors.particles import HyperPosterior, HyperPrior
from pacbayes_fl.server import svgd


class Server(NamedTuple):
    """Particles phi [P, D] and the moments of their optimiser."""

    particles: Tensor
    adam: Adam[Tensor]


class Message(NamedTuple):
    """Particles phi [P, D]: the moments stay at home."""

    particles: Tensor


class Update(NamedTuple):
    """Scores of clients, or their sum over `weight` of them.

    Args:
        score: gradient of the log evidence [K, P, D], in nats per unit of phi.
        log_evidence: ln Z [K, P], in nats.
        weight: number of clients behind a row [K].
        jittered: number of them that needed jitter under some particle [K].
    """

    score: Tensor
    log_evidence: Tensor
    weight: Tensor
    jittered: Tensor


def gibbs_tau(lam: float, beta: float, n: int, n2: float, v: float = 1e-4) -> float:
    """Exponent of the optimal hyper-posterior.

    tau = lambda / (lambda + beta n (n2 + v))      (PAC-PFL Corollary 4.4)

    Args:
        lam: lambda > n2 + v.
        beta: temperature of the clients' posteriors.
        n: number of clients.
        n2: number of clients that expect new samples.
        v: small constant of Theorem 4.2.

    Returns:
        tau in (0, 1).

    Raises:
        AssumptionError: when lambda <= n2 + v.
    """
    if not lam > n2 + v:
        raise AssumptionError(f"lambda must be above n2 + v = {n2 + v:g} (Theorem 4.2), got {lam:g}")
    return lam / (lam + beta * n * (n2 + v))


@final
@dataclass(frozen=True)
class PacPFL(Method[Server, Message, Nothing, Update]):
    """PAC-PFL (Algorithms 1 and 2, eqs. 33-40).

    Args:
        model: prior with hyper-parameters phi.
        hyper_prior: distribution of phi; a flat one with one particle makes pFedGP.
        particles: k.
        tau: exponent of the evidence in the hyper-posterior (eq. 40), or None to take it from lam, beta and n2.
        lam: lambda of Theorem 4.2.
        beta: temperature of the clients' posteriors in Corollary 4.4; m_i makes Z the marginal likelihood.
        n2: clients that expect new samples.
        v: small constant of Theorem 4.2.
        rate: learning rate eta.
        optimiser: "adam" on the SVGD direction, or "ascent" (eq. 39 as printed).
        bandwidth: rule of the SVGD kernel, or its h.
        minibatch: rows b per client and round, all when None.
        minibatch_scale: "unscaled" takes the evidence of the b rows (Algorithm 2); "rows" multiplies it by m_k / b.
        cohort_scale: "sum" restores the sum over all n clients when a cohort is drawn (eq. 40); "mean" averages over
            the cohort, which makes tau depend on n (Algorithm 1, line 7, as printed).
        weighting: of the predictive mixture, by "evidence" (eq. 37) or "equal".
    """

    model: FunctionModel
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
    minibatch_scale: Literal["unscaled", "rows"] = "unscaled"
    cohort_scale: Literal["sum", "mean"] = "sum"
    weighting: Literal["evidence", "equal"] = "evidence"

    def __post_init__(self) -> None:
        """Refuse hyper-parameters that mean nothing."""
        if self.particles < 1 or not self.rate > 0 or (self.minibatch is not None and self.minibatch < 1):
            raise StudyError("particles, rate and minibatch must be positive")
        if self.tau is None and (self.lam is None or self.beta is None):
            raise StudyError("tau is None, so lam and beta are needed", hint="tau = lam / (lam + beta n (n2 + v))")
        if self.tau is not None and not self.tau > 0:
            raise StudyError(f"tau must be positive, got {self.tau:g}")
        if self.tau is not None and (self.lam is not None or self.beta is not None):
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

    def client(self, message: Message, state: Nothing, batch: ClientBatch, noise: Noise) -> tuple[Update, Nothing]:
        """Differentiate the log evidence of a minibatch by every particle (Algorithm 2)."""
        rows = batch
        if self.minibatch is not None and self.minibatch < batch.mask.shape[1]:
            rows = batch.rows(noise.rows(batch.mask, self.minibatch))
        score, log_evidence, jitter = evidence.particle_scores(self.model, message.particles, rows)
        if rows is not batch and self.minibatch_scale == "rows":
            scale = (batch.size / rows.size.clamp_min(1.0)).to(score.dtype).view(-1, 1)
            score, log_evidence = score * scale.unsqueeze(-1), log_evidence * scale
        jittered = (jitter > 0).any(1).to(batch.size)
        update = Update(score, log_evidence, torch.ones_like(batch.size), jittered)
        return update, state

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

    def personalise(self, message: Message, state: Nothing, batch: ClientBatch, noise: Noise) -> GPPosterior:
        """Condition every particle's GP on the client's rows (eqs. 35-37); no training, for new clients too."""
        return condition(self.model, tensors.expand(message.particles, batch.clients), batch, self.weighting)

    def reduce(self, update: Update) -> Update:
        """Sum the clients of a chunk: the server needs no more."""
        return tensors.total(update)

    def report(self, server: Server, update: Update) -> Mapping[str, Tensor]:
        """Mean log evidence per client, size of the summed score, spread of the particles, clients with jitter."""
        present = update.weight.sum().clamp_min(1.0)
        return {
            "log_evidence": update.log_evidence.sum(0).mean() / present,
            "score_norm": update.score.sum(0).norm(),
            "spread": svgd.spread(server.particles),
            "jittered": update.jittered.sum(),
        }

    def footprint(self, rows: int) -> int:
        """Numbers per client: one covariance per particle."""
        rows = rows if self.minibatch is None else min(rows, self.minibatch)
        return self.particles * (rows * rows + self.model.dim)
