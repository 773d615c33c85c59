"""Strict tables: what is refused and how it is said, and that TOML gives back what was written."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pacbayes_fl import settings
from pacbayes_fl.errors import StudyError


@dataclass(frozen=True)
class Inner:
    depth: int = 2
    scale: float = 1.5


@dataclass(frozen=True)
class Outer:
    name: str = "a"
    flag: bool = False
    count: int = 3
    rate: float = 0.1
    limit: int | None = None
    mode: Literal["fast", "slow"] = "fast"
    widths: tuple[int, ...] = (8, 8)
    means: Literal["zero"] | tuple[int, ...] = "zero"
    width: Literal["auto"] | float = "auto"
    inner: Inner = field(default_factory=Inner)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Needs:
    value: int


FULL = {
    "name": "b",
    "flag": True,
    "count": 4,
    "rate": 1e-30,
    "limit": 7,
    "mode": "slow",
    "widths": [],
    "means": [3, 4],
    "width": 0.25,
    "inner": {"depth": 5, "scale": 2.0},
    "options": {"x": 1, "nested": {"y": [1, 2]}},
}


def test_what_is_left_out_keeps_its_default() -> None:
    assert settings.parse(Outer, {}, "t") == Outer()
    assert settings.parse(Outer, {"count": 9}, "t") == Outer(count=9)
    assert settings.parse(Outer, {"inner": {"depth": 9}}, "t").inner == Inner(9, 1.5)


def test_every_kind_of_value_is_read() -> None:
    got = settings.parse(Outer, FULL, "t")
    assert got == Outer(
        "b", True, 4, 1e-30, 7, "slow", (), (3, 4), 0.25, Inner(5, 2.0), {"x": 1, "nested": {"y": [1, 2]}}
    )
    assert type(settings.parse(Outer, {"rate": 2}, "t").rate) is float


@pytest.mark.parametrize("value", [None, "none"])
def test_none_is_a_word_where_none_is_allowed(value: object) -> None:
    assert settings.parse(Outer, {"limit": value}, "t").limit is None
    with pytest.raises(StudyError, match="count must be of type int"):
        settings.parse(Outer, {"count": value}, "t")


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"coutn": 1}, "here: unknown key 'coutn' (did you mean 'count'?)"),
        ({"inner": {"dept": 1}}, "here inner: unknown key 'dept' (did you mean 'depth'?)"),
        ({"zzz": 1}, "here: unknown key 'zzz' (valid: name, flag, count, rate, limit, mode, widths, means, width,"),
        ({"count": "3"}, "here count must be of type int, got '3'"),
        ({"count": 3.0}, "here count must be of type int, got 3.0"),
        ({"count": True}, "here count must be of type int, got True"),
        ({"rate": True}, "here rate must be of type float, got True"),
        ({"rate": "0.1"}, "here rate must be of type float, got '0.1'"),
        ({"flag": 1}, "here flag must be of type bool, got 1"),
        ({"name": 1}, "here name must be of type str, got 1"),
        ({"mode": "fats"}, "here mode must be one of 'fast', 'slow', got 'fats' (did you mean 'fast'?)"),
        ({"mode": "7slow"}, "here mode must be one of 'fast', 'slow', got '7slow' (did you mean 'slow'?)"),
        ({"mode": "9"}, "here mode must be one of 'fast', 'slow', got '9'"),
        ({"limit": "none9"}, "here limit must be of type int or 'none', got 'none9' (did you mean 'none'?)"),
        ({"limit": 2.5}, "here limit must be of type int or 'none', got 2.5"),
        ({"widths": 3}, "here widths must be a list of int, got 3"),
        ({"widths": [1, "b"]}, "here widths[1] must be of type int, got 'b'"),
        ({"means": "zer"}, "here means must be one of 'zero' or a list of int, got 'zer' (did you mean 'zero'?)"),
        ({"width": "aut"}, "here width must be one of 'auto' or of type float, got 'aut' (did you mean 'auto'?)"),
        ({"width": 1e31}, "here width must be 0 or of a size from 1e-30 to 1e+30, got 1e+31"),
        ({"width": float("nan")}, "here width must be a finite number, got nan"),
        ({"limit": -1}, "here limit must be a whole number from 0 to 2**32 - 1, got -1"),
        ({"inner": 3}, "here inner must be a table, got 3"),
        ({"options": [1]}, "here options must be a table, got [1]"),
    ],
)
def test_a_wrong_value_is_named_with_its_place_and_what_is_right(table: dict[str, Any], text: str) -> None:
    with pytest.raises(StudyError) as caught:
        settings.parse(Outer, table, "here")
    assert str(caught.value).startswith(text)


def test_a_word_in_place_of_a_list_is_told_how_a_list_is_written() -> None:
    with pytest.raises(StudyError, match=r"""metrics must be a list of str, got 'rmse' \(write \["rmse"\]\)"""):
        settings._convert(tuple[str, ...], "rmse", "[report] metrics")
    assert settings._convert(tuple[str, ...], ["rmse"], "[report] metrics") == ("rmse",)


def test_no_table_and_a_missing_value_are_refused() -> None:
    with pytest.raises(StudyError, match=r"^here must be a table, got 3$"):
        settings.parse(Outer, 3, "here")  # type: ignore[arg-type]
    with pytest.raises(StudyError, match=r"^here: no value for value, which has no default$"):
        settings.parse(Needs, {}, "here")


def test_advice_on_a_word() -> None:
    assert settings.nearest("particle", ["rate", "particles"]) == "did you mean 'particles'?"
    assert settings.nearest("xyz", ["rate", "tau"]) == "valid: rate, tau"
    assert settings.nearest("xyz", []) == "valid: nothing"


@pytest.mark.parametrize("value", [Outer(), settings.parse(Outer, FULL, "t")], ids=["defaults", "full"])
def test_a_dataclass_survives_toml(value: Outer) -> None:
    table = tomllib.loads(settings.to_toml(settings.as_table(value)))
    assert settings.parse(Outer, table, "t") == value


def test_as_table_is_plain_and_says_none() -> None:
    table = settings.as_table(Outer(widths=(1, 2)))
    assert table["limit"] == "none"
    assert table["widths"] == [1, 2]
    assert table["inner"] == {"depth": 2, "scale": 1.5}


SCALARS = st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
VALUES = SCALARS | st.lists(SCALARS | st.lists(SCALARS, max_size=2), max_size=3)
TABLES = st.recursive(
    st.dictionaries(st.text(max_size=4), VALUES, min_size=1, max_size=3),
    lambda inner: st.dictionaries(st.text(max_size=4), VALUES | inner, min_size=1, max_size=3),
    max_leaves=8,
)


def kinds(value: Any) -> Any:
    """Tell 1, 1.0 and True apart."""
    if isinstance(value, dict):
        return {name: kinds(item) for name, item in value.items()}
    return [kinds(item) for item in value] if isinstance(value, list) else (type(value), value)


@given(TABLES)
def test_any_nested_table_survives_toml(table: dict[str, Any]) -> None:
    assert kinds(tomllib.loads(settings.to_toml(table))) == kinds(table)


@pytest.mark.parametrize("key", ["ключ", "a.b", "", "_", "x y", "\x7f", "😀", 'q"', "a-b_1"])
def test_any_key_and_text_survives_toml(key: str) -> None:
    table = {"t": {key: key, "inner": {key: 1.0}}}
    assert tomllib.loads(settings.to_toml(table)) == table


def test_a_list_of_tables_survives_toml() -> None:
    table = {"a": [{"b": 1, "c d": {"e": "f"}}, {}], "nan": [1.0]}
    assert tomllib.loads(settings.to_toml(table)) == table
    assert tomllib.loads(settings.to_toml({"x": float("nan")}))["x"] != 0.0
    assert tomllib.loads(settings.to_toml({"x": [float("inf"), -float("inf")]}))["x"] == [float("inf"), -float("inf")]


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("a.b=3", {"a": {"b": 3, "old": 1}}),
        ("a.old=0.5", {"a": {"old": 0.5}}),
        ("a.new.deep=[1, 2]", {"a": {"old": 1, "new": {"deep": [1, 2]}}}),
        ("top=true", {"a": {"old": 1}, "top": True}),
        ("top=pac-pfl", {"a": {"old": 1}, "top": "pac-pfl"}),
        ("top = pac-pfl ", {"a": {"old": 1}, "top": "pac-pfl"}),
        ('top="3"', {"a": {"old": 1}, "top": "3"}),
        ("top=/a=b", {"a": {"old": 1}, "top": "/a=b"}),
        ("top=", {"a": {"old": 1}, "top": ""}),
        ("a={x = 1}", {"a": {"x": 1}}),
    ],
)
def test_an_assignment_overrides(assignment: str, expected: dict[str, Any]) -> None:
    table: dict[str, Any] = {"a": {"old": 1}}
    settings.override(table, assignment)
    assert table == expected


def test_a_malformed_assignment_is_refused() -> None:
    with pytest.raises(StudyError, match=r"--set takes KEY=VALUE, got 'a\.b'"):
        settings.override({}, "a.b")
    with pytest.raises(StudyError, match="'a' is not a table"):
        settings.override({"a": 3}, "a.b=1")


def test_merge_goes_deep_and_changes_neither_side() -> None:
    base, over = {"a": {"x": 1, "y": {"z": 1}}, "b": 1}, {"a": {"y": {"w": 2}}, "b": {"c": 3}}
    assert settings.merge(base, over) == {"a": {"x": 1, "y": {"z": 1, "w": 2}}, "b": {"c": 3}}
    assert settings.merge(over, base) == {"a": {"x": 1, "y": {"z": 1, "w": 2}}, "b": 1}
    assert base == {"a": {"x": 1, "y": {"z": 1}}, "b": 1}
    assert over == {"a": {"y": {"w": 2}}, "b": {"c": 3}}
