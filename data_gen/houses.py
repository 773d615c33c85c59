"""The houses of the PV data: where their panels look, what they are, and when they are shaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from data_gen.errors import DataGenError

HOURS = tuple(range(8, 18))
"""Hours of day that are kept, 8 to 17."""

AZIMUTHS: Mapping[str, tuple[float, ...]] = MappingProxyType({"ew": (90.0, 270.0), "s": (180.0,)})
"""Mean azimuth of each group of houses, degrees clockwise from north."""

TILT_STD = 5.0
AZIMUTH_STD = 15.0
ALTITUDE_DEVIATION = 0.1
IRRADIANCE_STD = 0.2
SHADOW_PEAK = 0.8


@dataclass(frozen=True)
class House:
    """One house.

    Attributes:
        tilt: of the panels, degrees from horizontal.
        azimuth: of the panels, degrees clockwise from north.
        altitude: metres above sea level.
        irradiance_scale: irradiance at the house over irradiance at the weather station.
        shadow_start: first shaded hour of day.
        shadow_end: last shaded hour of day.
        module: position of the module in the Sandia table.
        group_azimuth: mean azimuth of the house's group, degrees.
        shadow_peak: factor on the irradiance in the middle of the shadow.
    """

    tilt: float
    azimuth: float
    altitude: float
    irradiance_scale: float
    shadow_start: int
    shadow_end: int
    module: int
    group_azimuth: float
    shadow_peak: float = SHADOW_PEAK

    def as_dict(self) -> dict[str, Any]:
        """Give the fields by name."""
        return asdict(self)


def shadow(hours: npt.ArrayLike, start: int, end: int, peak: float = SHADOW_PEAK) -> npt.NDArray[np.float64]:
    """Give the factor that a passing shadow puts on the irradiance (PAC-PFL 8.5.1, published generator).

    Formula: with n = end - start + 1 hours and half = ceil(n / 2), hour h of start..end has
    1 - (1 - peak) min(h - start + 1, end - h + 1) / half; all other hours have 1.

    Args:
        hours: hour of day, any shape.
        start: first shaded hour.
        end: last shaded hour, not before ``start``.
        peak: factor in the middle, in [0, 1].

    Returns:
        Factors in [peak, 1], of the shape of ``hours``.

    Raises:
        DataGenError: the end is before the start, or the peak is out of range.
    """
    if end < start:
        raise DataGenError(f"shadow ends at hour {end}, before its start at {start}")
    if not 0 <= peak <= 1:
        raise DataGenError(f"shadow peak must lie in [0, 1], is {peak}")
    hour = np.asarray(hours)
    half = -(-(end - start + 1) // 2)
    depth = np.minimum(hour - start + 1, end - hour + 1) / half
    return np.where((hour >= start) & (hour <= end), 1.0 - (1.0 - peak) * depth, 1.0)


def group_sizes(count: int, groups: int) -> list[int]:
    """Split houses into groups as equal as can be, the larger ones first.

    Args:
        count: houses.
        groups: groups.

    Returns:
        Sizes, [groups].
    """
    return [count // groups + (index < count % groups) for index in range(groups)]


def draw_group(
    rng: np.random.RandomState, size: int, first: int, group_azimuth: float, latitude: float, altitude: float
) -> list[House]:
    """Draw one group of houses in the published generator's order (PAC-PFL 8.5.1, published generator).

    Formula: tilt ~ N(latitude, 5), azimuth ~ N(group azimuth, 15), altitude ~ N(a, 0.1 a),
    irradiance scale ~ N(1, 0.2), each as one vector; then for each house the shadow's two
    distinct hours of 8..17, sorted.

    Args:
        rng: advanced by the draws.
        size: houses in the group.
        first: position of the group's first module in the Sandia table.
        group_azimuth: degrees clockwise from north.
        latitude: degrees north.
        altitude: a, metres.

    Returns:
        The houses.
    """
    tilt = rng.normal(latitude, TILT_STD, size)
    azimuth = rng.normal(group_azimuth, AZIMUTH_STD, size)
    height = rng.normal(altitude, ALTITUDE_DEVIATION * altitude, size)
    scale = rng.normal(1.0, IRRADIANCE_STD, size)
    ends = [np.sort(rng.choice(np.array(HOURS), 2, replace=False)) for _ in range(size)]
    return [
        House(
            float(tilt[i]),
            float(azimuth[i]),
            float(height[i]),
            float(scale[i]),
            int(ends[i][0]),
            int(ends[i][1]),
            first + i,
            group_azimuth,
        )
        for i in range(size)
    ]


def draw_house(rng: np.random.Generator, module: int, group_azimuth: float, latitude: float, altitude: float) -> House:
    """Draw one house from its own generator, with the laws of ``draw_group``.

    Tilt is kept in 0..90 degrees, the irradiance scale at or above 0.

    Args:
        rng: advanced by the draws.
        module: position of the module in the Sandia table.
        group_azimuth: degrees clockwise from north.
        latitude: degrees north.
        altitude: metres.

    Returns:
        The house.
    """
    tilt = float(np.clip(rng.normal(latitude, TILT_STD), 0.0, 90.0))
    azimuth = float(rng.normal(group_azimuth, AZIMUTH_STD) % 360.0)
    height = float(rng.normal(altitude, ALTITUDE_DEVIATION * abs(altitude)))
    scale = float(max(rng.normal(1.0, IRRADIANCE_STD), 0.0))
    start, end = sorted(int(hour) for hour in rng.choice(np.array(HOURS), 2, replace=False))
    return House(tilt, azimuth, height, scale, start, end, module, group_azimuth)
