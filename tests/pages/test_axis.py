"""Axes hold what they are made of, with ticks at round values, whatever the size of numbers and the zone of clocks."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pacbayes_fl.pages import axis

ZURICH = ZoneInfo("Europe/Zurich")


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=5), st.booleans())
def test_values_lie_on_the_axis_and_ticks_too(values: list[float], zero: bool) -> None:
    made = axis.linear("x", values, zero=zero)
    assert made.low < made.high and made.low <= min(values) and made.high >= max(values)
    assert 2 <= len(made.ticks) <= 12
    places = [value for value, _ in made.ticks]
    assert places == sorted(places) and made.low - 1e-6 * abs(made.low) <= places[0]
    assert_told(made)


@given(st.floats(1.0, 9.99), st.integers(-12, 12), st.floats(-50, 50), st.sampled_from([5, 8]))
def test_a_tick_says_its_value_whatever_the_size_of_steps(share: float, power: int, away: float, count: int) -> None:
    span = share * 10.0**power
    assert_told(axis.fixed("x", away * span, (away + 1) * span, count))


@given(st.floats(1.0, 9.99), st.integers(-3, 3), st.sampled_from([1e6, -1e6, 4e8, 1e-3]))
def test_a_tick_says_its_value_far_from_zero_too(share: float, power: int, start: float) -> None:
    assert_told(axis.linear("x", [start, start + share * 10.0**power]))


def assert_told(made: axis.Axis) -> None:
    """Texts are distinct and are the values, but for what floats leave of them."""
    step = np.diff([value for value, _ in made.ticks]).min()
    for value, told in made.ticks:
        assert abs(float(told) - value) <= 1e-3 * step, made.ticks
    assert len({told for _, told in made.ticks}) == len(made.ticks)


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.0, 1.0], ["0", "0.25", "0.50", "0.75", "1.00"]),
        ([0.0, 10.0], ["0.0", "2.5", "5.0", "7.5", "10.0"]),
        ([-3e-7, 3e-7], ["-2e-7", "0", "2e-7"]),
        ([5.0, 5.0], ["4.5", "4.75", "5", "5.25", "5.5"]),
        ([float("nan"), float("inf")], ["0", "0.25", "0.50", "0.75", "1.00"]),
    ],
)
def test_ticks_are_round(values: list[float], ticks: list[str]) -> None:
    texts = [text for _, text in axis.linear("x", values).ticks]
    assert [float(one) for one in texts] == [float(one) for one in ticks]


@pytest.mark.parametrize(
    ("values", "ticks"), [([1, 2, 3], "1 2 3"), ([3], "2 3 4"), ([1, 12], "5 10"), ([1, 120], "0 50 100")]
)
def test_rounds_are_whole_numbers(values: list[float], ticks: str) -> None:
    assert [text for _, text in axis.linear("round", values, whole=True).ticks] == ticks.split()


def test_places_are_linear_between_the_ends() -> None:
    made = axis.fixed("x", 2.0, 4.0)
    assert made.place(np.array([2.0, 3.0, 4.0]), 100.0, 0.0).tolist() == [100.0, 50.0, 0.0]
    assert axis.named("who", ["a", "b"]).place(1.0, 0.0, 4.0) == 3.0


def seconds(*moments: datetime) -> np.ndarray:
    return np.array([moment.timestamp() for moment in moments])


def test_days_begin_at_midnight_of_the_zone_also_when_clocks_change() -> None:
    """Against the calendar: 31 March 2024 has 23 hours in Zurich."""
    made = axis.times("t", seconds(datetime(2024, 3, 30, 8, tzinfo=UTC), datetime(2024, 4, 2, 8, tzinfo=UTC)), ZURICH)
    told = [datetime.fromtimestamp(value, ZURICH) for value, _ in made.ticks]
    assert [one.strftime("%d %H:%M") for one in told] == ["31 00:00", "01 00:00", "02 00:00"]
    assert np.diff([value for value, _ in made.ticks]).tolist() == [23 * 3600, 24 * 3600]
    assert [text for _, text in made.ticks] == ["31 Mar", "01 Apr", "02 Apr"]


@pytest.mark.parametrize("hours", [0, 0.2, 3, 30, 24 * 20, 24 * 100, 24 * 365 * 3])
def test_times_of_any_length_have_ticks_inside(hours: float) -> None:
    start = datetime(2023, 12, 31, 22, 7, tzinfo=UTC).timestamp()
    made = axis.times("t", np.array([start, start + 3600 * hours]), ZURICH)
    assert 2 <= len(made.ticks) <= 13
    assert all(made.low <= value <= made.high for value, _ in made.ticks)
    assert len({text for _, text in made.ticks}) == len(made.ticks) or hours < 1


@pytest.mark.parametrize(("days", "told"), [(0, "27 28 29"), (1, "28 29"), (3, "28 29 30 01")])
def test_daily_rows_have_ticks_of_days_however_few_they_are(days: int, told: str) -> None:
    first = datetime(2024, 6, 28, tzinfo=ZURICH)
    made = axis.times("t", np.array([first.timestamp(), first.timestamp() + 86400 * days]), ZURICH)
    assert [text.split() for _, text in made.ticks] == [[day, "Jul" if day == "01" else "Jun"] for day in told.split()]
