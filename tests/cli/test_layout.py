"""Tables that fit: names give way, numbers never do, and where there is no terminal nothing gives way."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pacbayes_fl.cli.layout import fitted, number, room
from pacbayes_fl.names import width
from tests.hostile import NAMES

CELL = st.sampled_from(sorted(NAMES.values())) | st.text(max_size=8)


@given(
    st.lists(st.tuples(CELL, st.floats(-1e9, 1e9), CELL), min_size=1, max_size=5), st.sampled_from((40, 60, 80, 120))
)
def test_a_table_fits_and_loses_no_digit(table: list[tuple[str, float, str]], columns: int) -> None:
    rows = [[name, number(value), other] for name, value, other in table]
    lines = fitted(rows, (0, 2), columns, right=(1,))
    assert all(width(line) <= columns and line.isprintable() for line in lines)
    assert all(row[1] in line for row, line in zip(rows, lines, strict=True))
    ends = {line.index(row[1]) + len(row[1]) for row, line in zip(rows, lines, strict=True) if line.count(row[1]) == 1}
    assert len(ends) <= 1 or any(not line.isascii() for line in lines)


def test_without_an_edge_every_name_stands_in_full() -> None:
    rows = [["x" * 300, "1.000"], ["y", "10.000"]]
    assert fitted(rows, (0,), None, right=(1,)) == ["x" * 300 + "   1.000", "y" + " " * 299 + "  10.000"]
    assert fitted([], (0,), 60) == []


def test_numbers_are_not_cut() -> None:
    (line,) = fitted([["name", "1" * 50]], (0,), 20)
    assert line == "name " + "1" * 50
    assert fitted([["a" * 30, "b" * 10, "1.0"]], (0, 1), 30) == [f"{'a' * 7}…{'a' * 7} {'b' * 10} 1.0"]


@given(st.floats(-1e308, 1e308) | st.sampled_from([math.nan, math.inf, -math.inf]))
def test_a_number_takes_ten_columns_at_most(value: float) -> None:
    text = number(value)
    assert len(text) <= 10
    if math.isfinite(value):
        assert float(text) == pytest.approx(value, rel=5.1e-3, abs=5e-4 if abs(value) >= 5e-4 else 0.0)
        assert (float(text) == 0) == (value == 0), "what is small is not nothing"
    else:
        assert text == "-"


def test_only_a_terminal_has_an_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "61")
    assert room() is None
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert room() == 61
