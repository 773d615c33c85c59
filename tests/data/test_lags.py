"""Lags and rolling means against pandas' shift and rolling, on series with gaps."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from pacbayes_fl.data.lags import Series, lag, roll

HOUR = 3600 * 10**6


def gapped(seed: int) -> tuple[pd.Series, pd.DatetimeIndex]:
    random = np.random.default_rng(seed)
    index = pd.date_range("2024-03-20", periods=300, freq="h")[np.sort(random.permutation(300)[:200])]
    return pd.Series(random.normal(50.0, 10.0, len(index)), index), index


def times(index: pd.DatetimeIndex) -> np.ndarray:
    return index.to_numpy().astype("datetime64[us]").astype(np.int64)


@pytest.mark.parametrize("hours", [1, 24, 200])
@pytest.mark.parametrize("seed", range(3))
def test_a_lag_is_pandas_shift_by_time(seed: int, hours: int) -> None:
    series, index = gapped(seed)
    expected = series.shift(freq=f"{hours}h").reindex(index).to_numpy()
    order = np.random.default_rng(seed).permutation(len(index))
    known = Series.of(times(index)[order], series.to_numpy()[order])
    assert np.isnan(expected).any() and not np.isnan(expected).all()
    np.testing.assert_array_equal(lag(known, times(index), hours * HOUR), expected)


@pytest.mark.parametrize(("ahead", "closed", "shift"), [(0, "right", 0), (None, "left", 0), (24, "right", 24)])
def test_a_rolling_mean_is_that_of_pandas(ahead: int | None, closed: str, shift: int) -> None:
    series, index = gapped(1)
    whole = series.reindex(pd.date_range(index[0], index[-1] + pd.Timedelta("48h"), freq="h"))
    expected = whole.rolling("5h", min_periods=1, closed=closed).mean().shift(shift).reindex(index).to_numpy()
    known = Series.of(times(index), series.to_numpy())
    got = roll(known, times(index), 5 * HOUR, None if ahead is None else ahead * HOUR)
    np.testing.assert_allclose(got, expected, rtol=1e-13)
    assert np.isnan(got[0]) == (ahead != 0)  # the first row has nothing but itself


def test_what_is_missing_is_not_known_and_of_one_time_the_first_counts() -> None:
    known = Series.of(np.array([3, 1, 3, 2]), np.array([5.0, 7.0, 9.0, np.nan]))
    assert known.times.tolist() == [1, 3] and known.values.tolist() == [7.0, 5.0]
    assert np.isnan(lag(Series.of(np.array([], dtype=np.int64), np.array([])), np.array([1]), 1)).all()
    assert np.isnan(roll(known, np.array([100]), 2, 0)).all()


def test_a_constant_has_itself_as_its_mean_whatever_its_size() -> None:
    known = Series.of(np.arange(10000), np.full(10000, 1e9 + 0.1))
    np.testing.assert_allclose(roll(known, np.arange(1, 10000), 7, None), 1e9 + 0.1, rtol=1e-15)
