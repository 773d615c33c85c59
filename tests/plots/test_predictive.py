"""Predictive bands show a client's own rows, in the data's units."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes

from pacbayes_fl.errors import StudyError
from pacbayes_fl.plots import NothingToDrawError, predictive_bands
from pacbayes_fl.plots.predictive import by_clock
from pacbayes_fl.results.records import Result
from tests.pages.conftest import timed
from tests.plots.conftest import make_result

pytestmark = pytest.mark.filterwarnings("error")


def drawn(axis: Axes, label: str) -> tuple[Any, Any]:
    (result,) = [line for line in axis.lines if line.get_label() == label]
    return result.get_xdata(), result.get_ydata()


def band(axis: Axes) -> Any:
    """Return the corners of the band: x, lower or upper."""
    (result,) = axis.collections
    return result.get_paths()[0].vertices


def rows(result: Result, group: str, client: int, name: str) -> Any:
    part = "train" if name.endswith("train") else "test"
    mask = result.predictions[f"{group}.mask_{part}"][client]
    return result.predictions[f"{group}.{name}"][client][mask].numpy()


def test_first_and_last_client_of_each_group_against_their_input(result: Result) -> None:
    figure = predictive_bands(result)
    assert [axis.get_title() for axis in figure.axes] == [
        "client_00 (existing)",
        "client_11 (existing)",
        "client_12 (new)",
        "client_17 (new)",
    ]
    places = [("existing", 0), ("existing", 11), ("new", 0), ("new", 5)]
    for axis, place in zip(figure.axes, places, strict=True):
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("time of day (h)", "power (kW)")
        x = rows(result, *place, "x_test")[:, 0]
        order = np.argsort(x)
        for label, name in (("mean", "mean"), ("test", "y_test")):
            np.testing.assert_array_equal(drawn(axis, label), [x[order], rows(result, *place, name)[order]])
        np.testing.assert_array_equal(
            drawn(axis, "training"), [rows(result, *place, "x_train")[:, 0], rows(result, *place, "y_train")]
        )
        corners = band(axis)
        for j in (0, 50, 179):
            ends = corners[corners[:, 0] == x[j], 1]
            assert ends.min() == rows(result, *place, "lower")[j]
            assert ends.max() == rows(result, *place, "upper")[j]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "predictive mean",
        "95 % band",
        "training points",
        "test points",
    ]
    figure.canvas.draw()


def test_several_features_are_drawn_as_a_series(made: Callable[..., Result]) -> None:
    result = made(d=2)
    figure = predictive_bands(result, ["client_00"], rows=20)
    (axis,) = figure.axes
    x, y = drawn(axis, "test")
    np.testing.assert_array_equal(x, np.arange(20))
    np.testing.assert_array_equal(y, rows(result, "existing", 0, "y_test")[:20])
    x, y = drawn(axis, "training")
    np.testing.assert_array_equal(x, np.arange(-10, 0))
    np.testing.assert_array_equal(y, rows(result, "existing", 0, "y_train")[-10:])
    assert axis.get_xlabel().startswith("row") and axis.get_ylabel() == "power (kW)"
    figure.canvas.draw()


def test_clients_are_chosen_by_name_in_the_order_asked(result: Result) -> None:
    figure = predictive_bands(result, ["client_14", "client_02", "client_05"])
    assert [axis.get_title()[:9] for axis in figure.axes] == ["client_14", "client_02", "client_05"]
    with pytest.raises(StudyError, match=r"'client_2'.*is it 'client_"):
        predictive_bands(result, ["client_2"])


def test_a_predictor_without_a_band_and_data_without_names(result: Result) -> None:
    nothing = torch.full_like(result.predictions["existing.mean"], math.nan)
    predictions = {**result.predictions, "existing.lower": nothing, "existing.upper": nothing}
    figure = predictive_bands(replace(result, predictions=predictions, labels={}), ["client_00"])
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("x", "y")
    figure.canvas.draw()


def test_clients_without_test_rows_are_passed_over(result: Result) -> None:
    mask = result.predictions["existing.mask_test"].clone()
    mask[0] = False
    figure = predictive_bands(replace(result, predictions={**result.predictions, "existing.mask_test": mask}))
    assert figure.axes[0].get_title() == "client_01 (existing)"
    with pytest.raises(NothingToDrawError, match="no predictions"):
        predictive_bands(replace(result, predictions={}))


def test_a_single_test_row_has_training_rows_before_it_on_a_clock() -> None:
    series = timed(make_result(d=2))
    mask = series.predictions["existing.mask_test"].clone()
    mask[0, 1:] = False
    alone = replace(series, predictions={**series.predictions, "existing.mask_test": mask})
    (axis,) = predictive_bands(alone, ["client_00"]).axes
    assert drawn(axis, "test")[0].size == 1
    np.testing.assert_array_equal(drawn(axis, "training")[1], rows(alone, "existing", 0, "y_train")[-12:])


def test_every_span_of_time_has_dates_that_fit() -> None:
    from matplotlib.figure import Figure

    axis = Figure().add_subplot()
    by_clock(axis, UTC)
    locator = axis.xaxis.get_major_locator()
    start = datetime(2024, 1, 30, 22, 17, tzinfo=UTC)
    for seconds in np.geomspace(2.0, 40 * 366 * 86_400, 400):  # warnings are errors here
        ticks = locator.tick_values(start, start + timedelta(seconds=float(seconds)))  # type: ignore[arg-type]
        assert 2 <= len(ticks) <= 9, seconds
    for hours in (73, 80, 96, 119):
        assert len(locator.tick_values(start, start + timedelta(hours=hours))) > 2  # type: ignore[arg-type]


def test_rows_of_a_series_are_counted_by_whole_numbers(made: Callable[..., Result]) -> None:
    (axis,) = predictive_bands(made(d=2), ["client_00"], rows=3).axes
    assert all(float(tick).is_integer() for tick in axis.get_xticks())
