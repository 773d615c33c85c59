"""Histograms of entropy are those that the rounds recorded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes

from pacbayes_fl.errors import StudyError
from pacbayes_fl.plots import NothingToDrawError, uncertainty_histograms
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord

pytestmark = pytest.mark.filterwarnings("error")
Maker = Callable[..., Result]


def heights(axis: Axes) -> list[float]:
    return [patch.get_height() for patch in axis.patches]  # type: ignore[attr-defined]


def test_rows_are_rounds_and_columns_are_clients(classes: Maker) -> None:
    result = classes()
    figure = uncertainty_histograms(result)
    panels = np.array(figure.axes, dtype=object).reshape(3, 5)
    for row, number in zip(panels, (0, 1, 10), strict=True):
        for k, axis in enumerate(row):
            assert axis.get_title() == f"client.{k:02d}, round {number}"
            shares = result.rounds[number].histograms[f"entropy.client.{k:02d}"]
            np.testing.assert_allclose(heights(axis), shares, rtol=1e-14)
            np.testing.assert_allclose([patch.get_x() for patch in axis.patches], np.arange(20) / 20, atol=1e-14)
    assert len(uncertainty_histograms(result, 2).axes) == 6
    figure.canvas.draw()


def test_a_client_that_has_no_rows_or_was_not_there_leaves_its_panel_empty(result: Result) -> None:
    rounds = (
        RoundRecord(1, 2, (), {}, {"entropy.a": (0.5, 0.5), "entropy.b": (math.nan, math.nan), "other.c": (1.0,)}),
        RoundRecord(2, 2, (), {"loss": 1.0}),
        RoundRecord(3, 1, ("b",), {}, {"entropy.a": (1.0, 0.0)}),
    )
    figure = uncertainty_histograms(replace(result, rounds=rounds))
    assert {axis.get_ylim() for axis in figure.axes} == {(0.0, 1.05)}
    assert [heights(axis) for axis in figure.axes] == [[0.5, 0.5], [0.0, 0.0], [1.0, 0.0], []]
    figure.canvas.draw()


def test_of_many_rounds_five_are_drawn_from_first_to_last(result: Result) -> None:
    rounds = tuple(RoundRecord(number, 1, (), {}, {"entropy.a": (1.0,)}) for number in range(10, 31))
    titles = [axis.get_title() for axis in uncertainty_histograms(replace(result, rounds=rounds)).axes]
    assert titles == [f"a, round {number}" for number in (10, 15, 20, 25, 30)]


def test_what_cannot_be_drawn_is_refused(result: Result, classes: Maker) -> None:
    with pytest.raises(NothingToDrawError, match="entropy"):
        uncertainty_histograms(result)
    with pytest.raises(StudyError, match="clients must be at least 1, got 0"):
        uncertainty_histograms(classes(), 0)
