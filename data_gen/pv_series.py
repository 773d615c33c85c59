"""Options and hourly series of the houses of the PV data, in both modes."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import Literal, get_args, get_type_hints

import numpy as np
import numpy.typing as npt

from data_gen import features, houses, physics
from data_gen.errors import DataGenError, number, whole
from data_gen.station import Weather

NOISE = 0.1
"""Standard deviation of a house's temperature and wind noise, in ranges of the station's series."""

_Values = npt.NDArray[np.float64]
_Rows = npt.NDArray[np.intp]


@dataclass(frozen=True)
class PVConfig:
    """Options of the PV data (PAC-PFL section 8.5.1).

    Attributes:
        kind: ``"ew"`` (half the houses face east, half west) or ``"s"`` (all face south).
        samples: training rows of each house, 1 or more, or None for all; the paper has 150 and 610.
        clients: existing houses, at least 1.
        new_clients: new houses, at least 0.
        seed: of the existing houses, 0 to 2**32 - 1.
        new_seed: of the new houses, 0 to 2**32 - 1.
        mode: ``"faithful"`` or ``"physical"``.
        weather: ``"typical"`` (Greensboro), ``"miami"``, ``"sand-point"``, ``"pvgis"``, ``"clearsky"`` or the path
            of a PVGIS hourly CSV file.
        pick: ``"random"`` draws the samples from the training window, ``"first"`` takes the earliest.
        train_year: training year where the weather has several years.
        test_year: test year where the weather has several years, after ``train_year``.
        latitude: degrees north, for ``"pvgis"`` and ``"clearsky"``.
        longitude: degrees east, for ``"pvgis"`` and ``"clearsky"``.
        utc_offset: hours of local time minus UTC that hours of day are read in; None for UTC with
            PVGIS weather in faithful mode, local standard time otherwise.

    Raises:
        DataGenError: an option is out of its range.
    """

    kind: str = "ew"
    samples: int | None = 150
    clients: int = 24
    new_clients: int = 24
    seed: int = 3
    new_seed: int = 7
    mode: Literal["faithful", "physical"] = "faithful"
    weather: str | PathLike[str] = "typical"
    pick: Literal["random", "first"] = "random"
    train_year: int = 2018
    test_year: int = 2019
    latitude: float = 46.951
    longitude: float = 7.45
    utc_offset: float | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        kinds = get_type_hints(PVConfig)
        for name, valid in (
            ("kind", tuple(houses.AZIMUTHS)),
            ("mode", get_args(kinds["mode"])),
            ("pick", get_args(kinds["pick"])),
        ):
            if getattr(self, name) not in valid:
                raise DataGenError(f"{name} must be one of {', '.join(valid)}, is {getattr(self, name)!r}")
        seeds = (0, 2**32 - 1)
        bounds = {"clients": (1, 523), "new_clients": (0, 523), "seed": seeds, "new_seed": seeds}
        bounds |= {"train_year": (1900, 2200), "test_year": (1900, 2200)}
        if self.samples is not None:
            bounds["samples"] = (1, 10**6)
        for name, (least, most) in bounds.items():
            object.__setattr__(self, name, whole(name, getattr(self, name), least, most))
        object.__setattr__(self, "latitude", number("latitude", self.latitude, -66.0, 66.0))
        object.__setattr__(self, "longitude", number("longitude", self.longitude, -180.0, 180.0))
        if self.utc_offset is not None:
            object.__setattr__(self, "utc_offset", number("utc_offset", self.utc_offset, -14.0, 14.0))
        if not isinstance(self.weather, str | PathLike) or not str(self.weather):
            known = "typical, miami, sand-point, pvgis, clearsky"
            raise DataGenError(f"weather must be {known} or the path of a PVGIS hourly CSV file")
        object.__setattr__(self, "weather", str(self.weather))


@dataclass(frozen=True, eq=False)
class Series:
    """The whole hourly series of one house; N hours.

    Attributes:
        house: the house.
        temperature: as the house measures it, [N], degrees Celsius.
        wind: as the house measures it, [N], m/s.
        power: DC power, [N], W.
        rows: the training hours chosen, in the order of time.
    """

    house: houses.House
    temperature: _Values
    wind: _Values
    power: _Values
    rows: _Rows


def choose(rng: np.random.RandomState | np.random.Generator, train: _Rows, config: PVConfig) -> _Rows:
    """Choose a house's training rows from the training window.

    Args:
        rng: advanced where ``pick`` is ``"random"`` and not all rows are taken.
        train: positions of the training hours.
        config: its ``samples`` and ``pick``.

    Returns:
        Positions in the order of time.

    Raises:
        DataGenError: there are fewer rows than samples.
    """
    count = len(train) if config.samples is None else config.samples
    if count > len(train):
        raise DataGenError(f"samples is {count}, but this weather has {len(train)} training rows; use at most that")
    if count == len(train):
        return train
    if config.pick == "first":
        return train[:count]
    return np.sort(rng.choice(train, count, replace=False))


def faithful(config: PVConfig, station: Weather, offset: float, seed: int, count: int) -> list[Series]:
    """Make one kind of houses in the published generator's order of draws (PAC-PFL 8.5.1).

    Formula: from ``numpy.random.RandomState(seed)``, for each group of houses (PV-EW: east, west):
    the group's specifications (``houses.draw_group``), then for each house T2m noise and WS10m
    noise, N(0, (0.1 range)^2) per hour; at last, house by house, the training rows. The noisy
    temperature and wind drive the physics as well as the features.

    Args:
        config: the options.
        station: the weather.
        offset: local time minus UTC, hours.
        seed: of these houses.
        count: number of houses.

    Returns:
        The houses' series.

    Raises:
        DataGenError: there are fewer rows than samples.
    """
    rng, catalogue = np.random.RandomState(seed), physics.Catalogue()
    hours = features.hours_of_day(station, offset)
    train, _, _ = features.split(station, offset, (config.train_year, config.test_year))
    sky = physics.faithful_sky(station)
    made: list[tuple[houses.House, _Values, _Values, _Values]] = []
    groups = houses.AZIMUTHS[config.kind]
    for azimuth, size in zip(groups, houses.group_sizes(count, len(groups)), strict=True):
        for house in houses.draw_group(rng, size, len(made), azimuth, station.latitude, station.altitude):
            temperature = station.temperature + _noise(rng, station.temperature)
            wind = station.wind + _noise(rng, station.wind)
            _, module = catalogue.module(house.module)
            power = physics.dc_power(house, module, sky, temperature, wind, hours, faithful=True)
            made.append((house, temperature, wind, power))
    return [Series(*parts, rows=choose(rng, train, config)) for parts in made]


def physical(config: PVConfig, station: Weather, offset: float, seed: int, count: int) -> list[Series]:
    """Make one kind of houses with the physics right (our variant of PAC-PFL 8.5.1).

    Formula: house i draws from ``numpy.random.default_rng([seed, i])``: its specifications
    (``houses.draw_house``), T2m noise, WS10m noise, training rows. The noise is in the features
    only; measured wind is cut off at 0.

    Args:
        config: the options.
        station: the weather.
        offset: local time minus UTC, hours.
        seed: of these houses.
        count: number of houses.

    Returns:
        The houses' series.

    Raises:
        DataGenError: there are fewer rows than samples.
    """
    hours = features.hours_of_day(station, offset)
    train, _, _ = features.split(station, offset, (config.train_year, config.test_year))
    groups = houses.AZIMUTHS[config.kind]
    azimuths = np.repeat(groups, houses.group_sizes(count, len(groups)))
    made, catalogue = [], physics.Catalogue()
    for index in range(count):
        rng = np.random.default_rng([seed, index])
        house = houses.draw_house(rng, index, float(azimuths[index]), station.latitude, station.altitude)
        _, module = catalogue.module(house.module)
        sky = physics.physical_sky(station, house.altitude)
        power = physics.dc_power(house, module, sky, station.temperature, station.wind, hours, faithful=False)
        temperature = station.temperature + _noise(rng, station.temperature)
        wind = np.maximum(station.wind + _noise(rng, station.wind), 0.0)
        made.append(Series(house, temperature, wind, power, choose(rng, train, config)))
    return made


def _noise(rng: np.random.RandomState | np.random.Generator, values: _Values) -> _Values:
    return np.asarray(rng.normal(0.0, NOISE * (values.max() - values.min()), len(values)))
