"""Pyro guides over programs: their draws, and their sites beside those of the prior."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

import pyro
import torch
from pyro import poutine
from pyro.poutine.trace_struct import Trace
from torch import Tensor
from torch.distributions import Distribution, kl_divergence

from pacbayes_fl.errors import AssumptionError

Program = Callable[..., object]
"""Draws sites, given inputs: a guide, or what a guide is measured against."""

_VALUES = 64  # of a discrete site that are tried
_QUANTILES = (1e-4, 0.01, 0.1, 0.4, 0.6, 0.9, 0.99, 0.9999)  # of sites that are not, likewise
_AROUND = ("Independent", "ExpandedDistribution", "MaskedDistribution")
"""Kinds that change no mean of a row's target."""


def draws_of(guide: Program, inputs: object) -> Iterator[Trace]:
    """Yield traces of a guide: some draws, and the first with other values at its sites, be they unlikely.

    Args:
        guide: of Pyro.
        inputs: of the rows.

    Yields:
        Traces, the first from torch's seed 0; then of other values at each discrete site, of quantiles at all others at
        once, and two more draws.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]), pyro.validation_enabled(False):
        for seed in range(3):
            torch.manual_seed(seed)
            drawn = poutine.trace(guide).get_trace(inputs)
            yield drawn
            discrete = [name for name, site in drawn.nodes.items() if not seed and _enumerable(site)]
            for name in discrete:
                for value in islice(drawn.nodes[name]["fn"].enumerate_support(), _VALUES):
                    other = drawn.copy()
                    other.nodes[name] = {**drawn.nodes[name], "value": value}
                    yield poutine.trace(poutine.replay(guide, trace=other)).get_trace(inputs)
            for quantile in () if seed else _QUANTILES:
                far = Trace()
                for name, site in drawn.nodes.items():
                    if (value := _at(site, quantile)) is not None:
                        far.nodes[name] = {**site, "value": value}
                if far.nodes:
                    yield poutine.trace(poutine.replay(guide, trace=far)).get_trace(inputs)


def _enumerable(site: Mapping[str, Any]) -> bool:
    return site["type"] == "sample" and not is_plate(site) and bool(site["fn"].has_enumerate_support)


def _at(site: Mapping[str, Any], quantile: float) -> Tensor | None:
    """Give a site its quantile everywhere; None where that is not known."""
    if site["type"] != "sample" or is_plate(site) or site["is_observed"]:
        return None
    bare = _bare(site["fn"])
    try:
        value: Tensor = bare.icdf(torch.full_like(site["value"], quantile))
    except (NotImplementedError, AttributeError, RuntimeError, TypeError):  # of a kind, or a shape, without
        return None
    return value if value.shape == site["value"].shape and bool(value.isfinite().all()) else None


def kl_of(model: Program, inputs: object, drawn: Trace) -> float:
    """Add the divergences of a guide's sites up, given the values of a trace.

    Args:
        model: the program, which is the prior.
        inputs: of the rows.
        drawn: a trace of the guide.

    Returns:
        The sum, in nats.

    Raises:
        AssumptionError: when a site is no density of independent numbers, or the program has none of its name.
    """
    return _total_kl(drawn, _replayed(model, inputs, drawn))


def _total_kl(drawn: Trace, played: Trace) -> float:
    """Add the divergences of the sites up that `_sites` yields."""
    total = 0.0
    for name, q, p, _ in _sites(drawn, played):
        try:
            total += kl_divergence(q, p).sum().item()
        except NotImplementedError as error:
            raise AssumptionError(
                f"the KL divergence of the site {name!r} is not known: {error}", hint="give kl"
            ) from error
    return total


def require_prior_alone(model: Program, inputs: Any, drawn: Trace) -> None:
    """Refuse a program that draws its sites otherwise given other rows: as a prior it has seen these.

    The others are as many: a half of the rows, twice. Halves are the first, the last, and every other row, so that each
    row is missing in two of them.

    Args:
        model: the program, which is the prior.
        inputs: of the rows, an array, a tensor or a table.
        drawn: a trace of the guide.

    Raises:
        AssumptionError: when the divergence of the same guide is another one there.
    """
    rows, count = (inputs.iloc if hasattr(inputs, "iloc") else inputs), len(inputs)
    here, half = kl_of(model, inputs, drawn), (count + 1) // 2
    for part in filter(len, (range(half), range(count - half, count), range(0, count, 2), range(1, count, 2))):
        there = kl_of(model, rows[[part[at % len(part)] for at in range(count)]], drawn)
        if not agree(here, there):
            what = "the program's sites depend on its inputs, and a prior must not have seen the rows: the divergence"
            what = f"{what} is {here:.6g} nats, of half of the rows twice {there:.6g}"
            hint = "numbers that were fixed without the rows of the bound, such as moments of other rows"
            raise AssumptionError(what, hint=hint)


def agree(*kl: float) -> bool:
    """Whether divergences are one number but for rounding.

    Args:
        *kl: in nats.

    Returns:
        False where one is NaN.
    """
    return all(one == kl[0] or abs(one - kl[0]) <= 1e-6 * (1.0 + abs(kl[0])) for one in kl)


def log_ratio_of(model: Program, inputs: object, drawn: Trace) -> float:
    """Add ln q(z) - ln p(z) of a guide's sites up, at the values z of a trace.

    Args:
        model: the program, which is the prior.
        inputs: of the rows.
        drawn: a trace of the guide.

    Returns:
        The sum, in nats.

    Raises:
        AssumptionError: as `kl_of`.
    """
    pairs = _sites(drawn, _replayed(model, inputs, drawn))
    return sum((q.log_prob(z).double().sum() - p.log_prob(z).double().sum()).item() for _, q, p, z in pairs)


def _replayed(model: Program, inputs: object, drawn: Trace) -> Trace:
    if seen := [name for name, site in drawn.nodes.items() if site.get("is_observed") and not is_plate(site)]:
        what = f"the guide observes the site {seen[0]!r}, and a guide draws all of its sites"
        raise AssumptionError(what, hint="what the rows say belongs into the program: pyro.sample(..., obs=) there")
    for name, site in drawn.nodes.items():
        if site["type"] == "sample" and is_plate(site) and site["fn"].subsample_size not in (None, site["fn"].size):
            raise AssumptionError(f"the plate {name!r} of the guide is a part of its rows", hint="give kl")
    with torch.no_grad(), pyro.validation_enabled(False):
        return poutine.trace(poutine.replay(model, trace=drawn)).get_trace(inputs)


def _sites(drawn: Trace, played: Trace) -> Iterator[tuple[str, Distribution, Distribution, Tensor]]:
    """Yield name, distribution under guide and program, and value of every site of a trace of the guide."""
    if shared := [name for name, site in played.nodes.items() if site["type"] == "param" and name in drawn.nodes]:
        what = f"guide and program share the parameter {shared[0]!r}: what fits one fits the other"
        raise AssumptionError(what, hint="a number in the program, or a parameter of another name")
    for name, site in drawn.nodes.items():
        if site["type"] != "sample" or is_plate(site):
            continue
        if name not in played.nodes:
            if name.removesuffix("_unconstrained") in played.nodes:
                continue  # counted under the name of the site that it is of
            raise AssumptionError(f"the program has no site {name!r}, which the guide draws", hint="give sample and kl")
        q, p = _site(drawn, name), played.nodes[name]["fn"]
        kinds = {type(part).__name__ for one in (q, p) for part in _layers(one)}
        if bad := kinds & {"Delta", "MaskedDistribution"}:
            what = f"the site {name!r} is of kind {bad.pop()}, whose KL divergence is not that of a density"
            raise AssumptionError(what, hint="a guide of independent sites such as AutoNormal; or give sample and kl")
        yield name, q, p, site["value"]


def _layers(distribution: Any) -> Iterator[Any]:
    """Yield a distribution and those that it is made around, the innermost last."""
    while distribution is not None:
        yield distribution
        distribution = getattr(distribution, "base_dist", None)


def is_plate(site: Mapping[str, Any]) -> bool:
    """Tell a plate from a site that is drawn.

    Args:
        site: of a trace.

    Returns:
        Whether it is one.
    """
    return type(site["fn"]).__name__ == "_Subsample"


def _site(drawn: Trace, name: str) -> Distribution:
    """The distribution of a guide's site, also where an AutoNormal draws it beside and hands on the value."""
    beside = drawn.nodes.get(f"{name}_unconstrained")
    if beside is None:
        result: Distribution = drawn.nodes[name]["fn"]
        return result
    if not torch.equal(beside["value"], drawn.nodes[name]["value"]):
        raise AssumptionError(f"the site {name!r} is constrained, and its guide is not", hint="give sample and kl")
    own: Distribution = beside["fn"]
    return own


def _bare(distribution: Distribution) -> Distribution:
    """Take a distribution out of those that change no mean of it."""
    while type(distribution).__name__ in _AROUND:
        distribution = getattr(distribution, "base_dist", distribution)
    return distribution


def played(model: Program, drawn: Trace, x: object, kl: float | None = None) -> Distribution:
    """Give the distribution of the site that a program observes, with the latent sites as drawn.

    Args:
        model: the program.
        drawn: a trace of the guide.
        x: inputs.
        kl: the divergence that the guide's sites are known to have, in nats; looked at no more when None.

    Returns:
        The distribution of the rows' targets.

    Raises:
        AssumptionError: when it observes no site or several, or the sites have another divergence here.
    """
    with torch.no_grad():
        trace = poutine.trace(poutine.replay(poutine.block(model, hide_types=["param"]), trace=drawn)).get_trace(x)
    if kl is not None:
        require_independent(kl, _total_kl(drawn, trace))
    sites = [one for name, one in trace.nodes.items() if one["type"] == "sample" and name not in drawn.nodes]
    sites = [
        one for one in sites if not one["infer"].get("_deterministic") and type(one["fn"]).__name__ != "_Subsample"
    ]
    if len(sites) != 1:
        raise AssumptionError(f"the program must observe one site given its inputs, found {len(sites)}")
    return _bare(sites[0]["fn"])


def require_independent(*kl: float) -> None:
    """Refuse sites whose divergences depend on the values of others: then their sum at one draw is no divergence.

    Args:
        *kl: of some draws, in nats.

    Raises:
        AssumptionError: when they are not one number.
    """
    if not agree(*kl):
        what = "the guide's sites, or the program's, depend on each other: their KL divergences vary from draw to draw"
        raise AssumptionError(what, hint="give sample and kl of the guide as a whole")
