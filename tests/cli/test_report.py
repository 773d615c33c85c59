"""The command `report`: pages of runs, comparisons and searches, shown in a browser or printed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pacbayes_fl import cli, pages
from pacbayes_fl.cli import report
from pacbayes_fl.pages.run import write_run


def test_it_writes_and_opens_the_page(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = list[str]()
    monkeypatch.setattr(pages, "write_run", write_run)
    monkeypatch.setattr("webbrowser.open", lambda where: not opened.append(where))
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    assert cli.main(["report", str(folder), "--open"]) == 0
    assert capsys.readouterr().out == f"{folder / pages.FILE}\n"
    assert opened == [(folder / pages.FILE).resolve().as_uri()]
    monkeypatch.setattr("webbrowser.open", lambda where: False)
    assert cli.main(["report", str(folder), "--open"]) == 1
    assert "no browser was found" in capsys.readouterr().err


@pytest.mark.usefixtures("paged")
def test_a_search_has_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "best.toml").write_text("")
    (tmp_path / "best.trials.json").write_text(json.dumps({"ridge": [[{}, {"rsmse": 0.5}, None]]}))
    assert cli.main(["report", str(tmp_path / "best.toml")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "best.report.html")


@pytest.mark.usefixtures("paged")
def test_what_has_no_page_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(tmp_path / "nowhere")]) == 1
    assert "there is no folder" in capsys.readouterr().err


def test_without_a_browser_a_pdf_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(report.PacBayesFLError, match="printed by Chromium or Chrome, and none is installed"):
        report._printed(tmp_path / "report.html")


def test_a_browser_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/false")
    with pytest.raises(report.PacBayesFLError, match="/bin/false"):
        report._printed(tmp_path / "report.html")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.skipif(shutil.which("chromium") is None, reason="PDFs are printed by Chromium, which is not installed")
def test_a_page_is_printed(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<!DOCTYPE html><title>t</title><p>text")
    path = report._printed(tmp_path / "report.html")
    assert path == tmp_path / "report.pdf" and path.read_bytes().startswith(b"%PDF")
