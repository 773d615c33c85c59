"""How the clients of one or several runs fare: the spread of a metric over clients, and over numbers of particles."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pacbayes_fl.errors import StudyError, counted, kinds_checked, listed
from pacbayes_fl.names import shortened
from pacbayes_fl.plots.style import (
    CYCLE,
    GROUP_COLOURS,
    INK,
    NothingToDrawError,
    joint_title,
    left_out,
    metric_label,
    panels,
    run_title,
    seed_count,
)
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.comparison import direction
from pacbayes_fl.results.grouping import by_settings, distinct
from pacbayes_fl.results.metrics import box_columns, headline_column
from pacbayes_fl.results.records import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


PARTICLES = ("method.particles", "particles")
"""Settings by which runs of a line of `particle_ablation` differ: as studies have it, and as labels alone do."""

_FEW = 5  # clients, of which quartiles say nothing
_NAMED = 2  # outliers of a box
_APART = 0.12  # of the range, that two names need


@kinds_checked
def box_plots(results: Sequence[Result], metrics: Sequence[str] | None = None) -> Figure:
    """Draw the spread of metrics over clients, method beside method (PAC-PFL, Figure 2).

    A box holds the middle half of the clients, the line is the median, whiskers reach to the last client within 1.5
    box lengths, and every client is a point. Runs that differ in nothing but their seed share a box.

    Args:
        results: finished runs; those without any of the metrics are named in the legend.
        metrics: names of metrics of the clients' rows, one row of panels each; by default RSMSE and calibration error,
            or accuracies and expected calibration error, as far as some client has them, or else the first two there
            are.

    Returns:
        A matplotlib figure, a column each for existing and for new clients; NaN is left out.

    Raises:
        NothingToDrawError: when there is no run, or no client of any run has one of the metrics.
        PacBayesFLError: when matplotlib is not installed.
    """
    if not results:
        raise NothingToDrawError("box plots need at least one result, got no result")
    results = distinct(results)
    known = [_drawable(result) for result in results]
    if metrics is None:
        metrics = _chosen(list(dict.fromkeys(name for names in known for name in names)))
    drawn = [result for result, names in zip(results, known, strict=True) if {*metrics} & {*names}]
    if not drawn:
        wanted = ", ".join(metrics or box_columns())
        raise NothingToDrawError(f"no client of the results has any of the metrics {wanted}")
    runs = by_settings(drawn, "\n")
    groups = [group for group in GROUPS if any(result.rows.size_of(group) for result in drawn)]
    sizes = {group: {name: _sizes(same, group) for name, same in runs.items()} for group in groups}
    alike = {group: len({*sizes[group].values()}) == 1 for group in groups}
    colours = [CYCLE[number % len(CYCLE)] for number in range(len(runs))]
    letters = max(len(line) for name in runs for line in name.split("\n"))
    width = min(9.0, max(3.0, 1.2 + max(0.75, 0.085 * min(letters, 14)) * len(runs)))
    with panels(len(metrics), len(groups), joint_title(drawn), width) as (figure, axes):
        for row, metric in zip(axes, metrics, strict=True):
            for axis, group in zip(row, groups, strict=True):
                names = {name: name if alike[group] else f"{name}\n({sizes[group][name]})" for name in runs}
                values = {names[n]: np.concatenate([_finite(r, group, metric) for r in runs[n]]) for n in runs}
                _boxes(axis, values, colours)
            filled = [axis for axis in row if axis.dataLim.height >= 0] or row  # of an empty one limits say nothing
            low, high = min(axis.get_ylim()[0] for axis in filled), max(axis.get_ylim()[1] for axis in filled)
            said = next((one for one, names in zip(results, known, strict=True) if metric in names), drawn[0])
            for axis in row:
                axis.set(ylim=(low, high), ylabel=_with_direction(metric, said))
        for top, bottom, group in zip(axes[0], axes[-1], groups, strict=True):
            count = f" ({next(iter(sizes[group].values())).rpartition(' ')[0]})" if alike[group] else ""
            top.set_title(f"{group} clients{count}, {seed_count(drawn)}")
            bottom.set_xlabel("method")
        if keys := left_out(results, drawn, listed(metrics, 2)):
            figure.legend(handles=keys, loc="outside lower center")
    return figure


def _sizes(results: Sequence[Result], group: str) -> str:
    """Count the clients of a group in runs that share a box: "24 clients", or "3 to 24 clients"."""
    counts = sorted({result.rows.size_of(group) for result in results})
    return f"{counts[0]} to {counts[-1]} clients" if len(counts) > 1 else counted(counts[0], "client")


def client_boxes(result: Result) -> Figure:
    """Draw the spread of a run's own metrics over its existing and its new clients.

    The metrics and the boxes are those of `box_plots`.

    Args:
        result: a finished run.

    Returns:
        A matplotlib figure with a panel a metric.

    Raises:
        NothingToDrawError: when the clients have no finite metrics.
        PacBayesFLError: when matplotlib is not installed.
    """
    counts = {group: result.rows.size_of(group) for group in GROUPS}
    groups = [group for group, count in counts.items() if count]
    metrics = _chosen(_drawable(result))
    if not metrics:
        raise NothingToDrawError("the result holds no metrics of clients")
    with panels(1, len(metrics), run_title(result), 3.0) as (figure, axes):
        for axis, metric in zip(axes[0], metrics, strict=True):
            columns = {
                f"{group}\n({counted(counts[group], 'client')})": _finite(result, group, metric) for group in groups
            }
            _boxes(axis, columns, [GROUP_COLOURS[group] for group in groups])
            _name_far(axis, result, groups, metric)
            axis.set(ylabel=_with_direction(metric, result), xlabel="group of clients")
    return figure


@kinds_checked
def particle_ablation(results: Sequence[Result], metric: str | None = None, group: str = "existing") -> Figure:
    """Draw a metric against the number of SVGD particles (PAC-PFL, Figure 3).

    A point is the mean over seeds of the mean over clients; the bar is one sample standard deviation over seeds,
    and is not there where a point has one seed alone.

    Args:
        results: finished runs that differ in their seed and in `labels["particles"]`; one line a study, and a
            method where there are several. Runs that differ in more have lines of their own, which say in what.
        metric: name of the metric; the headline of the results' task when None.
        group: "existing" or "new".

    Returns:
        A matplotlib figure.

    Raises:
        StudyError: when a result does not say how many particles it has.
        NothingToDrawError: when no client of the group has the metric.
        PacBayesFLError: when matplotlib is not installed.
    """
    several = len({result.method for result in results}) > 1
    metric = metric or headline_column(results[0].task if results else "regression")
    for result in results:
        if "particles" not in result.labels:
            raise StudyError(f'the result of {result.study}, seed {result.seed}, has no labels["particles"]')
    scores: dict[str, dict[int, list[float]]] = {}
    drawn = [result for result in distinct(results) if _finite(result, group, metric).size]
    for name, same in by_settings(drawn, without=PARTICLES).items():
        words = name.removeprefix(same[0].method).removeprefix(", ").removeprefix(same[0].study).removeprefix(", ")
        line = ", ".join([*([same[0].method] if several else []), same[0].study, *([words] if words else [])])
        for result in same:
            by_count = scores.setdefault(line, {})
            by_count.setdefault(int(result.labels["particles"]), []).append(
                float(_finite(result, group, metric).mean())
            )
    if not scores:
        raise NothingToDrawError(f"no {group} client of the results has the metric {metric}")
    counts = sorted({count for by_count in scores.values() for count in by_count})
    with panels(1, 1, f"number of particles, {group} clients", 4.2, 3.0) as (figure, axes):
        axis: Axes = axes[0, 0]
        for number, (line, by_count) in enumerate(scores.items()):
            x = sorted(by_count)
            mean = [statistics.fmean(by_count[count]) for count in x]
            std = [statistics.stdev(by_count[count]) if len(by_count[count]) > 1 else math.nan for count in x]
            axis.errorbar(x, mean, std, fmt="o-", capsize=3, color=CYCLE[number % len(CYCLE)], label=line)
        axis.set(xlabel="particles", ylabel=metric_label(metric, drawn[0]), xticks=counts)
        seeds = {len(runs) for by_count in scores.values() for runs in by_count.values()}
        trials = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else f"{max(seeds)}"
        axis.set_title("one seed" if seeds == {1} else f"mean ± standard deviation over {trials} seeds")
        axis.legend()
        if keys := left_out(results, drawn, metric):
            figure.legend(handles=keys, loc="outside lower center")
    return figure


def _drawable(result: Result) -> list[str]:
    """Return the metrics that are a number for some client."""
    return [name for name in result.metrics if any(_finite(result, group, name).size for group in GROUPS)]


def _chosen(drawable: Sequence[str]) -> list[str]:
    """Return the metrics that are drawn when nobody asks for others."""
    return [name for name in box_columns() if name in drawable] or list(drawable[:2])


def _finite(result: Result, group: str, metric: str) -> npt.NDArray[np.float64]:
    """Return a metric of a group's clients, without those that have none."""
    values = np.array(result.rows.column(group, metric), dtype=np.float64)
    return values[np.isfinite(values)]


def _with_direction(metric: str, result: Result) -> str:
    """Name a metric for an axis, and say which end is the good one."""
    better = direction(metric, result)
    return f"{metric_label(metric, result)}\n({better} is better)" if better else metric_label(metric, result)


def _name_far(axis: Axes, result: Result, groups: Sequence[str], metric: str) -> None:
    """Name the clients that lie furthest beyond the whiskers of each box."""
    for place, group in enumerate(groups, 1):
        names = result.rows.names(group)
        values = np.array(result.rows.column(group, metric), dtype=np.float64)
        finite = values[np.isfinite(values)]
        if finite.size < _FEW:
            continue
        first, third = np.quantile(finite, [0.25, 0.75])
        beyond = np.fmax(first - values, values - third) - 1.5 * (third - first)
        far = np.argsort(-np.nan_to_num(beyond, nan=-np.inf, posinf=-np.inf))[:_NAMED].tolist()
        far = sorted((at for at in far if math.isfinite(values[at]) and beyond[at] > 0), key=lambda at: -values[at])
        near = bool(far) and values[far[0]] - values[far[-1]] < _APART * float(np.ptp(finite))
        for one in [far] if near else [[at] for at in far]:  # side by side they would lie over one another
            text, height = "\n".join(shortened(names[at], 16) for at in one), float(np.mean(values[one]))
            axis.annotate(text, (place + 0.34, height), fontsize=6, color=INK, va="center")


def _boxes(axis: Axes, columns: Mapping[str, npt.NDArray[np.float64]], colours: Sequence[str]) -> None:
    position = np.arange(1, len(columns) + 1)
    parts = axis.boxplot(
        [values if values.size >= _FEW else [] for values in columns.values()],  # of few clients points alone
        positions=position,
        widths=0.6,
        showfliers=False,
        patch_artist=True,
        medianprops={"color": INK, "linewidth": 1.6},
        whiskerprops={"color": INK},
        capprops={"color": INK},
    )
    for centre, box, values, colour in zip(position, parts["boxes"], columns.values(), colours, strict=True):
        box.set(facecolor=(colour, 0.35), edgecolor=colour)
        beside = centre + 0.36 * (np.arange(values.size) * 0.618034 % 1 - 0.5)  # spread, the same every time
        axis.plot(beside, values, "o", color=colour, markersize=2.6, alpha=0.75, markeredgewidth=0)
    longest = max(len(line) for name in columns for line in name.split("\n"))
    axis.set_xticks(position, list(columns), rotation=25 if longest > 9 and len(columns) > 2 else 0)
    axis.grid(visible=False, axis="x")
    axis.set_xlim(0.4, len(columns) + 0.6)
