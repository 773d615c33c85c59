"""Residuals and coverage by a column: as a loop over rows counts them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pacbayes_fl import tensors
from pacbayes_fl.pages import errors as module
from pacbayes_fl.pages.errors import columns, errors
from pacbayes_fl.pages.forecasts import Rows, rows_of
from pacbayes_fl.pages.markup import to_html
from pacbayes_fl.results import errors_by
from pacbayes_fl.results.records import Result


def groups(result: Result) -> dict[str, Rows]:
    return {group: rows for group in ("existing", "new") if (rows := rows_of(result, group)) is not None}


def test_the_hour_comes_first_where_it_is_known_and_features_follow(series: Result, numbers: Result) -> None:
    assert [one.label for one in columns(series, groups(series))] == [
        "hour of day, when (Europe/Zurich)",
        "time of day (h)",
        "lag 1 (kW)",
    ]
    assert [one.label for one in columns(numbers, groups(numbers))] == ["time of day (h)"]
    chosen = {f"{g}.coverage_by": series.predictions[f"{g}.x_test"][..., 1] for g in ("existing", "new")}
    labels = {**series.labels, "coverage_by": {"name": "lag 1", "unit": "kW"}}
    result = replace(series, predictions={**series.predictions, **chosen}, labels=labels)
    assert [one.label for one in columns(result, groups(result))] == ["lag 1 (kW)", "time of day (h)"]


@pytest.mark.parametrize("block", [2, 1024])
def test_residuals_and_shares_are_those_of_a_loop(series: Result, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "BLOCK", block)
    monkeypatch.setattr(errors_by, "_PIECE", block)
    rows = groups(series)["existing"]
    hours = rows.moments.hours()
    assert hours is not None
    edges = errors_by.edges([(hours, rows.real)])
    quartiles, share, counts = module._residuals(rows, hours, edges)
    for hour in range(24):
        inside = [(k, j) for k, j in np.argwhere(rows.real) if hours[k, j] == hour]
        residual = [rows.y[at] - rows.mean[at] for at in inside]
        held = [rows.lower[at] <= rows.y[at] <= rows.upper[at] for at in inside]
        assert counts[hour] == len(inside)
        np.testing.assert_allclose(quartiles[:, hour], np.quantile(residual, [0.25, 0.5, 0.75]))
        np.testing.assert_allclose(share[hour], np.mean(held))


def test_a_constant_column_is_not_drawn(numbers: Result) -> None:
    constant = {g: numbers.predictions[f"{g}.x_test"] * 0 for g in ("existing", "new")}
    result = replace(numbers, predictions={**numbers.predictions, **{f"{g}.x_test": x for g, x in constant.items()}})
    made = errors(result, groups(result))
    assert made is None or "<svg" not in to_html(made)


def test_the_section_says_what_its_axes_are(series: Result) -> None:
    made = errors(series, groups(series))
    assert made is not None
    text = to_html(made)
    for words in ("residual of power (kW)", "share of rows in 95 % interval", "existing clients", "new clients"):
        assert words in text
    assert errors(replace(series, labels={}), {}) is None
