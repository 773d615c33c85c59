"""A run that ended in an error is not told to go on: the error would come again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pacbayes_fl import cli
from pacbayes_fl.errors import ClientError, NumericalError
from pacbayes_fl.federation import checkpoint
from pacbayes_fl.results import run_failures
from tests.tiny import write_study

RUINED = ("method.optimiser=ascent", "method.rate=1e4")
SAYS = "lower the learning rates, and start anew with another --out"


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and the last line that a command has said about what is wrong."""
    capsys.readouterr()
    code = cli.main(list(words))
    return code, capsys.readouterr().err.splitlines()[-1]


@pytest.fixture(scope="module")
def ruined(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run that has diverged; only to be read."""
    folder = tmp_path_factory.mktemp("ruined")
    sets = [word for value in RUINED for word in ("--set", value)]
    assert cli.main(["run", str(write_study(folder)), "--out", str(folder / "run"), "--quiet", *sets]) == 1
    return folder / "run"


def test_every_command_says_that_a_run_has_diverged_and_none_to_resume_it(
    ruined: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, study = tmp_path / "run", str(write_study(tmp_path))
    shutil.copytree(ruined, folder)
    sets = [word for value in RUINED for word in ("--set", value)]
    commands = [
        ["show", str(folder)],
        ["plot", str(folder)],
        ["release", str(folder), "--out", str(tmp_path / "release"), "--public-scaling"],
        ["run", study, "--out", str(folder), *sets],
    ]
    for words in commands:
        code, line = told(capsys, *words)
        assert code == 1, words
        assert f"{folder} holds a run that ended in an error: round " in line, words
        assert "at an eighth of the learning rates too (" in line and SAYS in line and "--resume" not in line, words
    (tmp_path / "rows.csv").write_text("x\n0.5\n", "utf-8")
    for name in ("study.toml", "environment.json"):
        with (folder / name).open("ab") as file:
            file.write(b"\n")
        cli.main(["predict", str(folder), "--client", "poly_00", "--data", str(tmp_path / "rows.csv")])
        damage, ended = capsys.readouterr().err.splitlines()
        assert "restore it from a copy" in damage and name in damage and "--resume" not in damage + ended
        assert ended.startswith(f"warning: {folder} holds a run that ended in an error: what follows is of round ")
        shutil.copy(ruined / name, folder / name)


def test_the_round_that_is_saved_is_named_and_predicted_with(
    ruined: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, ended = checkpoint.load(ruined), run_failures.read(ruined)
    assert saved is not None and ended is not None and ended.saved == saved.round
    round = f"predict, join and certify read round {saved.round}, which is saved" if saved.round else "no round held"
    assert ended.hint.endswith(f"{SAYS}; {round}")
    (tmp_path / "rows.csv").write_text("x\n0.5\n", "utf-8")
    code = cli.main(["predict", str(ruined), "--client", "poly_00", "--data", str(tmp_path / "rows.csv")])
    assert code == 0, capsys.readouterr().err


def test_a_comparison_names_its_run_that_has_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, out = str(write_study(tmp_path)), tmp_path / "several"
    words = ["compare", study, "--methods", "pac-pfl,fedavg", "--out", str(out), "--quiet", "--set", "method.rate=1e12"]
    assert cli.main(words) == 1
    for command in ("show", "plot"):
        code, line = told(capsys, command, str(out))
        assert code == 1 and "-seed" in line and "ended in an error" in line and SAYS in line, line
        assert "run compare again" not in line


def test_a_run_that_goes_on_forgets_how_it_ended(ruined: Path, tmp_path: Path) -> None:
    """Whoever resumes it all the same is told anew; and an unknown end is that of a run that can go on."""
    folder = tmp_path / "run"
    shutil.copytree(ruined, folder)
    before = (folder / run_failures.FILE).read_bytes()
    sets = [word for value in RUINED for word in ("--set", value)]
    again = ["run", str(write_study(tmp_path)), "--out", str(folder), "--quiet", "--resume", *sets]
    assert cli.main(again) == 1
    assert (folder / run_failures.FILE).read_bytes() == before
    (folder / run_failures.FILE).write_text("{", "utf-8")
    assert run_failures.read(folder) is None and run_failures.next_step(folder, "go on") == "go on"


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (NumericalError("bad", round=3, hint="look at its rows"), "look at its rows; start anew with another --out"),
        (NumericalError("bad", hint="slower, and start anew"), "slower, and start anew with another --out"),
        (ClientError("few", hint="nothing was changed; the last round's state holds"), "start anew with another --out"),
        (ClientError("few"), "start anew with another --out"),
    ],
)
def test_what_to_do_is_what_the_error_says(error: NumericalError | ClientError, hint: str, tmp_path: Path) -> None:
    (tmp_path / run_failures.FILE).write_bytes(run_failures.to_json(2, error))
    ended = run_failures.read(tmp_path)
    assert ended is not None and ended.hint == f"{hint}; predict, join and certify read round 2, which is saved"
    assert "(" not in ended.why and json.loads((tmp_path / run_failures.FILE).read_text("utf-8"))["saved"] == 2
