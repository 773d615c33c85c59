"""Privacy-utility trade-off: a metric against the epsilon of a run's releases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from pacbayes_fl.errors import kinds_checked
from pacbayes_fl.files import JsonMapping
from pacbayes_fl.plots.style import (
    CYCLE,
    FAINT,
    GREEN,
    INK,
    PURPLE,
    RED,
    SKY,
    NothingToDrawError,
    joint_title,
    left_out,
    metric_label,
    panels,
    seed_count,
)
from pacbayes_fl.results.bootstrap import nested_bootstrap
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.grouping import by_settings, distinct, settings_of
from pacbayes_fl.results.metrics import headline_column
from pacbayes_fl.results.records import SIMULATED_EPSILON, Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LEVELS: Final = (
    INK,
    PURPLE,
    SKY,
    RED,
    GREEN,
    FAINT,
)  # colours that the first lines do not have, of what is not private


class _Point(NamedTuple):
    """Runs that differ in their seed: their largest epsilon, the claimed one, and their score with interval."""

    epsilon: float
    claimed: float | None
    mean: float
    low: float
    high: float


@kinds_checked
def privacy_utility(results: Sequence[Result], metric: str | None = None) -> Figure:
    """Draw a metric against the epsilon that was spent, a line per mechanism (as PAC-PFL, Figure 4).

    A point is the mean over seeds and clients, the bar its 95 % bootstrap interval; what was not private is a dashed
    line with a band. Where a mechanism claims another epsilon than it gives, as PAC-PFL's Algorithm 3 does, a light
    mark stands at the claim, joined to the point at the epsilon that holds. Figure 4 has claims alone, and its caption
    calls small ones less private: they are more private.

    Args:
        results: finished runs; `labels["privacy"]` of the private ones says what they spent. Runs whose epsilon is not
            positive and finite have no place on the axis and are left out.
        metric: name of the metric; the headline of the results' task when None.

    Returns:
        A matplotlib figure, a panel each for existing and for new clients.

    Raises:
        NothingToDrawError: when no private run has a client with the metric.
        PacBayesFLError: when matplotlib is not installed.
    """
    from matplotlib.lines import Line2D

    results = distinct(results)
    private = [result for result in results if _about(result) and 0.0 < _spent(result) < math.inf]
    plain = [result for result in results if not _about(result)]
    chosen = metric or headline_column(private[0].task if private else "regression")
    groups = [group for group in GROUPS if any(_finite(result, group, chosen) for result in private)]
    private, plain = ([one for one in own if any(_finite(one, g, chosen) for g in groups)] for own in (private, plain))
    if not groups:
        raise NothingToDrawError(f"no client of a private run (labels['privacy']) with an epsilon has {chosen}")
    lines, levels = _gathered(private, _names(private)), _gathered(plain, _plain_names(plain))
    deltas = {_about(result).get("delta") for result in private}
    at = f"at δ = {deltas.pop():g}" if len(deltas) == 1 else "at the δ of each line"
    with panels(1, len(groups), joint_title([*private, *plain]), 4.2, 3.4) as (figure, axes):
        for axis, group in zip(axes[0], groups, strict=True):
            for colour, (name, runs) in zip(CYCLE * len(lines), lines.items(), strict=False):
                _line(axis, _points(runs, group, chosen), name, colour)
            for colour, (name, runs) in zip(_LEVELS * len(levels), levels.items(), strict=False):
                _level(axis, [values for run in runs if (values := _finite(run, group, chosen))], name, colour)
            axis.set(xscale="log", xlabel=_axis_label(private, at))
            axis.set(ylabel=metric_label(chosen, private[0]))
            axis.set_title(f"{group} clients, {seed_count([*private, *plain])}: mean with 95 % interval")
            _tick(axis)
        marks = [zip(*reversed(axis.get_legend_handles_labels()), strict=True) for axis in axes[0]]
        legend = {label: mark for pairs in marks for label, mark in pairs}
        if not levels:  # a figure without it cannot show what privacy costs
            legend["no run without privacy was given"] = Line2D([], [], linestyle="none")
        for key in left_out(results, [*private, *plain], f"{chosen}, or no finite epsilon"):
            legend[str(key.get_label())] = key
        figure.legend(legend.values(), legend.keys(), loc="outside lower center", ncols=2)
    return figure


def _tick(axis: Axes) -> None:
    """Label the axis by numbers that can be read beside one another: 0.5, 1, 2, 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_locator(NullLocator())


def _axis_label(private: Sequence[Result], at: str) -> str:
    """Say what the axis shows: of simulations what would have been spent if their noise were secret."""
    simulated = [SIMULATED_EPSILON in _about(result) for result in private]
    if all(simulated):
        return f"ε if the noise were secret, {at}\n(a simulation: private against nobody)"
    text = "; of simulations if their noise were secret" * any(simulated)
    return f"ε spent, {at}{text}\n(smaller is more private)"


def _about(result: Result) -> JsonMapping:
    return result.labels.get("privacy") or {}


def _spent(result: Result) -> float:
    epsilon = _about(result).get("epsilon", _about(result).get(SIMULATED_EPSILON))
    return math.nan if epsilon is None else float(epsilon)


def _target(result: Result) -> float:
    """Return what seeds of one setting share: the epsilon as claimed, or as spent up to rounding."""
    claimed = _about(result).get("claimed")
    return float(f"{_spent(result):.6g}") if claimed is None else float(claimed)


def _method(result: Result) -> str:
    """Name a method without the budget that a comparison varied: that is on the axis."""
    varied = result.labels.get("varied")
    return str(varied["method"]) if varied and str(varied["key"]).startswith("privacy.") else result.method


def _runs(results: Sequence[Result]) -> list[str]:
    """Name runs by their method, study and settings, but for their privacy: that is on the axis and in the legend."""
    keys = {key for result in results for key in settings_of(result) if key.startswith("privacy.")}
    keys |= {key for result in results if (key := str(result.labels.get("varied", {}).get("key")))[:8] == "privacy."}
    named = {id(result): name for name, same in by_settings(results, without=keys).items() for result in same}
    return [named[id(result)] for result in results]


def _without_method(names: Sequence[str], results: Sequence[Result]) -> list[str]:
    """Shorten the names of runs that have one method: they begin with it."""
    methods = {_method(result) for result in results}
    return [name.removeprefix(f"{methods.copy().pop()}, ") if len(methods) == 1 else name for name in names]


def _finite(result: Result, group: str, metric: str) -> list[float]:
    return [value for value in result.rows.column(group, metric) if math.isfinite(value)]


def _names(results: Sequence[Result]) -> list[str]:
    """Name lines by their mechanism, and by whatever else tells them apart.

    Runs whose epsilons mean different things never share a line; those with another clip or cohort do, as long as each
    epsilon has one of them.
    """
    runs = _without_method(_runs(results), results)
    settings = [_words(result) | {"run": run} for result, run in zip(results, runs, strict=True)]
    varying = ["mechanism"]
    varying += [key for key in ("run", "delta", "neighbours") if len({setting[key] for setting in settings}) > 1]
    for key in ("clip", "cohort"):
        seen: dict[object, set[str]] = {}
        for setting, result in zip(settings, results, strict=True):
            seen.setdefault((*(setting[part] for part in varying), _target(result)), set()).add(setting[key])
        if any(len(values) > 1 for values in seen.values()):
            varying.append(key)
    return [", ".join(setting[key] for key in varying) for setting in settings]


def _words(result: Result) -> dict[str, str]:
    about = _about(result)
    return {
        "mechanism": str(about.get("mechanism")).replace("_", " "),
        "delta": f"δ = {about.get('delta', 0.0):.2g}",
        "neighbours": str(about.get("neighbours")),
        "clip": f"clip {about.get('clip')}",
        "cohort": f"cohort {about.get('cohort')}",
    }


def _plain_names(results: Sequence[Result]) -> list[str]:
    return [f"{name}, not private" for name in _runs(results)]


def _gathered(results: Sequence[Result], names: Sequence[str]) -> dict[str, list[Result]]:
    gathered: dict[str, list[Result]] = {}
    for name, result in zip(names, results, strict=True):
        gathered.setdefault(name, []).append(result)
    return gathered


def _points(runs: Sequence[Result], group: str, metric: str) -> list[_Point]:
    by_target: dict[float, list[Result]] = {}
    for run in runs:
        if _finite(run, group, metric):
            by_target.setdefault(_target(run), []).append(run)
    points = []
    for same in by_target.values():
        score = nested_bootstrap([_finite(run, group, metric) for run in same])
        points.append(_Point(max(map(_spent, same)), _about(same[0]).get("claimed"), *score))
    return sorted(points, key=lambda point: point.epsilon)


def _line(axis: Axes, points: Sequence[_Point], name: str, colour: str) -> None:
    if not points:
        return
    epsilon, mean, low, high = np.array([(p.epsilon, p.mean, p.low, p.high) for p in points], dtype=np.float64).T
    bars = np.maximum([mean - low, high - mean], 0.0)  # of one number, up to rounding
    axis.errorbar(epsilon, mean, bars, fmt="o-", capsize=3, color=colour, label=name, zorder=3)
    if claims := [(p.claimed, p.mean, p.epsilon) for p in points if p.claimed is not None]:
        claimed, height, spent = np.array(claims, dtype=np.float64).T
        axis.hlines(height, claimed, spent, color=colour, linewidth=0.6, alpha=0.5)
        axis.plot(claimed, height, "o", color=colour, markerfacecolor="none", alpha=0.5, label=f"{name}, as claimed")


def _level(axis: Axes, values: Sequence[Sequence[float]], name: str, colour: str) -> None:
    if values:
        mean, low, high = nested_bootstrap(values)
        axis.axhline(mean, linestyle="--", color=colour, label=name)
        axis.axhspan(low, high, color=colour, alpha=0.12, linewidth=0)
