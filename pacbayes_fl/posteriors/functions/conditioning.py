"""Conditioning on clients' rows: all of them, or through the inducing points that the prior has for a client."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.functions.remembered import Remembered
from pacbayes_fl.models.inducing import all_exact, order, ways
from pacbayes_fl.posteriors.functions import gaussian_process, student_noise
from pacbayes_fl.posteriors.functions.extending import extended
from pacbayes_fl.posteriors.functions.gaussian_process import GPPosterior
from pacbayes_fl.posteriors.functions.inducing import InducingPosterior, condition_on_points
from pacbayes_fl.posteriors.functions.student_noise import StudentPosterior
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.residuals import Residuals
from pacbayes_fl.posteriors.weights.mixture import log_mixture_kl


@dataclass(frozen=True)
class MixedPosterior:
    """Posteriors of K clients of whom some have their rows exactly and others through points.

    Args:
        model: the prior.
        theta: particles [K, P, D].
        parts: posteriors of some of the clients each.
        at: positions [k] of their clients.
        order: positions [K] of the K clients in the parts one after the other.
    """

    model: FunctionModel
    theta: Tensor
    parts: Sequence[GPPosterior | InducingPosterior]
    at: Sequence[Tensor]
    order: Tensor

    @cached_property
    def log_weights(self) -> Tensor:
        """Mixture weights [K, P] as logarithms."""
        return self._joined([part.log_weights for part in self.parts])

    @property
    def personal(self) -> bool:
        """A client is conditioned on its own rows."""
        return True

    def predict(self, x: Tensor) -> NormalMixture:
        """Predictive mixture [K, P, M] of new targets at inputs x [K, M, d]; see `GPPosterior.predict`."""
        return self._mixture([part.predict(x[at]) for part, at in zip(self.parts, self.at, strict=True)])

    def function(self, x: Tensor) -> NormalMixture:
        """Values [K, P, M] of the function at inputs x [K, M, d]; see `GPPosterior.function`."""
        return self._mixture([part.function(x[at]) for part, at in zip(self.parts, self.at, strict=True)])

    def leave_one_out(self) -> Residuals:
        """Residuals of every training row, predicted from all others; see `GPPosterior.leave_one_out`."""
        found = [part.leave_one_out() for part in self.parts]
        rows = max(one.mask.shape[1] for one in found)
        padded = (
            [torch.nn.functional.pad(leaf, (0, rows - leaf.shape[-1])) for leaf in leaves]
            for leaves in zip(*((one.z, one.mask) for one in found), strict=True)
        )
        return Residuals(self.log_weights, *map(self._joined, padded))

    def kl(self) -> Tensor:
        """KL divergence of every particle's posterior from its prior [K, P], in nats."""
        return self._joined([part.kl() for part in self.parts])

    def _mixture(self, found: Sequence[NormalMixture]) -> NormalMixture:
        leaves = zip(*((one.log_weights, one.means, one.variances) for one in found), strict=True)
        return NormalMixture(*map(self._joined, map(list, leaves)))

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.cat([*parts])[self.order.to(parts[0].device)]


Conditioned = GPPosterior | InducingPosterior | MixedPosterior | StudentPosterior
"""A posterior over functions, given rows."""


def condition(
    model: FunctionModel,
    theta: Tensor,
    batch: ClientBatch,
    weighting: Literal["evidence", "equal"] = "evidence",
) -> Conditioned:
    """Condition every particle's GP on every client's rows, exactly or by the points of `FunctionModel.inducing`.

    Args:
        model: the prior.
        theta: particles [K, P, D].
        batch: rows x [K, N, d], y [K, N].
        weighting: of the particles, by "evidence" (PAC-PFL eq. 37b) or "equal".

    Returns:
        The posterior; see `gaussian_process.condition`, `student_noise.condition` and `inducing.condition_on_points`.
    """
    if model.degrees_of_freedom(theta) is not None:
        return student_noise.condition(model, theta, batch, weighting)
    parts = ways(model.inducing, batch)
    found: list[GPPosterior | InducingPosterior] = []
    for at, rows, points in parts:
        own = theta if at is None else theta[at]
        if points is None:
            found.append(gaussian_process.condition(model, own, rows, weighting))
        else:
            found.append(condition_on_points(model, own, rows, points, weighting))
    if len(parts) == 1:
        return found[0]
    return MixedPosterior(model, theta, found, [part.at for part in parts if part.at is not None], order(parts))


def tempered(
    model: FunctionModel,
    theta: Tensor,
    batch: ClientBatch,
    powers: Tensor,
    weighting: Literal["evidence", "equal"] = "evidence",
) -> GPPosterior | None:
    """Condition every particle's GP on powers of the rows' likelihoods, of rows with more noise.

    Q(f) ~ P(f) prod_n N(y_n; f(x_n), D_n)^w_n,  N(y; f, D)^w = (2 pi D)^((1 - w) / 2) w^(-1/2) N(y; f, D / w)

    Args:
        model: the prior.
        theta: particles [K, P, D].
        batch: rows x [K, N, d], y [K, N].
        powers: w [K, N], above 0.
        weighting: of the particles, by the evidence of these powers or "equal".

    Returns:
        The posterior; None where noise is Student-t or rows are known through inducing points.
    """
    if model.degrees_of_freedom(theta) is not None or not all_exact(model.inducing, batch):
        return None
    with torch.no_grad():
        power = powers.unsqueeze(1)
        noise = model.noise(theta, batch.x)
        factor = 0.5 * ((1.0 - power) * (2 * math.pi * noise).log() - power.log())
        beside = torch.where(batch.mask.unsqueeze(1), factor, 0.0).sum(-1)
        return gaussian_process.condition(model, theta, batch, weighting, (noise / power, beside))


def centre(posterior: object, x: Tensor) -> NormalMixture | None:
    """Take the means of `GPPosterior.function` alone, to the bit, which spares the product with the inverse factors.

    mu_p = m_p(x*) + k_p*' (K_p + D_p)^-1 (y - m_p)

    Args:
        posterior: of K clients.
        x: inputs [K, M, d].

    Returns:
        Mixture over particles [K, P, M], in units of y, whose variances are 0; None for a posterior of another kind.
    """
    if not isinstance(posterior, GPPosterior):
        return None
    prior_mean, cross, _ = posterior.cross(x)
    mean = prior_mean + (cross @ posterior.alpha.unsqueeze(-1)).squeeze(-1)
    return NormalMixture(posterior.log_weights, mean, torch.zeros_like(mean))


def function_kl(posterior: Conditioned, prior: Conditioned, seen: ClientBatch) -> Tensor:
    """KL divergence, particle by particle, of a posterior from one that saw some of its rows: over functions.

    Args:
        posterior: Q, of these rows and others, under particles that are those of P.
        prior: P; exact wherever Q is, as fewer rows need no points.
        seen: rows of the K clients that P saw, possibly none.

    Returns:
        [K, P], in nats; NaN where one of them is not known.

    Raises:
        TypeError: when P has points and Q has none, or one of them alone is of Student-t noise.
    """
    if isinstance(posterior, StudentPosterior) and isinstance(prior, StudentPosterior):
        return gaussian_process.function_kl(posterior.inner, prior.inner, seen)
    if isinstance(prior, GPPosterior) and not isinstance(posterior, MixedPosterior | StudentPosterior):
        return gaussian_process.function_kl(posterior, prior, seen)
    if isinstance(posterior, InducingPosterior) and isinstance(prior, InducingPosterior):
        return posterior.kl_from(prior)
    raise TypeError("a posterior without inducing points has no divergence here from one with them")


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
    if isinstance(prior, GPPosterior) and prior.weighting == weighting:
        if (grown := extended(prior, seen, rows)) is not None:
            return grown[0], log_mixture_kl(grown[0].log_weights, prior.log_weights, grown[1])
    everything = seen.extend(rows)
    posterior = condition(prior.model, prior.theta, everything, weighting)
    return posterior, _divergence(posterior, prior, everything, seen, weighting)


def sharing_prior(posterior: Any) -> Any:
    """Let all that is made of a posterior, and of its rows, share what the prior says of them.

    Args:
        posterior: any.

    Returns:
        The same, of an exact Gaussian process under a `Remembered` prior; another kind is left as it is.
    """
    if not isinstance(posterior, GPPosterior):
        return posterior
    return replace(posterior, model=Remembered(posterior.model))


def _divergence(
    posterior: Conditioned,
    prior: Conditioned,
    everything: ClientBatch,
    seen: ClientBatch,
    weighting: Literal["evidence", "equal"],
) -> Tensor:
    """Bound [K] of `refined`; clients are taken together whose rows are known in the same ways, before and after."""
    model, theta = prior.model, prior.theta
    if isinstance(posterior, MixedPosterior) or isinstance(prior, MixedPosterior):
        above = 0 if model.inducing is None else model.inducing.above
        kinds = (everything.mask.sum(1) > above).long() + (seen.mask.sum(1) > above).long()
        groups = [at for kind in range(3) if len(at := torch.nonzero(kinds == kind).flatten().cpu())]
        each = []
        for at in groups:
            after, before = everything.select(at), seen.select(at)
            q, p = (condition(model, theta[at], batch, weighting) for batch in (after, before))
            each.append(_divergence(q, p, after, before, weighting))
        return torch.cat(each)[torch.cat(groups).argsort().to(each[0].device)]
    q, p = posterior, prior
    if theta.dtype != torch.float64:  # differences of log evidences need more digits than predictions do
        everything, seen = (batch.to(dtype=torch.float64) for batch in (everything, seen))
        q, p = (condition(model, theta.double(), batch, weighting) for batch in (everything, seen))
    return log_mixture_kl(q.log_weights, p.log_weights, function_kl(q, p, seen))
