"""Later rows for an exact Gaussian-process posterior, whose Cholesky factors grow by a block."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.posteriors.functions.gaussian_process import GPPosterior, log_evidence_of


def extended(prior: GPPosterior, seen: ClientBatch, rows: ClientBatch) -> tuple[GPPosterior, Tensor] | None:
    """Condition on later rows too, and take the divergence that they make: that of the function's values at them.

    A = S + D = L L',  S = K_22 - K_21 A_11^-1 K_12,  r = y - mu_P
    KL(Q_p || P_p) = (ln |A| - ln |D| - tr(S A^-1) + r' A^-1 S A^-1 r) / 2

    S, mu_P and D are covariance, mean and noise of the later rows under P, A_11 is the covariance of the targets of its
    own rows. Beside conditioning on all rows this factors and inverts a matrix of the later ones alone.

    Args:
        prior: P, of the rows `seen`.
        seen: rows of K clients, N.
        rows: later rows of the same clients, M, in their order.

    Returns:
        Q, of both sets of rows as N + M with padding in between, and the divergence of every particle [K, P], in nats;
        None where P is of other rows or of float32, where rows would be known through points, and where jitter was
        needed or would be, which is added to all rows alike.
    """
    if not _extends(prior, seen, rows):
        return None
    with torch.no_grad():
        real = rows.mask.unsqueeze(1)
        means, covariance, half = prior.moments(rows.x)
        noise = torch.where(real, prior.model.noise(prior.theta, rows.x), 1.0)
        gained, factor = log_evidence_of(means, covariance, noise, rows.y, rows.mask)
        if bool(factor.jitter.any()) or not bool(factor.ok.all()):
            return None
        inner = torch.diag_embed(real.to(covariance.dtype)).expand_as(covariance)
        inner = torch.linalg.solve_triangular(factor.cholesky, inner, upper=False)  # L^-1
        residual = torch.where(real, rows.y.unsqueeze(1) - means, 0.0).unsqueeze(-1)
        alpha = (inner.mT @ (inner @ residual)).squeeze(-1)
        before = prior.alpha - (prior.whitener.mT @ (half.mT @ alpha.unsqueeze(-1))).squeeze(-1)
        log_evidence = prior.log_evidence + gained
        # S is A - D, so that tr(S A^-1) is n - tr(D A^-1); ln |A| and r' A^-1 r are in the evidence gained.
        constant = torch.where(real, 1.0 + (2 * math.pi * noise).log(), 0.0).sum(-1)
        spared = (noise * (inner.square().sum(-2) - alpha.square())).sum(-1)
        kl = 0.5 * (spared - constant) - gained
        posterior = replace(
            prior,
            x=torch.cat((prior.x, rows.x), 1),
            mask=torch.cat((prior.mask, rows.mask), 1),
            alpha=torch.cat((before, alpha), -1),
            whitener=_joined(prior.whitener, inner, -inner @ (half @ prior.whitener)),
            log_evidence=log_evidence,
            log_weights=torch.log_softmax(log_evidence, 1) if prior.weighting == "evidence" else prior.log_weights,
            train_embedding=None,
        )
    return posterior, kl.clamp_min(0.0)


def _extends(prior: GPPosterior, seen: ClientBatch, rows: ClientBatch) -> bool:
    if seen.ids != rows.ids or prior.theta.dtype != torch.float64 or prior.given_noise is not None:
        return False
    rule = prior.model.inducing
    if rule is not None and int((seen.size + rows.size).max()) > rule.above:
        return False
    if prior.x.shape != seen.x.shape or not torch.equal(prior.x, seen.x) or not torch.equal(prior.mask, seen.mask):
        return False
    return bool(prior.mask.any()) and bool(prior.log_evidence.isfinite().all() & (prior.factor_jitter == 0).all())


def _joined(before: Tensor, inner: Tensor, below: Tensor) -> Tensor:
    """The lower triangle of blocks: [[before, 0], [below, inner]]."""
    beside = before.new_zeros(*before.shape[:-1], inner.shape[-1])
    return torch.cat((torch.cat((before, beside), -1), torch.cat((below, inner), -1)), -2)
