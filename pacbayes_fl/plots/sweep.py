"""A metric against the values of one setting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pacbayes_fl.errors import StudyError, kinds_checked
from pacbayes_fl.plots.style import (
    CYCLE,
    NothingToDrawError,
    joint_title,
    left_out,
    metric_label,
    panels,
    seed_count,
)
from pacbayes_fl.results.bootstrap import nested_bootstrap
from pacbayes_fl.results.grouping import by_settings, distinct
from pacbayes_fl.results.metrics import headline_column
from pacbayes_fl.results.records import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@kinds_checked
def sweep_curve(results: Sequence[Result], metric: str | None = None, group: str = "existing") -> Figure:
    """Draw a metric against the value that was varied (FedSI, Figures 3 and 6; PAC-PFL, Figure 3), a line per method.

    A point is the mean over seeds and clients, the bar its 95 % bootstrap interval. Values that are not all numbers
    stand side by side in their order.

    Args:
        results: finished runs; those whose labels say what was varied are drawn.
        metric: name of the metric; the headline of the results' task when None.
        group: "existing" or "new".

    Returns:
        A matplotlib figure.

    Raises:
        StudyError: when several keys were varied.
        NothingToDrawError: when no result has a value that was varied, a client of the group and the metric.
        PacBayesFLError: when matplotlib is not installed.
    """
    chosen = metric or headline_column(results[0].task if results else "regression")
    curves: dict[str, dict[Any, list[list[float]]]] = {}
    results = distinct(results)
    drawn = [one for one in results if "varied" in one.labels and _finite(one, group, chosen)]
    keys = list(dict.fromkeys(str(result.labels["varied"]["key"]) for result in drawn))
    for name, same in by_settings(drawn, without=keys).items():
        for result in same:
            about = result.labels["varied"]
            value = about["value"] if isinstance(about["value"], int | float) else str(about["value"])
            curves.setdefault(name, {}).setdefault(value, []).append(_finite(result, group, chosen))
    if not curves:
        raise NothingToDrawError(f"no {group} client of the results has {chosen} at a value that was varied")
    if len(keys) > 1:
        raise StudyError(f"the results vary different values: {', '.join(keys)}", hint="draw those of one comparison")
    values = list(dict.fromkeys(value for by_value in curves.values() for value in by_value))
    numeric = not any(isinstance(value, str) for value in values)
    place = {value: value if numeric else number for number, value in enumerate(values)}
    with panels(1, 1, joint_title(drawn), 4.6, 3.2) as (figure, axes):
        axis: Axes = axes[0, 0]
        for number, (method, by_value) in enumerate(curves.items()):
            order = sorted(by_value, key=place.__getitem__)
            mean, low, high = np.array([nested_bootstrap(by_value[value]) for value in order]).T
            where, colour = [place[value] for value in order], CYCLE[number % len(CYCLE)]
            bars = np.maximum([mean - low, high - mean], 0.0)  # of one number, up to rounding
            axis.errorbar(where, mean, bars, fmt="o-", capsize=3, color=colour, label=method)
        if numeric and 0 < 20 * min(values) < max(values):
            axis.set_xscale("log")
            axis.minorticks_off()
        axis.set(xlabel=keys[0].rpartition(".")[2].replace("_", " "), ylabel=metric_label(chosen, drawn[0]))
        axis.set(title=f"{group} clients, {seed_count(drawn)}: mean with 95 % interval")
        axis.set_xticks([place[value] for value in values], [str(value) for value in values])
        axis.legend()
        if keys_left := left_out(results, drawn, f"{chosen} at a value that was varied"):
            figure.legend(handles=keys_left, loc="outside lower center")
    return figure


def _finite(result: Result, group: str, metric: str) -> list[float]:
    return [value for value in result.rows.column(group, metric) if math.isfinite(value)]
