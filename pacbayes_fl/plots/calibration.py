"""Whether probabilities come true: empirical frequency against confidence level."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pacbayes_fl.plots.style import FAINT, GROUP_COLOURS, NothingToDrawError, panels, predicted, run_title
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.records import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Array = npt.NDArray[np.float64]


def calibration_curve(result: Result, count: int = 20) -> Figure:
    """Draw observed against nominal frequencies of targets below predicted quantiles (PAC-PFL, eq. 41).

    The line pools the test rows of all clients of a group; the band covers the middle 90 % of the clients, each on its
    own rows, and is wide where clients have few of them. A line that is flatter than the diagonal in the middle says
    that predictions are too sure.

    Args:
        result: a finished run with predictions.
        count: equally spaced levels from 0 to 1.

    Returns:
        A matplotlib figure with a panel for existing and for new clients.

    Raises:
        NothingToDrawError: when the result holds no predictive probabilities of test rows.
        PacBayesFLError: when matplotlib is not installed.
    """
    level = np.linspace(0.0, 1.0, count)
    shares = {group: _frequencies(result, group, level) for group in GROUPS}
    shown = {group: share for group, share in shares.items() if share is not None}
    if not shown:
        raise NothingToDrawError("the result holds no predictive probabilities (pit) of test rows")
    title = f"{run_title(result)}, round {result.round}"
    with panels(1, len(shown), title, 3.4, 3.2) as (figure, axes):
        for axis, (group, (pooled, each)) in zip(axes[0], shown.items(), strict=True):
            _curve(axis, level, pooled, each, GROUP_COLOURS[group])
            axis.set_title(f"{group} clients ({each.shape[0]})")
    return figure


def _frequencies(result: Result, group: str, level: Array) -> tuple[Array, Array] | None:
    """Return frequencies at the levels [H] of all rows [H], and of each client that has rows [k, H]."""
    arrays = predicted(result, group, "pit", "mask_test")
    if not arrays:
        return None
    pit = arrays["pit"]
    mask = arrays["mask_test"] & np.isfinite(pit)  # a predictor without a distribution has no pit
    below = ((pit[:, None] <= level[:, None]) & mask[:, None]).sum(2)  # [K, H]
    rows = mask.sum(1)
    if not rows.any():
        return None
    return below.sum(0) / rows.sum(), below[rows > 0] / rows[rows > 0, None]


def _curve(axis: Axes, level: Array, pooled: Array, each: Array, colour: str) -> None:
    axis.plot([0, 1], [0, 1], "--", color=FAINT, linewidth=1.0, label="perfect calibration")
    if each.shape[0] > 1:
        low, high = np.quantile(each, [0.05, 0.95], axis=0)
        axis.fill_between(level, low, high, color=colour, alpha=0.18, linewidth=0, label="90 % of clients")
    axis.plot(level, pooled, "o-", color=colour, markersize=3, clip_on=False, zorder=3, label="all test rows")
    error = np.abs(each - level).mean(1)
    axis.text(0.97, 0.04, f"mean CE over clients {error.mean():.3f}", transform=axis.transAxes, ha="right", fontsize=8)
    axis.set(
        xlabel="predicted quantile level", ylabel="share of targets below", xlim=(0, 1), ylim=(0, 1), aspect="equal"
    )
    axis.legend(loc="upper left")
