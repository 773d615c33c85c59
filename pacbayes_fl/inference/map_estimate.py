"""Point estimates of network weights by minibatch descent, many clients at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference import turns
from pacbayes_fl.inference.optim import Adam, Optimiser, adam_init, step_
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.options import check, option

Slope: TypeAlias = Callable[[Tensor, ClientBatch], tuple[Tensor, Tensor]]
"""Takes weights [K, D] and rows, and gives the loss per row [K] and what is descended along [K, D]."""


@dataclass(frozen=True)
class LocalDescent:
    """How a client descends its mean negative log likelihood.

    Args:
        steps: minibatches per round; None where `epochs` says how many.
        minibatch: rows, b.
        rate: learning rate.
        optimiser: of the weights, "adam" or plain gradient descent, "sgd".
        epochs: passes over a client's rows per round, each of ceil(m_k / b) minibatches; instead of `steps`.
        momentum: of "sgd", v <- momentum v + gradient with v = 0 at the start of every round.
    """

    steps: int | None = option(20, low=1, symbol="R")
    minibatch: int = option(50, low=1, symbol="b")
    rate: float = option(1e-3, above=0)
    optimiser: Optimiser = "adam"
    epochs: int | None = option(None, low=1, symbol="K")
    momentum: float = option(0.0, low=0, below=1)

    def __post_init__(self) -> None:
        """Check the ranges, and that momentum is not added to that of Adam."""
        check(self)
        turns.check(self)
        if self.momentum and self.optimiser != "sgd":
            what = f"momentum = {self.momentum:g} is of optimiser = 'sgd', and optimiser is {self.optimiser!r}"
            raise StudyError(what, hint="optimiser = 'sgd', or momentum = 0")


class GaussianPrior(NamedTuple):
    """Quadratic penalty on the weights: location and strength.

    Args:
        mean: mu [D] or [K, D].
        variance: sigma^2 of every weight [D] or [K, D], positive, in squared units of a weight.
        weight: factor of its negative log density in the loss per row; 1 / m_k, as a posterior has it, when None.
    """

    mean: Tensor
    variance: Tensor
    weight: float | None = None


class Descended(NamedTuple):
    """Weights after some steps.

    Args:
        theta: [K, D].
        adam: its moments, leaves [K, D].
        loss: mean negative log likelihood per row over the steps [K], in nats.
    """

    theta: Tensor
    adam: Adam[Tensor]
    loss: Tensor


def gradient(model: WeightModel, theta: Tensor, rows: ClientBatch) -> tuple[Tensor, Tensor]:
    """Differentiate the mean negative log likelihood of a row.

    f_k(theta) = -(1/b) sum_j ln p(y_j | x_j, theta)

    Args:
        model: the likelihood.
        theta: weights [K, D]; left as they are.
        rows: b of each client's rows.

    Returns:
        f_k [K], in nats, and its gradient [K, D], both without autograd; 0 for a client without rows.
    """
    with torch.enable_grad():
        leaf = theta.detach().requires_grad_(True)
        loss = -model.log_likelihood(leaf, rows) / rows.size.clamp_min(1.0).to(theta.dtype)
        (slope,) = torch.autograd.grad(loss.sum(), leaf)
    return loss.detach(), slope


def hessian_product(model: WeightModel, theta: Tensor, rows: ClientBatch, direction: Tensor) -> Tensor:
    """Multiply the Hessian of the mean negative log likelihood of a row by a direction, by differentiating twice.

    Args:
        model: the likelihood.
        theta: weights [K, D]; left as they are.
        rows: of each client.
        direction: [K, D].

    Returns:
        [K, D], without autograd; 0 for a client without rows.
    """
    with torch.enable_grad():
        leaf = theta.detach().requires_grad_(True)
        loss = -model.log_likelihood(leaf, rows) / rows.size.clamp_min(1.0).to(theta.dtype)
        (slope,) = torch.autograd.grad(loss.sum(), leaf, create_graph=True)
        (product,) = torch.autograd.grad((slope * direction.detach()).sum(), leaf)
    return product


def fit(
    model: WeightModel,
    local: LocalDescent,
    theta: Tensor,
    batch: ClientBatch,
    noise: Noise,
    passes: int = 1,
    adam: Adam[Tensor] | None = None,
    prior: GaussianPrior | None = None,
    free: Tensor | None = None,
) -> Descended:
    """Descend from given weights, to the most likely ones or to the maximum a posteriori.

    theta <- theta - rate grad_theta [-(1/b) sum_j ln p(y_j | x_j, theta) - (1/m_k) ln N(theta; mu, sigma^2)]
    (FedSI eq. 10, per row), with momentum theta <- theta - rate v

    Args:
        model: the likelihood.
        local: hyper-parameters.
        theta: start [K, D]; left as it is.
        batch: the clients' rows.
        noise: their streams, for the minibatches.
        passes: times the minibatches of a round.
        adam: moments to go on with, left as they are; fresh ones when None.
        prior: of the weights; none when None.
        free: bool [D], True for weights that may move; all when None.

    Returns:
        The weights, the moments and the loss, which leaves out the prior.
    """
    pull = _pull(prior, batch).to(theta.dtype) if prior is not None else None
    free = None if free is None else free.to(theta)

    def slope(at: Tensor, rows: ClientBatch) -> tuple[Tensor, Tensor]:
        loss, result = gradient(model, at, rows)
        if prior is not None and pull is not None:
            result = torch.addcmul(result, pull, at - prior.mean)
        return loss, result if free is None else result * free

    return descend(local, theta, batch, noise, slope, passes, adam)


def descend(
    local: LocalDescent,
    theta: Tensor,
    batch: ClientBatch,
    noise: Noise,
    slope: Slope,
    passes: int = 1,
    adam: Adam[Tensor] | None = None,
) -> Descended:
    """Descend by slopes that a method gives.

    Args:
        local: hyper-parameters.
        theta: start [K, D]; left as it is.
        batch: the clients' rows.
        noise: their streams, for the minibatches.
        slope: takes weights [K, D] and a minibatch, and gives the loss per row [K] and what is descended along [K, D].
        passes: times the minibatches of a round.
        adam: moments to go on with, left as they are; fresh ones when None.

    Returns:
        The weights, the moments and the mean of the losses.
    """
    theta = theta.clone()
    velocity = torch.zeros_like(theta) if local.momentum else None
    adam = adam_init(theta, batch.clients) if adam is None else Adam(*(leaf.clone() for leaf in adam))
    total = torch.zeros(batch.clients, dtype=theta.dtype, device=theta.device)
    for active in turns.turns(local, batch, passes):
        loss, along = slope(theta, minibatch(local, batch, noise))
        if velocity is not None:
            along = velocity.mul_(local.momentum).add_(along)
        adam = step_(theta, along, adam, local.rate, local.optimiser, active)
        total += loss if active is None else torch.where(active, loss, 0.0)
    return Descended(theta, adam, turns.mean_over(local, batch, total, passes))


def minibatch(local: LocalDescent, batch: ClientBatch, noise: Noise) -> ClientBatch:
    """Draw rows of every client, or take all where a minibatch holds them; nothing is drawn then.

    Args:
        local: says how many.
        batch: the clients' rows.
        noise: their streams.

    Returns:
        At most b rows of each.
    """
    small = local.minibatch < batch.mask.shape[1]
    return batch.rows(noise.rows(batch.mask, local.minibatch)) if small else batch


def _pull(prior: GaussianPrior, batch: ClientBatch) -> Tensor:
    """Slope of the prior's part of the loss per unit of distance [K, D]."""
    share = (
        batch.size.clamp_min(1.0).reciprocal() if prior.weight is None else torch.full_like(batch.size, prior.weight)
    )
    return share.unsqueeze(1) / prior.variance
