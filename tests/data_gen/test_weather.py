from __future__ import annotations

import numpy as np
import pytest

from data_gen import DataGenError, needs, weather
from data_gen.physics import physical_sky
from data_gen.station import Weather


def test_typical_year_has_one_year_of_stamps_and_twelve_source_years(typical: Weather) -> None:
    assert len(typical.index) == 8760
    assert set(np.diff(typical.seconds)) == {3600}
    assert typical.seconds[0] == np.datetime64("2018-01-01T05:30", "s").astype(np.int64)
    assert typical.utc_offset == -5.0
    assert not typical.utc_hours
    assert typical.manifest["years"] == [1980, 1981, 1986, 1988, 1989, 1990, 1994, 1996, 2001, 2003]
    assert "TMY3" in typical.manifest["attribution"]


def test_typical_year_changes_its_segment_with_the_source_year(typical: Weather) -> None:
    local = (typical.seconds - 5 * 3600).astype("datetime64[s]")
    months = local.astype("datetime64[M]").astype(int) % 12 + 1
    assert [set(typical.segment[months == month]) for month in range(1, 13)] == [{i} for i in range(12)]


def test_typical_year_keeps_its_dni(typical: Weather) -> None:
    pvlib = needs.need_pvlib()
    path = pvlib.__file__.replace("__init__.py", f"data/{weather.TYPICAL_FILE}")
    frame, _ = pvlib.iotools.read_tmy3(path, map_variables=True)
    sky = physical_sky(typical, typical.altitude)
    high = typical.height > 5
    np.testing.assert_allclose(sky.dni[high], frame["dni"].to_numpy()[high], rtol=1e-3, atol=0.5)
    np.testing.assert_allclose(typical.diffuse, frame["dhi"].to_numpy())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "place", "offset", "july"),
    [("miami", (25.8, -80.27), -5.0, 1964), ("sand-point", (55.32, -160.52), -9.0, 1991)],
)
def test_other_typical_years_lie_where_the_sun_says(
    name: str, place: tuple[float, float], offset: float, july: int
) -> None:
    year = weather.load(name)
    assert len(year.index) == 8760 and set(np.diff(year.seconds)) == {3600}
    assert (year.latitude, year.longitude) == pytest.approx(place, abs=0.01) and year.utc_offset == offset
    assert july in year.manifest["years"]
    local = (year.seconds + round(offset * 3600)).astype("datetime64[s]")
    assert str(local[0]) == "2018-01-01T00:30:00"
    months = local.astype("datetime64[M]").astype(int) % 12 + 1
    assert all(len(set(year.segment[months == month])) == 1 for month in range(1, 13))
    horizontal = year.beam + year.diffuse  # an hour of shift, or another unit, would show
    assert horizontal[year.height == 0].mean() < 2 < 100 < horizontal[year.height > 15].mean()
    assert np.corrcoef(horizontal, np.sin(np.deg2rad(year.height)))[0, 1] > 0.7
    assert -30 < year.temperature.min() < year.temperature.max() < 45
    assert 2 < year.wind.mean() < 8
    if name == "miami":  # TMY2 has tenths
        assert year.temperature[10] == 18.9 and year.wind[10] == 4.1 and year.diffuse[10] == 138.0
        assert year.manifest["source"] == "TMY2 12839, Miami, Florida"


def test_clear_sky_is_the_same_every_time(sky: Weather) -> None:
    again = weather.load("clearsky")
    np.testing.assert_array_equal(again.beam, sky.beam)
    assert sky.segment.max() == 0
    assert 800 < (sky.beam + sky.diffuse).max() < 1000
    assert sky.beam[sky.height == 0].max() < 1
    assert sky.wind.min() > 0
    assert "synthetic" in sky.manifest["source"]


def test_clear_sky_follows_the_place() -> None:
    tropics = weather.load("clearsky", place=(0.0, 30.0))
    assert tropics.latitude == 0.0
    assert tropics.utc_offset == 2.0


def test_a_name_that_is_no_source_is_a_path() -> None:
    with pytest.raises(DataGenError, match="cannot read weather file 'clear-sky'"):
        weather.load("clear-sky")
