"""The table of faults names 36 faults, and tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TABLE = Path(__file__).parents[1] / "faults" / "README.md"
ROWS = [[cell.strip() for cell in line.strip("| \n").split(" | ")] for line in TABLE.read_text("utf-8").splitlines()]
FAULTS = [cells for cells in ROWS if cells[0].isdigit()]


def test_every_fault_is_numbered_and_shown() -> None:
    assert [int(number) for number, *_ in FAULTS] == list(range(1, 37))
    for *_, shown in FAULTS:
        assert "`test_" in shown or "/test_" in shown


def test_the_tests_that_are_named_exist() -> None:
    named = re.findall(r"`([./\w]*test_\w+\.py)(?:::(\w+))?`", "".join(shown for *_, shown in FAULTS))
    assert len(named) >= len(FAULTS)
    for file, test in named:
        path = TABLE.parent / file
        assert path.is_file(), file
        known = {node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}
        assert not test or test in known, f"{file} has no {test}"
