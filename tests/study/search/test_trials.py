"""Trials on disk come back as they were, and only to the search that they are of."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pacbayes_fl.errors import CheckpointError, DataError, StudyError
from pacbayes_fl.study.search.trials import Trial, Trials
from tests.tiny import spoiled

ASKED: dict[str, Any] = {
    "folds": 2,
    "seed": 0,
    "score": None,
    "budget": 3,
    "methods": ["a"],
    "studies": {"a": {"x": 1}},
}
FIRST = [Trial({"method.rate": 0.1 / 3, "model.widths": (4, 4)}, {"rsmse": 1 / 3, "nlpd": math.inf})]
FAILED = [Trial({"method.rate": 1.0}, {"rsmse": math.nan, "nlpd": -math.inf}, "round 1: not finite")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.search.json"


def test_trials_come_back_to_the_last_bit(path: Path) -> None:
    log = Trials(path, ASKED)
    assert log.known("a", 0, {}) is None and not path.exists()
    log.keep("a", FIRST)
    log.keep("a", FAILED)
    back = Trials(path, ASKED, resume=True)
    assert len(back) == 2
    assert back.known("a", 0, FIRST[0].values) == FIRST
    (failed,) = back.known("a", 1, FAILED[0].values) or []
    assert failed.failure == FAILED[0].failure and math.isnan(failed.scores["rsmse"])
    assert back.known("a", 2, {}) is None and back.known("b", 0, {}) is None
    before = path.read_bytes()
    back.finish()
    assert json.loads(before)["finished"] is False and json.loads(path.read_text())["finished"] is True


def test_unfinished_trials_are_not_written_over_and_finished_ones_may_be(path: Path) -> None:
    log = Trials(path, ASKED)
    log.keep("a", FIRST)
    with pytest.raises(StudyError, match=r"holds the trials of a search that was not finished \(go on with --resume"):
        Trials(path, ASKED)
    log.finish()
    assert len(Trials(path, ASKED)) == 0


def test_trials_of_which_none_came_to_anything_leave_no_file(path: Path) -> None:
    log = Trials(path, ASKED)
    log.keep("a", FAILED)
    assert path.exists()
    log.discard_failed()
    assert not path.exists()
    log.keep("a", FIRST)
    log.discard_failed()
    assert path.exists(), "what was trained is kept"


def test_another_search_is_refused_by_what_differs(path: Path) -> None:
    Trials(path, ASKED).keep("a", FIRST)
    for key, value, text in (
        ("folds", 5, "folds: saved 2, now 5"),
        ("methods", ["a", "b"], r"methods: saved \[\"a\"\], now \[\"a\", \"b\"\]"),
        ("studies", {"a": {"x": 2}}, r"studies\.a\.x: saved 1, now 2"),
    ):
        with pytest.raises(CheckpointError, match=f"not the one that this search was started with: {text}"):
            Trials(path, ASKED | {key: value}, resume=True)
    assert len(Trials(path, ASKED | {"budget": 9}, resume=True)) == 1  # a larger one begins with the same
    with pytest.raises(DataError, match=r"configuration 0 of a is not the one that the search draws"):
        Trials(path, ASKED, resume=True).known("a", 0, {"method.rate": 0.5})


@pytest.mark.parametrize("resume", [True, False])
def test_damaged_trials_are_named(path: Path, resume: bool) -> None:
    Trials(path, ASKED).keep("a", FIRST)
    for what, bad in spoiled(path.read_bytes()).items():
        if bad is not None:
            path.write_bytes(bad)
            with pytest.raises(DataError, match=r"a\.search\.json is damaged: it holds the trials"):
                Trials(path, ASKED, resume)
            assert path.read_bytes() == bad, what


def test_a_link_is_not_followed_and_no_file_is_needed(path: Path) -> None:
    path.symlink_to(path.parent / "victim")
    with pytest.raises(CheckpointError, match="symbolic link"):
        Trials(path, ASKED)
    log = Trials()
    log.keep("a", FIRST)
    assert len(log) == 1 and log.known("a", 0, {}) == FIRST


def test_two_searches_do_not_write_over_each_other(path: Path) -> None:
    first, second = Trials(path, ASKED), Trials(path, ASKED)
    first.keep("a", [Trial({"rate": 0.1}, {"rsmse": 1.0})])
    before = path.read_bytes()
    for write in (lambda: second.keep("a", [Trial({"rate": 0.2}, {"rsmse": 2.0})]), second.finish):
        with pytest.raises(CheckpointError, match=r"a\.search\.json was written by another search meanwhile"):
            write()
    assert path.read_bytes() == before
    first.finish()


def test_a_search_that_has_tried_nothing_takes_no_other_away(path: Path) -> None:
    log = Trials(path, ASKED)
    log.keep("a", FAILED)
    log.finish()
    before = path.read_bytes()
    Trials(path, ASKED).discard_failed()
    assert path.read_bytes() == before
    log.discard_failed()
    assert not path.exists()
