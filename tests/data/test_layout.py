"""Names of features, lengths of time, and what a lag may take."""

from __future__ import annotations

import pandas as pd
import pytest

from pacbayes_fl.data.layout import Feature, Layout, Span, span
from pacbayes_fl.errors import DataError


@pytest.mark.parametrize("text", ["24h", "14 days", "1 day", "3 min", "90 s", "2 weeks", "1.5h", "2d"])
def test_lengths_of_time_are_those_of_pandas(text: str) -> None:
    expected = pd.Timedelta(text.replace("2 weeks", "2W").replace("3 min", "3min").replace("2d", "2D")).value // 1000
    assert span(text) == Span(expected, False)


def test_a_number_alone_is_of_times_that_are_numbers() -> None:
    assert span("24") == Span(24, True) and str(span("24")) == "24"
    written = {"24h": "1 day", "14 days": "14 days", "90 min": "90 minutes", "1 s": "1 second"}
    assert {text: str(span(text)) for text in written} == written


@pytest.mark.parametrize("text", ["", "h", "0h", "-1h", "24x", "1 h 2 min", "1e3h", "٢h", "9" * 30])
def test_what_is_no_length_of_time_is_none(text: str) -> None:
    assert span(text) is None


def test_names_of_features_are_read_and_a_column_of_that_name_comes_first() -> None:
    layout = Layout(target="power", categorical=("roof",))
    assert layout.feature("lag:24h", ()) == Feature("lag:24h", "lag", "power", span("24h"))
    assert layout.feature("lag:1 day of cloud cover", ()).source == "cloud cover"
    assert layout.feature("roll:3h of cloud", ()).kind == "roll" and layout.feature("roof", ()).kind == "categorical"
    assert layout.feature("hour:cyclic", ()).names == ("hour:sin", "hour:cos")
    assert layout.feature("lag:24h", ("lag:24h",)) == Feature("lag:24h", "column", "lag:24h")
    with pytest.raises(DataError, match=r"'lag:soon' is neither a column nor a derived feature \(hour:cyclic"):
        layout.feature("lag:soon", ("power",))


def test_every_other_column_is_a_feature_where_none_is_named() -> None:
    layout = Layout(client="house", time="when", group="kind", categorical=("roof",))
    columns = ("house", "when", "kind", "split", "roof", "cloud", "y")
    assert [one.name for one in layout.wanted(columns)] == ["roof", "cloud"]
    made = ("roof=flat", "roof=steep", "cloud")
    assert [one.name for one in layout.wanted((*columns, "extra"), made)] == ["roof", "cloud"]
    named = Layout(features=("cloud",), categorical=("roof",), client_features=("size",))
    assert [one.name for one in named.wanted(columns)] == ["cloud", "roof", "size"]


def test_lags_within_the_horizon_are_refused_unless_the_column_is_known_ahead() -> None:
    for name in ("lag:23h", "lag:23h of cloud"):
        with pytest.raises(DataError, match=f"'{name}' is shorter than the horizon of 1 day, when .* leak"):
            Layout(horizon="1 day", features=(name,)).wanted(("cloud",))
    assert Layout(horizon="1 day", features=("lag:24h",)).wanted(())
    assert Layout(horizon="1 day", features=("cloud", "lag:1h of cloud")).wanted(("cloud",))


def test_categories_and_cycles_mean_the_same_in_every_client() -> None:
    layout = Layout(features=("hour:cyclic", "x"), categorical=("roof",), client_features=("roof", "size"))
    names = ("hour:sin", "hour:cos", "x", "roof=flat", "size")
    assert layout.same_for_all(names) == {
        "hour:sin": "none",
        "hour:cos": "none",
        "roof=flat": "none",
        "size": "pooled",
    }
