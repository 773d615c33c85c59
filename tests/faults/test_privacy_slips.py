"""What a run must not let slip: files that others may read, rows that were not to be kept, budgets that crashes eat."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from pacbayes_fl import cli, study
from tests.tiny import rows, tiny, write_csv, write_study

# modes ----------------------------------------------------------------------------------------------------------


def open_to_others(folder: Path) -> dict[str, str]:
    """Return what others may read, write or enter, with its mode; the folder itself is "."."""
    every = {str(path.relative_to(folder)): stat.S_IMODE(path.lstat().st_mode) for path in (folder, *folder.rglob("*"))}
    return {name: oct(mode) for name, mode in every.items() if mode & 0o077}


@pytest.mark.parametrize("mask", [0, 0o022], ids=oct)
def test_nobody_else_may_read_what_a_run_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mask: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every command that writes into a run folder, with the modes that a umask would give."""
    monkeypatch.chdir(tmp_path)
    path, private = write_study(tmp_path), ["--set", "privacy.epsilon=10", "--set", "report.certify.scheme=split"]
    before = os.umask(mask)
    try:
        for words in (
            ["run", str(path), *private, "--out", "run"],
            ["run", str(path), *private, "--out", "run", "--resume"],
            ["certify", "run"],
            ["plot", "run"],
            ["compare", str(path), "--rounds", "2", "--methods", "pac-pfl,ridge", "--out", "both"],
        ):
            assert cli.main([*words, "--quiet"]) == 0, capsys.readouterr().err
    finally:
        os.umask(before)
    for name, least in (("run", 20), ("both", 20)):
        assert len([*(tmp_path / name).rglob("*")]) > least and open_to_others(tmp_path / name) == {}


def test_a_folder_that_was_open_is_closed_and_the_run_says_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.warns(UserWarning, match=r"was open to others \(mode 0755\)"):
        study.run(tiny("federation.rounds=1"), tmp_path)
    for each in (tmp_path, *tmp_path.rglob("*")):  # as an earlier version has left it
        each.chmod(0o755 if each.is_dir() else 0o644)
    with pytest.warns(UserWarning, match="was open to others"):
        study.run(tiny("federation.rounds=1"), tmp_path, resume=True)
    assert open_to_others(tmp_path) == {}


def test_a_folder_with_other_files_is_not_changed_and_the_run_says_so(tmp_path: Path) -> None:
    write_csv(tmp_path / "mine.csv", rows())
    for path, mode in ((tmp_path, 0o755), (tmp_path / "mine.csv", 0o644)):
        path.chmod(mode)
    with pytest.warns(UserWarning, match="holds other files: it stays so"):
        study.run(tiny("federation.rounds=1"), tmp_path)
    assert open_to_others(tmp_path) == {".": "0o755", "mine.csv": "0o644"}
