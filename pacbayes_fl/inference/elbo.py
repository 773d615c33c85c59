"""The evidence lower bound of every client and its gradient: Pyro's definition, and the hot path that stands in for it.

Own traces instead of `TraceMeanField_ELBO`: the bound comes per client [K], and nothing reads the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple

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
from pacbayes_fl.models.weights.bayesian_network import BayesianNetwork
from pacbayes_fl.posteriors.weights.by_autograd import ByAutograd
from pacbayes_fl.posteriors.weights.family import AnyFamily, Draw, Precomputed, Sites, WeightDistribution

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


def loss_gradient(
    model: WeightModel,
    q: AnyFamily,
    prior: AnyFamily,
    rows: ClientBatch,
    draws: Sequence[Draw],
    zeta: float,
    scale: Tensor,
    precomputed: tuple[Precomputed, Precomputed] | None = None,
    with_kl: bool = True,
) -> LossGradient[AnyFamily]:
    """Differentiate the negative ELBO by the parameters of q.

    Omega_k = -scale_k (1/a) sum_l ln p(y_k | theta_kl) + zeta KL(q_k || w)      (pFedBayes eq. 30, sFedBayes eq. 43)

    For a `BayesianNetwork` autograd goes through the network alone, and the family and its KL divergence are written
    out; any other Pyro program is differentiated as it stands, by `client_terms`. A family that is a `ByAutograd` draws
    all weights at once, and any program is asked for its log likelihood at these.

    Args:
        model: the likelihood.
        q: leaves [K, D].
        prior: w, leaves [K, D] or [D].
        rows: a minibatch.
        draws: random numbers of each of the a draws [K, D].
        zeta: weight of the KL divergence, positive.
        scale: m_k over the rows of the minibatch [K].
        precomputed: `q.precompute()` and `prior.precompute()`, where the caller has them.
        with_kl: whether to evaluate the KL divergence, which the gradient alone does not need.

    Returns:
        Log likelihood and KL divergence [K], in nats, and the gradient.
    """
    if isinstance(model, BayesianNetwork) or isinstance(q, ByAutograd):
        q_terms, prior_terms = (q.precompute(), prior.precompute()) if precomputed is None else precomputed
        log_likelihood, gradient = _hot_gradient(model, q_terms, prior_terms, rows, draws, zeta, scale)
        kl = divergence(model, q, prior) if with_kl else None
        return LossGradient(log_likelihood, kl, gradient)
    return defined_gradient(model, q, prior, rows, draws, zeta, scale)


def defined_gradient(
    model: WeightModel,
    q: AnyFamily,
    prior: AnyFamily,
    rows: ClientBatch,
    draws: Sequence[Draw],
    zeta: float,
    scale: Tensor,
) -> LossGradient[AnyFamily]:
    """Differentiate the ELBO of Pyro's traces; arguments and results as in `loss_gradient`.

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


def divergence(model: WeightModel, q: AnyFamily, prior: AnyFamily) -> Tensor:
    """KL(q || w) over the weights with uncertainty: the others are numbers, of which no divergence counts.

    Args:
        model: says which they are.
        q: leaves [K, D].
        prior: w, leaves [K, D] or [D].

    Returns:
        [K], in nats, float64.
    """
    if not model.deterministic:
        return q.kl(prior)
    keep = model.stochastic_columns().to(q.loc.device)
    q_terms, prior_terms = (tensors.tree_map(lambda leaf: leaf[..., keep], family) for family in (q, prior))
    return q_terms.kl(prior_terms)


def only_stochastic(model: WeightModel, slopes: AnyFamily) -> AnyFamily:
    """Leave weights without uncertainty out of a gradient: they have no scale and no part in the KL divergence.

    Args:
        model: says which they are.
        slopes: leaves [K, D].

    Returns:
        The same leaves [K, D], zero there.
    """
    if not model.deterministic:
        return slopes
    keep = model.stochastic_columns().to(slopes.loc.device)
    return tensors.tree_map(lambda slope: slope * keep, slopes)


def _hot_gradient(
    model: WeightModel,
    q: Precomputed,
    prior: Precomputed,
    rows: ClientBatch,
    draws: Sequence[Draw],
    zeta: float,
    scale: Tensor,
) -> tuple[Tensor, Any]:
    total = torch.zeros_like(scale)
    gradient = tensors.tree_map(lambda slope: slope.mul_(zeta), only_stochastic(model, q.kl_gradient(prior)))
    for draw in draws:
        with torch.enable_grad():
            theta = q.weights(draw).requires_grad_(True)
            log_likelihood = model.log_likelihood(theta, rows) * scale
            (grad_weights,) = torch.autograd.grad(log_likelihood.sum(), theta)
        grad_weights.mul_(-1.0 / len(draws))
        grad_draw = q.vjp(draw, grad_weights)
        if model.deterministic:
            grad_draw = only_stochastic(model, grad_draw)._replace(loc=grad_draw.loc)
        tensors.tree_map(Tensor.add_, gradient, grad_draw)
        total += log_likelihood.detach() / len(draws)
    return total, gradient
