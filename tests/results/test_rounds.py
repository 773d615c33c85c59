"""Lines of `rounds.jsonl`: appended, read, torn and dropped."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from pacbayes_fl.errors import CheckpointError, DataError
from pacbayes_fl.results.rounds import RoundRecord, append_round, read_rounds, truncate_rounds


def record(number: int) -> RoundRecord:
    return RoundRecord(number, 4, ("haus, süd",), {"rsmse": 0.1 / 3, "spread": math.nan, "score_norm": math.inf})


@pytest.mark.parametrize("histograms", ['{"a": [[1]]}', '{"a": 1}', "[1]"])
def test_damaged_histograms_are_named(tmp_path: Path, histograms: str) -> None:
    line = '{"round": 1, "clients": 1, "dropped": [], "values": {}, "histograms": ' + histograms + "}"
    (tmp_path / "rounds.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=r"rounds\.jsonl.*line 1"):
        read_rounds(tmp_path)


def test_rounds_are_appended_and_truncated(tmp_path: Path) -> None:
    assert read_rounds(tmp_path) == ()
    assert truncate_rounds(tmp_path, 3) == ()
    for number in range(1, 6):
        append_round(tmp_path, record(number))
    assert [each.round for each in read_rounds(tmp_path)] == [1, 2, 3, 4, 5]
    assert read_rounds(tmp_path)[2].dropped == ("haus, süd",)
    assert [each.round for each in truncate_rounds(tmp_path, 3)] == [1, 2, 3]
    append_round(tmp_path, record(4))
    assert [each.round for each in read_rounds(tmp_path)] == [1, 2, 3, 4]


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_a_torn_last_line_is_dropped(tmp_path: Path, kept: int) -> None:
    append_round(tmp_path, record(1))
    whole = (tmp_path / "rounds.jsonl").read_bytes()
    (tmp_path / "rounds.jsonl").write_bytes(whole + whole[:kept])
    assert len(read_rounds(tmp_path)) == 1
    truncate_rounds(tmp_path, 10)
    append_round(tmp_path, record(2))
    assert [each.round for each in read_rounds(tmp_path)] == [1, 2]


def test_a_line_that_does_not_fit_on_the_disk_leaves_no_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append_round(tmp_path, record(1))
    sync = os.fsync

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CheckpointError, match=r"round 2: cannot write .*rounds\.jsonl: No space left"):
        append_round(tmp_path, record(2))
    monkeypatch.setattr("os.fsync", sync)
    append_round(tmp_path, record(2))
    assert [each.round for each in read_rounds(tmp_path)] == [1, 2]
