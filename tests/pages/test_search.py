"""The page of a search: every trial, the best first, and failures."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pacbayes_fl.errors import DataError, StudyError
from pacbayes_fl.pages.search import Tried, search_page, write_search

TRIALS = [
    [{"method.rate": 0.1, "method.kind": "<b>"}, {"rsmse": 0.5, "nlpd": 1.0}, None],
    [{"method.rate": 0.001, "method.kind": "x"}, {"rsmse": 0.25, "nlpd": 2.0}, None],
    [{"method.rate": 100.0, "method.kind": "x"}, {"rsmse": None, "nlpd": None}, "diverged"],
]


def test_trials_are_listed_from_the_best(tmp_path: Path) -> None:
    (tmp_path / "best.toml").write_text("")
    (tmp_path / "best.trials.json").write_text(json.dumps({"pac-pfl": TRIALS}))
    path = write_search(tmp_path / "best.toml")
    text = path.read_text("utf-8")
    assert path.name == "best.report.html"
    for words in (
        *("3 configurations of pac-pfl", "Best by rsmse: method.rate = 0.001, method.kind = x (rsmse 0.25, nlpd 2)"),
        *("&lt;b&gt;", "diverged", "log10 method.rate", "1 of 3 failed"),
    ):
        assert words in text, words
    text = text[text.index("<tbody>") :]
    assert text.index(">0.25<") < text.index(">0.5<") < text.index("diverged")


def test_a_search_that_only_failed_is_a_page_too() -> None:
    text = search_page("s", {"m": [Tried({}, {"rsmse": math.inf}, "diverged")], "none": []})
    assert "diverged" in text and "No configuration has a finite rsmse" in text and "Best by" not in text


def test_a_study_of_no_search_and_a_damaged_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "best.toml").write_text("")
    with pytest.raises(StudyError, match=r"is of no search: there is no best\.trials\.json"):
        write_search(tmp_path / "best.toml")
    (tmp_path / "best.trials.json").write_text('{"a": [[1]]}')
    with pytest.raises(DataError, match="cannot be read"):
        write_search(tmp_path / "best.toml")
