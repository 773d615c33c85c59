from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_gen import DataGenError, weather
from data_gen.needs import need_pvlib
from data_gen.pvgis import PVGIS_ATTRIBUTION, pvgis_download, pvgis_file

HEAD = """Latitude (decimal degrees):\t46.951
Longitude (decimal degrees):\t7.450
Elevation (m):\t510
Radiation database:\tPVGIS-SARAH2


Slope: 0 deg.
Azimuth: 0 deg.
time,Gb(i),Gd(i),Gr(i),H_sun,T2m,WS10m,Int
"""
ROWS = """20180101:0010,0.0,0.0,0.0,0.0,2.55,3.03,0.0
20180101:0110,10.0,20.0,0.0,5.5,3.49,3.31,0.0
20180101:0310,30.0,40.0,0.0,6.5,3.23,2.97,0.0

Gb(i): Beam (direct) irradiance
"""


class Answer:
    """What an HTTP request returns, as far as pvlib reads it."""

    ok = True

    def __init__(self, text: str) -> None:
        self.text = text


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[dict[str, Any]]]:
    """Return a function that sets the answer of PVGIS and returns the requests' parameters."""

    def install(given: Any) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []

        def get(url: str, params: dict[str, Any], timeout: int) -> Answer:
            asked.append({"url": url, **params})
            if isinstance(given, Exception):
                raise given
            return Answer(json.dumps(given))

        monkeypatch.setattr(need_pvlib().iotools.pvgis.requests, "get", get)
        return asked

    return install


def recorded() -> dict[str, Any]:
    names = ("Gb(i)", "Gd(i)", "Gr(i)", "H_sun", "T2m", "WS10m", "Int")
    lines = [line.split(",") for line in ROWS.splitlines()[:3]]
    hourly = [{"time": t, **dict(zip(names, map(float, rest), strict=True))} for t, *rest in lines]
    location = {"latitude": 46.951, "longitude": 7.45, "elevation": 510.0}
    inputs = {"location": location, "meteo_data": {"radiation_db": "PVGIS-SARAH2"}}
    return {"inputs": inputs, "outputs": {"hourly": hourly}, "meta": {"inputs": {}, "outputs": {}}}


def test_reads_a_file(tmp_path: Path) -> None:
    path = tmp_path / "town.csv"
    path.write_text(HEAD + ROWS)
    result = pvgis_file(path)
    assert (result.latitude, result.longitude, result.altitude, result.utc_offset) == (46.951, 7.45, 510.0, 1.0)
    assert result.utc_hours
    np.testing.assert_array_equal(result.beam, [0, 10, 30])
    np.testing.assert_array_equal(result.diffuse, [0, 20, 40])
    np.testing.assert_array_equal(result.height, [0, 5.5, 6.5])
    np.testing.assert_array_equal(result.segment, [0, 0, 1])
    assert result.manifest["attribution"] == PVGIS_ATTRIBUTION
    assert result.manifest["file"] == "town.csv"
    assert result.manifest["years"] == [2018]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\n1,2\n", "is not a PVGIS hourly CSV file"),
        (HEAD, "no hours"),
        (HEAD.replace("Slope: 0", "Slope: 35") + ROWS, "slope 35"),
        (HEAD.replace("Gb(i)", "G(i)") + ROWS, "missing columns"),
        (HEAD + ROWS.replace("30.0", "nan"), "beam holds values"),
        (HEAD + ROWS.replace("30.0", "x"), "is not a PVGIS hourly CSV file"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "town.csv"
    path.write_text(text)
    with pytest.raises(DataGenError, match=words):
        pvgis_file(path)


def test_a_missing_file_names_the_other_sources(tmp_path: Path) -> None:
    with pytest.raises(DataGenError, match="other sources are 'typical', 'miami', 'sand-point', 'pvgis'"):
        weather.load(str(tmp_path / "none.csv"))


def test_download_gives_what_the_file_gives(answer: Callable[[Any], list[dict[str, Any]]], tmp_path: Path) -> None:
    asked = answer(recorded())
    result = weather.load("pvgis", years=(2018, 2019), place=(46.951, 7.45))
    assert (asked[0]["startyear"], asked[0]["endyear"], asked[0]["angle"]) == (2018, 2019, 0)
    path = tmp_path / "town.csv"
    path.write_text(HEAD + ROWS)
    file = pvgis_file(path)
    for name in ("beam", "diffuse", "temperature", "wind", "height", "segment", "seconds"):
        np.testing.assert_array_equal(getattr(result, name), getattr(file, name))
    assert result.manifest["radiation_database"] == "PVGIS-SARAH2"


def test_offline_is_a_clear_error(answer: Callable[[Any], list[dict[str, Any]]]) -> None:
    answer(need_pvlib().iotools.pvgis.requests.exceptions.ConnectionError("no route"))
    with pytest.raises(DataGenError, match=r"cannot be reached.*no route.*'typical'"):
        pvgis_download((2018, 2019), (46.951, 7.45))


def test_an_unknown_answer_is_a_clear_error(answer: Callable[[Any], list[dict[str, Any]]]) -> None:
    answer({"message": "moved"})
    with pytest.raises(DataGenError, match="unknown form"):
        pvgis_download((2018, 2019), (46.951, 7.45))


def test_real_file(bern: Path) -> None:
    result = pvgis_file(bern)
    assert len(result.index) == 17520
    assert result.segment.max() == 0
    assert result.manifest["years"] == [2018, 2019]
