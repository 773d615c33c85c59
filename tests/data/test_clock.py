"""Local times and the calendar against the standard library's clocks."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from pacbayes_fl.data.clock import ZONED, cyclic, localise
from pacbayes_fl.errors import DataError

ZONE = ZoneInfo("Europe/Zurich")
EPOCH = datetime(1970, 1, 1)


def local(*moments: datetime) -> np.ndarray:
    return np.array([(moment - EPOCH) // timedelta(microseconds=1) for moment in moments])


def test_local_times_are_those_of_zoneinfo_and_clocks_that_change_are_found() -> None:
    hours = [datetime(2024, 3, 31) + timedelta(minutes=30 * k) for k in range(12)]
    hours += [datetime(2024, 10, 27) + timedelta(minutes=30 * k) for k in range(12)]
    result = localise(local(*hours), "Europe/Zurich")
    for k, hour in enumerate(hours):
        first, second = (hour.replace(tzinfo=ZONE, fold=fold).utcoffset() for fold in (0, 1))
        back = hour.replace(tzinfo=ZONE).astimezone(UTC).astimezone(ZONE).replace(tzinfo=None)
        assert bool(result.twice[k]) == (first != second and back == hour), hour
        assert bool(result.missing[k]) == (back != hour), hour
        if first == second:
            expected = hour.replace(tzinfo=ZONE) - datetime(1970, 1, 1, tzinfo=UTC)
            assert result.times[k] == expected // timedelta(microseconds=1)
    assert result.twice.sum() == 2 and result.missing.sum() == 2


def test_the_clock_is_read_in_its_zone_in_summer_and_in_winter() -> None:
    for moment in (datetime(2024, 7, 1, 10, 30, tzinfo=UTC), datetime(2024, 12, 31, 23, 30, tzinfo=UTC)):
        times = np.array([(moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)])
        here = moment.astimezone(ZONE)
        phases = {
            "hour": (here.hour + here.minute / 60) / 24,
            "dayofweek": here.weekday() / 7,
            "dayofyear": (here.timetuple().tm_yday - 1) / (366 if here.year == 2024 else 365),
        }
        for cycle, phase in phases.items():
            expected = [[math.sin(2 * math.pi * phase), math.cos(2 * math.pi * phase)]]
            np.testing.assert_allclose(cyclic(times, ZONED, "Europe/Zurich", cycle), expected, atol=1e-14)


def test_local_times_without_a_zone_are_read_as_they_are() -> None:
    noon = local(datetime(2023, 5, 1, 12))
    np.testing.assert_allclose(cyclic(noon, "datetime", None, "hour"), [[0.0, -1.0]], atol=1e-15)


@pytest.mark.parametrize(
    ("kind", "cycle", "fragment"),
    [
        ("number", "dayofyear", "needs dates or datetimes, and the times are numbers"),
        ("date", "hour", "'hour:cyclic' needs datetimes, and the times are dates"),
        (ZONED, "hour", r"'hour:cyclic' needs data\.zone"),
    ],
)
def test_what_has_no_clock_is_refused(kind: str, cycle: str, fragment: str) -> None:
    with pytest.raises(DataError, match=fragment):
        cyclic(np.array([0]), kind, None, cycle)
