"""Warnings are written down while they are shown as ever."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from pacbayes_fl.results.run_warnings import FILE, heard, read, to_json


def test_warnings_are_shown_and_written_down_once() -> None:
    before = warnings.showwarning
    with pytest.warns(UserWarning, match="one") as shown, heard() as said:
        for _ in range(2):
            warnings.warn("one\nline", stacklevel=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("ignored", stacklevel=1)
    assert said == ["one line"] and len(shown) == 2
    assert warnings.showwarning is before


def test_the_usual_way_is_back_after_an_error() -> None:
    before = warnings.showwarning
    with pytest.raises(ZeroDivisionError), heard():
        raise ZeroDivisionError
    assert warnings.showwarning is before


def test_the_file_reads_back_and_a_damaged_one_says_nothing(tmp_path: Path) -> None:
    assert to_json([]) is None and read(tmp_path) == []
    (tmp_path / FILE).write_bytes(to_json(["a", "b"]) or b"")
    assert read(tmp_path) == ["a", "b"]
    (tmp_path / FILE).write_text('{"warnings": 3')
    assert read(tmp_path) == []
