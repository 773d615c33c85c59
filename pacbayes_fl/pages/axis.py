"""Axes of figures: from numbers or times to a drawing, with ticks at round values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_STEPS: Final = (1.0, 2.0, 2.5, 5.0, 10.0)
_HOUR: Final = 3600
_CLOCK: Final = tuple(_HOUR * hours for hours in (1, 2, 3, 6, 12, 24, 48, 72, 7 * 24, 14 * 24))


@dataclass(frozen=True)
class Axis:
    """One direction of a figure.

    Args:
        label: what is on it, with its unit.
        low: value at its start.
        high: value at its end, above `low`.
        ticks: values with their texts.
    """

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]

    def place(self, values: Array | float, start: float, end: float) -> Array:
        """Give where values are drawn.

        Args:
            values: numbers [n].
            start: coordinate of `low`.
            end: coordinate of `high`.

        Returns:
            Coordinates [n].
        """
        share = (np.asarray(values, dtype=np.float64) - self.low) / (self.high - self.low)
        result: Array = start + share * (end - start)
        return result


def linear(
    label: str, values: Sequence[float] | Array, *, zero: bool = False, whole: bool = False, count: int = 5
) -> Axis:
    """Make an axis that holds all finite values, with ticks at round numbers.

    Args:
        label: with the unit.
        values: numbers; those that are not finite are left out.
        zero: whether it begins at 0 or below.
        whole: whether ticks are at whole numbers alone, such as of rounds.
        count: about how many ticks.

    Returns:
        The axis, a little longer than the values.
    """
    known = np.asarray(values, dtype=np.float64).ravel()
    known = known[np.isfinite(known)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    if zero:
        low, high = min(0.0, low), max(0.0, high)
    least = max(abs(low), abs(high)) * 1e-9  # closer ends are one number, as far as texts can tell
    if high - low <= least:
        half = 1.0 if whole else abs(low) * 0.1 or 1.0
        low, high = low - half, high + half
    margin = 0.03 * (high - low)
    low, high = low if zero and low == 0.0 else low - margin, high if zero and high == 0.0 else high + margin
    return Axis(label, low, high, _round_ticks(low, high, count, whole))


def fixed(label: str, low: float, high: float, count: int = 5) -> Axis:
    """Make an axis with given ends.

    Args:
        label: with the unit.
        low: its start.
        high: its end.
        count: about how many ticks.

    Returns:
        The axis.
    """
    return Axis(label, low, high, _round_ticks(low, high, count))


def named(label: str, names: Sequence[str]) -> Axis:
    """Make an axis of names, at 0, 1, ...

    Args:
        label: of all of them.
        names: in their order.

    Returns:
        The axis, half a place longer at both ends.
    """
    return Axis(label, -0.5, len(names) - 0.5, tuple((float(at), name) for at, name in enumerate(names)))


def times(label: str, seconds: Array, zone: tzinfo = UTC, count: int = 5) -> Axis:
    """Make an axis of times.

    Args:
        label: what zone they are told in, for example.
        seconds: since 1970 in UTC.
        zone: whose clocks the ticks are read from.
        count: about how many ticks.

    Returns:
        The axis, with ticks at full hours, midnights or firsts of months; of days, where all times are midnights.
    """
    low, high = float(seconds.min()), float(seconds.max())
    daily = all(_midnight(moment, zone) for moment in seconds.ravel().tolist())
    if high - low < 1.0:  # a single moment stands between the day before and the day after, or in its hour
        half = 24.0 * _HOUR if daily else 0.5 * _HOUR
        low, high = low - half, high + half
    margin = 0.01 * (high - low)
    low, high = low - margin, high + margin
    first = datetime.fromtimestamp(low, zone)
    span = high - low
    least = 24 * _HOUR if daily else 0
    step = next((step for step in _CLOCK if step >= least and span / step <= count), 0)
    moments = _clock_ticks(first, step, high) if step else _month_ticks(first, span, high, count)
    if len(moments) < 2:  # less than an hour, for example
        moments = [datetime.fromtimestamp(end, zone) for end in (low + margin, high - margin)]
    form = "%d %b" if 0 < step and step >= 24 * _HOUR else "%b %Y" if not step else "%d %b %H:%M"
    ticks = tuple((moment.timestamp(), moment.strftime(form)) for moment in moments if moment.timestamp() >= low)
    return Axis(label, low, high, ticks)


def _midnight(seconds: float, zone: tzinfo) -> bool:
    moment = datetime.fromtimestamp(seconds, zone)
    return (moment.hour, moment.minute, moment.second) == (0, 0, 0)


def _clock_ticks(first: datetime, step: int, high: float) -> list[datetime]:
    """Take local times at multiples of a step from the midnight before the first."""
    naive = first.replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0)
    result = []
    while (moment := naive.replace(tzinfo=first.tzinfo)).timestamp() <= high:
        result += [moment] if moment >= first else []
        naive += timedelta(seconds=step)
    return result


def _month_ticks(first: datetime, span: float, high: float, count: int) -> list[datetime]:
    months = max(1, math.ceil(span / (30.4 * 86400) / count))
    year, month, result = first.year, first.month, list[datetime]()
    while (moment := datetime(year, month, 1, tzinfo=first.tzinfo)).timestamp() <= high and year < 9998:
        result += [moment] if moment >= first else []
        year, month = year + (month - 1 + months) // 12, (month - 1 + months) % 12 + 1
    return result


def _round_ticks(low: float, high: float, count: int, whole: bool = False) -> tuple[tuple[float, str], ...]:
    rough = max((high - low) / max(1, count), 1.0 if whole else 0.0)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * one for one in _STEPS if power * one >= rough * 0.999 and not (whole and power * one % 1))
    first = math.ceil(low / step - 1e-9)
    values = [(first + at) * step for at in range(int((high - low) / step + 1e-9) + 2)]
    return tuple((value, text(value, step)) for value in values if value <= high + 1e-9 * (high - low))


def text(value: float, step: float) -> str:
    """Write a tick with as many digits as tell it from its neighbours.

    Args:
        value: of the tick.
        step: between ticks.

    Returns:
        Such as "0.25"; with an exponent where that is shorter.
    """
    if abs(value) < step * 1e-6:
        return "0"
    place = math.floor(math.log10(step) + 1e-9)
    last = place - (round(step / 10.0**place, 6) % 1 > 0)  # a step of 2.5 has a digit more
    if not 1e-4 <= max(abs(value), step) < 1e6:
        return f"{value:.{math.floor(math.log10(abs(value)) + 1e-9) - last + 1}g}"
    return f"{value:.{max(0, -last)}f}"
