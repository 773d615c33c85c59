"""Scores and predictions of a state, for a run's tables and figures."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pacbayes_fl.data.client_blocks import by_size
from pacbayes_fl.data.moments import moments_of, standardised
from pacbayes_fl.data.transforms import Transform
from pacbayes_fl.errors import caller_stacklevel
from pacbayes_fl.federation import personalisation
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.guard import listed
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.metrics.calibration import JUMPS
from pacbayes_fl.posteriors.functions.conditioning import centre
from pacbayes_fl.posteriors.predictive import RegressionPredictive
from pacbayes_fl.posteriors.transformed import TransformedMixture
from pacbayes_fl.results.client_rows import ClientRows
from pacbayes_fl.results.metrics import RAW, Metric, headline
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.evaluate.report import Report, notes, state_of
from pacbayes_fl.study.evaluate.units import ends_of, raw_scored_rows, scored_rows, units_of, within
from pacbayes_fl.study.residuals import GAUSSIAN, ErrorShape
from pacbayes_fl.tensors import client_blocks, mapped_zeros

FAR = 1e3
"""Standard deviations of a client's targets, beyond which nothing was learned from these."""
_NUMBERS = ("mean", "std", "lower", "upper", "pit")
BAND = (0.025, 0.975)
"""Levels of the lower and upper end of every predictive band."""


def evaluate(
    method: AnyMethod,
    state: FederationState,
    group: str,
    scaled: ScaledGroup,
    plan: FederationPlan,
    metrics: Mapping[str, Metric],
    errors: ErrorShape = GAUSSIAN,
    by: Tensor | None = None,
) -> Report:
    """Personalise every client of a group on its training rows and score it on its test rows.

    Metrics are taken in each client's standardised units, as in the paper; those that change with the unit also in the
    data's own, under a name that ends in "_raw". A client whose training targets do not vary has no unit of its own: it
    is scored in the data's, and named in a warning.

    Args:
        method: the algorithm.
        state: after some round.
        group: "existing" or "new".
        scaled: the group's rows.
        plan: gives chunk, waste and seed.
        metrics: what to score by, from `study.evaluate.report.metrics_of`.
        errors: their shape around predicted means.
        by: values [K, M] of a column in the test rows, by which coverage will be told.

    Returns:
        A row per client, and its predictions of test rows in the data's own units.
    """
    test = scaled.raw.test
    tensors = {name: _blank(test.y) for name in _NUMBERS}
    columns: dict[str, Tensor] = {}
    far = test.y.new_zeros(test.clients)
    state = state_of(method, state, group, scaled)
    predicted = partial(_predicted, scaled, errors)
    for index, result in personalisation.personalise(method, state, scaled.train, plan, predicted):
        own_rows = raw_scored_rows(scaled, index)
        standard, own, unit = units_of(result, scaled, index, own_rows.x)
        asked = slice(own_rows.mask.shape[1])
        loc, std = (t[index].unsqueeze(-1) for t in (scaled.units.y_mean, scaled.units.y_std))
        y = torch.where(own_rows.mask, standardised(own_rows.y, loc, std), 0.0)
        scores = {name: metric(standard, y, own_rows.mask) for name, metric in metrics.items()}
        own_y, each = own_rows.y / unit.unsqueeze(-1), unit.unsqueeze(-1)
        for name, metric in metrics.items():
            if metric.raw:
                raw = metric(own, own_y, own_rows.mask)
                scores[RAW.format(name)] = raw * unit if metric.raw == "times unit" else raw + unit.log()
        for name, values in scores.items():
            columns.setdefault(name, values.new_full((test.clients,), torch.nan))[index] = values
        far[index] = torch.where(own_rows.mask, _reach(standard), 0.0).amax(1)
        lower, upper = own.quantile(test.y.new_tensor(BAND)) * each
        numbers = (own.mean * each, own.variance.sqrt() * each, lower, upper, own.cdf(own_y))
        if isinstance(own, JUMPS):
            below = tensors.setdefault("pit_below", _blank(test.y))
            below[index, asked] = torch.where(own_rows.mask, own.below(own_y), torch.nan)
        for name, values in zip(_NUMBERS, numbers, strict=True):
            tensors[name][index, asked] = torch.where(own_rows.mask, values, torch.nan)
    if by is not None:
        tensors["coverage_by"] = torch.where(test.mask, by, torch.nan)
    flat = _without_unit(scaled)
    _say_without_unit(test.names, flat.tolist())
    say_far(test.names, far.masked_fill(flat.to(far.device), 0.0).tolist(), scaled.shared.transform)
    lists = {name: column.double().cpu().numpy() for name, column in columns.items()}
    rows_out = ClientRows.of_group(group, test.ids, test.names, (int(m) for m in scaled.train.size.tolist()), lists)
    return Report(rows_out, {f"{group}.{name}": tensor for name, tensor in (_inputs(scaled) | tensors).items()})


def _blank(like: Tensor) -> Tensor:
    """Make room for a number of every row [K, N], NaN."""
    result = mapped_zeros(tuple(like.shape), like.dtype, like.device)
    for own in client_blocks(len(like)):
        result[own] = torch.nan
    return result


def _predicted(scaled: ScaledGroup, errors: ErrorShape, index: Tensor, posterior: Any) -> Any:
    """Predict the test rows of some clients of a group."""
    result = errors.around(posterior).predict(scored_rows(scaled, index).x)
    personalisation.tell_of(posterior)
    return result


def _centred(scaled: ScaledGroup, errors: ErrorShape, index: Tensor, posterior: Any) -> Any:
    """Predict means of the test rows of some clients, without variances where these would cost most."""
    result = centre(posterior, scored_rows(scaled, index).x)
    return _predicted(scaled, errors, index, posterior) if result is None else result


def _without_unit(scaled: ScaledGroup) -> Tensor:
    """Which clients with test rows have training targets of no spread, whatever unit a method gets them in [K]."""
    train = scaled.raw.train
    (flat,) = by_size(train, lambda part: [moments_of(part.y.unsqueeze(-1), part.mask).flat[:, 0]])
    return flat & train.mask.any(1) & scaled.raw.test.mask.any(1)


def _say_without_unit(names: Sequence[str], flat: Sequence[bool]) -> None:
    """Warn of scores whose unit is another than that of other clients' scores."""
    if those := [name for name, one in zip(names, flat, strict=True) if one]:
        what = (
            f"training targets of {listed(those)} do not vary, or are but one, and give no unit: their scores in "
            "standardised units are in the data's own (std := 1), and weigh accordingly in means over clients; medians "
            "hardly feel it"
        )
        warnings.warn(what, stacklevel=caller_stacklevel())


def _reach(standard: RegressionPredictive) -> Tensor:
    """How far predictions [k, N] are from 0; infinite where a transform leaves a mean or variance beyond numbers."""
    far = standard.mean.abs()
    return far.masked_fill(standard.variance.isinf(), torch.inf) if isinstance(standard, TransformedMixture) else far


def say_far(names: Sequence[str], far: Sequence[float], transform: Transform | None = None) -> None:
    """Warn of predictions that cannot have been learned from the targets that a client has, or are beyond numbers.

    Args:
        names: of K clients.
        far: how far their predictions are at most from their targets [K], in standard deviations of these.
        transform: of the targets, which may bring back what is too large for a number; None for none.
    """
    endless = [
        name for name, distance in zip(names, far, strict=True) if math.isinf(distance) and transform is not None
    ]
    if endless:
        what = f"means or standard deviations of predictions of {listed(endless)} are too large for a number"
        warnings.warn(f"{what}, while quantiles hold: {not_finite(transform)}", stacklevel=caller_stacklevel())
    near = [distance for name, distance in zip(names, far, strict=True) if name not in endless]
    those = [name for name, distance in zip(names, far, strict=True) if distance > FAR and name not in endless]
    if those:
        what = (
            f"predictions of {listed(those)} are up to {max(near):.2g} standard deviations of their own targets away "
            "from these: local training has diverged, or the rows asked for are far from all others"
        )
        warnings.warn(what, stacklevel=caller_stacklevel())


def distance(mean: Tensor, y: Tensor) -> float:
    """Say how far predictions, or later targets, are from a client's own targets.

    Args:
        mean: these numbers [M], NaN where nothing is; in the unit of y.
        y: training targets [n].

    Returns:
        The largest distance from their mean, in their standard deviations; 0 where they vary by rounding alone.
    """
    spread = float(y.double().std(correction=0)) if len(y) else 0.0
    far = (mean.double() - y.double().mean()).abs().nan_to_num(0.0)
    return float(far.max()) / spread if len(y) and len(far) and spread > 1e-12 * float(y.abs().max()) else 0.0


def not_finite(transform: Transform | None) -> str:
    """Say what may be done about predictions that are no numbers.

    Args:
        transform: of the targets; None for none.

    Returns:
        The advice.
    """
    if transform is None or max(transform.growth) == 0:
        return "look at its rows: one may be far outside of what the run was trained on"
    down, up = transform.growth
    key = "upper_bound" if up >= down else "lower_bound"
    return f"t = {transform.title} brings back too much; a run with data.{key}, or with another transform, does not"


def _inputs(scaled: ScaledGroup) -> dict[str, Tensor]:
    parts = {"train": scaled.raw.train, "test": scaled.raw.test}
    when = {} if scaled.raw.times is None else {f"time_{part}": t for part, t in scaled.raw.times._asdict().items()}
    rows = {f"{name}_{part}": getattr(batch, name) for part, batch in parts.items() for name in ("x", "y", "mask")}
    return rows | when


def curve(method: AnyMethod, state: FederationState, scaled: ScaledGroup, plan: FederationPlan) -> dict[str, Tensor]:
    """Take the headline metric of existing clients' test rows, whose mean is a point of the learning curve.

    Errors are normal along the curve, as their shape is learned after the last round: means depend on it where targets
    have bounds or a transform, and a table of scores has others there.

    Args:
        method: the algorithm.
        state: after some round.
        scaled: rows of the existing clients.
        plan: gives chunk, waste and seed.

    Returns:
        Under its name a score for every client [K] (it has no unit, so it is taken in the method's), NaN for one
        without.
    """
    metric, values = headline("regression"), []
    whole = scaled.shared.transform is not None or scaled.shared.bounds is not None  # whose means need variances
    predicted = partial(_predicted if whole else _centred, scaled, GAUSSIAN)
    for index, result in personalisation.personalise(method, state, scaled.train, plan, predicted):
        rows, used = scored_rows(scaled, index), scaled.used
        if scaled.shared.transform is not None:  # of the targets themselves
            raw = raw_scored_rows(scaled, index)
            own = units_of(result, scaled, index, raw.x)
            y = raw.y / own.unit.unsqueeze(-1)
            values.append(metric(own.own, y, rows.mask))
            continue
        ends = None if scaled.shared.bounds is None else ends_of(scaled, index, raw_scored_rows(scaled, index).x)
        result = within(result, ends, used.y_mean[index], used.y_std[index])
        values.append(metric(result, rows.y, rows.mask))
    return {metric.name: torch.cat(values)}


def labels(options: JsonMapping, features: Any, target: Any, metrics: Mapping[str, Metric]) -> JsonTable:
    """Describe every number of a run (`labels.json`).

    Args:
        options: of the method, those that its recipe fixes among them.
        features: columns of the data.
        target: column of the data.
        metrics: what was scored by, from `study.evaluate.report.metrics_of`.

    Returns:
        `labels.json`.
    """
    out: JsonTable = {
        "feature_name": [column.name for column in features],
        "feature_unit": [column.unit for column in features],
        "target_name": target.name,
        "target_unit": target.unit,
        "band": list(BAND),
        "model": "personal, after conditioning on the client's training rows",
        "rows": "test rows of every client",
        "selection": "last round",
        "rounds": f"{headline('regression').name} in rounds.jsonl is of the existing clients' test rows, "
        "to be watched, not chosen by",
    }
    out |= notes(metrics)
    if "particles" in options:
        out["particles"] = options["particles"]
    return out
