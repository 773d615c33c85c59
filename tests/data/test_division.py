"""Training and test rows of clients: what is held out, and that all who lack a side are named at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pacbayes_fl.data.division import Cut, cut_of, divided, lacking, said
from pacbayes_fl.data.layout import Layout, span
from pacbayes_fl.data.user_tables import Table
from pacbayes_fl.errors import DataError


def table(
    lengths: dict[str, int],
    split: dict[str, list[bool]] | None = None,
    times: dict[str, list[int]] | None = None,
    new: tuple[str, ...] = (),
) -> Table:
    clients = {name: (torch.zeros(m, 1), torch.zeros(m)) for name, m in lengths.items()}
    marks = None if split is None else {name: torch.tensor(own) for name, own in split.items()}
    when = None if times is None else {name: torch.tensor(own) for name, own in times.items()}
    return Table(clients, ("x",), marks, new, when, "number" if times is not None else "")


def test_the_last_rows_are_test_rows_one_at_least_and_not_all_of_two() -> None:
    held = divided(table({"a": 8, "b": 2, "c": 3}), 0.25)
    assert {name: own.tolist() for name, own in held.items()} == {
        "a": [False] * 6 + [True] * 2,
        "b": [False, True],
        "c": [False, False, True],
    }
    assert divided(table({"a": 3}, times={"a": [1, 2, 2]}), 0.3)["a"].tolist() == [False, True, True]
    assert divided(table({"a": 3}, times={"a": [1, 5, 6]}), 0.9, span("2"))["a"].tolist() == [False, True, True]


MARKED, TIMED = {"a": [True, False]}, {"a": [1, 2]}


@pytest.mark.parametrize(
    ("given", "last", "cut", "words"),
    [
        (table({"a": 2}, MARKED, TIMED), None, ("split", "part", None), "column part"),
        (table({"a": 2}, times=TIMED), None, ("time", "when", "0.3"), "last 0.3 of each client by column 'when'"),
        (table({"a": 2}, times=TIMED), "14d", ("time", "when", "14 days"), "last 14 days of each client by column "),
        (table({"a": 2}), None, ("file", None, "0.3"), "last 0.3 of each client in the order of the file, which was"),
        (table({"a": 2}), None, ("rows", None, "0.3"), "last 0.3 of each client in the order of its rows"),
    ],
)
def test_how_rows_are_told_apart_is_known_and_said(
    given: Table, last: str | None, cut: tuple[Any, str | None, str | None], words: str
) -> None:
    by, column, amount = cut
    layout = Layout(time="when", split="part")
    known = cut_of(given, layout, "rows" if by == "rows" else "file", 0.3, None if last is None else span(last))
    assert known == Cut(by=by, column=column, last=amount) and said(known).startswith(words)


@pytest.mark.parametrize(
    ("given", "last", "names", "fault"),
    [
        (table({"a": 1, "b": 4}), None, ["a"], r"client 'a': has no test samples \(hold some .*or drop it: data\."),
        (
            table({"a": 1, "b": 4, "c": 1}),
            None,
            ["a", "c"],
            r"2 clients have .* client 'a': has no test samples \(data\.exclude_clients = \[\"a\", \"c\"\] leaves",
        ),
        (
            table({"a": 2, "b": 2, "c": 2}, {"a": [True] * 2, "b": [False] * 2, "c": [True] * 2}, new=("c",)),
            None,
            ["a", "b"],
            "2 clients have .* client 'a': has no training samples",
        ),
        (
            table({"a": 2, "b": 2}, times={"a": [1, 1], "b": [1, 2]}),
            None,
            ["a"],
            "client 'a': all of its 2 rows have one time, so that none comes last",
        ),
        (
            table({"a": 2, "b": 2}, times={"a": [1, 2], "b": [1, 9]}),
            span("5"),
            ["a"],
            r"client 'a': all of its 2 rows are test rows by data\.test\.last",
        ),
    ],
)
def test_all_clients_that_lack_a_side_are_named(given: Table, last: object, names: list[str], fault: str) -> None:
    assert lacking(given, 0.25, last) == names  # type: ignore[arg-type]
    with pytest.raises(DataError, match=fault):
        divided(given, 0.25, last)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (
            table({"a": 2, "b": 3}, {"a": [False] * 2, "b": [False] * 3}),
            r"'a': has no test samples \(the column of marks gives no client both; data\.split = 'none' holds out the",
        ),
        (
            table({"a": 2, "b": 2}, {"a": [True] * 2, "b": [False] * 2}),
            r"'a': has no training samples \(the column of marks",
        ),
        (table({"a": 1, "b": 1}), r"'a': has no test samples \(data\.client names the column of clients, of whom each"),
    ],
)
def test_nobody_is_told_to_leave_all_clients_out(given: Table, fault: str) -> None:
    with pytest.raises(DataError, match=f"2 clients have no training or no test samples, such as client {fault}"):
        divided(given, 0.25)


def test_a_length_of_time_needs_times_of_its_kind() -> None:
    with pytest.raises(DataError, match=r"data\.test\.last needs times"):
        divided(table({"a": 4}), 0.25, span("5"))
    with pytest.raises(DataError, match="must be a number without a unit"):
        divided(table({"a": 2}, times={"a": [1, 2]}), 0.25, span("5 h"))
