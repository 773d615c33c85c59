"""The page of a run, from its folder alone: written after every run, small and quick, and no reason to lose one."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from pacbayes_fl import pages
from pacbayes_fl.pages.about import Known
from pacbayes_fl.pages.document import MOST
from pacbayes_fl.pages.run import FILE, refresh, run_page, write_run
from pacbayes_fl.results.client_rows import ClientRow
from pacbayes_fl.results.manifest import put, read
from pacbayes_fl.results.records import Result, load
from pacbayes_fl.study.run import run
from tests.plots.conftest import make_result
from tests.tiny import tiny

NOTHING = Known({}, {}, [], {}, "")


@pytest.mark.usefixtures("paged")
def test_every_run_writes_its_page_and_a_setting_turns_it_off(tmp_path: Path) -> None:
    result = run(tiny("federation.rounds=2"), tmp_path / "run")
    text = (tmp_path / "run" / FILE).read_text("utf-8")
    assert "tiny" in text and result.clients[0].name in text
    manifest = read(tmp_path / "run")
    assert manifest is not None and FILE in manifest.files
    run(tiny("federation.rounds=3"), tmp_path / "run", resume=True)
    assert "There were 3 rounds" in (tmp_path / "run" / FILE).read_text("utf-8")
    run(tiny("federation.rounds=4", "report.page=false"), tmp_path / "off", resume=False)
    assert not (tmp_path / "off" / FILE).exists()


def test_a_page_that_fails_loses_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("of a\npage")

    monkeypatch.setattr(pages, "write_run", fail)
    with pytest.warns(UserWarning, match="no report.html: ZeroDivisionError: of a page .*pacbayes-fl report"):
        result = run(tiny("federation.rounds=2"), tmp_path / "run")
    assert load(tmp_path / "run") == result


def test_the_folder_alone_gives_the_page_again_with_the_warnings_of_the_run(finished: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished, tmp_path / "run"))
    put(folder, {"warnings.json": b'{"warnings": ["beware of <this>"]}'}, last=True)
    assert write_run(folder) == folder / FILE
    first = (folder / FILE).read_bytes()
    assert b"beware of &lt;this&gt;" in first
    write_run(folder)
    assert (folder / FILE).read_bytes() == first  # the same folder gives the same bytes
    (folder / FILE).unlink()
    refresh(folder)
    assert not (folder / FILE).exists()  # only where there was one


def test_a_warning_of_a_run_stands_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(*_: object) -> None:
        warnings.warn("of <old> age", UserWarning, stacklevel=1)

    monkeypatch.setattr("pacbayes_fl.study.duration.announce", warn)
    with pytest.warns(UserWarning, match="old"):
        run(tiny("federation.rounds=1"), tmp_path / "run")
    assert "of <old> age" in (tmp_path / "run" / "warnings.json").read_text()


def test_a_run_of_many_clients_is_a_small_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawings and lines are cut until the page is small, and what is cut is said."""
    monkeypatch.setattr("pacbayes_fl.pages.forecasts._DRAWN", 60)
    monkeypatch.setattr("pacbayes_fl.pages.forecasts._ROWS", 2_400)
    made = make_result(existing=70, new=30)
    text = run_page(made, NOTHING)
    assert text.count("<details class") == 60 and "Forecasts of 60 of 100 clients are drawn" in text
    assert "40 of 240 test rows" in text and "100 clients" in text
    huge = [replace(made.clients[0], id=k, name=f"{k:0900}", metrics={"rsmse": 1.0 + k}) for k in range(3_000)]
    text = run_page(replace(made, clients=tuple(huge), predictions={}), NOTHING)
    assert len(text.encode()) < MOST and "of 3000: the page holds no more" in text


@pytest.mark.parametrize(
    "change",
    [
        {"predictions": {}},
        {"clients": (), "predictions": {}},
        {"rounds": ()},
        {"labels": {}},
        {"clients": (ClientRow(0, "a", "existing", 1, {"rsmse": float("nan")}),), "predictions": {}},
    ],
    ids=["no rows", "a server's side", "no rounds", "no labels", "no number"],
)
def test_what_is_missing_is_left_out(numbers: Result, labelled: Result, change: dict[str, object]) -> None:
    for result in (numbers, labelled):
        assert "How to repeat it" in run_page(replace(result, **change), NOTHING)  # type: ignore[arg-type]
