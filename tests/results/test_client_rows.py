"""Rows of clients by column are the rows that were given."""

from __future__ import annotations

import csv
import io
import math

import pytest

from pacbayes_fl.errors import StudyError
from pacbayes_fl.results.client_rows import ClientRow, ClientRows, members, read_csv

GIVEN = (
    ClientRow(2**63 - 1, "a", "existing", 3, {"x": 0.1, "y": math.nan}),
    ClientRow(7, "=b", "new", 0, {"z": math.inf, "x": -0.0}),
    ClientRow(8, "c", "existing", 2, {}),
    ClientRow(9, "d", "existing", 2, {"y": 5e-324}),
)


def same(one: ClientRow, other: ClientRow) -> bool:
    """Compare two rows field by field, NaN with itself."""
    fixed = (one.id, one.name, one.group, one.m) == (other.id, other.name, other.group, other.m)
    return fixed and {n: repr(v) for n, v in one.metrics.items()} == {n: repr(v) for n, v in other.metrics.items()}


def test_rows_come_back_as_they_were_given() -> None:
    rows = ClientRows.of(GIVEN)
    assert ClientRows.of(rows) is rows and len(rows) == 4 and rows.metrics == ("x", "y", "z")
    assert all(map(same, rows, GIVEN)) and same(rows[-1], GIVEN[3]) and all(map(same, rows[::-2], GIVEN[::-2]))
    with pytest.raises(IndexError):
        rows[4]
    for group in ("existing", "new"):
        own = [row for row in GIVEN if row.group == group]
        assert rows.names(group) == [row.name for row in own] and rows.sizes(group) == [row.m for row in own]
        assert rows.size_of(group) == len(own)
        for metric in ("x", "y", "z", "nobody's"):
            column = [row.metrics.get(metric, math.nan) for row in own]
            assert list(map(repr, rows.column(group, metric))) == list(map(repr, column))
            assert rows.taken(group, metric) == [metric in row.metrics for row in own]


def test_rows_are_joined_and_get_further_metrics() -> None:
    parts = [ClientRows.of(GIVEN[:2]), ClientRows.of(()), ClientRows.of(GIVEN[2:])]
    assert all(map(same, ClientRows.joined(parts), GIVEN)) and ClientRows.joined(parts).metrics == ("x", "y", "z")
    more = ClientRows.of_group("new", (1, 2), ("p", "q"), iter((3, 4)), {"x": [1.0, 2.0]}).plus({"u": [3.0, math.nan]})
    assert same(more[1], ClientRow(2, "q", "new", 4, {"x": 2.0, "u": math.nan}))
    for group, metric in (("other", "x"), ("new", "id")):
        with pytest.raises(StudyError):
            ClientRows.of_group(group, (1,), ("p",), (3,), {metric: [1.0]})


def test_rows_are_equal_where_every_number_is() -> None:
    rows = ClientRows.of(GIVEN)
    assert rows == GIVEN and rows == ClientRows.of(GIVEN) and rows != GIVEN[:3] and rows != 3
    for at, other in enumerate(GIVEN):
        for changed in (
            ClientRow(1, other.name, other.group, other.m, other.metrics),
            ClientRow(other.id, other.name, other.group, 9, other.metrics),
            ClientRow(other.id, other.name, other.group, other.m, {**other.metrics, "x": math.nan}),
            ClientRow(other.id, other.name, other.group, other.m, {**other.metrics, "w": 1.0}),
        ):
            assert rows != (*GIVEN[:at], changed, *GIVEN[at + 1 :]), (at, changed)


def test_the_table_is_that_of_the_csv_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pacbayes_fl.files._LINES", 2)
    file = io.BytesIO()
    ClientRows.of(GIVEN).write_csv(file)
    text = file.getvalue().decode()
    assert list(csv.reader(io.StringIO(text))) == [
        ["id", "group", "name", "m", "x", "y", "z"],
        [f"{2**63 - 1}", "existing", "a", "3", "0.1", "nan", ""],
        ["7", "new", "'=b", "0", "-0.0", "", "inf"],
        ["8", "existing", "c", "2", "", "", ""],
        ["9", "existing", "d", "2", "", "5e-324", ""],
    ]
    assert read_csv(io.StringIO(text)) == GIVEN
    with pytest.raises(ValueError, match="expected columns id, group, name, m"):
        read_csv(io.StringIO("id,name\n"))
    with pytest.raises(ValueError, match="expected columns"):
        read_csv(io.StringIO(""))


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"existing": 24, "new": 6}, "24 existing and 6 new clients"),
        ({"existing": 2, "new": 0}, "2 existing clients"),
        ({"existing": 1, "new": 0}, "1 existing client"),
        ({"existing": 0, "new": 0}, "0 clients"),
    ],
)
def test_members_of_groups_are_counted_and_empty_groups_left_out(sizes: dict[str, int], told: str) -> None:
    assert members(sizes) == told
