"""The command `release` says what has left the run, and takes no folder that holds something."""

from __future__ import annotations

from pathlib import Path

from tests.cli.answers import Call, assert_one_line


def test_release_writes_a_folder_that_join_reads_and_replaces_none(call: Call, finished: Path, tmp_path: Path) -> None:
    code, out, _ = call("release", finished, "--out", "released", "--public-scaling")
    assert code == 0 and out.startswith("release: ") and out.endswith("folder: released\n")
    assert any((tmp_path / "released").iterdir())
    assert_one_line(call("release", finished, "--out", "released", "--public-scaling"), "released")
