"""Sources of hourly weather for the PV data: PVGIS, typical years, a clear-sky model.

All sources give beam and diffuse irradiance on the horizontal plane, air temperature, wind
speed and the sun's height. PVGIS gives them as they are; typical years and the clear-sky model give DNI
and DHI, of which beam horizontal = DNI cos(zenith) at the middle of the hour, so that dividing
by cos(zenith) again gives back the DNI.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from data_gen.errors import DataGenError
from data_gen.needs import need_pvlib
from data_gen.pvgis import pvgis_download, pvgis_file
from data_gen.station import Weather, segments, standard_offset

TYPICAL_FILE = "723170TYA.CSV"
"""The TMY3 file of Greensboro, North Carolina, that is part of the pvlib package."""


class TypicalYear(NamedTuple):
    """A typical meteorological year that is part of the pvlib package.

    Attributes:
        file: its name in pvlib's folder ``data``.
        kind: ``"TMY2"`` or ``"TMY3"``.
        place: station and place.
    """

    file: str
    kind: str
    place: str


TYPICAL_YEARS: Mapping[str, TypicalYear] = MappingProxyType(
    {
        "typical": TypicalYear(TYPICAL_FILE, "TMY3", "723170, Greensboro, North Carolina"),
        "miami": TypicalYear("12839.tm2", "TMY2", "12839, Miami, Florida"),
        "sand-point": TypicalYear("703165TY.csv", "TMY3", "703165, Sand Point, Alaska"),
    }
)
"""Typical years by name; nothing is downloaded."""

NAMES = (*TYPICAL_YEARS, "pvgis", "clearsky")
"""Names of sources; everything else is the path of a file."""

NOMINAL_YEAR = 2018
"""The calendar year that a typical year's and the clear-sky model's time stamps are given in."""


def load(source: str, *, years: tuple[int, int] = (2018, 2019), place: tuple[float, float] = (46.951, 7.45)) -> Weather:
    """Read or make the weather of one source.

    Args:
        source: a name of ``TYPICAL_YEARS`` (files inside pvlib, no download), ``"pvgis"`` (download by
            ``pvlib.iotools.get_pvgis_hourly``), ``"clearsky"`` (model, for tests), or the path
            of a PVGIS hourly CSV file for a plane of slope 0.
        years: first and last year, for ``"pvgis"`` only.
        place: degrees north and east, for ``"pvgis"`` and ``"clearsky"`` only.

    Returns:
        The weather.

    Raises:
        DataGenError: pvlib is missing, the file is missing or wrong, or the download failed.
    """
    named: dict[str, Callable[[], Weather]] = {
        **{name: partial(typical, name) for name in TYPICAL_YEARS},
        "pvgis": lambda: pvgis_download(years, place),
        "clearsky": lambda: clearsky(place),
    }
    if source in named:
        return named[source]()
    return pvgis_file(source)


def typical(name: str = "typical") -> Weather:
    """Read a typical year that is part of pvlib.

    The months come from different source years: the stamps are given in ``NOMINAL_YEAR``, and
    ``segment`` keeps the source years apart. Values belong to the hour that ends at their
    stamp, so the stamps are moved to the middle of the hour (Wilcox and Marion, "Users Manual
    for TMY3 Data Sets", NREL/TP-581-43156, 2008; Marion and Urban, "User's Manual for TMY2s",
    NREL/SP-463-7668, 1995).

    Args:
        name: in ``TYPICAL_YEARS``.

    Returns:
        The weather, 8760 hours, in the local standard time that the file says.

    Raises:
        DataGenError: pvlib is missing or does not carry the file.
    """
    pvlib = need_pvlib()
    import pandas as pd

    one = TYPICAL_YEARS[name]
    path = Path(pvlib.__file__).parent / "data" / one.file
    try:
        values, years, meta = (_tmy2 if one.kind == "TMY2" else _tmy3)(path)
    except OSError as error:
        raise DataGenError(f"this pvlib does not carry {one.file}: {error}") from error
    offset = float(meta["TZ"])
    start = pd.Timestamp(year=NOMINAL_YEAR, month=1, day=1, hour=0, minute=30, tz="UTC")
    local = pd.date_range(start, periods=len(years), freq="h")
    index = local - pd.Timedelta(hours=offset)
    # The same day and hour in the source year; a leap day that the file leaves out then is a gap.
    stamps = np.asarray(local.as_unit("s").asi8).astype("datetime64[s]")
    month = stamps.astype("datetime64[M]")
    measured = ((years - NOMINAL_YEAR) * 12 + month.astype(np.int64)).astype("datetime64[M]") + (stamps - month)
    return _from_normal(
        index,
        values,
        segments(measured.astype("datetime64[s]").astype(np.int64)),
        (float(meta["latitude"]), float(meta["longitude"]), float(meta["altitude"])),
        offset,
        {
            "source": f"{one.kind} {one.place}",
            "file": one.file,
            "file_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "years": sorted({int(year) for year in years}),
            "nominal_year": NOMINAL_YEAR,
            "attribution": f"{one.kind}, National Renewable Energy Laboratory; file distributed with pvlib",
            "licence": "work of the US government",
        },
    )


_Year = tuple[dict[str, npt.NDArray[np.float64]], npt.NDArray[np.int64], Mapping[str, Any]]
"""Columns of a typical year, the source year of every hour, and what the file says of its place."""


def _tmy3(path: Path) -> _Year:
    """Read a TMY3 file."""
    frame, meta = need_pvlib().iotools.read_tmy3(path, map_variables=True)
    values = {name: frame[name].to_numpy(dtype=np.float64) for name in ("dni", "dhi", "temp_air", "wind_speed")}
    # stamps end their hours: the last hour of a year is stamped in the next one
    return values, (frame.index - np.timedelta64(30, "m")).year.to_numpy(dtype=np.int64), meta


def _tmy2(path: Path) -> _Year:
    """Read a TMY2 file, which has temperature in tenths of a degree and wind in tenths of m/s."""
    frame, meta = need_pvlib().iotools.read_tmy2(path)
    units = {"dni": ("DNI", 1), "dhi": ("DHI", 1), "temp_air": ("DryBulb", 10), "wind_speed": ("Wspd", 10)}
    values = {name: frame[column].to_numpy(dtype=np.float64) / parts for name, (column, parts) in units.items()}
    return values, 1900 + frame["year"].to_numpy(dtype=np.int64), meta


def clearsky(place: tuple[float, float]) -> Weather:
    """Make the weather of a cloudless year, the same on every call; for tests, not for results.

    Irradiance is ``pvlib.location.Location.get_clearsky`` (Ineichen and Perez, 2002), with
    temperature and wind as sines over the year and the day.

    Args:
        place: degrees north and east.

    Returns:
        The weather, 8760 hours of ``NOMINAL_YEAR``, stamped in the middle of the hour.

    Raises:
        DataGenError: pvlib is missing.
    """
    pvlib = need_pvlib()
    import pandas as pd

    offset = standard_offset(*place)
    local = pd.date_range(f"{NOMINAL_YEAR}-01-01 00:30", periods=8760, freq="h", tz="UTC")
    index = local - pd.Timedelta(hours=offset)
    altitude = float(pvlib.location.lookup_altitude(*place))
    sky = pvlib.location.Location(place[0], place[1], altitude=altitude).get_clearsky(index, model="ineichen")
    day, hour = local.day_of_year.to_numpy(), local.hour.to_numpy()
    values = {
        "dni": sky["dni"].to_numpy(dtype=np.float64),
        "dhi": sky["dhi"].to_numpy(dtype=np.float64),
        "temp_air": 10.0 - 10.0 * np.cos(2 * np.pi * day / 365) - 5.0 * np.cos(2 * np.pi * (hour - 3) / 24),
        "wind_speed": 3.0 + 1.5 * np.sin(2 * np.pi * day / 7) + 1.0 * np.sin(2 * np.pi * hour / 24),
    }
    seconds = np.asarray(index.as_unit("s").asi8)
    return _from_normal(
        index,
        values,
        segments(seconds),
        (place[0], place[1], altitude),
        offset,
        {"source": "clear-sky model (synthetic)", "years": [NOMINAL_YEAR], "nominal_year": NOMINAL_YEAR},
    )


def _from_normal(
    index: Any,
    values: dict[str, npt.NDArray[np.float64]],
    segment: npt.NDArray[np.int64],
    where: tuple[float, float, float],
    offset: float,
    manifest: dict[str, Any],
) -> Weather:
    """Build the weather from DNI, DHI, temperature and wind."""
    pvlib = need_pvlib()
    sun = pvlib.solarposition.get_solarposition(index, where[0], where[1], altitude=where[2])
    zenith = np.deg2rad(sun["apparent_zenith"].to_numpy(dtype=np.float64))
    return Weather(
        index=index,
        beam=values["dni"] * np.maximum(np.cos(zenith), 0.0),
        diffuse=values["dhi"],
        temperature=values["temp_air"],
        wind=values["wind_speed"],
        height=np.maximum(sun["elevation"].to_numpy(dtype=np.float64), 0.0),
        segment=segment,
        latitude=where[0],
        longitude=where[1],
        altitude=where[2],
        utc_offset=offset,
        utc_hours=False,
        manifest={"place": {"latitude": where[0], "longitude": where[1], "altitude_m": where[2]}, **manifest},
    )
