"""Personal posteriors as particles: SVGD on the weights themselves, many clients at once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import svi, turns
from pacbayes_fl.inference.optim import adam_init, step_
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.posteriors.weights.posterior import repeated

Direction = Callable[[Tensor, Tensor], Tensor]
"""Takes particles [K, J, D] and their scores, and gives where they go, such as `server.svgd.direction`."""


def fit(
    model: WeightModel,
    local: LocalInference,
    prior: MeanField,
    start: Tensor,
    batch: ClientBatch,
    noise: Noise,
    direction: Direction,
) -> Tensor:
    """Move weights towards a client's posterior, by steps along the direction.

    score = scale_k sum_i d ln p(y_i | theta) - zeta (theta - mu) / sigma^2

    Args:
        model: the likelihood.
        local: all but its draws and its divergence.
        prior: leaves [K, D]; weights without uncertainty have no part in it.
        start: J particles of every client [K, J, D]; a client without rows goes to the prior.
        batch: all rows of the clients.
        noise: the clients' streams.
        direction: of the particles of a client, from them and their scores.

    Returns:
        Particles [K, J, D].
    """
    theta = start.clone()
    svgd_particles, adam = theta.shape[1], adam_init(theta, batch.clients)
    precision = torch.where(model.stochastic_columns().to(theta.device), local.weight / prior.scale.square(), 0.0)
    for active in turns.turns(local, batch):
        rows, scale = svi.minibatch(local, batch, noise, theta.dtype)
        many = repeated(rows, svgd_particles)
        with torch.enable_grad():
            leaf = theta.detach().requires_grad_(True)
            by_network = model.log_likelihood(leaf.flatten(0, 1), many).view(leaf.shape[:2])
            (score,) = torch.autograd.grad((by_network * scale.unsqueeze(-1)).sum(), leaf)
        with torch.no_grad():
            score = score - precision.unsqueeze(1) * (theta - prior.loc.unsqueeze(1))
            adam = step_(theta, -direction(theta, score), adam, local.rate, local.optimiser, active)
    return theta
