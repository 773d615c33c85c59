"""Whether predictive distributions of numbers come true: quantile levels and the histogram of F(y)."""

from __future__ import annotations

from typing import Final

import numpy as np

from pacbayes_fl.pages import axis
from pacbayes_fl.pages.chart import Chart
from pacbayes_fl.pages.markup import Element, figures, number, section, tag
from pacbayes_fl.results.calibration import coverage_by_client, pit_histogram, rows_below
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.metrics import CALIBRATION_ERROR
from pacbayes_fl.results.records import Result

_LEVELS: Final = 21


def calibration(result: Result) -> Element | None:
    """Make the section of calibration.

    Args:
        result: a finished run of regression.

    Returns:
        The section; None where no predictive probabilities are kept.
    """
    drawn = [one for group in GROUPS for one in (_levels(result, group), _histogram(result, group)) if one is not None]
    if not drawn:
        return None
    text = (
        "Of targets that lie below the predicted quantile of a level, as many as the level says should. A line flatter "
        "than the diagonal in the middle says that predictions are too sure; so do bars that rise at both ends. A hump "
        "in the middle says that they are not sure enough."
    )
    return section("calibration", "Calibration", tag("p", text), figures(drawn, pairs=True))


def _levels(result: Result, group: str) -> Element | None:
    """Observed against predicted quantile levels, of all rows and of the middle 90 % of clients."""
    level = np.linspace(0.0, 1.0, _LEVELS)
    rows, below = rows_below(result, group, level)
    if not rows.any():
        return None
    clients, pooled = int((rows > 0).sum()), below.sum(1) / rows.sum()
    distance, spread = 0.0, np.empty((2, _LEVELS))
    for at, counts in enumerate(below):
        each = counts[rows > 0] / rows[rows > 0]
        distance += float(np.abs(each - level[at]).mean())
        spread[:, at] = np.quantile(each, [0.05, 0.95])
    says = f"Mean distance from the diagonal over clients, at {_LEVELS} levels: {distance / _LEVELS:.3f}."
    scores = np.array(result.column(group, CALIBRATION_ERROR), dtype=np.float64)
    if np.isfinite(scores).any():  # the same idea at the study's own levels, which the table of results has
        error = number(float(scores[np.isfinite(scores)].mean()))
        says = f"Calibration error {error}, as in the results: clients' mean distance from the diagonal, averaged."
    title = f"Calibration, {group} clients ({clients})"
    ends = (axis.fixed("predicted quantile level", 0, 1), axis.fixed("share of targets below", 0, 1))
    chart = Chart(title, *ends, says, 360, 330)
    if clients > 1:
        chart.band(level, spread[0], spread[1], "s1", "middle 90 % of clients")
    chart.line(np.array([0.0, 1.0]), np.array([0.0, 1.0]), "faint", "perfect calibration")
    chart.line(level, pooled, "s1", f"all {rows.sum()} test rows")
    chart.note(says)
    return chart.figure()


def _histogram(result: Result, group: str) -> Element | None:
    one = pit_histogram(result, group)
    if one is None:
        return None
    low, high = one.band
    share = axis.linear("share of test rows", np.append(one.share, high), zero=True)
    outside = int(((one.share < low) | (one.share > high)).sum())
    says = f"{outside} of {one.share.size} bars leave the 95 % band of a right predictive."
    title = f"Where targets fall, {group} clients"
    chart = Chart(title, axis.fixed("predictive probability F(y)", 0, 1), share, says, 360, 330)
    chart.bars(one.low, one.high, one.share, "s1", "test rows")
    edges = np.append(one.low, one.high[-1])
    for end, key in ((low, "95 % band of a right predictive, rows independent"), (high, "")):
        chart.steps(edges, end, "ink", key)
    chart.note(says)
    return chart.figure()


def lowest_coverage(result: Result, group: str) -> dict[str, tuple[float, bool]]:
    """Give the share of every client's test rows that lie in their 95 % interval.

    Args:
        result: a finished run.
        group: "existing" or "new".

    Returns:
        By name of client the share, and whether it lies below what chance leaves to right intervals.
    """
    one = coverage_by_client(result, group)
    if one is None:
        return {}
    lines = zip(one.names, one.share.tolist(), one.band[0].tolist(), one.rows.tolist(), strict=True)
    return {name: (share, share < low) for name, share, low, rows in lines if rows}
