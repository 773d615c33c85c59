"""A comparison at a glance: methods side by side, each metric with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pacbayes_fl.errors import kinds_checked
from pacbayes_fl.plots.style import CYCLE, INK, NothingToDrawError, joint_title, metric_label, panels, seed_count
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.comparison import Cell, compared_columns, direction, table
from pacbayes_fl.results.records import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ROW = 0.28  # inches of a method


@kinds_checked
def interval_plot(results: Sequence[Result], metrics: Sequence[str] | None = None) -> Figure:
    """Draw the mean of each method with its 95 % bootstrap interval, a row of panels per metric.

    A diamond is the mean over clients and seeds, the bar its interval over both, and a bar across it the median. Runs
    that differ in nothing but their seed share a line.

    Args:
        results: finished runs.
        metrics: names of metrics of the clients' rows; those of a comparison's table when None.

    Returns:
        A matplotlib figure, a column each for existing and for new clients; what is not finite is left out.

    Raises:
        NothingToDrawError: when no client of the results has one of the metrics.
        PacBayesFLError: when matplotlib is not installed.
    """
    wanted = compared_columns(results[0]) if results and metrics is None else metrics or ()
    cells = [cell for cell in table(results, wanted) if math.isfinite(cell.mean)] if results else []
    if not cells:
        raise NothingToDrawError(f"no client of the results has any of the metrics {', '.join(wanted)}")
    groups = [group for group in GROUPS if any(cell.group == group for cell in cells)]
    shown = [metric for metric in wanted if any(cell.metric == metric for cell in cells)]
    methods = list(dict.fromkeys(cell.method for cell in cells))
    height = 0.9 + _ROW * len(methods)
    with panels(len(shown), len(groups), joint_title(results), 4.2, height) as (figure, axes):
        for row, metric in zip(axes, shown, strict=True):
            for axis, group in zip(row, groups, strict=True):
                _lines(axis, [cell for cell in cells if (cell.metric, cell.group) == (metric, group)], methods)
                better = direction(metric, results[0])
                text = f"; {better} is better" if better else ""
                axis.set(xlabel=f"{metric_label(metric, results[0])}{text}", ylabel="method")
        for top, group in zip(axes[0], groups, strict=True):
            top.set_title(f"{group} clients, {seed_count(results)}: mean with 95 % interval")
    return figure


def _lines(axis: Axes, cells: Sequence[Cell], methods: Sequence[str]) -> None:
    for cell in cells:
        place = methods.index(cell.method)
        colour = CYCLE[place % len(CYCLE)]
        ends = np.array([[cell.mean - cell.low], [cell.high - cell.mean]])
        bars = np.maximum(ends, 0.0) if np.isfinite(ends).all() else None
        axis.errorbar([cell.mean], [place], xerr=bars, fmt="D", capsize=3, color=colour)
        if math.isfinite(cell.median):
            axis.plot([cell.median], [place], "|", color=INK, markersize=9)
    axis.set_yticks(range(len(methods)), list(methods))
    axis.set_ylim(len(methods) - 0.4, -0.6)  # in the order of the table
    axis.grid(visible=False, axis="y")
