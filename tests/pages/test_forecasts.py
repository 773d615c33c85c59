"""Every client's forecasts: what is drawn is what the run predicts, and what is left out is said."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from pacbayes_fl.pages.forecasts import drawn_clients, forecast, rows_each, rows_of
from pacbayes_fl.pages.markup import to_html
from pacbayes_fl.results.records import Result
from tests.plots.conftest import make_result


def drawn(result: Result, at: int = 0, most: int = 400) -> str:
    rows = rows_of(result, "existing")
    assert rows is not None
    figure = forecast(result, rows, at, "who", most)
    assert figure is not None
    return to_html(figure)


def test_counts_are_those_of_a_loop_over_rows(numbers: Result) -> None:
    p = numbers.predictions
    held = 0
    for j in range(240):
        held += int(p["existing.lower"][0, j] <= p["existing.y_test"][0, j] <= p["existing.upper"][0, j])
    text = drawn(numbers)
    assert f"{held} of 240 test targets lie in their 95 % interval" in text
    assert "power (kW)" in text and "time of day (h)" in text and "training rows" in text


def test_what_is_cut_is_said(numbers: Result, series: Result) -> None:
    assert "Drawn:" not in drawn(series) and "Drawn:" not in drawn(numbers)
    assert "Drawn: the first 50 of 240 test rows" in drawn(series, most=50)
    assert "every n-th, in order of x: 50 of 240" in drawn(numbers, most=50)


def test_padding_is_never_drawn() -> None:
    """A client with fewer rows than others is drawn as if it were alone."""
    result = make_result(d=2)
    rows = rows_of(result, "existing")
    assert rows is not None
    alone = rows._replace(**{k: getattr(rows, k)[1:2, :180] for k in ("y", "real", "mean", "lower", "upper")})
    alone = alone._replace(train=rows.train[1:2, :9], has_train=rows.has_train[1:2, :9])
    alone = alone._replace(
        moments=replace(rows.moments, train=rows.moments.train[1:2, :9], test=rows.moments.test[1:2, :180])
    )
    both = [forecast(result, one, at, "who", 400) for one, at in ((rows, 1), (alone, 0))]
    assert both[0] is not None and both[1] is not None
    assert to_html(both[0]) == to_html(both[1])


def test_a_single_test_row_has_its_interval_its_mean_and_training_rows_before_it(series: Result) -> None:
    mask = series.predictions["existing.mask_test"].clone()
    mask[0, 1:] = False
    text = drawn(replace(series, predictions={**series.predictions, "existing.mask_test": mask}))
    assert 'class="band' not in text and "key bar s1" in text and "predicted mean" in text
    assert "Training rows:" not in text
    (training,) = re.findall(r'd="([^"]*)" class="dots s2"', text)
    assert training.count("M") == 12


def test_training_rows_that_are_too_far_away_are_said(series: Result) -> None:
    times = series.predictions["existing.time_train"] - 10**15
    text = drawn(replace(series, predictions={**series.predictions, "existing.time_train": times}))
    assert "Training rows: none of 12 is drawn, as all are long before the test rows." in text


def test_a_wide_interval_squashes_nothing_and_says_so(numbers: Result) -> None:
    upper = numbers.predictions["existing.upper"].clone()
    upper[0, 7] = 1e6
    text = drawn(replace(numbers, predictions={**numbers.predictions, "existing.upper": upper}))
    assert "The interval of 1 row reaches beyond the axis" in text


def test_predictions_that_are_not_finite_and_no_rows_at_all(numbers: Result) -> None:
    broken = {
        f"existing.{name}": numbers.predictions[f"existing.{name}"] * np.nan for name in ("mean", "lower", "upper")
    }
    assert "0 of 0 test targets" in drawn(replace(numbers, predictions={**numbers.predictions, **broken}))
    rows = rows_of(numbers, "existing")
    assert rows is not None
    assert forecast(numbers, rows._replace(real=np.zeros_like(rows.real)), 0, "who", 9) is None
    assert rows_of(replace(numbers, predictions={}), "existing") is None


@pytest.mark.parametrize("clients", [1, 24, 610, 10_000])
def test_pages_stay_small(clients: int) -> None:
    assert min(clients, drawn_clients()) * rows_each(min(clients, drawn_clients())) <= 48_000
