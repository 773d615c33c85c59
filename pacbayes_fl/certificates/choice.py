"""Which posterior is certified: that which the rows gave, the prior, or one between them, whichever has the best bound.

PAC-Bayes bounds hold for all posteriors on one event, so that to choose among them by the rows is free. What is not is
the estimate of a risk by draws: the draws that choose are others than those that estimate, given which the choice is
fixed, so that the estimate pays for one posterior.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.certificates.rows import BoundRows
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.methods.tempered import untempered
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.functions.powers import partly_refined
from pacbayes_fl.posteriors.predictive import FunctionPosterior
from pacbayes_fl.posteriors.tempered import TemperedPosterior, tempered
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior

SHARES: Final = (0.75, 0.5, 0.25, 0.1)
"""Ways between prior (0) and refined posterior (1) that are tried, beside both ends."""

POWERS: Final = (0.5, 0.25, 0.12, 0.05)
"""Powers of the rows' likelihood that are tried of functions whose posterior is exact, in place of `SHARES`."""

_ROUNDING: Final = 1e-6

PILOT: Final = 40
"""Draws of every candidate that choose among them, where a risk has no closed form."""


class Candidate(NamedTuple):
    """A posterior of K clients.

    Args:
        share: how far it is on the way from the prior, 0, to the refined posterior, 1; of functions the power.
        posterior: over the hypotheses of the prior.
        kl: from the prior, or an upper bound of it [K], in nats; not finite where it is no candidate.
    """

    share: float
    posterior: Any
    kl: Tensor


def refine(method: AnyMethod, prior: Any, subset: BoundRows, noise: Noise) -> Candidate:
    """Let a method refine its prior by the rows of the bound, and check what it says of the divergence.

    Whose weights are of a family has a divergence that is known without the method.

    Args:
        method: refines; its own code may have been written by anybody.
        prior: P of K clients.
        subset: their rows.
        noise: the clients' streams.

    Returns:
        The refined posterior; its divergence may be infinite or NaN, of a client that has none.

    Raises:
        AssumptionError: when the divergence is not one number a client, negative, or less than that of the weights'
            families, naming the first client; or when the method has changed the prior, which then knows the rows.
    """
    name, bare = type(untempered(method)).__name__, unwrapped(prior)
    family = bare.family if isinstance(bare, WeightPosterior) else None
    before = {} if family is None else {at: leaf.clone() for at, leaf in tensors.leaves(family).items()}
    posterior, kl = method.refine(prior, subset.seen, subset.rows, noise)
    clients = subset.rows.clients
    if not isinstance(kl, Tensor) or kl.shape != (clients,) or not kl.is_floating_point():
        got = list(kl.shape) if isinstance(kl, Tensor) else type(kl).__name__
        what = f"refine of {name} must give kl [K={clients}], a number in nats for every client, got {got}"
        raise AssumptionError(what, hint="KL(Q || P) of each client's posterior from its own prior")
    least, why = torch.zeros_like(kl), "which no divergence is"
    if family is not None:
        for at, leaf in tensors.leaves(family).items():
            if not bool(((leaf == before[at]) | (leaf.isnan() & before[at].isnan())).all()):
                what = f"refine of {name} has changed {at} of its prior, which then knows the rows of the bound"
                raise AssumptionError(what, hint="work on copies: tensors.tree_map(torch.clone, prior.family)")
        if isinstance(one := unwrapped(posterior), WeightPosterior):
            if type(one.family) is not type(family):
                what = f"{type(one.family).__name__} from {type(family).__name__}"
                raise AssumptionError(f"refine of {name} must keep the family of its prior, got {what}")
            least, why = one.family.kl(family).to(kl), "less than that of its weights from those of the prior, {:.6g}"
    if bool((short := kl.detach() < least.detach() * (1 - _ROUNDING) - _ROUNDING).any()):
        k = int(short.nonzero()[0])
        what = f"refine of {name} gave a divergence of {float(kl[k]):.6g} nats, {why.format(float(least[k]))}"
        raise AssumptionError(what, client=subset.rows.names[k], hint="KL(Q || P), or an upper bound of it")
    return Candidate(1.0, posterior, kl)


def candidates(method: AnyMethod, prior: Any, refined: Candidate, subset: BoundRows, noise: Noise) -> list[Candidate]:
    """List posteriors between the prior and that which the rows of the bound gave.

    Of a family of weights: parameters on the line between those of both. Of functions: the posterior of a power of the
    rows' likelihood, or of a part of the rows where that is not known exactly. Of others: both ends alone.

    Args:
        method: refines.
        prior: P of K clients.
        refined: Q.
        subset: their rows.
        noise: as for Q, at its beginning.

    Returns:
        The refined posterior, those between, and the prior that the divergences are from.
    """
    prior = method.refined_from(prior, subset.seen)
    ends = refined, Candidate(0.0, prior, torch.zeros_like(refined.kl))
    between: list[Candidate] = []
    bare, wrap = unwrapped(refined.posterior), _wrapper(refined.posterior)
    if isinstance(bare, WeightPosterior):
        p, q = unwrapped(prior).family, bare.family
        for share in SHARES:
            family = tensors.tree_map(lambda a, b, share=share: a + share * (b - a), p, q)
            kl = family.kl(p).double().clamp_min(0.0)
            between.append(Candidate(share, wrap(replace(bare, family=family)), kl))
    elif isinstance(bare, FunctionPosterior):
        known = partly_refined(unwrapped(prior), bare, subset.rows, POWERS)
        between = [Candidate(power, *result) for power, result in zip(POWERS, known, strict=False)] or [
            Candidate(share, *method.refine(prior, subset.seen, _part(subset.rows, share), noise.copy()))
            for share in SHARES
        ]
    return [ends[0], *between, ends[1]]


def choose(among: Sequence[Candidate], bound: Callable[[Sequence[Candidate]], Tensor]) -> Tensor:
    """Take the best candidate of every client.

    Args:
        among: A, of K clients.
        bound: gives the values of the bound [A, K], or what grows with them; NaN where there is none.

    Returns:
        Positions [K] in the list, the first of equals.
    """
    known = torch.stack([one.kl for one in among]).isfinite()
    return torch.where(known, bound(among), torch.inf).nan_to_num(torch.inf).argmin(0)


def merged(among: Sequence[Candidate], which: Tensor) -> list[tuple[Tensor, Candidate]]:
    """Join the chosen candidates into as few posteriors as can be.

    Args:
        among: of K clients.
        which: positions [K].

    Returns:
        Clients, bool [K], and the posterior that is theirs: one of all clients for families of weights.
    """
    first = unwrapped(among[0].posterior)
    if not isinstance(first, WeightPosterior):
        return [(which == c, among[c]) for c in which.unique().tolist()]
    family, kl = first.family, among[0].kl
    for c, one in enumerate(among):
        own = which == c
        family = tensors.where(own, unwrapped(one.posterior).family, family)
        kl = torch.where(own, one.kl, kl)
    posterior = _wrapper(among[0].posterior)(replace(first, family=family))
    return [(torch.ones_like(which, dtype=torch.bool), Candidate(float("nan"), posterior, kl))]


def unwrapped(posterior: Any) -> Any:
    """Take the temperature of predictions away.

    Args:
        posterior: tempered or not.

    Returns:
        The posterior inside.
    """
    return posterior.inner if isinstance(posterior, TemperedPosterior) else posterior


def rewrapped(posterior: Any, one: Any) -> Any:
    """Give a posterior the temperature of another's predictions.

    Args:
        posterior: tempered or not.
        one: the posterior.

    Returns:
        The same, tempered as that is.
    """
    return _wrapper(posterior)(one)


def _wrapper(posterior: Any) -> Callable[[Any], Any]:
    if isinstance(posterior, TemperedPosterior):
        temperature = posterior.temperature
        return lambda one: tempered(one, temperature)
    return lambda one: one


def _part(rows: ClientBatch, share: float) -> ClientBatch:
    """Take the first rows of every client, at least one."""
    count = (share * rows.size.to(rows.mask.device)).ceil().unsqueeze(1)
    mask = rows.mask & (rows.mask.cumsum(1) <= count)
    x = torch.where(mask.view(*mask.shape, *[1] * (rows.x.dim() - 2)), rows.x, 0)
    return replace(rows, x=x, y=torch.where(mask, rows.y, 0), mask=mask)
