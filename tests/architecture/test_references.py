"""Names of the package in its documentation lead somewhere, also after what they name has moved."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pacbayes_fl"
KEYS = frozenset({"data", "federation", "method", "model", "privacy", "report", "server", "study", "plan"})
"""Begin keys of studies too, or fields of a value that is called so."""

NAMED = re.compile(r"`([a-z_]+(?:\.[A-Za-z_]\w*)+)`|\b([a-z_]+\.[a-z_]+\.[A-Za-z_]\w*)")
"""In backquotes, or, as in what errors advise, with three parts."""

FILE = re.compile(r"`([\w/]+/\w+\.py)`")


def texts(path: Path) -> Iterator[str]:
    """Yield docstrings and all other texts of a module, and its comments."""
    source = path.read_text("utf-8")
    yield from (
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    yield from re.findall(r"#[^\n]*", source)


def resolves(name: str) -> bool:
    """Whether a dotted name leads from the package to a module, a class or a field."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(("pacbayes_fl", *parts[:end])))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            if not hasattr(found, part):
                return part in {**getattr(found, "__annotations__", {}), **getattr(found, "__dataclass_fields__", {})}
            found = getattr(found, part)
        return True
    return False


def test_names_of_the_package_in_its_texts_lead_somewhere() -> None:
    modules = {path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"} - {*KEYS, "__init__"}
    named = {
        (path, quoted or bare)
        for path in PACKAGE.rglob("*.py")
        for text in texts(path)
        for quoted, bare in NAMED.findall(text)
        if (quoted or bare).partition(".")[0] in modules and not (quoted or bare).endswith(".json")
    }
    assert len(named) > 40
    assert not {f"{path.relative_to(ROOT)}: {name}" for path, name in named if not resolves(name)}


def test_files_that_are_named_in_pages_are_there() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
    named = {(page, name) for page in pages for name in FILE.findall(page.read_text("utf-8"))}
    named = {(page, name) for page, name in named if not name.startswith("tests/")}  # of a change that is shown
    assert named
    lost = {(page.name, name) for page, name in named if not any((root / name).is_file() for root in (ROOT, PACKAGE))}
    assert not lost


@pytest.mark.parametrize("name", ["posteriors.particles.SmoothedHyperPosterior", "results.table", "bounds.nothing"])
def test_a_name_that_leads_nowhere_is_found(name: str) -> None:
    assert not resolves(name)
