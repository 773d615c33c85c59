"""The command `show` prints what a folder holds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pacbayes_fl import plots
from pacbayes_fl.results import records as results
from pacbayes_fl.study import run as study
from tests.cli.answers import Call

NAN = float("nan")


def test_show(call: Call, finished: Path) -> None:
    code, out, err = call("show", finished)
    assert (code, err, len(out.splitlines())) == (0, "", 14)
    code, out, _ = call("show", finished, "--json")
    assert code == 0 and json.loads(out) == json.loads((finished / "metrics.json").read_text())


def test_show_survives_numbers_that_are_not_finite_and_wide_columns(call: Call, tmp_path: Path) -> None:
    values = ({"rsmse": float("inf"), "ce": NAN, "rmse_raw": 123456.7}, {"rsmse": 1.0, "ce": NAN, "rmse_raw": 987654.3})
    clients = tuple(results.ClientRow(k, f"c{k}", "existing", 3, one) for k, one in enumerate(values))
    results.Result("s", "m", 0, "regression", clients=clients).save(tmp_path / "run")
    code, out, _ = call("show", "run")
    assert code == 0
    rows = [line.split() for line in out.splitlines()[3:]]
    assert rows[0] == ["rsmse", "-", "[-,", "-]", "-", "c0", "-"]
    assert rows[1] == ["ce", "-", "[-,", "-]", "-"]
    assert rows[2][:5] == ["rmse_raw", "5.556e+05", "[1.235e+05,", "9.877e+05]", "5.556e+05"]
    assert rows[2][5:] == ["c1", "9.877e+05"]


def test_show_and_plot_take_a_comparison(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is printed again, also of a folder that has moved, and figures come of it alone and beside a run."""
    arguments = ("compare", "tiny.toml", "--methods", "ridge,pooled-ridge", "--seeds", 2, "--out", "all", "--quiet")
    first = call(*arguments)
    (tmp_path / "all").rename(tmp_path / "moved")
    (tmp_path / "tiny.toml").unlink()
    monkeypatch.setattr(study, "train", lambda *_: pytest.fail("trained"))
    code, out, err = call("show", "moved")
    assert (code, err, out) == (0, "", first.out.replace("folder: all\n", ""))
    code, out, _ = call("show", "moved", "--json")
    assert code == 0 and json.loads(out) == json.loads((tmp_path / "moved/compare.json").read_text())
    drawn: list[tuple[int, str]] = []

    def joint(found: list[results.Result], folder: Path, *_: object) -> list[Path]:
        drawn.append((len(found), str(folder)))
        return [folder / "intervals.png"]

    monkeypatch.setattr(plots, "save_joint", joint)
    monkeypatch.setattr(plots, "save_all", lambda result, folder, *_: [folder / "learning.png"])
    assert call("plot", "moved").out == "moved/figures/intervals.png\n"
    lines = call("plot", "moved/ridge-seed3", "moved").out.splitlines()
    assert lines[0] == "moved/ridge-seed3/figures/learning.png" and len(lines) == 3
    assert drawn == [(4, "moved/figures"), (4, "moved/figures"), (5, "moved/figures")]


def test_a_comparison_of_a_value_is_shown_as_it_was(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "save_joint", lambda *_: [])
    sets = ("--vary", "federation.rounds=1,2", "--set", "method.name=pfedgp", "--quiet", "--out", "all")
    first = call("compare", "tiny.toml", *sets)
    assert first.code == 0 and "  pfedgp rounds=2 " in first.out
    assert call("show", "all").out == first.out.replace("folder: all\n", "")
