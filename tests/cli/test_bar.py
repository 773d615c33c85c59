"""The bar at every width: rounds and time left are always whole, names and scores take what is left."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import pytest
from rich.cells import cell_len
from rich.console import Console

from pacbayes_fl.cli.bar import bar
from tests.hostile import NAMES

CSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
NEWS = ["rsmse 0.3784", "log_evidence -9.608"]


def last(text: str, columns: int, news: Sequence[str], total: int = 400, done: int = 123) -> str:
    """Return what stands on the terminal after a round; every line of it fits."""
    file = io.StringIO()
    with bar(text, total, Console(file=file, width=columns, force_terminal=True)) as show:
        for k in range(1, done + 1):
            show(k, news if k == done else None)
    written = CSI.sub("", file.getvalue())
    lines = [line for line in re.split(r"[\r\n]", written) if line.strip()]
    assert all(cell_len(line) <= columns for line in lines)
    return lines[-1]


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("text", ["pac-pfl on polynomial", "fedsi on a-study-with-a-very-long-name-indeed-of-2024"])
def test_rounds_and_time_left_are_never_dropped(columns: int, text: str) -> None:
    line = last(text, columns, NEWS)
    assert re.search(r"(^| )123/400 ", line) and re.search(r" (\d+:\d\d:\d\d|-:--:--)( |$)", line)
    assert line.startswith(text[:3])
    if columns >= 60:
        assert "rsmse 0.3784" in line
    if columns >= 120:
        assert " ".join(NEWS) in line
    assert "log_evidence" not in line or NEWS[1] in line  # a number is whole or not there


def test_many_rounds_fit_too() -> None:
    assert " 31/1000000 " in last("pac-pfl on polynomial", 60, NEWS, total=1_000_000, done=31)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_is_no_markup_and_moves_no_cursor(name: str) -> None:
    """In what is being done and in the news, such as that a client was dropped."""
    line = last(f"ridge on {name}", 80, [f"dropped {name}"], 5, 5)
    assert line.isprintable() and " 5/5 " in line and "dropped" in line
    if len(name) < 15 and name.isprintable():
        assert line.count(name) == 2


def test_what_was_told_stays_until_there_is_something_new() -> None:
    file = io.StringIO()
    with bar("x", 3, Console(file=file, width=80, force_terminal=True)) as show:
        show(1, ["rsmse 1"])
        show(2, None)
        show(3, None)
    assert "3/3" in file.getvalue().split("rsmse 1")[-2]
