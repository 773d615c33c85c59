"""Conditioning on clients' rows: all of them, or through the inducing points that the prior asks for."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.posteriors.functions import gaussian_process
from pacbayes_fl.posteriors.functions.gaussian_process import GPPosterior
from pacbayes_fl.posteriors.functions.inducing import InducingPosterior, condition_on_points
from pacbayes_fl.posteriors.weights.mixture import log_mixture_kl

Conditioned = GPPosterior | InducingPosterior
"""A posterior over functions."""


def condition(
    model: FunctionModel,
    theta: Tensor,
    batch: ClientBatch,
    weighting: Literal["evidence", "equal"] = "evidence",
) -> Conditioned:
    """Condition every particle's GP on every client's rows, exactly or by `FunctionModel.inducing` points.

    Args:
        model: the prior.
        theta: particles [K, P, D].
        batch: rows x [K, N, d], y [K, N].
        weighting: of the particles, by "evidence" (PAC-PFL eq. 37b) or "equal".

    Returns:
        The posterior; see `gaussian_process.condition` and `inducing.condition_on_points`.
    """
    if model.inducing is None:
        return gaussian_process.condition(model, theta, batch, weighting)
    return condition_on_points(model, theta, batch, model.inducing, weighting)


def function_kl(posterior: Conditioned, prior: Conditioned, seen: ClientBatch) -> Tensor:
    """KL divergence, particle by particle, of a posterior from one that saw some of its rows: over functions.

    Args:
        posterior: Q, of these rows and others, under particles and of a kind that are those of P.
        prior: P.
        seen: rows of the K clients that P saw, possibly none.

    Returns:
        [K, P], in nats; NaN where one of them is not known.

    Raises:
        TypeError: when one is exact and the other is not.
    """
    if isinstance(posterior, InducingPosterior) and isinstance(prior, InducingPosterior):
        return posterior.kl_from(prior)
    if isinstance(posterior, GPPosterior) and isinstance(prior, GPPosterior):
        return gaussian_process.function_kl(posterior, prior, seen)
    raise TypeError("an exact posterior and one with inducing points have no divergence here")


def refined(
    prior: Conditioned,
    seen: ClientBatch,
    rows: ClientBatch,
    weighting: Literal["evidence", "equal"] = "evidence",
) -> tuple[Conditioned, Tensor]:
    """Let clients see more rows under the same particles, and bound how far that takes their posteriors.

    KL(Q || P) <= KL(a || w) + sum_p a_p KL(Q_p || P_p), a and w the mixture weights of Q and P

    Args:
        prior: P, of the rows `seen`.
        seen: rows of the K clients that P was conditioned on, possibly none.
        rows: later rows of these clients.
        weighting: "evidence" or "equal", as P has it.

    Returns:
        Q, of all rows, and the bound [K] in nats, float64; infinite where P gives weight 0 to what Q uses, or where no
        covariance could be factored.
    """
    everything = seen.extend(rows)
    posterior = condition(prior.model, prior.theta, everything, weighting)
    q, p = posterior, prior
    if prior.theta.dtype != torch.float64:  # differences of log evidences need more digits than predictions do
        theta = prior.theta.double()
        everything, seen = (batch.to(dtype=torch.float64) for batch in (everything, seen))
        q, p = (condition(prior.model, theta, batch, weighting) for batch in (everything, seen))
    return posterior, log_mixture_kl(q.log_weights, p.log_weights, function_kl(q, p, seen))
