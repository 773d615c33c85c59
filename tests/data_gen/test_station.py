from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from data_gen import DataGenError
from data_gen.station import Weather, segments, standard_offset


def test_segments_change_at_gaps_and_jumps_back() -> None:
    hours = np.array([0, 1, 2, 5, 6, 2, 3]) * 3600
    assert segments(hours).tolist() == [0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("place", "offset"),
    [
        ((46.95, 7.45), 1.0),
        ((48.86, 2.35), 1.0),
        ((51.5, -0.13), 0.0),
        ((36.1, -79.95), -5.0),
        ((-33.9, 18.4), 1.0),
    ],
)
def test_standard_time_of_places(place: tuple[float, float], offset: float) -> None:
    assert standard_offset(*place) == offset


def test_seconds_are_utc(sky: Weather) -> None:
    assert sky.seconds[0] == np.datetime64("2017-12-31T23:30", "s").astype(np.int64)
    assert set(np.diff(sky.seconds)) == {3600}


def test_wrong_weather_is_refused(sky: Weather) -> None:
    with pytest.raises(DataGenError, match="wind has shape"):
        replace(sky, wind=sky.wind[:-1])
    with pytest.raises(DataGenError, match="beam holds values"):
        replace(sky, beam=np.full(len(sky.beam), np.nan))
    names = ("beam", "diffuse", "temperature", "wind", "height", "segment")
    empty: dict[str, Any] = {name: getattr(sky, name)[:0] for name in names}
    with pytest.raises(DataGenError, match="no hours"):
        replace(sky, index=sky.index[:0], **empty)
