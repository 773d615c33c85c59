"""The forecasts of one client: mean, 95 % interval, training and test rows."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pacbayes_fl.errors import counted
from pacbayes_fl.names import shortened
from pacbayes_fl.pages import axis
from pacbayes_fl.pages.axis import Array
from pacbayes_fl.pages.chart import Chart
from pacbayes_fl.pages.markup import Element
from pacbayes_fl.results.moments import Moments, array, drawn_before, of_group
from pacbayes_fl.results.recorded import with_unit
from pacbayes_fl.results.records import Result

_ROWS: Final = 24_000  # of all drawings of a page together, which keeps it below 3 MB
_MOST, _LEAST = 400, 24  # of one drawing
_DRAWN: Final = 600  # clients of a page
_NAME: Final = 60
_WIDE: Final = 4.0  # spreads of the targets that intervals may reach beyond them on the axis


class Rows(NamedTuple):
    """Predictions of a group, and what they are drawn against.

    Args:
        moments: the horizontal axis.
        train: y [K, N].
        has_train: bool [K, N].
        y: test targets [K, M].
        real: bool [K, M].
        mean: predicted [K, M].
        lower: end of the 95 % interval [K, M].
        upper: its other end [K, M].
    """

    moments: Moments
    train: Array
    has_train: Array
    y: Array
    real: Array
    mean: Array
    lower: Array
    upper: Array


def rows_of(result: Result, group: str) -> Rows | None:
    """Take what the forecasts of a group are drawn from.

    Args:
        result: a finished run of regression.
        group: "existing" or "new".

    Returns:
        The arrays; None where the run keeps no predictions.
    """
    names = ("y_train", "mask_train", "y_test", "mask_test", "mean", "lower", "upper")
    arrays = [array(result, f"{group}.{name}") for name in names]
    moments = of_group(result, group)
    if moments is None or not all(one is not None for one in arrays):
        return None
    return Rows(moments, *(one for one in arrays if one is not None))


def target_label(result: Result) -> str:
    """Name the target with its unit.

    Args:
        result: a finished run.

    Returns:
        Such as "power (kW)".
    """
    return with_unit(str(result.labels.get("target_name", "y")), str(result.labels.get("target_unit", "")))


def drawn_clients(share: float = 1.0) -> int:
    """Give how many clients a page has drawings of.

    Args:
        share: of what a page may hold.

    Returns:
        The number.
    """
    return max(1, int(_DRAWN * share))


def rows_each(clients: int, share: float = 1.0) -> int:
    """Give how many test rows of each client are drawn, so that the page stays small.

    Args:
        clients: that have a drawing.
        share: of what a page may hold.

    Returns:
        The number.
    """
    return max(_LEAST, min(_MOST, int(_ROWS * share) // max(1, clients)))


def forecast(result: Result, rows: Rows, at: int, name: str, most: int) -> Element | None:
    """Draw a client's forecasts in the data's own units.

    Args:
        result: a finished run.
        rows: of its group.
        at: position of the client in its group.
        name: of the client.
        most: test rows that are drawn.

    Returns:
        A <figure>; None of a client without test rows.
    """
    moments, real = rows.moments, np.flatnonzero(rows.real[at])
    if not real.size:
        return None
    kept = real[np.argsort(moments.test[at, real], kind="stable")]
    cut = kept.size - most
    if cut > 0 and moments.series:
        kept = kept[:most]
    elif cut > 0:  # the whole range of a feature, evenly
        kept = kept[np.unique(np.linspace(0, kept.size - 1, most).round().astype(int))]
    x, y, mean = moments.test[at, kept], rows.y[at, kept], rows.mean[at, kept]
    low, high = rows.lower[at, kept], rows.upper[at, kept]
    own = np.flatnonzero(rows.has_train[at])
    x_train, y_train = moments.train[at, own], rows.train[at, own]
    if moments.kind == "order":
        x_train = np.arange(-own.size, 0.0)
    near = drawn_before(x_train, x) if moments.series else np.ones(own.size, dtype=bool)
    x_train, y_train = x_train[near][-most:], y_train[near][-most:]
    points = np.concatenate([y, y_train, mean[np.isfinite(mean)]])
    spread = max(float(np.ptp(points)), 1e-12)
    reach = (points.min() - _WIDE * spread, points.max() + _WIDE * spread)
    beyond = int(((low < reach[0]) | (high > reach[1])).sum())
    ends = np.clip(np.concatenate([low, high])[np.isfinite(np.concatenate([low, high]))], *reach)
    held, known = int(((low <= y) & (y <= high)).sum()), int((np.isfinite(low) & np.isfinite(high)).sum())
    says = f"{held} of {known} test targets lie in their 95 % interval."
    y_axis = axis.linear(target_label(result), np.concatenate([points, ends]))
    every_x = np.concatenate([x, x_train])
    clock = moments.kind == "clock"
    x_axis = axis.times(moments.label, every_x, moments.zone) if clock else axis.linear(moments.label, every_x)
    title = f"Forecasts of {shortened(name, _NAME)}"
    chart = Chart(title, x_axis, y_axis, f"Against {moments.label}: {says}", wide=720, high=260)
    broken = _broken(moments.gaps(x), x, mean, low, high)
    chart.band(broken[0], broken[2], broken[3], "s1", "95 % interval")
    chart.line(broken[0], broken[1], "s1", "predicted mean")
    chart.dots(x_train, y_train, "s2", "training rows")
    chart.dots(x, y, "ink", "test rows")
    chart.note(says)
    if cut > 0:
        which = "the first" if moments.series else "every n-th, in order of x:"
        chart.note(f"Drawn: {which} {kept.size} of {real.size} test rows, as the page holds no more.")
    if near.size and not x_train.size:
        chart.note(f"Training rows: none of {near.size} is drawn, as all are long before the test rows.")
    elif near.size > x_train.size:
        chart.note(f"Training rows: the last {x_train.size} of {near.size} are drawn.")
    if beyond:
        chart.note(f"The interval of {counted(beyond, 'row')} reaches beyond the axis.")
    return chart.figure()


def _broken(gaps: npt.NDArray[np.bool_], *lines: Array) -> list[Array]:
    """Put NaN where rows are missing, so that no line is drawn across."""
    places = np.flatnonzero(gaps) + 1
    return [np.insert(one.astype(np.float64), places, np.nan) for one in lines]
