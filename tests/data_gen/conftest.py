"""Weather and data sets that several tests read."""

from __future__ import annotations

from pathlib import Path

import pytest

from data_gen import Dataset, pv, weather
from data_gen.station import Weather


@pytest.fixture(scope="session")
def sky() -> Weather:
    """Return the clear-sky year."""
    return weather.load("clearsky")


@pytest.fixture(scope="session")
def typical() -> Weather:
    """Return the typical year that pvlib carries."""
    return weather.load("typical")


@pytest.fixture(scope="session")
def bern(data_root: Path) -> Path:
    """Return the PVGIS file of Bern, or skip."""
    return data_root / "pvgis" / "bern_2018_2019.csv"


@pytest.fixture(scope="session")
def small_pv() -> Dataset:
    """Return a small faithful PV data set."""
    return pv.generate(pv.PVConfig(clients=3, new_clients=2, samples=50, weather="clearsky"))
