"""The 15 features of the PV data, and which hours are training and test rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from data_gen.errors import DataGenError
from data_gen.houses import HOURS
from data_gen.station import Weather

LAGS = (1, 2, 4, 18, 20, 22, 43, 70, 74, 121, 145)
"""Hours of the full series, nights included, that the auto-regressors look back."""

FEATURES: tuple[tuple[str, str], ...] = (
    ("H_sun", "degree"),
    ("T2m", "degree Celsius"),
    ("WS10m", "m/s"),
    ("station_irrad_direct_prev", "W/m2"),
    *((f"lag_{lag}", "W") for lag in LAGS),
)
"""Name and unit of each feature, in order."""

_Values = npt.NDArray[np.float64]


def lagged(values: _Values, lag: int) -> _Values:
    """Give values[t - lag], NaN where there is none.

    Args:
        values: hourly series, [N].
        lag: hours back, at least 1.

    Returns:
        [N], in the unit of ``values``.
    """
    moved = np.full(len(values), np.nan)
    moved[lag:] = values[:-lag]
    return moved


def features(height: _Values, temperature: _Values, wind: _Values, station: _Values, power: _Values) -> _Values:
    """Give the 15 features (PAC-PFL 8.5.1; the choice of features is the published generator's).

    Formula: sun height, temperature and wind of the same hour, the station's beam irradiance of
    the hour before, and the target 1, 2, 4, 18, 20, 22, 43, 70, 74, 121 and 145 hours before.

    Args:
        height: of the sun, [N], degrees.
        temperature: as the house measures it, [N], degrees Celsius.
        wind: as the house measures it, [N], m/s.
        station: beam irradiance on the station's plane, [N], W/m2.
        power: the target, [N], W.

    Returns:
        [N, 15]; the first 145 rows hold NaN.
    """
    columns = [height, temperature, wind, lagged(station, 1), *(lagged(power, lag) for lag in LAGS)]
    return np.stack(columns, axis=1)


def whole_lags(segment: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Tell for which hours all lags exist and none reaches over a gap or a change of source year.

    Args:
        segment: see ``data_gen.station.Weather``, [N].

    Returns:
        [N] bool.
    """
    longest = max(LAGS)
    whole = np.zeros(len(segment), dtype=np.bool_)
    whole[longest:] = segment[longest:] == segment[:-longest]
    return whole


def split(
    weather: Weather, offset: float, years: tuple[int, int]
) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp], str]:
    """Choose the training and test hours (PAC-PFL 8.5.1: June and July, nights left out).

    Two or more years: June and July of the training year, and of the test year. One year (our
    choice): 1 May to 30 June trains, 1 July to 30 August tests. Kept are hours of day 8 to 17
    all of whose lags exist within one run of real hours.

    Args:
        weather: N hours.
        offset: local time minus UTC, hours; days, months and hours of day are local.
        years: training year and test year.

    Returns:
        Positions of the training hours and of the test hours, in the order of time, and a
        description of the two windows.

    Raises:
        DataGenError: the weather covers several years but not these two, or no hour is left.
    """
    # Through numpy: a fixed offset in hours, without a time zone's name.
    local = (weather.seconds + round(offset * 3600)).astype("datetime64[s]")
    year = local.astype("datetime64[Y]").astype(np.int64) + 1970
    day = local.astype("datetime64[D]")
    month = local.astype("datetime64[M]").astype(np.int64) % 12 + 1
    hour = (local - day).astype(np.int64) // 3600
    usable = (hour >= HOURS[0]) & (hour <= HOURS[-1]) & whole_lags(weather.segment)
    summer = np.unique(year[month == 6])
    if len(summer) == 1:
        one = int(summer[0])
        train = (day >= np.datetime64(f"{one}-05-01")) & (day <= np.datetime64(f"{one}-06-30"))
        test = (day >= np.datetime64(f"{one}-07-01")) & (day <= np.datetime64(f"{one}-08-30"))
        text = "trains 1 May to 30 June, tests 1 July to 30 August of one year"
    elif set(years) <= set(summer.tolist()) and years[0] < years[1]:
        months = (month == 6) | (month == 7)
        train, test = months & (year == years[0]), months & (year == years[1])
        text = f"trains June and July {years[0]}, tests June and July {years[1]}"
    else:
        result = ", ".join(str(value) for value in summer) or "none"
        raise DataGenError(
            f"no weather for training year {years[0]} and a later test year {years[1]}; years with a June: {result}"
        )
    picked = np.flatnonzero(train & usable), np.flatnonzero(test & usable)
    if not len(picked[0]) or not len(picked[1]):
        raise DataGenError(f"the weather leaves {len(picked[0])} training and {len(picked[1])} test hours")
    return *picked, text


def hours_of_day(weather: Weather, offset: float) -> npt.NDArray[np.int64]:
    """Give the local hour of day, 0..23.

    Args:
        weather: N hours.
        offset: local time minus UTC, hours.

    Returns:
        [N].
    """
    return (weather.seconds + round(offset * 3600)) // 3600 % 24
