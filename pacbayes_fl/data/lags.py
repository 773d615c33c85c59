"""Values of a client's past: at one time before, or on average over a while before."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64] | npt.NDArray[np.float64]


class Series(NamedTuple):
    """What is known of a column of a client.

    Args:
        times: increasing [n].
        values: finite [n].
    """

    times: Times
    values: Numbers

    @classmethod
    def of(cls, times: Times, values: Numbers) -> Series:
        """Sort values by time and leave out those that are missing; of one time the first counts.

        Args:
            times: [n].
            values: [n], NaN where missing.

        Returns:
            The series.
        """
        there = ~np.isnan(values)
        _, at = np.unique(times[there], return_index=True)
        return cls(times[there][at], values[there][at])


def lag(series: Series, times: Times, span: int) -> Numbers:
    """Look values up at t - span.

    Args:
        series: what is known.
        times: t, in any order [m].
        span: positive, in units of the times.

    Returns:
        [m], NaN where nothing is known at that time exactly.
    """
    if not len(series.times):
        return np.full(len(times), np.nan)
    wanted = times - span
    at = np.searchsorted(series.times, wanted).clip(max=len(series.times) - 1)
    return np.where(series.times[at] == wanted, series.values[at], np.nan)


def window(times: Times, span: int, ahead: int | None) -> tuple[Times, Times]:
    """Bound the windows of `roll`, half-open on the left: (t - ahead - span, t - ahead].

    Args:
        times: t [m].
        span: length of a window.
        ahead: time from the end of the window to t; None for windows [t - span, t), which end before t.

    Returns:
        The ends (low, high] of windows [m] each; of integers alone where `ahead` is None, for which (t - span - 1,
        t - 1] is [t - span, t).
    """
    back = 1 if ahead is None else ahead
    return times - back - span, times - back


def roll(series: Series, times: Times, span: int, ahead: int | None) -> Numbers:
    """Average values over windows of time, see `window`.

    Args:
        series: what is known.
        times: t, in any order [m].
        span: length of a window, in units of the times.
        ahead: time from the end of the window to t; None for windows that end before t.

    Returns:
        [m], NaN where nothing is known in the window.
    """
    low, high = (np.searchsorted(series.times, end, side="right") for end in window(times, span, ahead))
    sums = np.concatenate(([0.0], np.cumsum(series.values, dtype=np.longdouble)))
    count = high - low
    mean = (sums[high] - sums[low]) / np.maximum(count, 1)
    return np.where(count > 0, mean.astype(np.float64), np.nan)
