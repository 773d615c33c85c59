"""The PV data: hourly DC power of houses under one city's weather (PAC-PFL section 8.5.1).

Two modes. ``faithful`` draws and computes as the generator that was published with the paper,
slips included. ``physical`` has the same houses, features and sizes in law, with the physics
right, and measurement noise in the features only.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from data_gen import features, houses, physics, weather
from data_gen.dataset import Dataset, client_names, finish
from data_gen.manifest import variant_tag, versions
from data_gen.pv_series import PVConfig, Series, faithful, physical
from data_gen.station import Weather

__all__ = ["PVConfig", "generate"]

_Values = npt.NDArray[np.float64]
_FAITHFUL = (
    "Where paper and published generator are silent or differ, we chose: latitude and altitude of the weather's place "
    "as the means of the houses' tilts and altitudes; one position of the sun for all houses; PV-EW drawn group by "
    "group (east, then west), in each group the houses first and then each house's noise; the training rows last, "
    "house by house; noise scaled by the range of the whole weather file; wind not cut at 0; the same modules for "
    "existing and new houses; samples chosen at random from two months as the generator does (the paper says the "
    "first two weeks: pick='first')."
)
_PHYSICAL = (
    "Our own variant: houses drawn one by one from their own generators; irradiance scale and shadow act on the "
    "plane's irradiance before the cell temperature; measured wind cut at 0."
)


def generate(config: PVConfig | None = None) -> Dataset:
    """Make the PV data (PAC-PFL section 8.5.1 and the generator published with it).

    Args:
        config: the options; the defaults if None.

    Returns:
        The data: 15 features (``data_gen.features.FEATURES``), target DC power "p_mp" in W,
        ``time`` in UTC. Values are raw; the paper standardises x and y of each client by its
        training mean and std + 1e-8.

    Raises:
        DataGenError: an option is out of range, pvlib is missing, or the weather cannot be used.
    """
    config = PVConfig() if config is None else config
    place, years = (config.latitude, config.longitude), (config.train_year, config.test_year)
    station = weather.load(str(config.weather), years=years, place=place)
    offset = 0.0 if config.mode == "faithful" and station.utc_hours else station.utc_offset
    offset = offset if config.utc_offset is None else float(config.utc_offset)
    _, test, window = features.split(station, offset, years)
    make = faithful if config.mode == "faithful" else physical
    series = make(config, station, offset, config.seed, config.clients)
    series += make(config, station, offset, config.new_seed, config.new_clients)
    beam = station_beam(config, station)
    rows = [np.concatenate([one.rows, test]) for one in series]
    tables = [features.features(station.height, s.temperature, s.wind, beam, s.power) for s in series]
    sizes = [len(row) for row in rows]
    names = client_names("house", config.clients, config.new_clients)
    dataset = Dataset(
        x=np.concatenate([table[row] for table, row in zip(tables, rows, strict=True)]),
        y=np.concatenate([one.power[row] for one, row in zip(series, rows, strict=True)]),
        client=np.repeat(np.arange(len(series), dtype=np.int64), sizes),
        test=np.concatenate([np.arange(size) >= size - len(test) for size in sizes]),
        client_name=names,
        client_new=np.arange(len(series)) >= config.clients,
        feature_name=np.array([name for name, _ in features.FEATURES]),
        feature_unit=np.array([unit for _, unit in features.FEATURES]),
        target_name="p_mp",
        target_unit="W",
        time=np.concatenate([station.seconds[row] for row in rows]),
    )
    return finish(dataset, _manifest(config, station, offset, window, names.tolist(), series))


def station_beam(config: PVConfig, station: Weather) -> _Values:
    """Give the beam irradiance on the weather station's plane: tilt = latitude, facing south.

    Args:
        config: its ``mode``.
        station: the weather, N hours.

    Returns:
        [N], W/m2.
    """
    faithful_mode = config.mode == "faithful"
    sky = physics.faithful_sky(station) if faithful_mode else physics.physical_sky(station, station.altitude)
    with np.errstate(all="ignore"):
        return physics.plane(sky, station.latitude, 180.0)[0]


def _manifest(
    config: PVConfig, station: Weather, offset: float, window: str, names: list[str], series: list[Series]
) -> dict[str, Any]:
    """Collect what is recorded beside the data."""
    given = PurePath(config.weather)
    named, catalogue = str(given) in weather.NAMES, physics.Catalogue()
    source = str(given) if named else given.name
    specifications = {
        name: {
            **one.house.as_dict(),
            "module": catalogue.module(one.house.module)[0],
            "inverter": catalogue.inverter(one.house.module),
        }
        for name, one in zip(names, series, strict=True)
    }
    amount = "all" if config.samples is None else str(config.samples)
    label = str(given) if named else given.stem
    return {
        "name": f"pv-{config.kind}",
        "stem": (
            f"pv-{config.kind}_{config.mode}_{label}_m{amount}_seed{config.seed}-{config.new_seed}"
            + variant_tag(config, ("kind", "mode", "weather", "samples", "seed", "new_seed"))
        ),
        "arguments": asdict(config) | {"weather": source},
        "seeds": {"clients": config.seed, "new_clients": config.new_seed},
        "assumptions": _FAITHFUL if config.mode == "faithful" else _PHYSICAL,
        "source": "PAC-PFL section 8.5.1 and the generator published with it",
        "weather": station.manifest,
        "hours_of_day": {"first": houses.HOURS[0], "last": houses.HOURS[-1], "utc_offset": offset},
        "window": window,
        "lags_h": list(features.LAGS),
        "houses": specifications,
        "versions": versions("numpy", "pandas", "pvlib"),
    }
