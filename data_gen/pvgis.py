"""Weather from PVGIS, the European Commission's Photovoltaic Geographical Information System."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from data_gen.errors import DataGenError
from data_gen.needs import need_pvlib
from data_gen.station import Weather, segments, standard_offset

PVGIS_ATTRIBUTION = "PVGIS (c) European Union, 2001-2022"
_PVGIS_LICENCE = "open data of the European Union, reuse with attribution"
_PVGIS_COLUMNS = ("Gb(i)", "Gd(i)", "H_sun", "T2m", "WS10m")


def pvgis_file(path: str | Path) -> Weather:
    """Read a PVGIS hourly CSV file for a horizontal plane (radiation components, no PV power).

    Args:
        path: the file, as PVGIS exports it.

    Returns:
        The weather; its years are those of the file.

    Raises:
        DataGenError: the file is missing, is not a PVGIS file, or its plane is not horizontal.
    """
    pvlib = need_pvlib()
    place = Path(path)
    try:
        frame, meta = pvlib.iotools.read_pvgis_hourly(place, pvgis_format="csv", map_variables=False)
        digest = hashlib.sha256(place.read_bytes()).hexdigest()
        inputs = meta["inputs"]
        slope = float(str(inputs.get("Slope", "0")).split()[0])
        where = (float(inputs["latitude"]), float(inputs["longitude"]), float(inputs["elevation"]))
    except OSError as error:
        raise DataGenError(
            f"cannot read weather file {str(path)!r}: {error.strerror or error}; "
            "other sources are 'typical', 'miami', 'sand-point', 'pvgis' and 'clearsky'"
        ) from error
    except (ValueError, KeyError, IndexError) as error:
        raise DataGenError(f"{place.name} is not a PVGIS hourly CSV file: {error}") from error
    if slope != 0:
        raise DataGenError(f"{place.name} is for a plane of slope {slope:g}; the PV data need slope 0")
    extra = {"file": place.name, "file_sha256": digest, "radiation_database": str(inputs["radiation_database"])}
    return _from_pvgis(frame, where, "PVGIS file", extra)


def pvgis_download(years: tuple[int, int], place: tuple[float, float]) -> Weather:
    """Download PVGIS hourly weather for a horizontal plane.

    Args:
        years: first and last year.
        place: degrees north and east.

    Returns:
        The weather.

    Raises:
        DataGenError: no network, or PVGIS refuses or answers in an unknown form.
    """
    pvlib = need_pvlib()
    try:
        frame, meta = pvlib.iotools.get_pvgis_hourly(
            place[0],
            place[1],
            start=int(years[0]),
            end=int(years[1]),
            components=True,
            surface_tilt=0,
            surface_azimuth=180,
            outputformat="json",
            map_variables=False,
        )
        site = meta["inputs"]["location"]
        where = (float(site["latitude"]), float(site["longitude"]), float(site["elevation"]))
        database = str(meta["inputs"].get("meteo_data", {}).get("radiation_db", "unknown"))
    except OSError as error:
        raise DataGenError(
            "PVGIS cannot be reached or refused the request "
            f"({error}); use the source 'typical', or the path of a PVGIS hourly CSV file"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataGenError(f"PVGIS gave an answer of an unknown form: {error!r}") from error
    return _from_pvgis(frame, where, "PVGIS download", {"radiation_database": database})


def _from_pvgis(frame: Any, where: tuple[float, float, float], source: str, extra: dict[str, str]) -> Weather:
    """Build the weather from the table that pvlib's PVGIS readers give."""
    missing = [name for name in _PVGIS_COLUMNS if name not in frame.columns]
    if missing:
        raise DataGenError(f"{source}: missing columns {missing}; ask PVGIS for radiation components")
    columns = {name: frame[name].to_numpy(dtype=np.float64) for name in _PVGIS_COLUMNS}
    if len(frame) == 0:
        raise DataGenError(f"{source}: no hours")
    return Weather(
        index=frame.index,
        beam=columns["Gb(i)"],
        diffuse=columns["Gd(i)"],
        temperature=columns["T2m"],
        wind=columns["WS10m"],
        height=columns["H_sun"],
        segment=segments(np.asarray(frame.index.as_unit("s").asi8)),
        latitude=where[0],
        longitude=where[1],
        altitude=where[2],
        utc_offset=standard_offset(where[0], where[1]),
        utc_hours=True,
        manifest={
            "source": source,
            "place": {"latitude": where[0], "longitude": where[1], "altitude_m": where[2]},
            "years": sorted({int(year) for year in frame.index.year}),
            "attribution": PVGIS_ATTRIBUTION,
            "licence": _PVGIS_LICENCE,
            **extra,
        },
    )
