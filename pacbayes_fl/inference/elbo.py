"""The evidence lower bound of every client and its gradient, as Pyro defines them; `svi.loss_gradient` is the hot path.

Own traces instead of `TraceMeanField_ELBO`: the bound comes per client [K], and nothing reads the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.distributions.util import scale_and_mask
from pyro.poutine.util import prune_subsample_sites
from torch import Tensor
from torch.distributions import kl_divergence

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.posteriors.weights.family import AnyFamily, Draw, Sites, WeightDistribution

Program = Callable[[], object]


class Terms(NamedTuple):
    """Terms of the evidence lower bound of every client; the bound is their difference.

    Args:
        log_likelihood: of the observed sites, scaled as the program scales them [K], in nats.
        divergence: KL divergences of the other sites, scaled likewise [K], in nats.
    """

    log_likelihood: Tensor
    divergence: Tensor


class LossGradient(NamedTuple, Generic[AnyFamily]):
    """The negative evidence lower bound -(log_likelihood - zeta kl) of every client, in its parts, and its gradient.

    Args:
        log_likelihood: scale_k (1/a) sum_l ln p(y_k | theta_kl) [K], in nats.
        kl: KL(q_k || w), without zeta [K], in nats; None where the caller has not asked for it.
        gradient: by the parameters of q, leaves [K, D].
    """

    log_likelihood: Tensor
    kl: Tensor | None
    gradient: AnyFamily


def guide(model: WeightModel, q: WeightDistribution, draw: Draw, zeta: float) -> Program:
    """Make the guide of any model: every site drawn from the family, with the random numbers that are given.

    Args:
        model: names the sites.
        q: leaves [K, D].
        draw: random numbers of one draw [K, D].
        zeta: weight of the KL divergence, the same scale as in the model.

    Returns:
        A Pyro program over the plate "clients".
    """
    sites = Sites(q, model, draw)

    def program() -> dict[str, Tensor]:
        with pyro.plate("clients", len(q.loc), dim=-1), poutine.scale(scale=zeta):
            return model.draw_weights(sites)

    return program


def client_terms(model: Program, guide: Program) -> Terms:
    """Parts of the evidence lower bound of every client, with the KL divergence in closed form.

    ELBO_k = scale_k ln p(y_k | theta_k) - zeta KL(q_k || w), theta_k the guide's draw      (pFedBayes eq. 30)

    Args:
        model: Pyro program, its arguments given.
        guide: Pyro program over the same plate.

    Returns:
        Both parts [K], in nats.
    """
    drawn = prune_subsample_sites(poutine.trace(guide).get_trace())
    played = prune_subsample_sites(poutine.trace(poutine.replay(model, trace=drawn)).get_trace())
    fits: list[Tensor] = []
    divergences: list[Tensor] = []
    for name, site in played.nodes.items():
        if site["type"] != "sample":
            continue
        if site["is_observed"]:
            fits.append(scale_and_mask(site["fn"].log_prob(site["value"]), site["scale"], site["mask"]))
        else:
            q = drawn.nodes[name]
            divergences.append(scale_and_mask(kl_divergence(q["fn"], site["fn"]), q["scale"], q["mask"]))
    return Terms(torch.stack(fits).sum(0), torch.stack(divergences).sum(0))


def defined_gradient(
    model: WeightModel,
    q: AnyFamily,
    prior: AnyFamily,
    rows: ClientBatch,
    draws: Sequence[Draw],
    zeta: float,
    scale: Tensor,
) -> LossGradient[AnyFamily]:
    """Differentiate the ELBO of Pyro's traces; arguments and results as in `svi.loss_gradient`.

    Args:
        model: the likelihood.
        q: leaves [K, D].
        prior: w, leaves [K, D] or [D].
        rows: a minibatch.
        draws: random numbers of each of the a draws [K, D].
        zeta: weight of the KL divergence, positive.
        scale: m_k over the rows of the minibatch [K].

    Returns:
        Log likelihood and KL divergence [K], in nats, and the gradient.
    """
    with torch.enable_grad(), pyro.validation_enabled(False):
        leaf = tensors.tree_map(lambda parameter: parameter.detach().requires_grad_(True), q)
        program = partial(model.model, rows, Sites(prior, model), zeta, scale)
        result = [client_terms(program, guide(model, leaf, draw, zeta)) for draw in draws]
        fit, kl = tensors.tree_map(lambda *values: torch.stack(values).mean(0), *result)
        slopes = iter(torch.autograd.grad((kl - fit).sum(), list(tensors.leaves(leaf).values())))
    return LossGradient(fit.detach(), kl.detach() / zeta, tensors.tree_map(lambda _: next(slopes), leaf))
