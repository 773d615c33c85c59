"""Irradiance under a clear sky: night, symmetry, and the formula of the paper."""

from __future__ import annotations

import numpy as np
import pytest

from pacbayes_fl.data.clear_sky import clear_sky
from pacbayes_fl.data.clock import ZONED
from pacbayes_fl.errors import DataError


def hours(day: str) -> np.ndarray:
    return (np.datetime64(day, "us") + np.arange(24) * np.timedelta64(1, "h")).astype(np.int64)


def test_it_is_dark_at_night_and_brightest_where_the_sun_is_highest() -> None:
    pvlib = pytest.importorskip("pvlib")
    import pandas as pd

    times = np.concatenate((hours("2024-06-21"), hours("2024-12-21")))
    north, east = np.full(48, 46.95), np.where(np.arange(48) % 2, 7.45, 97.45)
    result = clear_sky(times, ZONED, north, east)
    index = pd.DatetimeIndex(times.astype("datetime64[us]")).tz_localize("UTC")
    for k in range(48):
        zenith = pvlib.solarposition.get_solarposition(index[k : k + 1], north[k], east[k])["apparent_zenith"].iloc[0]
        up = np.cos(np.radians(zenith))
        expected = 1098.0 * up * np.exp(-0.059 / up) if up > 0 else 0.0
        assert result[k] == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert result.max() > 900 and (result == 0).sum() > 16


def test_a_position_and_a_zone_are_needed() -> None:
    with pytest.raises(DataError, match="needs times whose zone is known"):
        clear_sky(hours("2024-06-21"), "datetime", np.full(24, 47.0), np.full(24, 7.0))
    with pytest.raises(DataError, match="latitude must be within"):
        clear_sky(hours("2024-06-21"), ZONED, np.full(24, 97.0), np.full(24, 7.0))
