from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_gen import DataGenError
from data_gen.features import split
from data_gen.houses import draw_group
from data_gen.pv_series import NOISE, PVConfig, choose, faithful, physical
from data_gen.station import Weather

CONFIG = PVConfig(clients=3, samples=20)


def test_faithful_draws_in_the_published_order(sky: Weather) -> None:
    made = faithful(CONFIG, sky, 1.0, 3, 3)
    rng = np.random.RandomState(3)
    train, _, _ = split(sky, 1.0, (2018, 2019))
    expected = []
    for azimuth, size, first in ((90.0, 2, 0), (270.0, 1, 2)):
        for house in draw_group(rng, size, first, azimuth, sky.latitude, sky.altitude):
            temperature, wind = (rng.normal(0.0, NOISE * np.ptp(v), 8760) for v in (sky.temperature, sky.wind))
            expected.append((house, temperature, wind))
    for one, (house, temperature, wind) in zip(made, expected, strict=True):
        assert one.house == house
        np.testing.assert_allclose(one.temperature - sky.temperature, temperature, atol=1e-12)
        np.testing.assert_allclose(one.wind - sky.wind, wind, atol=1e-12)
        np.testing.assert_array_equal(one.rows, np.sort(rng.choice(train, 20, replace=False)))


def test_faithful_noise_drives_the_physics_and_physical_noise_does_not(sky: Weather) -> None:
    calm = replace(sky, temperature=sky.temperature + np.linspace(0, 1e-9, 8760))
    spread = replace(sky, temperature=np.where(np.arange(8760) == 0, 500.0, sky.temperature))
    for make, same in ((faithful, False), (physical, True)):
        one, two = (make(CONFIG, weather, 1.0, 3, 1)[0] for weather in (calm, spread))
        assert np.std(two.temperature - one.temperature) > 20  # the range is the noise's scale
        # Not the first hours, whose temperature differs; the sun's refraction sees it then only.
        assert np.allclose(one.power[24:], two.power[24:], atol=1e-4) == same


def test_physical_houses_do_not_depend_on_their_number(sky: Weather) -> None:
    south = replace(CONFIG, kind="s")
    one, three = physical(south, sky, 1.0, 3, 1)[0], physical(south, sky, 1.0, 3, 3)[0]
    np.testing.assert_array_equal(one.power, three.power)
    np.testing.assert_array_equal(one.rows, three.rows)
    assert one.wind.min() >= 0


def test_choice_of_rows() -> None:
    train = np.arange(100, 200)
    rng = np.random.RandomState(0)
    np.testing.assert_array_equal(choose(rng, train, replace(CONFIG, samples=None)), train)
    np.testing.assert_array_equal(choose(rng, train, replace(CONFIG, samples=5, pick="first")), train[:5])
    picked = choose(rng, train, replace(CONFIG, samples=50))
    assert len(set(picked)) == 50
    assert set(picked) <= set(train)
    assert (np.diff(picked) > 0).all()
    with pytest.raises(DataGenError, match="samples is 101, but this weather has 100 training rows"):
        choose(rng, train, replace(CONFIG, samples=101))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"kind": "n"}, "kind must be one of ew, s"),
        ({"mode": "fast"}, "mode must be one of faithful, physical"),
        ({"pick": "last"}, "pick must be"),
        ({"samples": 0}, "samples"),
        ({"clients": 524}, "clients"),
        ({"seed": 2**32}, "seed"),
        ({"latitude": 80}, "latitude"),
        ({"utc_offset": 15}, "utc_offset"),
        ({"weather": ""}, "weather"),
        ({"weather": 3}, "weather"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], word: str) -> None:
    with pytest.raises(DataGenError, match=word):
        PVConfig(**options)


def test_weather_may_be_a_path() -> None:
    assert PVConfig(weather=Path("a") / "b.csv").weather == str(Path("a") / "b.csv")
