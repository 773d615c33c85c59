"""The table of results with intervals, and how clients spread: boxes with the names of those that lie apart."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from pacbayes_fl.errors import listed
from pacbayes_fl.names import shortened
from pacbayes_fl.pages import axis
from pacbayes_fl.pages.axis import Array
from pacbayes_fl.pages.chart import Chart
from pacbayes_fl.pages.markup import Element, figures, number, section, table, tag
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.comparison import direction, shown_columns, worst
from pacbayes_fl.results.metrics import PARTS, box_columns, is_raw, metric_of, run_columns
from pacbayes_fl.results.recorded import RECORDED, with_unit
from pacbayes_fl.results.records import Result, nested

_BETTER: Final = MappingProxyType({"lower": "lower is better", "higher": "higher is better", "": ""})
_DOTS: Final = 5_000  # clients that are points of a figure
_FEW: Final = 5  # clients, of which quartiles say nothing
_FAR: Final = 6.0  # box lengths from the box, beyond which a point would squash all others
_NAME: Final = 40


def label(column: str, result: Result) -> str:
    """Name a column of scores with its unit.

    Args:
        column: such as "pm.accuracy" or "rmse_raw".
        result: a finished run.

    Returns:
        Such as "accuracy, personal model".
    """
    *parts, name = column.split(".")
    metric = metric_of(column)
    if metric is None:
        text = with_unit(RECORDED[name].label, RECORDED[name].unit) if name in RECORDED else name
    elif is_raw(column) and metric.raw == "times unit":
        text = with_unit(
            metric.label,
            str(result.labels.get("target_unit", "")) or f"in units of {result.labels.get('target_name', 'y')}",
        )
    else:
        text = with_unit(metric.label, "nats per row, in the data's unit" if is_raw(column) else metric.unit)
    return ", ".join([text, *(PARTS.get(part, part) for part in parts)])


def better(column: str, result: Result | None = None) -> str:
    """Say which end of a column of scores is the good one.

    Args:
        column: its name.
        result: of a run, which knows its metrics of one's own.

    Returns:
        "lower is better", "higher is better", or nothing.
    """
    return _BETTER[direction(column, result)]


def results(result: Result) -> Element:
    """Make the section of results.

    Args:
        result: a finished run.

    Returns:
        A table of every group and metric, and boxes.
    """
    summary, lines, sizes = result.summary()["groups"], [], result.labels.get("group_sizes", {})
    for group, entry in summary.items():
        of = f" of {sizes[group]}" if group in sizes else ""
        for name in shown_columns(result):
            if (own := nested(entry, name)) is None:
                continue
            low, high = own["interval"]
            last = worst([result], group, name)
            lines.append(
                (
                    label(name, result),
                    f"{group} ({own.get('n_clients', entry['n_clients'])}{of})",
                    better(name, result) or "–",
                    number(own["mean"]),
                    f"{number(low)} to {number(high)}",
                    number(own["median"]),
                    f"{shortened(last.client, _NAME)}: {number(last.value)}" if last else "–",
                )
            )
    header = ("metric", "clients", "direction", "mean", "95 % interval of the mean", "median", "worst client")
    caption = "Mean over clients, who weigh alike; the interval is the bootstrap's, over clients"
    meanings = [
        tag("li", tag("strong", label(name, result)), f": {metric.meaning}.")
        for name in shown_columns(result)
        if (metric := metric_of(name)) is not None and not is_raw(name)
    ]
    return section(
        "results",
        "Results",
        table(caption, header, lines, numeric=(3, 4, 5)),
        tag("details", tag("summary", "What the metrics are"), tag("ul", *meanings)) if meanings else None,
        figures(spreads(result)),
    )


def spreads(result: Result) -> list[Element]:
    """Draw the spread of the main metrics over clients.

    Args:
        result: a finished run.

    Returns:
        A figure for every metric that some client has.
    """
    drawn = []
    for name in [one for one in (*box_columns(), *run_columns(result.task)[-1:]) if one in result.metrics]:
        lines = []
        for group in GROUPS:
            values = np.array(result.column(group, name), dtype=np.float64)
            names = result.rows.names(group)
            if known := int(np.isfinite(values).sum()):
                lines.append((f"{group} ({known})", values, names))
        if lines:
            drawn.append(boxes(label(name, result), better(name, result), lines))
    return drawn


def boxes(title: str, way: str, lines: Sequence[tuple[str, Array, Sequence[str]]]) -> Element:
    """Draw a box a line: the middle half, the median, whiskers to the last client within 1.5 boxes, and every client.

    Args:
        title: what is on the axis.
        way: which end is better.
        lines: the name of each, values [n] and who has them.

    Returns:
        A <figure>, whose notes name the clients beyond the whiskers.
    """
    known = [one[np.isfinite(one)] for _, one, _ in lines]
    ends = [_reach(one) for one in known]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    inside = np.clip(np.concatenate(known), low, high)
    x = axis.linear(f"{title} ({way})" if way else title, inside)
    y = axis.named("clients", [name for name, _, _ in lines])
    says = "; ".join(
        f"{name}: median {number(float(np.median(one)))}" for (name, _, _), one in zip(lines, known, strict=True)
    )
    chart = Chart(title, x, y, says, wide=420, high=60 + 44 * len(lines), names=True)
    for place, ((name, values, clients), one) in enumerate(zip(lines, known, strict=True)):
        at = float(place)
        if one.size >= _FEW:
            first, middle, third = np.quantile(one, [0.25, 0.5, 0.75])
            step = 1.5 * (third - first)
            whiskers = one[(one >= first - step) & (one <= third + step)]
            chart.spans(np.array([at]), whiskers.min(keepdims=True), whiskers.max(keepdims=True), "ink", upright=False)
            chart.mark(_box(chart, at, float(first), float(third), float(middle)))
        drawn = one if one.size <= _DOTS else one[np.linspace(0, one.size - 1, _DOTS).astype(int)]
        jitter = at + 0.28 * np.sin(2.4 * np.arange(drawn.size))
        cut = np.clip(drawn, low, high)
        chart.dots(cut, jitter, "s1")
        _name_far(chart, name, values, clients, (low, high))
    if any(one.size > _DOTS for one in known):
        chart.note(f"Of more than {_DOTS} clients as many are points, evenly in the order of the table.")
    if any(one.size < _FEW for one in known):
        chart.note(f"Fewer than {_FEW} clients are points alone.")
    return chart.figure()


def _box(chart: Chart, at: float, first: float, third: float, middle: float) -> list[Element]:
    top, foot = float(chart.py(at - 0.3)), float(chart.py(at + 0.3))
    left, right, centre = (float(chart.px(value)) for value in (first, third, middle))
    wide = round(max(right - left, 1.0), 1)
    box = tag("rect", x=round(left, 1), y=round(top, 1), width=wide, height=round(foot - top, 1), class_="box")
    return [box, tag("path", d=f"M{centre:.1f},{top:.1f}V{foot:.1f}", class_="line median")]


def _reach(values: Array) -> tuple[float, float]:
    """Between which values a box is drawn: all, but for points so far off that no other could be told apart."""
    first, third = np.quantile(values, [0.25, 0.75])
    far = _FAR * (third - first)
    if values.size < _FEW or far <= 0:
        return float(values.min()), float(values.max())
    return max(float(values.min()), float(first - far)), min(float(values.max()), float(third + far))


def _name_far(chart: Chart, line: str, values: Array, clients: Sequence[str], ends: tuple[float, float]) -> None:
    """Name who lies beyond the whiskers, and who beyond the axis."""
    finite = values[np.isfinite(values)]
    if finite.size < _FEW:
        return
    first, third = np.quantile(finite, [0.25, 0.75])
    step = 1.5 * (third - first)
    apart = np.flatnonzero((values < first - step) | (values > third + step))
    apart = apart[np.argsort(-np.abs(values[apart] - np.median(finite)), kind="stable")]
    said = [f"{shortened(clients[k], _NAME)} {number(values[k])}" for k in apart.tolist() if np.isfinite(values[k])]
    if said:
        chart.note(f"{line}, beyond the whiskers: {listed(said)}.")
    if count := int(((finite < ends[0]) | (finite > ends[1])).sum()):
        chart.note(f"{line}: {count} beyond the axis, drawn at its end.")
