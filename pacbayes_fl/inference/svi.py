"""Stochastic variational inference of many clients at once: steps on the personal posteriors q."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import elbo, turns
from pacbayes_fl.inference.optim import Adam, Optimiser, adam_init, step_
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import check, option
from pacbayes_fl.posteriors.weights.family import Draw, Precomputed, WeightDistribution


@dataclass(frozen=True)
class LocalInference:
    """How a client fits its posterior.

    Args:
        steps: minibatches per round, R; None where `epochs` says how many.
        inner: steps on q per minibatch.
        minibatch: rows, b.
        draws: Monte Carlo draws per step, a.
        rate: learning rate of the steps on q, eta_1.
        zeta: weight of the KL divergence.
        data_scale: "rows" multiplies the minibatch's log likelihood by m_k / b (eq. 30); "sum" by 1 and "mean" by
            1 / b, as two public codes do.
        noise_std: standard deviation of the draws' eps; 1 but for the public codes, which take 0.001.
        divergence: "forward" is KL(q || w); "reverse" is KL(w || q), as in the FedSI authors' code.
        optimiser: of the steps on q, "adam" or plain gradient descent, "sgd".
        epochs: passes over a client's rows per round, each of ceil(m_k / b) minibatches; instead of `steps`.
    """

    steps: int | None = option(20, low=1, symbol="R")
    inner: int = option(1, low=1)
    minibatch: int = option(50, low=1, symbol="b")
    draws: int = option(1, low=1, symbol="a")
    rate: float = option(1e-3, above=0, symbol="eta_1")
    zeta: float = option(10.0, above=0, symbol="zeta")
    data_scale: Literal["rows", "sum", "mean"] = "rows"
    noise_std: float = option(1.0, above=0)
    divergence: Literal["forward", "reverse"] = "forward"
    optimiser: Optimiser = "adam"
    epochs: int | None = option(None, low=1)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)
        turns.check(self)

    def scale(self, batch: ClientBatch, rows: ClientBatch) -> Tensor:
        """Factor [K] of the minibatch's log likelihood, in the dtype of float64 until it is used."""
        if self.data_scale == "sum":
            return torch.ones_like(batch.size)
        drawn = rows.size.clamp_min(1.0)
        return batch.size / drawn if self.data_scale == "rows" else 1.0 / drawn


def draw_of(q: WeightDistribution, noise: Noise, std: float = 1.0) -> Draw:
    """Take the random numbers of one draw, shrunk where a public code shrinks them.

    Args:
        q: leaves [K, D].
        noise: the clients' streams.
        std: factor of the normals; another one than 1 is for a mean field only.

    Returns:
        The draw [K, D].
    """
    draw = q.draw(noise)
    return draw if std == 1.0 else draw * std


class Fitting(NamedTuple):
    """A posterior on its way.

    Args:
        q: leaves [K, D], overwritten by every step.
        precomputed: `q.precompute()`, made anew after every step.
        adam: moments of q, overwritten by every step.
    """

    q: Any
    precomputed: Precomputed
    adam: Adam[Any]


def personal_steps(
    model: WeightModel,
    local: LocalInference,
    state: Fitting,
    prior: tuple[Any, Precomputed],
    rows: ClientBatch,
    scale: Tensor,
    noise: Noise,
    draw: Callable[[Any, Noise], Draw],
    free: Tensor | None = None,
    active: Tensor | None = None,
) -> tuple[Fitting, Tensor]:
    """Take `inner` steps on q, in place, on one minibatch.

    Args:
        model: the likelihood.
        local: hyper-parameters.
        state: q and its moments; overwritten.
        prior: w, leaves [K, D] or [D], and `w.precompute()`.
        rows: the minibatch.
        scale: factor of its log likelihood [K].
        noise: the clients' streams.
        draw: takes q and the streams, gives the random numbers of a draw.
        free: bool [D] or [K, D], True for weights that may move; all when None.
        active: bool [K], True for clients that take the steps; all when None.

    Returns:
        The state, and the mean scaled log likelihood [K], in nats; 0 for a client that takes no step.
    """
    q, q_terms, adam = state
    w, w_terms = prior
    total = torch.zeros_like(scale)
    for _ in range(local.inner):
        draws = [draw(q, noise) for _ in range(local.draws)]
        if local.divergence == "forward":
            value, _, gradient = elbo.loss_gradient(
                model, q, w, rows, draws, local.zeta, scale, (q_terms, w_terms), with_kl=False
            )
        else:  # KL(q || q) has slope 0
            value, _, gradient = elbo.loss_gradient(
                model, q, q, rows, draws, local.zeta, scale, (q_terms, q_terms), with_kl=False
            )
            backwards = elbo.only_stochastic(model, w_terms.kl_gradient_wrt_prior(q_terms))
            tensors.tree_map(lambda slope, other: slope.add_(other, alpha=local.zeta), gradient, backwards)
        if free is not None:
            gradient = tensors.tree_map(lambda slope: slope * free, gradient)
        adam = step_(q, gradient, adam, local.rate, local.optimiser, active)
        q_terms = q.bounded().precompute()
        total += (value if active is None else torch.where(active, value, 0.0)) / local.inner
    return Fitting(q, q_terms, adam), total


def fit(
    model: WeightModel,
    local: LocalInference,
    prior: Any,
    batch: ClientBatch,
    noise: Noise,
    passes: int,
    draw: Callable[[Any, Noise], Draw],
    free: Tensor | None = None,
) -> Any:
    """Fit the posterior of clients that never trained, from the prior and against it; the prior stays as it is.

    Args:
        model: the likelihood.
        local: hyper-parameters.
        prior: w, leaves [K, D]; a client without rows stays there.
        batch: all rows of the clients.
        noise: the clients' streams.
        passes: times the minibatches of a round.
        draw: takes q and the streams, gives the random numbers of a draw.
        free: bool [D] or [K, D], True for weights that may move; all when None.

    Returns:
        q, leaves [K, D].
    """
    # one layout for both: a view's softplus may differ in its last bit, and Adam makes whole steps of such a slope
    prior = tensors.tree_map(Tensor.contiguous, prior)
    q = tensors.tree_map(torch.clone, prior)
    state, against = Fitting(q, q.precompute(), adam_init(q, batch.clients)), (prior, prior.precompute())
    for active in turns.turns(local, batch, passes):
        rows, scale = minibatch(local, batch, noise, q.loc.dtype)
        state, _ = personal_steps(model, local, state, against, rows, scale, noise, draw, free, active)
    return state.q


def minibatch(
    local: LocalInference, batch: ClientBatch, noise: Noise, dtype: torch.dtype
) -> tuple[ClientBatch, Tensor]:
    """Draw a minibatch per client without replacement.

    Args:
        local: gives b and the scale.
        batch: all rows.
        noise: the clients' streams.
        dtype: of the factor.

    Returns:
        The rows, and the factor of their log likelihood [K].
    """
    at = noise.rows(batch.mask, local.minibatch)  # also where all rows are taken: padding must not move later draws
    rows = batch.rows(at) if local.minibatch < batch.mask.shape[1] else batch
    return rows, local.scale(batch, rows).to(dtype)
