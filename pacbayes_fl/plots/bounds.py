"""A bound against the number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pacbayes_fl.errors import ShapeError, kinds_checked
from pacbayes_fl.plots.style import BLUE, FAINT, NothingToDrawError, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@kinds_checked
def bound_curve(n: Sequence[float], bounds: Sequence[float], title: str, risk: float | None = None) -> Figure:
    """Draw a bound against the number of rows, all its other numbers the same.

    Args:
        n: numbers of rows.
        bounds: one for each, in the unit of the loss; NaN where there is no certificate.
        title: of the figure.
        risk: empirical risk, as a line.

    Returns:
        A matplotlib figure.

    Raises:
        NothingToDrawError: when no bound is finite.
        ShapeError: when there are more numbers of rows than bounds, or fewer.
        PacBayesFLError: when matplotlib is not installed.

    Example:
        >>> from pacbayes_fl import bounds, plots
        >>> premises, n = bounds.Premises(bounds.Provenance("split"), independent=True), [1e3, 1e4, 1e5]
        >>> table = bounds.sweep("seeger", risk=0.03, kl=50.0, n=n, delta=0.05, premises=premises)
        >>> figure = plots.bound_curve(n, table.values.tolist(), "Seeger", risk=0.03)
        >>> figure.axes[0].get_xlabel(), figure.axes[0].get_xscale()
        ('rows n', 'log')
    """
    if len(n) != len(bounds):
        raise ShapeError(f"bounds must be one for each of the {len(n)} numbers of rows n, got {len(bounds)}")
    order = np.argsort(n)
    x, y = np.asarray(n, float)[order], np.asarray(bounds, float)[order]
    if not np.isfinite(y).any():
        raise NothingToDrawError("none of the bounds is a certificate")
    with panels(1, 1, title, 4.6, 3.2) as (figure, axes):
        axis = axes[0, 0]
        axis.plot(x, y, "o-", color=BLUE, label="bound")
        if risk is not None:
            axis.axhline(risk, color=FAINT, linestyle="--", label="empirical risk")
        if x[-1] > 20 * x[0]:
            axis.set_xscale("log")
        axis.set(xlabel="rows n", ylabel="risk at most")
        axis.legend()
    return figure
