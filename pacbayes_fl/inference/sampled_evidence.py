"""The client's half of PAC-PFL with networks: log evidence of every prior by draws of its weights, and its gradient.

A prior over weights is a diagonal Gaussian; a particle phi [2 D] is its (mu, rho), as in
`posteriors.weights.mean_field`. All particles see the same draws eps, so that they differ by what they are and not by
luck. Autograd goes through the network alone; draws are added up in log space, and no more are taken at once than a
fixed size holds, so that memory does not grow with their number.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.posteriors.weights.posterior import at_once, repeated

NONE = -1e30
"""Stands for the logarithm of a likelihood of zero, in nats."""


class SampledScores(NamedTuple):
    """Sampled log evidence and score of every client (PAC-PFL Algorithm 2, line 4).

    Args:
        score: gradient of the estimated log evidence by (mu, rho) [K, P, 2D], in nats per unit; NaN for a client whose
            likelihood is zero under every draw of a prior.
        log_evidence: ln Z~ [K, P], in nats.
        effective: effective number of draws behind it [K, P], from 1 to L.
    """

    score: Tensor
    log_evidence: Tensor
    effective: Tensor


def prior_of(particles: Tensor) -> MeanField:
    """Read particles as priors.

    Args:
        particles: (mu, rho) [*, D + D].

    Returns:
        Leaves [*, D].
    """
    loc, rho = particles.chunk(2, -1)
    return MeanField(loc, rho.clone()).bounded()  # a plain ascent may have left what softplus can tell


def tempering(beta: float | None, batch: ClientBatch, rows: ClientBatch) -> Tensor:
    """Factor that makes a sum over rows beta times their mean.

    Args:
        beta: temperature; None stands for m_k, which makes Z the marginal likelihood.
        batch: all rows of the clients.
        rows: over which the log likelihood is summed.

    Returns:
        beta / b [K], float64.
    """
    drawn = rows.size.clamp_min(1.0)
    return batch.size / drawn if beta is None else beta / drawn


def one_of(loc: Tensor, clients: int) -> Tensor:
    """The first of P priors, expanded to every client: the template of the draws that all P share.

    Args:
        loc: [P, D], or [K, P, D].
        clients: K.

    Returns:
        [K, D].
    """
    return loc.select(-2, 0).expand(clients, -1)


def log_values(
    model: WeightModel, priors: MeanField, batch: ClientBatch, scale: Tensor, draws: int, noise: Noise
) -> Tensor:
    """Tempered log likelihood of all rows under draws of every prior: the terms of eq. 38.

    a_kpj = scale_k sum_i ln p(y_i | theta_pj),  theta_pj = mu_p + sigma_p eps_j

    Args:
        model: the likelihood.
        priors: leaves [P, D], the same for all clients, or [K, P, D].
        batch: rows of K clients.
        scale: factor of the summed log likelihood [K].
        draws: L.
        noise: the clients' streams.

    Returns:
        [K, P, L], in nats, float64; a likelihood of zero is `NONE`, which counts for nothing beside any other.
    """
    count, like = priors.loc.shape[-2], one_of(priors.loc, batch.clients)
    with torch.no_grad():
        values = []
        for size in at_once(model, batch, count, draws):
            theta = torch.stack([priors.weights(noise.weights(like).unsqueeze(1)) for _ in range(size)], 1)
            by_network = model.log_likelihood(theta.flatten(0, 2), repeated(batch, size * count))
            values.append(by_network.view(theta.shape[:3]).double() * scale.view(-1, 1, 1))
        return torch.cat(values, 1).mT.clamp_min(NONE)


def particle_scores(
    model: WeightModel, particles: Tensor, rows: ClientBatch, scale: Tensor, draws: int, noise: Noise
) -> SampledScores:
    """Estimate every client's log evidence of every prior, and differentiate the estimate.

    ln Z~ = ln (1/L) sum_j exp(a_j),  a_j = beta mean_i ln p(y_i | theta_j),  theta_j = mu + sigma eps_j      (eq. 38)
    d ln Z~ = sum_j w_j da_j,  w = softmax(a)

    Its exponential is unbiased, and it is itself too low on average.

    Args:
        model: the likelihood.
        particles: (mu, rho) of P priors [P, D + D], the same for all clients, or [K, P, D + D]; weights without
            uncertainty keep their rho.
        rows: of K clients; a minibatch makes the estimate of its own rows.
        scale: `tempering` of the rows [K].
        draws: L.
        noise: the clients' streams.

    Returns:
        Scores per client, so that they can be clipped, summed or sent one by one.
    """
    with torch.no_grad():
        priors = prior_of(particles)
        precomputed, many = priors.precompute(), repeated(rows, particles.shape[-2])
        like = one_of(priors.loc, rows.clients)
        sums = _Sums(rows.clients, priors.loc)
        for _ in range(draws):
            eps = noise.weights(like).unsqueeze(1)
            with torch.enable_grad():
                theta = precomputed.weights(eps).requires_grad_(True)
                by_network = model.log_likelihood(theta.flatten(0, 1), many).view(theta.shape[:2])
            weight = sums.weigh(by_network.detach().double() * scale.unsqueeze(-1))
            (slope,) = torch.autograd.grad(by_network, theta, (weight * scale.unsqueeze(-1)).to(by_network))
            sums.add(eps, slope.masked_fill_((weight == 0).unsqueeze(-1), 0.0))  # where a is -inf its slope is none
        total = sums.total.to(particles).unsqueeze(-1)
        grad_rho = (sums.grad_eps / total).mul_(precomputed.slope)
        if model.deterministic:
            grad_rho *= model.stochastic_columns().to(grad_rho.device)
        score = torch.cat((sums.grad_weights / total, grad_rho), -1)
        log_evidence = sums.top + sums.total.log() - math.log(draws)
        return SampledScores(score, log_evidence, sums.total.square() / sums.squares)


class _Sums:
    """Sums over draws, all relative to exp of the largest value so far."""

    def __init__(self, clients: int, like: Tensor) -> None:
        self.top = torch.full((clients, like.shape[-2]), -torch.inf, dtype=torch.float64, device=like.device)
        self.total, self.squares = torch.zeros_like(self.top), torch.zeros_like(self.top)
        self.grad_weights = like.new_zeros(clients, *like.shape[-2:])
        self.grad_eps = torch.zeros_like(self.grad_weights)

    def weigh(self, value: Tensor) -> Tensor:
        """Count a draw of values [K, P], and return its weight [K, P]."""
        top = torch.maximum(self.top, value)
        base = top.clamp_min(torch.finfo(top.dtype).min)  # so that minus infinity weighs 0, and not NaN
        shrink, weight = (self.top - base).exp(), (value - base).exp()
        self.top = top
        self.total.mul_(shrink).add_(weight)
        self.squares.mul_(shrink.square()).add_(weight.square())
        by_entry = shrink.to(self.grad_weights).unsqueeze(-1)
        self.grad_weights.mul_(by_entry)
        self.grad_eps.mul_(by_entry)
        return weight

    def add(self, eps: Tensor, slope: Tensor) -> None:
        """Add a draw's weighted slope [K, P, D], and its product with eps [K, 1, D]."""
        self.grad_weights += slope
        self.grad_eps.addcmul_(slope, eps)
