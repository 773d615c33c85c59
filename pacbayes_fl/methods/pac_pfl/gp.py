"""PAC-PFL with Gaussian processes: a distribution over priors, learned by federated SVGD (Algorithms 1 and 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import evidence
from pacbayes_fl.methods import private_steps
from pacbayes_fl.methods.base import Nothing, Refined
from pacbayes_fl.methods.pac_pfl.svgd import FederatedSVGD, Message, Server
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.functions.gaussian_process import GPPosterior, condition, refined
from pacbayes_fl.posteriors.predictive import LearnedPriors

__all__ = ["Message", "PacPFL", "Server", "Update"]


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


@final
@dataclass(frozen=True)
class PacPFL(FederatedSVGD[FunctionModel, Update]):
    """PAC-PFL (Algorithms 1 and 2, eqs. 33-40); the server's half and its fields as in `federated_svgd.FederatedSVGD`.

    The model is a prior over functions with hyper-parameters phi; a flat hyper-prior with one particle makes pFedGP.
    beta = m_i makes Z the marginal likelihood.
    """

    personal_messages: ClassVar[bool] = True

    def client(self, message: Message, state: Nothing, batch: ClientBatch, noise: Noise) -> tuple[Update, Nothing]:
        """Differentiate the log evidence of a minibatch by every particle (Algorithm 2)."""
        rows = self.drawn_rows(batch, noise)
        power, factor = (None, None) if rows is batch else self.minibatch_weights(batch, rows)
        score, log_evidence, jitter = evidence.particle_scores(self.model, message.particles, rows, power)
        if factor is not None:
            factor = factor.to(score).unsqueeze(-1)
            score, log_evidence = score * factor.unsqueeze(-1), log_evidence * factor
        jittered = (jitter > 0).any(1).to(batch.size)
        update = Update(score, log_evidence, torch.ones_like(batch.size), jittered)
        return update, state

    def received(self, message: Message, mean: Mapping[str, Tensor], clients: float) -> Update:
        """Make the sum of scores out of their mean [1, P, D]: the server restores the sum over all from it (eq. 40)."""
        score, unknown = mean["score"] * clients, private_steps.withheld(mean["score"])
        log_evidence = unknown.to(score).unsqueeze(1).expand(score.shape[:2])
        return Update(score, log_evidence, private_steps.ones(score) * clients, unknown)

    def personalise(self, message: Message, state: Nothing, batch: ClientBatch, noise: Noise) -> GPPosterior:
        """Condition every particle's GP on the client's rows (eqs. 35-37); no training, for new clients too."""
        theta = message.particles.expand(batch.clients, *message.particles.shape[-2:])
        return condition(self.model, theta, batch, self.weighting)

    def refine(self, prior: GPPosterior, seen: ClientBatch, rows: ClientBatch, noise: Noise) -> Refined:
        """Condition the particles' GPs on all rows: the exact posterior again, from P whose particles stay as they are.

        Args:
            prior: P, of the rows `seen`.
            seen: rows of K clients.
            rows: later rows of theirs.
            noise: not used.

        Returns:
            Q, and a bound on KL(Q || P) [K]; see `posteriors.functions.gaussian_process.refined`.
        """
        return Refined(*refined(prior, seen, rows, self.weighting))

    def learned_priors(self, server: Server) -> LearnedPriors:
        """Give the particles: clients condition a Gaussian process on their rows under each."""

        def conditioned(theta: Tensor, batch: ClientBatch) -> GPPosterior:
            return condition(self.model, theta, batch, "equal")

        return LearnedPriors(server.particles, self.hyper_prior, conditioned, self.particles)

    def report(self, server: Server, update: Update) -> Mapping[str, Tensor]:
        """Mean log evidence per client, size of the summed score, spread of the particles, clients with jitter."""
        return {**super().report(server, update), "jittered": update.jittered.sum()}

    def footprint(self, rows: int) -> int:
        """Numbers per client: one covariance per particle."""
        rows = rows if self.minibatch is None else min(rows, self.minibatch)
        return self.particles * (rows * rows + self.model.dim)
