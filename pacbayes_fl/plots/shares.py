"""Where test rows fall in their predictions: histograms of F(y), and how often intervals hold, by rows and clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pacbayes_fl.plots.style import FAINT, GROUP_COLOURS, NothingToDrawError, count_whole, panels, run_title
from pacbayes_fl.results.calibration import Shares, coverage_by, coverage_by_client, pit_histogram
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.recorded import with_unit
from pacbayes_fl.results.records import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAND = "95 % band of a right predictive\n(all parts at once, rows independent)"


def pit_histograms(result: Result) -> Figure:
    """Draw where targets fall in their predictive distributions, F(y) by equal bins (Gneiting et al. 2007).

    Bars that rise at both ends say that predictions are too sure, a hump in the middle that they are not sure enough,
    and a slope that their means are off. Rows of a series depend on one another, and leave the band more often.

    Args:
        result: a finished run with predictions.

    Returns:
        A matplotlib figure with a panel for existing and for new clients.

    Raises:
        NothingToDrawError: when the result holds no predictive probabilities of test rows.
        PacBayesFLError: when matplotlib is not installed.
    """
    shown = {group: shares for group in GROUPS if (shares := pit_histogram(result, group)) is not None}
    if not shown:
        raise NothingToDrawError("the result holds no predictive probabilities (pit) of test rows")
    with panels(1, len(shown), _title(result), 3.6, 3.0) as (figure, axes):
        for axis, (group, one) in zip(axes[0], shown.items(), strict=True):
            width = one.high - one.low
            edges = np.append(one.low, one.high[-1])
            low, high = np.append(one.band, one.band[:, -1:], axis=1)
            axis.fill_between(edges, low, high, step="post", color=FAINT, alpha=0.35, linewidth=0, label=_BAND)
            axis.bar(one.low, one.share, width, align="edge", color=(GROUP_COLOURS[group], 0.55))
            axis.axhline(one.expected, color=FAINT, linestyle="--", linewidth=1.0)
            axis.set(xlabel="predictive probability F(y)", ylabel="share of test rows", xlim=(0, 1))
            axis.set_title(f"{group} clients, {one.rows[0]} rows")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center")
    return figure


def coverage(result: Result) -> Figure:
    """Draw how often 95 % intervals hold, by the column that `report.coverage_by` names, and by client.

    Args:
        result: a finished run with predictions.

    Returns:
        A matplotlib figure with a column for existing and for new clients.

    Raises:
        NothingToDrawError: when the result holds no intervals of test rows.
        PacBayesFLError: when matplotlib is not installed.
    """
    groups = [group for group in GROUPS if coverage_by_client(result, group) is not None]
    if not groups:
        raise NothingToDrawError("the result holds no intervals (lower, upper) of test rows")
    said = result.labels.get("coverage_by")
    by_column = [] if said is None else [(coverage_by, with_unit(str(said["name"]), str(said["unit"])))]
    rows = [*by_column, (coverage_by_client, "clients, by coverage")]
    with panels(len(rows), len(groups), _title(result), 3.6, 2.8) as (figure, axes):
        for line, (of, label) in zip(axes, rows, strict=True):
            for axis, group in zip(line, groups, strict=True):
                one = of(result, group)
                if one is not None:
                    _draw(axis, one, GROUP_COLOURS[group])
                axis.set(xlabel=label, ylabel="share of rows in 95 % intervals")
        for axis, group in zip(axes[0], groups, strict=True):
            axis.set_title(f"{group} clients")
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _draw(axis: Axes, one: Shares, colour: str) -> None:
    """Draw shares with what would be seen if intervals held as often as they say."""
    known = one.rows > 0
    share, low, high = one.share[known], *one.band[:, known]
    if one.names:
        order = np.argsort(share, kind="stable")
        share, low, high, x = share[order], low[order], high[order], np.arange(1.0, share.size + 1)
        count_whole(axis.xaxis)
    else:
        x = (one.low[known] + one.high[known]) / 2
    axis.axhline(one.expected, color=FAINT, linestyle="--", linewidth=1.0)
    axis.vlines(x, low, high, color=FAINT, alpha=0.45, linewidth=4.0, label=_BAND)
    axis.plot(x, share, "o", color=colour, zorder=3, label="seen")
    axis.set_ylim(max(0.0, min(0.8, float(share.min()) - 0.05)), 1.01)


def _title(result: Result) -> str:
    return f"{run_title(result)}, round {result.round}"
