"""Whatever "papers to code" names exists: functions, tests, and every numbered method of the four papers."""

import ast
from functools import cache
from importlib import import_module
from pathlib import Path

from docs.pages import papers

ROOT = Path(__file__).parents[2]
TEXT = papers.SOURCE.read_text(encoding="utf-8")


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def value(dotted: str) -> object:
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:cut]))
        except ImportError:
            continue
        for name in parts[cut:]:
            found = getattr(found, name)
        return found
    raise AssertionError(dotted)


def test_every_function_and_every_test_exists() -> None:
    functions, tests = papers.named(TEXT)
    assert len(functions) > 60 and len(tests) > 60
    for dotted in functions:  # by the name that it was defined with, which is what the API pages know
        found = value(dotted)
        assert f"{found.__module__}.{found.__qualname__}" == dotted  # type: ignore[attr-defined]
    for file, name in tests:
        assert (ROOT / file).is_file() and (not name or name in names_in(file)), (file, name)


def test_every_row_has_a_function_a_test_and_a_deviation() -> None:
    rows = [
        line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith(("| paper", "| source"))
    ]
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert (
            len(cells) == 4 and cells[1].startswith("`pacbayes_fl.") and cells[2].startswith("`tests/") and cells[3]
        ), row
