"""A comparison at a glance: methods side by side, each metric with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from pacbayes_fl.errors import kinds_checked, listed
from pacbayes_fl.plots.style import (
    CYCLE,
    FAINT,
    INK,
    NothingToDrawError,
    joint_title,
    left_out,
    metric_label,
    panels,
    seed_count,
)
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.comparison import Cell, compared_columns, direction, table
from pacbayes_fl.results.grouping import distinct
from pacbayes_fl.results.records import Result

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW = 0.28  # inches of a method
_LINE = 0.14  # inches of each further line of its name
_NAME = 26  # letters of a line


@kinds_checked
def interval_plot(results: Sequence[Result], metrics: Sequence[str] | None = None) -> Figure:
    """Draw the mean of each method with its 95 % bootstrap interval, a row of panels per metric.

    A diamond is the mean over clients and seeds, the bar its interval over both, and a bar across it the median. Runs
    that differ in nothing but their seed share a line.

    Args:
        results: finished runs; those without any of the metrics are named in the legend.
        metrics: names of metrics of the clients' rows; those that a table of the first run has when None.

    Returns:
        A matplotlib figure, a column each for existing and for new clients; what is not finite is left out.

    Raises:
        NothingToDrawError: when no client of the results has one of the metrics.
        PacBayesFLError: when matplotlib is not installed.
    """
    results = distinct(results)
    wanted = compared_columns(results[0]) if results and metrics is None else metrics or ()
    cells = [cell for cell in table(results, wanted) if math.isfinite(cell.mean)] if results else []
    if not cells:
        raise NothingToDrawError(f"no client of the results has any of the metrics {', '.join(wanted)}")
    groups = [group for group in GROUPS if any(cell.group == group for cell in cells)]
    shown = [metric for metric in wanted if any(cell.metric == metric for cell in cells)]
    methods = list(dict.fromkeys(cell.method for cell in cells))
    names = [fill(method, _NAME) for method in methods]
    height = 0.9 + _ROW * len(methods) + _LINE * sum(name.count("\n") for name in names)
    drawn = [one for one in results if any(_has(one, group, metric) for group in groups for metric in shown)]
    with panels(len(shown), len(groups), joint_title(drawn), 4.2, height) as (figure, axes):
        for row, metric in zip(axes, shown, strict=True):
            for axis, group in zip(row, groups, strict=True):
                _lines(axis, [cell for cell in cells if (cell.metric, cell.group) == (metric, group)], methods)
                better = direction(metric, drawn[0])
                text = f"; {better} is better" if better else ""
                axis.set(xlabel=f"{metric_label(metric, drawn[0])}{text}", ylabel="method")
        for top, group in zip(axes[0], groups, strict=True):
            top.set_title(f"{group} clients, {seed_count(drawn)}")
        keys = [*_key(), *left_out(results, drawn, listed(wanted, 2))]
        figure.legend(handles=keys, loc="outside lower center", ncols=3 if len(keys) == 3 else 2)
    return figure


def _has(result: Result, group: str, metric: str) -> bool:
    return any(map(math.isfinite, result.rows.column(group, metric)))


def _key() -> list[Artist]:
    """Return the entries of the legend that all panels share; the colour of a line says its method."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=FAINT, marker="D", linestyle="", label="mean"),
        Line2D([], [], color=FAINT, label="95 % interval of the mean"),
        Line2D([], [], color=INK, marker="|", markersize=9, linestyle="", label="median over clients and seeds"),
    ]


def _lines(axis: Axes, cells: Sequence[Cell], methods: Sequence[str]) -> None:
    for cell in cells:
        place = methods.index(cell.method)
        colour = CYCLE[place % len(CYCLE)]
        ends = np.array([[cell.mean - cell.low], [cell.high - cell.mean]])
        bars = np.maximum(ends, 0.0) if np.isfinite(ends).all() else None
        axis.errorbar([cell.mean], [place], xerr=bars, fmt="D", capsize=3, color=colour)
        if math.isfinite(cell.median):
            axis.plot([cell.median], [place], "|", color=INK, markersize=9)
    axis.set_yticks(range(len(methods)), [fill(method, _NAME) for method in methods])
    axis.set_ylim(len(methods) - 0.4, -0.6)  # in the order of the table
    axis.grid(visible=False, axis="y")
