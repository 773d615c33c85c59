from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from data_gen import DataGenError, generate
from data_gen.features import hours_of_day
from data_gen.houses import House, shadow
from data_gen.needs import need_pvlib
from data_gen.physics import (
    Catalogue,
    dc_power,
    faithful_sky,
    physical_sky,
    plane,
)
from data_gen.station import Weather

OPEN = House(40.0, 100.0, 480.0, 1.0, 9, 13, 0, 90.0, shadow_peak=1.0)
SHADED = House(40.0, 250.0, 300.0, 1.2, 9, 16, 5, 270.0)


def model_chain(house: House, weather: Weather) -> Any:
    """Return pvlib's own chain for one house."""
    pvlib = need_pvlib()
    module = Catalogue().module(house.module)[1]
    inverters = pvlib.pvsystem.retrieve_sam("CECInverter")
    system = pvlib.pvsystem.PVSystem(
        surface_tilt=house.tilt,
        surface_azimuth=house.azimuth,
        module_parameters=module,
        inverter_parameters=inverters[Catalogue().inverter(house.module)].to_dict(),
        temperature_model_parameters=pvlib.temperature.TEMPERATURE_MODEL_PARAMETERS["sapm"]["open_rack_glass_glass"],
    )
    location = pvlib.location.Location(weather.latitude, weather.longitude, altitude=house.altitude)
    return pvlib.modelchain.ModelChain(system, location, aoi_model="sapm", spectral_model="sapm")


def power(house: House, weather: Weather, faithful: bool = False) -> npt.NDArray[np.float64]:
    sky = faithful_sky(weather) if faithful else physical_sky(weather, house.altitude)
    hours = hours_of_day(weather, weather.utc_offset)
    module = Catalogue().module(house.module)[1]
    return dc_power(house, module, sky, weather.temperature, weather.wind, hours, faithful=faithful)


@pytest.mark.filterwarnings("ignore")
def test_physical_power_is_that_of_model_chain(typical: Weather) -> None:
    sky = physical_sky(typical, OPEN.altitude)
    columns = {"ghi": sky.ghi, "dni": sky.dni, "dhi": sky.dhi}
    columns |= {"temp_air": typical.temperature, "wind_speed": typical.wind}
    chain = model_chain(OPEN, typical).run_model(pd.DataFrame(columns, index=typical.index))
    expected = chain.results.dc["p_mp"].fillna(0.0).to_numpy()
    assert expected.max() > 100
    np.testing.assert_allclose(power(OPEN, typical), expected, atol=1e-6, rtol=0)


@pytest.mark.filterwarnings("ignore")
def test_scale_and_shadow_act_as_less_irradiance_on_the_plane(typical: Weather) -> None:
    sky = physical_sky(typical, SHADED.altitude)
    factor = 1.2 * shadow(hours_of_day(typical, -5.0), 9, 16)
    beam, diffuse = plane(sky, SHADED.tilt, SHADED.azimuth)
    columns = {"poa_global": beam + diffuse, "poa_direct": beam, "poa_diffuse": diffuse}
    columns = {name: values * factor for name, values in columns.items()}
    columns |= {"temp_air": typical.temperature, "wind_speed": typical.wind}
    chain = model_chain(SHADED, typical).run_model_from_poa(pd.DataFrame(columns, index=typical.index))
    expected = chain.results.dc["p_mp"].fillna(0.0).to_numpy()
    np.testing.assert_allclose(power(SHADED, typical), expected, atol=1e-6, rtol=0)


def test_physical_sky_is_consistent_and_guarded(typical: Weather) -> None:
    odd = replace(typical, beam=typical.beam + 5.0 * (typical.height > 0))
    sky = physical_sky(odd, 300.0)
    cosine = np.cos(np.deg2rad(sky.zenith))
    np.testing.assert_allclose(sky.ghi, odd.beam + odd.diffuse)
    np.testing.assert_allclose(sky.dhi + sky.dni * np.maximum(cosine, 0), sky.ghi, atol=1e-9)
    assert (sky.dni <= sky.dni_extra).all()
    assert (sky.dni[sky.zenith > 87] == 0).all()
    assert sky.dhi.min() >= 0


def test_faithful_sky_keeps_the_published_slips(typical: Weather) -> None:
    sky = faithful_sky(typical)
    np.testing.assert_array_equal(sky.dni, typical.beam)
    np.testing.assert_allclose(sky.ghi, typical.diffuse + typical.beam * np.cos(sky.zenith))
    assert (sky.ghi < 0).any()  # the cosine of degrees taken for radians has any sign


def test_faithful_power_scales_the_effective_irradiance_only(typical: Weather) -> None:
    full = replace(SHADED, irradiance_scale=1.0, shadow_peak=1.0)
    pvlib = need_pvlib()
    sky = faithful_sky(typical)
    noon = np.flatnonzero(hours_of_day(typical, -5.0) == 12)[150]
    cell = pvlib.temperature.sapm_cell
    beam, diffuse = plane(sky, full.tilt, full.azimuth)
    heat = cell((beam + diffuse)[noon], typical.temperature[noon], typical.wind[noon], -3.47, -0.0594, 3)
    module = Catalogue().module(full.module)[1]
    angle = pvlib.irradiance.aoi(full.tilt, full.azimuth, sky.zenith[noon], sky.azimuth[noon])
    air = pvlib.atmosphere.get_absolute_airmass(sky.airmass[noon], pvlib.atmosphere.alt2pres(full.altitude))
    effective = pvlib.pvsystem.sapm_effective_irradiance(beam[noon], diffuse[noon], air, angle, module)
    factor = 1.2 * shadow(12, 9, 16)
    expected = pvlib.pvsystem.sapm(effective * factor, heat, module)["p_mp"]
    assert power(SHADED, typical, faithful=True)[noon] == pytest.approx(float(expected), abs=1e-9)


@pytest.mark.parametrize("faithful", [True, False])
def test_no_power_at_night_and_no_negative_power(sky: Weather, faithful: bool) -> None:
    made = power(SHADED, sky, faithful)
    assert np.isfinite(made).all()
    assert made.min() >= 0
    assert made[sky.height == 0].max() < 1


def test_tables_are_read_by_position() -> None:
    assert Catalogue().module(0)[0] == "Advent_Solar_AS160___2006_"
    assert Catalogue().inverter(0).startswith("ABB__MICRO_0_25")
    with pytest.raises(DataGenError, match="SandiaMod has 523 entries"):
        Catalogue().module(523)


def test_the_tables_of_modules_and_inverters_are_read_once_for_all_houses(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    real = need_pvlib().pvsystem.retrieve_sam

    def counting(name: str) -> Any:
        read.append(name)
        return real(name)

    monkeypatch.setattr(need_pvlib().pvsystem, "retrieve_sam", counting)
    generate("pv-ew", clients=3, new_clients=2, samples=5)
    assert sorted(read) == ["CECInverter", *["SandiaMod"] * 3]  # of existing and new houses, and of the manifest
