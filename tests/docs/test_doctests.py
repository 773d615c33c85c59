"""Every example of a docstring runs and prints what it says, as for a user who copies it into an empty folder."""

from __future__ import annotations

import ast
import doctest
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

import pytest

import pacbayes_fl

ROOT = Path(pacbayes_fl.__file__).parent
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples() -> Iterator[tuple[str, str]]:
    """Yield dotted names and docstrings of all that have an example, without importing anything."""
    for file in sorted(ROOT.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if ">>> " in text:
            yield from _inside(".".join(file.relative_to(ROOT).with_suffix("").parts), ast.parse(text))


def _inside(name: str, node: ast.Module | ast.ClassDef | ast.FunctionDef) -> Iterator[tuple[str, str]]:
    doc = ast.get_docstring(node) or ""
    if ">>> " in doc:
        yield name, doc
    for one in node.body:
        if isinstance(one, ast.ClassDef | ast.FunctionDef):
            yield from _inside(f"{name}.{one.name}", one)


FOUND = dict(examples())


def test_there_are_many() -> None:
    assert len(FOUND) >= 230


@pytest.mark.filterwarnings("ignore")
def test_every_public_function_and_class_has_one() -> None:
    public = [getattr(pacbayes_fl, name) for name in pacbayes_fl.__all__]
    places = [f"{one.__module__}.{one.__qualname__}" for one in public if isinstance(one, type | FunctionType)]
    shown = [f"pacbayes_fl.{name.replace('.__init__', '')}." for name in FOUND]  # that of a method is its class's too
    assert len(places) > 50
    assert not [place for place in places if not any(name.startswith(f"{place}.") for name in shown)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FOUND)
def test_the_example_of_a_docstring_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = doctest.DocTestParser().get_doctest(FOUND[name], {}, name, None, 0)
    said: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=OPTIONS).run(example, out=said.append)
    assert example.examples and not failed, "".join(said)
