"""Local times and the calendar: where clocks change, and what the time of the day and of the year is.

pandas is imported when one of these is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pacbayes_fl.data.times import Kind
from pacbayes_fl.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

Numbers = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64]

ZONED: Final[Kind] = "datetime with a time zone"
_DAY: Final = 86400.0


class Localised(NamedTuple):
    """Local times of a zone as those of everywhere.

    Args:
        times: microseconds since 1970 in UTC [R]; of local times that are none or two, the later.
        missing: whether clocks skip the local time [R].
        twice: whether it comes twice, as clocks go back [R].
    """

    times: Times
    missing: npt.NDArray[np.bool_]
    twice: npt.NDArray[np.bool_]


def localise(times: Times, zone: str) -> Localised:
    """Bring local times of a zone to UTC.

    Args:
        times: microseconds since 1970 in local time [R].
        zone: such as "Europe/Zurich".

    Returns:
        The times, and which are none or two.
    """
    import pandas as pd

    local = pd.DatetimeIndex(times.astype("datetime64[us]"))
    later = np.zeros(len(times), dtype=bool)
    some = local.tz_localize(zone, ambiguous=later, nonexistent="shift_forward")
    sure = local.tz_localize(zone, ambiguous="NaT", nonexistent="shift_forward")
    there = local.tz_localize(zone, ambiguous=later, nonexistent="NaT")
    return Localised(_microseconds(some), np.asarray(there.isna()), np.asarray(sure.isna()))


def _microseconds(index: pd.DatetimeIndex) -> Times:
    moments = index.tz_convert("UTC").tz_localize(None).to_numpy().astype("datetime64[us]")
    result: Times = moments.astype(np.int64)
    return result


def _local(times: Times, kind: str, zone: str | None, what: str) -> pd.DatetimeIndex:
    """Give times as clocks show them."""
    import pandas as pd

    if kind == "number":
        raise DataError(f"data.features: {what} needs dates or datetimes, and the times are numbers")
    index = pd.DatetimeIndex(times.astype("datetime64[us]"))
    if kind != ZONED:
        return index
    if zone is None:
        raise DataError(f"data.features: {what} needs data.zone", hint='such as "Europe/Zurich", or "UTC"')
    return index.tz_localize("UTC").tz_convert(zone)


def cyclic(times: Times, kind: str, zone: str | None, cycle: str) -> Numbers:
    """Sine and cosine of 2 pi p, where p in [0, 1) is the time within a cycle.

    p of "hour" is the time of the day by the clock over 24 h, of "dayofweek" the number of days since Monday over 7,
    and of "dayofyear" that since 1 January over 365 or 366.

    Args:
        times: microseconds since 1970 [R].
        kind: of the times, as `data.times` calls it.
        zone: in which clocks are read, of times with a zone.
        cycle: one of `data.layout.CYCLES`.

    Returns:
        [R, 2].

    Raises:
        DataError: when times are numbers, or dates whose hour is asked for, or have a zone and it is not known in which
            clocks are to be read.

    Example:
        >>> import numpy as np
        >>> from pacbayes_fl.data.clock import cyclic
        >>> six = np.array([6 * 3600 * 1_000_000])  # microseconds since 1970
        >>> cyclic(six, "local", None, "hour").round(4).tolist()
        [[1.0, 0.0]]
    """
    local = _local(times, kind, zone, f"'{cycle}:cyclic'")
    if cycle == "hour":
        if kind == "date":
            raise DataError("data.features: 'hour:cyclic' needs datetimes, and the times are dates")
        seconds = local.hour * 3600.0 + local.minute * 60.0 + local.second + local.microsecond / 1e6
        phase = np.asarray(seconds) / _DAY
    elif cycle == "dayofweek":
        phase = np.asarray(local.day_of_week) / 7.0
    else:
        phase = (np.asarray(local.day_of_year) - 1.0) / np.where(np.asarray(local.is_leap_year), 366.0, 365.0)
    return np.stack((np.sin(2.0 * np.pi * phase), np.cos(2.0 * np.pi * phase)), 1)
