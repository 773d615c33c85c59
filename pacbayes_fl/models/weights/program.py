"""Requirements on a user's Pyro program, checked by tracing it before training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import pyro
import torch
from pyro import poutine
from pyro.distributions import Categorical, Delta, Independent, MaskedDistribution, TorchDistribution
from pyro.distributions.torch_distribution import ExpandedDistribution
from pyro.poutine.messenger import Messenger
from pyro.poutine.util import site_is_subsample
from torch import Tensor, nn

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import DataError, PacBayesFLError, StudyError
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.models.fixed_weights import FixedWeights, observed
from pacbayes_fl.models.likelihoods import Categorical as Labels
from pacbayes_fl.models.weights.bayesian_network import BayesianNetwork

_ROWS = 8  # of each of at most three clients: enough to see a program's shapes, scales and mask
_ZETA = 0.5
_SLIGHT = 1e-4  # of a log likelihood: float32 in another order of sums
_OWN_LATENT = (
    "put {0!r} into `shapes`, draw it from prior.site({0!r}) and transform it, as in softplus(...) for what is positive"
)


class Targets(NamedTuple):
    """Targets in the support of a likelihood.

    Args:
        kind: name of the distribution.
        low: smallest target, None where it depends on the weights or the inputs.
        high: largest target, likewise.
        whole: targets are whole numbers.
    """

    kind: str
    low: float | None
    high: float | None
    whole: bool

    def inner(self) -> float:
        """Return a target that no row forbids."""
        low, high = (0.0 if end is None else end for end in (self.low, self.high))
        if math.isfinite(low) and math.isfinite(high):
            return low if self.whole or low == high else 0.5 * (low + high)
        return low + 1.0 if math.isfinite(low) else high - 1.0 if math.isfinite(high) else 0.0

    def allows(self, y: Tensor) -> Tensor:
        """Whether each target y [K, N] is possible, bool [K, N]; True where that is not known without the weights."""
        inside = y == y.round() if self.whole else torch.ones_like(y, dtype=torch.bool)
        inside = inside if self.low is None else inside & (y >= self.low)
        return inside if self.high is None else inside & (y <= self.high)


def prepared(model: WeightModel, batch: ClientBatch) -> ClientBatch:
    """Check a user's program and the targets that it is to explain, once per model and kind of rows.

    The library's own networks pass as they are. A program passes when its sites are those of `shapes`, drawn from
    `prior.site` under a `poutine.scale` of zeta; when it observes one site, the rows its event dimension, under one of
    `scale`; when neither padded rows nor other clients nor the targets themselves move what it says of a row; and when
    it holds no `pyro.param`, no latent of its own and no free `nn.Parameter`.

    Args:
        model: the likelihood.
        batch: rows of the K clients [K, N, *feature].

    Returns:
        The batch, its padded targets possible ones where 0 is none: a density of 0 in padding would leave no gradient.

    Raises:
        StudyError: naming the site, the expected and the actual value, and a remedy.
        DataError: naming the client and row of a target that the likelihood forbids.
    """
    if isinstance(model, BayesianNetwork):
        _require_labels(model, batch)
        return batch
    key = (batch.x.shape[2:], batch.x.dtype, batch.y.dtype)
    known: Mapping[Any, Targets] = getattr(model, "_targets", {})
    if key not in known:
        known = {**known, key: check_program(model, batch)}
        if hasattr(model, "__dict__"):
            object.__setattr__(model, "_targets", known)  # a frozen dataclass is a model too
    targets = known[key]
    wrong = batch.mask & ~targets.allows(batch.y)
    if bool(wrong.any()):
        raise _forbidden(targets, batch, wrong)
    if targets.whole or (targets.low, targets.high) == (-math.inf, math.inf):
        return batch
    own = torch.where(batch.size > 0, batch.y[:, 0], targets.inner()).to(batch.y.dtype).unsqueeze(1)
    return replace(batch, y=torch.where(batch.mask, batch.y, own))


def _require_labels(model: BayesianNetwork, batch: ClientBatch) -> None:
    """Refuse targets that are no labels of a network of classes; their range where no device has to be asked."""
    if not isinstance(model.likelihood, Labels):
        return
    classes = model.likelihood.classes
    if batch.y.is_floating_point():
        what = f"the network predicts one of {classes} classes, and targets are numbers of {batch.y.dtype}"
        raise DataError(what, client=batch.names[0], hint="ClientBatch.pad(..., classes=C) takes labels")
    if batch.y.device.type == "cpu" and bool((wrong := batch.mask & ((batch.y < 0) | (batch.y >= classes))).any()):
        k, row = wrong.nonzero()[0].tolist()
        what = f"y is {batch.y[k, row].item()} in row {row}, and the network's {classes} classes are 0 to {classes - 1}"
        raise DataError(what, client=batch.names[k], hint="a network of as many classes as the data have")


def _forbidden(targets: Targets, batch: ClientBatch, wrong: Tensor) -> DataError:
    k, row = wrong.nonzero()[0].tolist()
    kind = "whole numbers" if targets.whole else "numbers"
    known = [f"{word} {end:g}" for word, end in (("from", targets.low), ("to", targets.high)) if end is not None]
    ends = "".join(f" {end}" for end in known if "inf" not in end)
    return DataError(
        f"y is {batch.y[k, row].item():g} in row {row}, and {targets.kind} targets are {kind}{ends}",
        client=batch.names[k],
        hint="give targets in their own units: counts, labels and positive numbers are not to be standardised",
    )


def check_program(model: WeightModel, batch: ClientBatch) -> Targets:
    """Trace a program on a few rows and check the assumptions of the methods; see `prepared`.

    Args:
        model: the likelihood.
        batch: rows of the K clients [K, N, *feature], of which a few are taken.

    Returns:
        Targets in the support of its likelihood.

    Raises:
        StudyError: naming the site, the expected and the actual value, and a remedy.
    """
    _no_parameters(model)
    plain, other = _probes(batch)
    generator = torch.Generator().manual_seed(len(plain.ids))
    noise = torch.randn(plain.clients, model.dim, generator=generator, dtype=torch.float64)
    flat = (model.centre() + 0.1 * noise).to(plain.x.device, model.dtype)
    weights = model.unflatten(flat)
    scale = 1.5 + torch.arange(plain.clients, device=flat.device).to(flat)
    sites, (name, node) = _sites(model, plain, weights, scale)
    _latents(model, sites, weights)
    _observation(plain, name, node, scale)
    targets = _prediction(model, name, flat, plain)
    here = _log_prob_of(node)
    for k in range(plain.clients):
        own = {site: value[k : k + 1] for site, value in weights.items()}
        alone = _sites(model, plain.select(torch.tensor([k])), own, scale[k : k + 1])[1][1]
        _unmoved(name, here[k : k + 1], _log_prob_of(alone), plain.names[k : k + 1], _COMPANY)
    _unmoved(name, here, _log_prob_of(_sites(model, other, weights, scale)[1][1]), plain.names, _PADDING)
    with pyro.validation_enabled(False):
        _unmoved(name, here, model.log_likelihood(flat, plain), plain.names, _SUM)
    return targets


class _Rule(NamedTuple):
    """A change that must not affect a log likelihood, and the remedy where it does."""

    what: str
    hint: str


_SUM = _Rule("summing real rows one by one moves", "end the observation with .mask(batch.mask).to_event(1)")
_PADDING = _Rule("rows of padding move", "end the observation with .mask(batch.mask).to_event(1)")
_COMPANY = _Rule("other clients of the call move", "keep the clients' dimension, the first of every tensor, apart")


def _no_parameters(model: WeightModel) -> None:
    """Refuse tensors that look as if they were learned: no method reaches them."""
    for name, value in vars(model).items() if hasattr(model, "__dict__") else ():
        free = list(value.parameters()) if isinstance(value, nn.Module) else [value]
        if any(isinstance(one, nn.Parameter) and one.requires_grad for one in free):
            raise StudyError(
                f"the model holds free parameters in {name!r}, which no method would learn",
                hint=f"make them sites of `shapes`, or fix them by {name}.requires_grad_(False)",
            )


def _probes(batch: ClientBatch) -> tuple[ClientBatch, ClientBatch]:
    """Take a few rows of two or three clients, some client twice where there is one alone, with padding of two kinds.

    The smallest and the largest are among them, and one client never is by itself: it could not move another's rows.
    """
    size = batch.size
    subset = sorted({0, int(size.argmin()), int(size.argmax())})
    subset += [min(1, batch.clients - 1)] if len(subset) == 1 and batch.clients else []
    rows = batch.select(torch.tensor(subset)).trim(min(_ROWS, batch.mask.shape[1]))
    more = rows.x.new_zeros(rows.clients, 1, *rows.x.shape[2:]), rows.y.new_zeros(rows.clients, 1)
    x, y = (torch.cat((kept, added), 1) for kept, added in zip((rows.x, rows.y), more, strict=True))
    plain = replace(rows, x=x, y=y, mask=torch.cat((rows.mask, torch.zeros_like(rows.mask[:, :1])), 1))
    real = plain.mask.nonzero()
    if not len(real):
        return plain, plain
    largest = (plain.x.double().abs().flatten(2).sum(-1) + plain.y.abs())[plain.mask].argmax()
    k, row = real[int(largest)].tolist()
    wide = plain.mask.view(*plain.mask.shape, *[1] * (x.dim() - 2))
    return plain, replace(plain, x=torch.where(wide, x, x[k, row]), y=torch.where(plain.mask, y, y[k, row]))


@dataclass(frozen=True, eq=False)
class _Known:
    """Known weights that say by name which site they lack."""

    weights: Mapping[str, Tensor]

    def site(self, name: str) -> TorchDistribution:
        if name not in self.weights:
            raise StudyError(
                f"prior.site({name!r}): `shapes` has {', '.join(self.weights)}", hint=f"add {name!r} to it"
            )
        return FixedWeights(self.weights).site(name)


class _Watch(Messenger):
    """Looks at every statement before Pyro carries it out: no store is touched, nothing is drawn."""

    def __init__(self, model: WeightModel) -> None:
        super().__init__()
        self.model = model

    def _pyro_param(self, msg: Any) -> None:
        raise StudyError(
            f"pyro.param({msg['name']!r}): nobody would learn it, and Pyro's parameter store stays empty",
            hint=_OWN_LATENT.format(msg["name"]),
        )

    def _pyro_sample(self, msg: Any) -> None:
        name, one = msg["name"], msg["fn"]
        if msg["is_observed"] or site_is_subsample(msg):
            return
        if name not in self.model.shapes:
            raise StudyError(
                f"site {name!r} is a latent of the program's own, {type(one).__name__}, and `shapes` has "
                f"{', '.join(self.model.shapes)}",
                hint=_OWN_LATENT.format(name),
            )
        while isinstance(one, Independent | MaskedDistribution | ExpandedDistribution):
            one = one.base_dist
        if not isinstance(one, Delta):
            raise _elsewhere(name, tuple(self.model.shapes[name]), f"{type(one).__name__}")


def _sites(
    model: WeightModel, rows: ClientBatch, weights: Mapping[str, Tensor], scale: Tensor
) -> tuple[dict[str, Any], tuple[str, Any]]:
    """Trace the program: its latent sites by name, and the one that it observes."""
    try:
        with pyro.validation_enabled(False), torch.no_grad(), _Watch(model):
            trace = poutine.trace(model.model).get_trace(rows, _Known(weights), _ZETA, scale)
    except PacBayesFLError as error:  # Pyro raises it anew, with the shapes of its trace behind the hint
        raise error.__cause__ if isinstance(error.__cause__, PacBayesFLError) else error from None
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        reason = next(iter(str(error).splitlines()), "")
        raise StudyError(
            f"the program fails on x {list(rows.x.shape)}, y {list(rows.y.shape)}: {type(error).__name__}: {reason}",
            hint="weights are [K, *shape], and rows are event dimensions: .mask(batch.mask).to_event(1)",
        ) from error
    result = observed(trace)
    if len(result) != 1:
        names = "".join(f" {name!r}" for name, _ in result)
        raise StudyError(f"the Pyro program must observe one site, found {len(result)}{names}")
    return {name: trace.nodes[name] for name in trace.stochastic_nodes}, result[0]


def _elsewhere(name: str, shape: tuple[int, ...], came: str) -> StudyError:
    return StudyError(
        f"site {name!r} must be drawn from prior.site({name!r}), one of shape {list(shape)} per client, got {came}",
        hint="transform what was drawn, not what it is drawn from",
    )


def _latents(model: WeightModel, sites: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Compare the drawn sites with `shapes`, what they are drawn from, and their weight in the divergence."""
    for name, value in weights.items():
        if name not in sites:
            raise StudyError(
                f"site {name!r} of `shapes` is not drawn", hint=f"pyro.sample({name!r}, prior.site({name!r}))"
            )
        node = sites[name]
        if node["value"].shape != value.shape or not torch.equal(node["value"], value):
            raise _elsewhere(name, tuple(value.shape[1:]), f"a draw of shape {list(node['value'].shape)}")
        certain = name in model.deterministic
        if certain != (node["mask"] is False) or (not certain and node["mask"] not in (None, True)):
            raise StudyError(
                f"site {name!r} must be {'out of' if certain else 'part of'} the divergence, for `deterministic` "
                f"{'has' if certain else 'lacks'} it, got mask {node['mask']}",
                hint="draw the weights by self.draw_weights(prior)",
            )
        if not certain and not _alike(node["scale"], value.new_full((len(value),), _ZETA)):
            raise StudyError(
                f"site {name!r} must be scaled by zeta = {_ZETA}, got {_shown(node['scale'])}",
                hint="draw the weights inside `with pyro.poutine.scale(scale=zeta):`, and nothing else",
            )


def _observation(rows: ClientBatch, name: str, node: Any, scale: Tensor) -> None:
    """Compare the observed site's shape and its weight with what the methods rely on."""
    batch, event = tuple(node["fn"].batch_shape), tuple(node["fn"].event_shape)
    if (batch, event) != ((rows.clients,), (rows.y.shape[1],)):
        raise StudyError(
            f"site {name!r} must have batch shape [K] = [{rows.clients}] and event shape [N] = [{rows.y.shape[1]}], "
            f"got {list(batch)} and {list(event)}",
            hint="rows are event dimensions: end the observation with .mask(batch.mask).to_event(1)",
        )
    if node["mask"] is False or not _alike(node["scale"], scale):
        raise StudyError(
            f"site {name!r} must be scaled by scale = {_shown(scale)}, got {_shown(node['scale'])}",
            hint="observe the targets inside `with pyro.poutine.scale(scale=scale):`, and outside of zeta's",
        )


def _alike(got: Any, expected: Tensor) -> bool:
    wide = torch.as_tensor(got).to(expected)
    return wide.dim() <= 1 and torch.allclose(wide.expand_as(expected), expected, rtol=1e-5)


def _shown(scale: Any) -> str:
    return ", ".join(f"{number:g}" for number in torch.as_tensor(scale).flatten().tolist())


def _log_prob_of(node: Any) -> Tensor:
    """Log likelihood [K] of an observed site, where padding may hold impossible targets."""
    with pyro.validation_enabled(False):
        result: Tensor = node["fn"].log_prob(node["value"])
    return result


def _unmoved(name: str, expected: Tensor, got: Tensor, clients: tuple[str, ...], rule: _Rule) -> None:
    """Compare the log likelihood [K] of the same rows, told in another way."""
    differs = ~((got - expected).abs() <= _SLIGHT * (1.0 + expected.abs()))  # what is no number has moved too
    if bool(differs.any()):
        k = int(differs.nonzero()[0])
        by = f"{expected[k].item():g} to {got[k].item():g}"
        raise StudyError(f"site {name!r}: {rule.what} its log likelihood, {by}", client=clients[k], hint=rule.hint)


def _prediction(model: WeightModel, name: str, flat: Tensor, rows: ClientBatch) -> Targets:
    """Ask the program for its distribution of targets that it is not told, and compare the targets with it."""
    unmasked = replace(rows, mask=torch.ones_like(rows.mask))
    one, result = (
        model.observation(flat, each) for each in (unmasked, replace(unmasked, y=torch.zeros_like(rows.y).long()))
    )
    if tuple(result.batch_shape) != tuple(rows.y.shape) or tuple(result.event_shape):
        got = f"{list(result.batch_shape)} and event shape {list(result.event_shape)}"
        raise StudyError(f"targets must be single numbers [K, N] = {list(rows.y.shape)}, got batch shape {got}")
    if not rows.y.is_floating_point() and not isinstance(result, Categorical):
        what = f"site {name!r}: labels are observed by a {type(result).__name__}, which says nothing of classes"
        raise StudyError(what, hint="observe a Categorical; or give targets as floating numbers, for regression")
    targets = _targets(result)
    wrong = rows.mask & ~targets.allows(rows.y)
    if bool(wrong.any()):
        raise _forbidden(targets, rows, wrong)
    with pyro.validation_enabled(False):
        by_row, other = (torch.where(rows.mask, each.log_prob(rows.y), 0.0) for each in (one, result))
    if not bool(by_row.isfinite().all()):
        raise StudyError(
            f"site {name!r}: the log likelihood is not finite at weights near their centre",
            hint="bring every parameter of the likelihood into its range, by softplus, exp or sigmoid",
        )
    with pyro.validation_enabled(False):
        again = torch.where(rows.mask, model.observation(flat, unmasked).log_prob(rows.y), 0.0)
    if not torch.allclose(by_row, again, rtol=_SLIGHT, atol=_SLIGHT):
        raise StudyError(
            f"site {name!r}: the same weights and rows have another log likelihood at every call",
            hint="take out what draws numbers, such as dropout: the weights alone are random",
        )
    if not torch.allclose(by_row, other, rtol=_SLIGHT, atol=_SLIGHT):
        raise StudyError(
            "what the program predicts of a target depends on the targets that it is told",
            hint="read batch.y in obs= alone: predictions are made without it",
        )
    return targets


def _targets(observation: TorchDistribution) -> Targets:
    """Read what a distribution allows, as far as neither weights nor inputs have a say."""
    try:
        support: Any = observation.support
    except NotImplementedError:
        support = torch.distributions.constraints.real
    ends = ("lower_bound", -math.inf), ("upper_bound", math.inf)
    low, high = (getattr(support, name, end) for name, end in ends)
    if support is torch.distributions.constraints.boolean:
        low, high = 0.0, 1.0
    low, high = (None if isinstance(end, Tensor) else float(end) for end in (low, high))
    return Targets(type(observation).__name__, low, high, bool(support.is_discrete))
