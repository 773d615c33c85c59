"""References to users' files and modules: how they are read, and that a file is executed once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pacbayes_fl.plugins.references import anchored, load_file, read_again, reference
from tests.user_objects import write


@pytest.mark.parametrize(
    ("text", "place", "is_file"),
    [
        ("mine.py:MyMethod", "mine.py", True),
        ("../a b/mine.py:MyMethod", "../a b/mine.py", True),
        ("package.module:Name", "package.module", False),
        ("module:Name", "module", False),
    ],
)
def test_references_are_files_or_modules(text: str, place: str, is_file: bool) -> None:
    result = reference(text)
    assert result is not None and (result.place, result.is_file, str(result)) == (place, is_file, text)


@pytest.mark.parametrize(
    "text", ["pac-pfl", "mine.py", "mine.py:", ":Name", "mine.py:1x", "a.csv", "C:/x.csv", 3, None]
)
def test_other_values_are_no_references(text: object) -> None:
    assert reference(text) is None


def test_paths_count_from_a_folder(tmp_path: Path) -> None:
    assert anchored("sub/../mine.py:A", tmp_path) == f"{tmp_path.resolve()}/mine.py:A"
    assert anchored("package.module:A", tmp_path) == "package.module:A"
    assert anchored("pac-pfl", tmp_path) == "pac-pfl"


def test_a_file_is_executed_once_and_hides_no_other_module(tmp_path: Path) -> None:
    path = write(tmp_path, "json.py", "import json as real\nCOUNT = []\nCOUNT.append(real.dumps(1))\n")
    first, second = load_file(path, "x"), load_file(path, "x")
    assert first.module is second.module and first.module.COUNT == ["1"] and json.dumps(1) == "1"
    path.write_text("COUNT = 2\n")
    assert load_file(path, "x").module is first.module, "a study that runs keeps what it was built with"
    read_again()
    changed = load_file(path, "x")
    assert changed.module.COUNT == 2 and changed.sha256 != first.sha256


def test_an_object_that_a_program_gives_is_no_reference() -> None:
    assert reference("instance:FedAvg") is None and anchored("instance:FedAvg", Path("/x")) == "instance:FedAvg"
