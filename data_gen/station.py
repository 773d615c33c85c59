"""The weather of one place in one form, whatever its source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from data_gen.errors import DataGenError


@dataclass(frozen=True, eq=False)
class Weather:
    """An hourly weather series of one place; N hours.

    Attributes:
        index: pandas DatetimeIndex in UTC, [N]; the moment that the sun's position is taken at.
        beam: beam irradiance on the horizontal plane, [N], W/m2.
        diffuse: diffuse irradiance on the horizontal plane, [N], W/m2.
        temperature: air temperature, [N], degrees Celsius.
        wind: wind speed, [N], m/s.
        height: height of the sun above the horizon, 0 at night, [N], degrees.
        segment: number of the run of consecutive real hours that the hour belongs to, [N]; it
            changes at gaps and where a typical year changes its source year.
        latitude: degrees north.
        longitude: degrees east.
        altitude: metres above sea level.
        utc_offset: local standard time minus UTC, hours.
        utc_hours: whether the published generator reads the hours of day of this source in UTC.
        manifest: what to record about the source.
    """

    index: Any
    beam: npt.NDArray[np.float64]
    diffuse: npt.NDArray[np.float64]
    temperature: npt.NDArray[np.float64]
    wind: npt.NDArray[np.float64]
    height: npt.NDArray[np.float64]
    segment: npt.NDArray[np.int64]
    latitude: float
    longitude: float
    altitude: float
    utc_offset: float
    utc_hours: bool
    manifest: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check lengths and values."""
        for name in ("beam", "diffuse", "temperature", "wind", "height", "segment"):
            array = getattr(self, name)
            if array.shape != (len(self.index),):
                raise DataGenError(f"weather: {name} has shape {array.shape}, needs ({len(self.index)},)")
            if not np.isfinite(array).all():
                raise DataGenError(f"weather: {name} holds values that are not finite")
        if len(self.index) == 0:
            raise DataGenError("weather: no hours")

    @property
    def seconds(self) -> npt.NDArray[np.int64]:
        """UTC seconds since 1970, [N]."""
        return np.asarray(self.index.as_unit("s").asi8, dtype=np.int64)


def standard_offset(latitude: float, longitude: float) -> float:
    """Give the standard time of a place, as far as its coordinates tell it (our rule).

    Formula: 1 (Central European Time) from 36 to 72 degrees north and 0 to 20 degrees east,
    elsewhere the nautical zone, longitude / 15 rounded.

    Args:
        latitude: degrees north.
        longitude: degrees east.

    Returns:
        Local standard time minus UTC, hours.
    """
    if 36 <= latitude <= 72 and 0 < longitude <= 20:
        return 1.0
    return float(np.floor(longitude / 15 + 0.5))


def segments(seconds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Number the runs of consecutive hours.

    Args:
        seconds: time of each hour, [N], as it was measured (not in a nominal year).

    Returns:
        0 in the first run, 1 in the next, ..., [N].
    """
    return np.concatenate([[0], np.cumsum(np.diff(seconds) != 3600)]).astype(np.int64)
