from __future__ import annotations

import numpy as np
import pytest

from data_gen import DataGenError
from data_gen.houses import HOURS, House, draw_group, draw_house, group_sizes, shadow


def test_shadow_of_odd_and_even_length() -> None:
    day = np.arange(24)
    odd = np.ones(24)
    odd[9:14] = [0.933333, 0.866667, 0.8, 0.866667, 0.933333]
    np.testing.assert_allclose(shadow(day, 9, 13), odd, atol=5e-7)
    even = np.ones(24)
    even[3:9] = [0.933333, 0.866667, 0.8, 0.8, 0.866667, 0.933333]
    np.testing.assert_allclose(shadow(day, 3, 8), even, atol=5e-7)


def test_wrong_shadows_are_refused() -> None:
    with pytest.raises(DataGenError, match="before its start"):
        shadow(9, 9, 8)
    with pytest.raises(DataGenError, match="peak"):
        shadow(9, 9, 10, 1.5)


def test_group_draws_in_the_published_order() -> None:
    houses = draw_group(np.random.RandomState(3), 4, 10, 90.0, 47.0, 500.0)
    again = np.random.RandomState(3)
    normals = again.standard_normal(16).reshape(4, 4)
    for index, house in enumerate(houses):
        hours = sorted(again.choice(np.arange(8, 18), 2, replace=False))
        expected = House(
            47.0 + 5.0 * normals[0, index],
            90.0 + 15.0 * normals[1, index],
            500.0 + 50.0 * normals[2, index],
            1.0 + 0.2 * normals[3, index],
            int(hours[0]),
            int(hours[1]),
            10 + index,
            90.0,
        )
        assert house == expected
        assert house.shadow_start < house.shadow_end


def test_single_houses_follow_the_same_laws() -> None:
    rng = np.random.default_rng(1)
    houses = [draw_house(rng, i, 270.0, 47.0, 500.0) for i in range(800)]
    for name, middle, deviation in (
        ("tilt", 47.0, 5.0),
        ("azimuth", 270.0, 15.0),
        ("altitude", 500.0, 50.0),
        ("irradiance_scale", 1.0, 0.2),
    ):
        values = np.array([getattr(house, name) for house in houses])
        assert abs(values.mean() - middle) < 4 * deviation / np.sqrt(800)
        assert abs(values.std() - deviation) < 4 * deviation / np.sqrt(1600)
    assert {house.shadow_start for house in houses} == set(HOURS[:-1])
    assert all(house.shadow_start < house.shadow_end for house in houses)


def test_groups_are_as_equal_as_can_be() -> None:
    assert group_sizes(24, 2) == [12, 12]
    assert group_sizes(5, 2) == [3, 2]
    assert group_sizes(1, 2) == [1, 0]
    assert group_sizes(0, 1) == [0]
