from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from data_gen import DataGenError
from data_gen.features import FEATURES, LAGS, features, hours_of_day, lagged, split, whole_lags
from data_gen.station import Weather


def test_features_are_the_stated_fifteen_in_order() -> None:
    names = [name for name, _ in FEATURES]
    assert names[:4] == ["H_sun", "T2m", "WS10m", "station_irrad_direct_prev"]
    assert names[4:] == [f"lag_{k}" for k in (1, 2, 4, 18, 20, 22, 43, 70, 74, 121, 145)]


def test_lags_by_direct_recomputation() -> None:
    rng = np.random.default_rng(0)
    height, temperature, wind, station, power = rng.normal(size=(5, 300))
    table = features(height, temperature, wind, station, power)
    for t in (145, 200, 299):
        expected = [height[t], temperature[t], wind[t], station[t - 1], *(power[t - lag] for lag in LAGS)]
        np.testing.assert_array_equal(table[t], expected)
    assert np.isnan(table[:145]).any(axis=1).all()
    assert np.isfinite(table[145:]).all()
    assert np.isnan(lagged(power, 3)[:3]).all()


def test_no_lag_reaches_over_a_change_of_source_year() -> None:
    segment = np.repeat([0, 1, 2], [200, 146, 100])
    assert np.flatnonzero(whole_lags(segment)).tolist() == [*range(145, 200), 345]


def test_one_year_trains_in_spring_and_tests_in_summer(sky: Weather) -> None:
    train, test, words = split(sky, sky.utc_offset, (2018, 2019))
    local = (sky.seconds + 3600).astype("datetime64[s]")
    assert (len(train), len(test)) == (610, 610)
    assert str(local[train[0]]) == "2018-05-01T08:30:00"
    assert str(local[train[-1]]) == "2018-06-30T17:30:00"
    assert str(local[test[0]]) == "2018-07-01T08:30:00"
    assert str(local[test[-1]]) == "2018-08-30T17:30:00"
    assert not set(train) & set(test)
    assert "one year" in words


def test_a_typical_year_loses_the_first_days_of_each_month(typical: Weather) -> None:
    train, test, _ = split(typical, typical.utc_offset, (2018, 2019))
    assert (len(train), len(test)) == (490, 490)
    for rows in (train, test):
        for lag in LAGS:
            np.testing.assert_array_equal(typical.segment[rows], typical.segment[rows - lag])


def two_years(sky: Weather) -> Weather:
    import pandas as pd

    index = sky.index.append(sky.index + pd.Timedelta(days=365))
    arrays: dict[str, Any] = {
        n: np.tile(getattr(sky, n), 2) for n in ("beam", "diffuse", "temperature", "wind", "height", "segment")
    }
    return replace(sky, index=index, **arrays)


def test_two_years_use_june_and_july(sky: Weather) -> None:
    both = two_years(sky)
    train, test, words = split(both, 0.0, (2018, 2019))
    moments = both.seconds.astype("datetime64[s]")
    assert (len(train), len(test)) == (610, 610)
    assert str(moments[train[0]]) == "2018-06-01T08:30:00"
    assert str(moments[test[-1]]) == "2019-07-31T17:30:00"
    assert words == "trains June and July 2018, tests June and July 2019"
    for years in ((2018, 2020), (2019, 2018), (2018, 2018)):
        with pytest.raises(DataGenError, match="years with a June: 2018, 2019"):
            split(both, 0.0, years)


def test_weather_without_enough_hours_is_refused(sky: Weather) -> None:
    with pytest.raises(DataGenError, match="0 training and 0 test hours"):
        split(replace(sky, segment=np.arange(8760)), 0.0, (2018, 2019))


def test_hours_are_local(sky: Weather) -> None:
    assert hours_of_day(sky, 1.0)[:3].tolist() == [0, 1, 2]
    assert hours_of_day(sky, 0.0)[:3].tolist() == [23, 0, 1]
    assert hours_of_day(sky, -5.0)[0] == 18
