"""The one network of every client that a bound on one draw is about, and its density ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.certificates.choice import Candidate, merged, rewrapped, unwrapped
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.weights.density import log_ratio
from pacbayes_fl.posteriors.weights.linearised import LinearisedPosterior
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior


class Drawn(NamedTuple):
    """Networks of K clients.

    Args:
        network: that predicts, as a posterior that has nothing to draw; tempered as the run's is.
        weights: theta [K, D], as they predict and are shipped.
        log_ratio: ln dQ/dP at the draw [K], in nats, float64.
        kl: KL(Q || P) of the posterior that was drawn from [K], in nats.
    """

    network: Any
    weights: Tensor
    log_ratio: Tensor
    kl: Tensor


def networks_of(posterior: object, name: str) -> WeightPosterior:
    """Take the posterior over networks that a posterior's hypotheses are drawn from.

    Args:
        posterior: tempered or not.
        name: of the bound.

    Returns:
        Its weights, as a family with a density.

    Raises:
        AssumptionError: when it is over no weights.
    """
    bare = unwrapped(posterior)
    bare = bare.networks if isinstance(bare, LinearisedPosterior) else bare
    if not isinstance(bare, WeightPosterior):
        what = f"the bound {name!r} is on one network, drawn from a posterior over weights"
        raise AssumptionError(f"{what}, got a {type(bare).__name__}", hint="another bound")
    return bare


def draw(among: Sequence[Candidate], which: Tensor, prior: object, name: str, noise: Noise) -> Drawn:
    """Draw one network of every client from the posterior that was chosen for it.

    The same standard normals make the draws of all candidates, of which each client has one.

    Args:
        among: candidates of K clients.
        which: positions [K] of the chosen ones.
        prior: P.
        name: of the bound.
        noise: the clients' streams of this draw.

    Returns:
        The networks.

    Raises:
        AssumptionError: as `networks_of`.
    """
    p, first = networks_of(prior, name).family, networks_of(among[0].posterior, name)
    weights = torch.full_like(tensors.leaves(first.family)["loc"], torch.nan)
    ratio, kl = (torch.full(which.shape, torch.nan, dtype=torch.float64, device=which.device) for _ in range(2))
    for whose, one in merged(among, which):
        q = networks_of(one.posterior, name).family
        theta, own = log_ratio(q, p, q.draw(noise.copy()))
        weights = torch.where(whose.unsqueeze(1), theta.to(weights.dtype), weights)
        ratio, kl = torch.where(whose, own, ratio), torch.where(whose, one.kl.double(), kl)
    alone = replace(first, family=PointMass(weights), draws=1)
    return Drawn(rewrapped(among[0].posterior, alone), weights, ratio, kl)
