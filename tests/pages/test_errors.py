"""Residuals and coverage by a column: as a loop over rows counts them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

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


def daily(result: Result) -> Result:
    """Give rows dates in place of hours."""
    when = {key: 24 * one for key, one in result.predictions.items() if ".time_" in key}
    when = {key: one - one % (86_400 * 1_000_000) for key, one in when.items()}
    labels = {**result.labels, "time": {"name": "day", "kind": "date", "per_second": 1_000_000, "zone": None}}
    return replace(result, predictions={**result.predictions, **when}, labels=labels)


def with_features(result: Result, names: list[str], x: torch.Tensor) -> Result:
    """Give all test rows of a group the same features."""
    made = {f"{g}.x_test": x.expand(*result.predictions[f"{g}.mask_test"].shape, -1) for g in ("existing", "new")}
    labels = {**result.labels, "feature_name": names, "feature_unit": [""] * len(names)}
    return replace(result, predictions={**result.predictions, **made}, labels=labels)


def test_daily_rows_are_shown_by_their_days_and_the_rest_is_called_by_name(series: Result) -> None:
    result = daily(series)
    assert columns(result, groups(result))[0].label == "day (local time)"
    made = errors(result, groups(result))
    assert made is not None
    text = to_html(made)
    first = text.partition("<details")[0]
    assert first.count("<svg") == 2 and "Residuals by day (local time)" in first
    assert "<summary>By feature: time of day (h), lag 1 (kW)</summary>" in text and "every other" not in text


def test_a_constant_column_leaves_no_gap_and_is_named(numbers: Result) -> None:
    x = torch.stack([torch.zeros(240), torch.arange(240.0)], -1).double()
    result = with_features(numbers, ["still", "moving"], x)
    made = errors(result, groups(result))
    assert made is not None
    text = to_html(made)
    assert text.count("<svg") == 2 and "Residuals by moving" in text and "<details" not in text
    assert "Not drawn, as all test rows have the same value: still." in text


def test_words_are_one_column_of_places(numbers: Result) -> None:
    """Residuals and shares of a word are those of its rows, in a loop."""
    x = torch.nn.functional.one_hot(torch.arange(240) % 4, 4).double()
    result = with_features(numbers, ["day=Mo", "size", "day=Tu=", "day=<We>"], x[:, [0, 3, 1, 2]])
    (words, size) = columns(result, groups(result))
    assert (words.label, words.words, size.label) == ("day", ("Mo", "Tu=", "<We>", "any other"), "size")
    rows = groups(result)["existing"]
    np.testing.assert_array_equal(words.values["existing"][rows.real], np.argwhere(rows.real)[:, 1] % 4)
    made = errors(result, groups(result))
    assert made is not None
    text = to_html(made)
    assert text.count("<svg") == 4 and "Residuals by day<" in text and "&lt;We&gt;" in text and "day=" not in text
    assert "Coverage by day. existing clients: lowest share" in text


def test_numbers_under_such_names_stay_numbers_and_rare_words_are_one_place(
    numbers: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.stack([torch.arange(240) % 2, torch.ones(240)], -1).double()  # two at once
    result = with_features(numbers, ["a=b", "a=c"], x)
    assert [one.label for one in columns(result, groups(result))] == ["a=b", "a=c"]
    monkeypatch.setattr(module, "_WORDS", 2)
    x = torch.nn.functional.one_hot(torch.tensor([0, 1, 2, 2, 1, 2]).repeat(40), 3).double()
    result = with_features(numbers, ["a=b", "a=c", "a=d"], x)
    (column,) = columns(result, groups(result))
    assert column.words == ("c", "d", "any other")
    assert column.values["new"][0, :6].tolist() == [2, 0, 1, 1, 0, 1]


def test_the_section_says_what_its_axes_are(series: Result) -> None:
    made = errors(series, groups(series))
    assert made is not None
    text = to_html(made)
    for words in ("residual of power (kW)", "share of rows in 95 % interval", "existing clients", "new clients"):
        assert words in text
    assert errors(replace(series, labels={}), {}) is None
