"""Files, functions and types stay small and named: measured, with the numbers that the package keeps to."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.source import ROOT, complain, modules, violations

FILE_LINES, FUNCTION_LINES = 450, 80
ANY_PER_THOUSAND = 5.0


def size_violations(text: str, path: str) -> Iterator[tuple[int, str]]:
    """Find files and functions that are longer than a reader keeps in mind."""
    lines = text.count("\n")
    if lines > FILE_LINES:
        yield lines, f"{lines} lines, more than {FILE_LINES}"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
            long = (node.end_lineno or first) - first + 1
            if long > FUNCTION_LINES:
                yield node.lineno, f"{node.name} has {long} lines, more than {FUNCTION_LINES}"


def anys(text: str) -> int:
    """Count the annotations `Any`, also under the name of an import or of its module; imports are left out."""
    tree = ast.parse(text)
    imported = [
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "typing"
        for alias in node.names
        if alias.name == "Any"
    ]
    return sum(
        (isinstance(node, ast.Name) and node.id in {"Any", *imported})
        or (isinstance(node, ast.Attribute) and node.attr == "Any")
        for node in ast.walk(tree)
    )


def test_no_file_and_no_function_is_long() -> None:
    complain(violations(size_violations))


def test_few_types_are_any() -> None:
    texts = [(ROOT / path).read_text(encoding="utf-8") for path in modules() if path.startswith("pacbayes_fl/")]
    found, lines = sum(map(anys, texts)), sum(text.count("\n") for text in texts)
    assert 1000 * found / lines < ANY_PER_THOUSAND, f"{found} in {lines} lines"


@pytest.mark.parametrize("text", ["\n" * (FILE_LINES + 1), "def f():\n" + "    x = 1\n" * FUNCTION_LINES])
def test_what_is_long_is_found(text: str) -> None:
    assert list(size_violations(text, "pacbayes_fl/planted.py"))


def test_any_is_counted_where_it_annotates() -> None:
    assert anys("from typing import Any\nx: Any = 1\ndef f(y: dict[str, Any]) -> Any: ...") == 3
    assert anys("import typing\nfrom typing import Any as Whatever\nx: typing.Any = 1\ny: list[Whatever] = []") == 2
