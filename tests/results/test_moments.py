"""Test rows are drawn against their times, never against row numbers where times are known."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest
import torch

from pacbayes_fl.results.moments import drawn_before, of_group
from tests.pages.conftest import timed
from tests.plots.conftest import make_result

NUMBERS, SERIES = make_result(), timed(make_result(d=2))


def test_times_come_before_features_and_features_before_order() -> None:
    known, feature, order = (of_group(one, "existing") for one in (SERIES, NUMBERS, make_result(d=2)))
    assert known is not None and feature is not None and order is not None
    assert (known.kind, known.label, known.series) == ("clock", "when (Europe/Zurich)", True)
    assert (feature.kind, feature.label, feature.series) == ("feature", "time of day (h)", False)
    assert order.kind == "order" and "no column of times" in order.label
    assert of_group(replace(NUMBERS, predictions={}), "existing") is None


def test_hours_are_those_of_the_zone_across_the_change_of_clocks() -> None:
    """Against the calendar, row by row."""
    known = of_group(SERIES, "existing")
    assert known is not None
    zone = ZoneInfo("Europe/Zurich")
    expected = [datetime.fromtimestamp(one, zone).hour for one in known.test[0]]
    hours = known.hours()
    assert hours is not None and hours[0].tolist() == expected and len(set(expected)) == 24


@pytest.mark.parametrize(
    ("said", "kind", "label", "first"),
    [
        ({"name": "t", "kind": "number"}, "number", "t", 7.0),
        ({"name": "t", "kind": "date", "per_second": 1}, "clock", "t (local time)", 7.0),
        (
            {"name": "t", "kind": "datetime with a time zone", "per_second": 1, "offset": -5.0},
            "clock",
            "t (UTC-5 h)",
            7,
        ),
        (
            {"name": "t", "kind": "datetime with a time zone", "per_second": 7, "zone": "No/Where"},
            "clock",
            "t (UTC)",
            1,
        ),
    ],
)
def test_times_are_read_as_their_label_says(said: dict[str, object], kind: str, label: str, first: float) -> None:
    made = make_result()
    when = {
        f"{g}.time_{p}": torch.full_like(made.predictions[f"{g}.y_{p}"], 7)
        for g in ("existing",)
        for p in ("train", "test")
    }
    known = of_group(replace(made, predictions={**made.predictions, **when}, labels={"time": said}), "existing")
    assert known is not None
    assert (known.kind, known.label, known.test[0, 0]) == (kind, label, first)
    assert (known.hours() is None) == (kind == "number")


def test_gaps_are_where_rows_are_missing() -> None:
    known = of_group(SERIES, "existing")
    assert known is not None
    assert known.gaps(np.array([0.0, 1, 2, 9, 10])).tolist() == [False, False, True, False]
    assert not replace(known, kind="feature").gaps(np.array([0.0, 1, 2, 9, 10])).any()


@pytest.mark.parametrize(("train", "test", "count"), [(4, 2, 4), (40, 1, 12), (40, 2, 12), (40, 61, 30)])
def test_training_rows_are_drawn_where_there_is_room(train: int, test: int, count: int) -> None:
    x = np.arange(train + test, dtype=np.float64)
    assert drawn_before(x[:train], x[train:]).sum() == count
    assert drawn_before(x[:train] - 1e6, x[train:]).sum() == (count if test == 1 else 0)
    assert drawn_before(x[:0], x[train:]).size == 0
