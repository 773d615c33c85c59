"""Irradiance under a clear sky, by pvlib."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pacbayes_fl.data.clock import ZONED
from pacbayes_fl.errors import DataError

Numbers = npt.NDArray[np.float64]


def clear_sky(times: npt.NDArray[np.int64], kind: str, latitude: Numbers, longitude: Numbers) -> Numbers:
    """Global horizontal irradiance without clouds, which needs no weather (Haurwitz, J. Meteorol. 2, 1945).

    1098 cos(z) exp(-0.059 / cos(z)), z the apparent zenith of the sun, 0 below the horizon.

    Args:
        times: microseconds since 1970 in UTC [R].
        kind: of the times, as `data.times` calls it.
        latitude: degrees north [R].
        longitude: degrees east [R].

    Returns:
        W / m^2 [R].

    Raises:
        DataError: when pvlib is missing, the zone of times is not known, or a position is none.
    """
    if kind != ZONED:
        what = "data.features: 'clear-sky' needs times whose zone is known"
        raise DataError(what, hint='data.zone = "Europe/Zurich", or times with their offset')
    if not ((np.abs(latitude) <= 90.0) & (np.abs(longitude) <= 360.0)).all():
        raise DataError("data.latitude must be within -90 and 90 degrees, data.longitude within -360 and 360")
    try:
        import pandas as pd
        import pvlib
    except ImportError as error:
        raise DataError("data.features: 'clear-sky' needs pvlib", hint="pip install 'pacbayes_fl[pv]'") from error
    result = np.empty(len(times))
    places, which = np.unique(np.stack((latitude, longitude), 1), axis=0, return_inverse=True)
    for k, (north, east) in enumerate(places.tolist()):
        rows = np.flatnonzero(which.reshape(-1) == k)
        moments, back = np.unique(times[rows], return_inverse=True)
        index = pd.DatetimeIndex(moments.astype("datetime64[us]")).tz_localize("UTC")
        sun = pvlib.solarposition.get_solarposition(index, north, east)
        result[rows] = pvlib.clearsky.haurwitz(sun["apparent_zenith"])["ghi"].to_numpy()[back.reshape(-1)]
    return result
