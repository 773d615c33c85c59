"""From weather to DC power: the published generator's way, and the right way.

Both use pvlib: Hay and Davies' transposition, the Sandia array performance model (King et al.,
SAND2004-3535) and its cell temperature for an open rack with glass on both sides. The right way
(``physical``) is what ``pvlib.modelchain.ModelChain`` computes. The published way (``faithful``)
keeps what the generator behind PAC-PFL section 8.5.1 does, slips included.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from data_gen.errors import DataGenError
from data_gen.houses import House, shadow
from data_gen.needs import need_pvlib
from data_gen.station import Weather

LOW_SUN = 3.0
"""Sun height in degrees below which beam irradiance counts as diffuse (physical mode)."""

_Values = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Sky:
    """What the panels of one house see of sun and sky; N hours.

    Attributes:
        zenith: apparent zenith of the sun, [N], degrees.
        azimuth: of the sun, [N], degrees clockwise from north.
        dni: direct normal irradiance, [N], W/m2.
        ghi: global horizontal irradiance, [N], W/m2.
        dhi: diffuse horizontal irradiance, [N], W/m2.
        dni_extra: extraterrestrial normal irradiance, [N], W/m2.
        airmass: relative airmass, [N]; NaN at night.
    """

    zenith: _Values
    azimuth: _Values
    dni: _Values
    ghi: _Values
    dhi: _Values
    dni_extra: _Values
    airmass: _Values


def _sun(weather: Weather, altitude: float) -> tuple[_Values, _Values]:
    """Give the sun's apparent zenith and azimuth in degrees."""
    pvlib = need_pvlib()
    sun = pvlib.solarposition.get_solarposition(
        weather.index,
        weather.latitude,
        weather.longitude,
        altitude=altitude,
        pressure=pvlib.atmosphere.alt2pres(altitude),
        temperature=weather.temperature,
    )
    return sun["apparent_zenith"].to_numpy(dtype=np.float64), sun["azimuth"].to_numpy(dtype=np.float64)


def faithful_sky(weather: Weather) -> Sky:
    """Give the sky as the published generator takes it (PAC-PFL 8.5.1, published generator).

    Formula: DNI = G_b, the beam on the HORIZONTAL plane; DHI = G_d;
    GHI = G_d + G_b cos(zenith) with the zenith in DEGREES where radians are meant. The sun's
    position is that at the weather station, for all houses (our reading; the houses' own
    altitudes and temperatures move it by refraction only, less than 0.1 degree).

    Args:
        weather: the station's.

    Returns:
        The sky, the same for all houses.
    """
    pvlib = need_pvlib()
    zenith, azimuth = _sun(weather, weather.altitude)
    extra = pvlib.irradiance.get_extra_radiation(weather.index).to_numpy(dtype=np.float64)
    ghi = weather.diffuse + weather.beam * np.cos(zenith)
    airmass = np.asarray(pvlib.atmosphere.get_relative_airmass(zenith), dtype=np.float64)
    return Sky(zenith, azimuth, weather.beam, ghi, weather.diffuse, extra, airmass)


def physical_sky(weather: Weather, altitude: float) -> Sky:
    """Give the sky with the physics right.

    Formula: GHI = G_b + G_d; DNI = G_b / cos(zenith), but at most the extraterrestrial one and
    0 where the sun stands below 3 degrees (``LOW_SUN``); DHI = GHI - DNI cos(zenith), so that
    what the two guards take from the beam counts as diffuse and the three stay consistent.

    Args:
        weather: the station's.
        altitude: of the house, metres; it moves the sun by refraction.

    Returns:
        The sky at the house.
    """
    pvlib = need_pvlib()
    zenith, azimuth = _sun(weather, altitude)
    extra = pvlib.irradiance.get_extra_radiation(weather.index).to_numpy(dtype=np.float64)
    ghi = weather.beam + weather.diffuse
    cosine = np.cos(np.deg2rad(zenith))
    high = zenith < 90.0 - LOW_SUN
    dni = np.where(high, np.minimum(weather.beam / np.where(high, cosine, 1.0), extra), 0.0)
    dhi = np.maximum(ghi - dni * np.where(high, cosine, 0.0), 0.0)
    airmass = np.asarray(pvlib.atmosphere.get_relative_airmass(zenith), dtype=np.float64)
    return Sky(zenith, azimuth, dni, ghi, dhi, extra, airmass)


def plane(sky: Sky, tilt: float, azimuth: float) -> tuple[_Values, _Values]:
    """Give the irradiance on a tilted plane (Hay and Davies, 1980; ground albedo 0.25).

    Args:
        sky: N hours.
        tilt: degrees from horizontal.
        azimuth: degrees clockwise from north.

    Returns:
        Beam and diffuse (sky and ground) irradiance on the plane, each [N], W/m2.
    """
    pvlib = need_pvlib()
    total = pvlib.irradiance.get_total_irradiance(
        tilt,
        azimuth,
        sky.zenith,
        sky.azimuth,
        sky.dni,
        sky.ghi,
        sky.dhi,
        dni_extra=sky.dni_extra,
        airmass=sky.airmass,
        model="haydavies",
    )
    return np.nan_to_num(np.asarray(total["poa_direct"])), np.nan_to_num(np.asarray(total["poa_diffuse"]))


@dataclass(frozen=True)
class Catalogue:
    """Tables of modules and inverters that pvlib carries; each is read once, which takes a tenth of a second."""

    @cached_property
    def _modules(self) -> Any:
        return need_pvlib().pvsystem.retrieve_sam("SandiaMod")

    @cached_property
    def _inverters(self) -> Any:
        return need_pvlib().pvsystem.retrieve_sam("CECInverter")

    def module(self, position: int) -> tuple[str, Any]:
        """Give the name and parameters of a module of the Sandia table.

        Args:
            position: in the table.

        Returns:
            Name, and parameters by name.

        Raises:
            DataGenError: the table ends before that position.
        """
        return _entry("SandiaMod", self._modules, position)

    def inverter(self, position: int) -> str:
        """Give the name of an inverter of the CEC table; it is recorded and never used (the power is DC).

        Args:
            position: in the table.

        Returns:
            Name.

        Raises:
            DataGenError: the table ends before that position.
        """
        return _entry("CECInverter", self._inverters, position)[0]


def _entry(table: str, columns: Any, position: int) -> tuple[str, Any]:
    if not 0 <= position < columns.shape[1]:
        raise DataGenError(f"{table} has {columns.shape[1]} entries, so at most that many houses of a kind")
    return str(columns.columns[position]), columns.iloc[:, position].to_dict()


def dc_power(
    house: House,
    module: Any,
    sky: Sky,
    temperature: _Values,
    wind: _Values,
    hours: npt.NDArray[np.int64],
    *,
    faithful: bool,
) -> _Values:
    """Give the DC power at the maximum power point of one module (Sandia array performance model).

    Formula: E = f(beam, diffuse) on the plane, P = sapm(E, T_cell). Faithful: E is multiplied by
    scale x shadow after the cell temperature is known, and cut off at 0. Physical: beam and
    diffuse are multiplied by scale x shadow first, so that cell temperature and E agree; this is
    ``ModelChain.run_model_from_poa``, and ``ModelChain.run_model`` where scale x shadow = 1.

    Args:
        house: the panels.
        module: parameters of the Sandia table.
        sky: N hours.
        temperature: air temperature, [N], degrees Celsius.
        wind: wind speed, [N], m/s.
        hours: hour of day, [N], for the shadow.
        faithful: whether to keep the published generator's order of operations.

    Returns:
        Power, [N], W; 0 where there is no sun.
    """
    pvlib = need_pvlib()
    mount = pvlib.temperature.TEMPERATURE_MODEL_PARAMETERS["sapm"]["open_rack_glass_glass"]
    factor = house.irradiance_scale * shadow(hours, house.shadow_start, house.shadow_end, house.shadow_peak)
    with np.errstate(all="ignore"):
        beam, diffuse = plane(sky, house.tilt, house.azimuth)
        if not faithful:
            beam, diffuse = beam * factor, diffuse * factor
        angle = pvlib.irradiance.aoi(house.tilt, house.azimuth, sky.zenith, sky.azimuth)
        airmass = pvlib.atmosphere.get_absolute_airmass(sky.airmass, pvlib.atmosphere.alt2pres(house.altitude))
        cell = pvlib.temperature.sapm_cell(beam + diffuse, temperature, wind, **mount)
        effective = np.asarray(pvlib.pvsystem.sapm_effective_irradiance(beam, diffuse, airmass, angle, module))
        if faithful:
            effective = np.maximum(effective * factor, 0.0)
        power = pvlib.pvsystem.sapm(effective, cell, module)["p_mp"]
    return np.nan_to_num(np.asarray(power, dtype=np.float64))
