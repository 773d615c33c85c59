"""Open tables: built-in records, those of references, and which of several tables an object belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from pacbayes_fl.errors import StudyError
from pacbayes_fl.plugins.references import read_again
from pacbayes_fl.plugins.table import OpenTable, under_its_name
from tests.user_objects import write


def number(thing: object, module: ModuleType, name: str) -> int | None:
    return thing if isinstance(thing, int) else None


TABLE: OpenTable[int] = OpenTable(lambda: {"one": 1}, "pacbayes_fl.nothing", "[part] key", "a number", number)


def test_records_are_built_in_or_of_a_file(tmp_path: Path) -> None:
    path = write(tmp_path, "own.py", "TWO = 2\nWORD = 'two'\n")
    read_again()
    assert (TABLE["one"], TABLE[f"{path}:TWO"]) == (1, 2)
    assert [*TABLE] == ["one"] and TABLE.known == {"one": 1} and TABLE.listing() == []
    assert TABLE.origin("one") is None
    origin = TABLE.origin(f"{path}:TWO")
    assert origin is not None and origin.file == path
    assert "three" not in TABLE
    with pytest.raises(KeyError):
        TABLE["three"]
    with pytest.raises(StudyError, match=r"\[part\] key: .*own.py:WORD must be a number, got .two. of type str"):
        TABLE[f"{path}:WORD"]
    with pytest.raises(StudyError, match=r"has no 'TOW' .did you mean 'TWO'"):
        TABLE[f"{path}:TOW"]


def test_an_object_leads_to_the_table_of_its_kind(tmp_path: Path) -> None:
    path = write(tmp_path, "own.py", "TWO = 2\nWORD = 'two'\n")
    read_again()
    asked = {"one": False, "three": False, f"{path}:TWO": True, f"{path}:WORD": False}
    assert {name: TABLE.leads_here(name) for name in asked} == asked
    with pytest.raises(StudyError, match="has no 'THREE'"):
        TABLE.leads_here(f"{path}:THREE")


def test_a_record_is_taken_under_the_name_that_leads_to_it() -> None:
    @dataclass(frozen=True)
    class Named:
        name: str
        size: int

    take = under_its_name(Named)
    module = ModuleType("mine")
    assert take(Named("own", 3), module, "mine.py:OWN") == Named("mine.py:OWN", 3)
    assert take("own", module, "mine.py:OWN") is None and take(Named, module, "mine.py:Named") is None
