"""Paths in a study's table count from where it was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pacbayes_fl.errors import StudyError
from pacbayes_fl.study.config.paths import anchored, with_references
from pacbayes_fl.study.file import Study

HOME = Path("/of/study")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("rows.csv", "/of/study/rows.csv"),
        ("../rows.csv", "/of/rows.csv"),
        ("/rows.csv", "/rows.csv"),
        ("$HOME/rows.csv", "$HOME/rows.csv"),
        ("polynomial", "polynomial"),
        ("photos/", "/of/study/photos"),
        ("../data/photos", "/of/data/photos"),
        ("photos", "photos"),
        ("mine.py:Source", "/of/study/mine.py:Source"),
    ],
)
def test_a_source_counts_from_the_study_s_folder(source: str, expected: str) -> None:
    assert anchored({"data": {"source": source}}, HOME)["data"]["source"] == expected


def test_other_tables_and_values_stay() -> None:
    table: dict[str, Any] = {"data": {"target": "a.b", "options": {"root": "images", "seed": 3}}, "seed": 1}
    result = anchored(table, HOME)
    assert result == {"data": {"target": "a.b", "options": {"root": "/of/study/images", "seed": 3}}, "seed": 1}
    assert anchored({"data": 3}, HOME) == {"data": 3}
    with pytest.raises(StudyError, match="must hold no NUL"):
        anchored({"data": {"source": "a\0.csv"}}, HOME)


def test_a_shared_ledger_counts_from_there_too() -> None:
    for given, expected in (("a", "/of/study/a"), ("../a.json", "/of/a.json"), ("~/a", "~/a"), ("none", "none")):
        assert anchored({"privacy": {"ledger": given}}, HOME) == {"privacy": {"ledger": expected}}
    with pytest.raises(StudyError, match=r"\[privacy\] ledger must hold no NUL"):
        anchored({"privacy": {"ledger": "a\0"}}, HOME)


def test_objects_count_likewise_also_of_methods_of_their_own() -> None:
    table = {"method": {"name": "mine.py:Mine"}, "methods": {"mine.py:Mine": {"report": {"metrics": ["m.py:M", "x"]}}}}
    result = with_references(table, HOME)
    assert result["method"] == {"name": "/of/study/mine.py:Mine"}
    assert result["methods"] == {"/of/study/mine.py:Mine": {"report": {"metrics": ["/of/study/m.py:M", "x"]}}}


def test_a_table_of_a_program_counts_from_where_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    study = Study.from_table({"data": {"source": "rows.csv"}})
    monkeypatch.chdir("/")
    assert study.data.source == str(tmp_path / "rows.csv")  # also when a run folder is opened from elsewhere
    assert Study.from_table(study.table()).data.source == study.data.source
    assert Study.from_table({"data": {"source": "polynomial"}}).data.source == "polynomial"
