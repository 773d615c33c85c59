"""Point estimates of network weights by minibatch descent, many clients at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.optim import Adam, adam_, adam_init


@dataclass(frozen=True)
class LocalDescent:
    """How a client descends its mean negative log likelihood.

    Args:
        steps: minibatches per round.
        minibatch: rows, b.
        rate: learning rate.
        optimiser: "adam" or "sgd".
    """

    steps: int = 20
    minibatch: int = 50
    rate: float = 1e-3
    optimiser: Literal["adam", "sgd"] = "adam"

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        for name in ("steps", "minibatch", "rate"):
            if not getattr(self, name) > 0:
                raise StudyError(f"{name} must be positive, got {getattr(self, name)!r}")


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


def fit(
    model: WeightModel,
    local: LocalDescent,
    theta: Tensor,
    batch: ClientBatch,
    noise: Noise,
    passes: int = 1,
    adam: Adam[Tensor] | None = None,
) -> Descended:
    """Descend from given weights.

    theta <- theta - rate grad_theta [-(1/b) sum_j ln p(y_j | x_j, theta)]

    Args:
        model: the likelihood.
        local: hyper-parameters.
        theta: start [K, D]; left as it is.
        batch: the clients' rows.
        noise: their streams, for the minibatches.
        passes: times `local.steps` minibatches.
        adam: moments to go on with, left as they are; fresh ones when None.

    Returns:
        The weights, the moments and the loss.
    """
    theta = theta.clone()
    adam = adam_init(theta, batch.clients) if adam is None else Adam(*(leaf.clone() for leaf in adam))
    total = torch.zeros(batch.clients, dtype=theta.dtype, device=theta.device)
    steps = passes * local.steps
    for _ in range(steps):
        small = local.minibatch < batch.mask.shape[1]
        rows = batch.rows(noise.rows(batch.mask, local.minibatch)) if small else batch
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_(True)
            loss = -model.log_likelihood(leaf, rows) / rows.size.clamp_min(1.0).to(theta.dtype)
            (gradient,) = torch.autograd.grad(loss.sum(), leaf)
        theta = leaf.detach()
        if local.optimiser == "adam":
            adam = adam_(theta, gradient, adam, local.rate)
        else:
            theta.sub_(gradient, alpha=local.rate)
        total += loss.detach() / steps
    return Descended(theta, adam, total)
