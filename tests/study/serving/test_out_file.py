"""No command writes over the rows that it reads, or over a file of a run or a release."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pacbayes_fl.errors import StudyError
from pacbayes_fl.study.run import run
from pacbayes_fl.study.serving.out_file import check_apart
from pacbayes_fl.study.serving.release import release
from tests.tiny import on_csv, rows, write_csv


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("out")
    run(on_csv(write_csv(root / "rows.csv", rows())), root / "run")
    release(root / "run", root / "release", public_scaling=True)
    return root


def test_rows_that_are_read_stay_whatever_their_name(folder: Path, tmp_path: Path) -> None:
    (data := tmp_path / "ask.csv").write_text("client\n")
    (link := tmp_path / "link.csv").symlink_to(data)
    (tmp_path / "below").mkdir()
    for out in (data, link, tmp_path / "below" / ".." / "ask.csv", folder / "rows.csv"):
        with pytest.raises(StudyError, match=r"holds the rows that are read \(another --out\)"):
            check_apart(out, folder / "run", None, data)
    check_apart(tmp_path / "new.csv", folder / "run", data, tmp_path / "missing.csv")


@pytest.mark.parametrize("name", ["clients.csv", "labels.json", "compare.csv", "checkpoints/x.csv", "manifest.json"])
def test_files_of_a_run_stay_and_others_may_be_beside_them(name: str, folder: Path) -> None:
    with pytest.raises(StudyError, match=r"is a file of what .*run holds"):
        check_apart(folder / "run" / name, folder / "run")
    check_apart(folder / "run" / "forecast.csv", folder / "run")


def test_nothing_is_added_to_a_release(folder: Path) -> None:
    with pytest.raises(StudyError, match=r"is a file of what .*release holds"):
        check_apart(folder / "release" / "forecast.csv", folder / "release")


def test_a_source_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWS_HERE", str(tmp_path))
    write_csv(tmp_path / "rows.csv", rows())
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "study.toml").write_text(f"[data]\nsource = '$ROWS_HERE{os.sep}rows.csv'\n")
    with pytest.raises(StudyError, match="holds the rows that are read"):
        check_apart(tmp_path / "rows.csv", tmp_path / "run")
