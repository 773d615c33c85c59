"""The command `plot` draws from folders alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pacbayes_fl import plots
from tests.cli.answers import Call, assert_one_line


@pytest.mark.slow
@pytest.mark.usefixtures("rendered")
def test_plot_draws_from_the_folder_alone(call: Call, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "moved")
    code, out, err = call("plot", "moved", "--client", "poly_01,new_poly_00")
    assert (code, err) == (0, "")
    figures = ("learning", "diagnostics", "clients", "calibration", "pit", "coverage", "predictions")
    names = {f"{name}.{end}" for name in figures for end in ("png", "svg")}
    assert (
        {Path(line).name for line in out.splitlines()}
        == names
        == {p.name for p in (tmp_path / "moved/figures").iterdir()}
    )
    assert (tmp_path / "moved/figures/learning.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "moved/figures/predictions.svg").read_text()
    shutil.rmtree(tmp_path / "moved/figures")
    assert_one_line(call("plot", "moved", "--client", "nobody", "--quiet"), "nobody")
    assert not (tmp_path / "moved/figures").exists()


def test_plot_of_several_runs_compares_them(
    call: Call, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "save_all", lambda *_, **__: [])  # each run's own figures, drawn above
    shutil.copytree(finished, tmp_path / "one")
    call("run", "tiny.toml", "--out", "two", "--set", "method.particles=3", "--quiet")
    code, out, _ = call("plot", "one", "two")
    assert code == 0
    assert [str(Path(line)) for line in out.splitlines()[-6:]] == [
        f"figures/{name}.{end}" for name in ("box_plots", "intervals", "particles") for end in ("png", "svg")
    ]
    assert (tmp_path / "figures" / "particles.png").read_bytes().startswith(b"\x89PNG")
    code, out, err = call("plot", "one", "two", "two/../one")
    assert code == 0 and err == "warning: two/../one is given twice, and drawn once\n"
    assert [str(Path(line)) for line in out.splitlines()][-1] == "figures/particles.svg"
