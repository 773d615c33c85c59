"""The command `run`: the table, the folder, and one line for whatever is wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pacbayes_fl import cli
from pacbayes_fl.federation import lock
from pacbayes_fl.results import records as results
from pacbayes_fl.results import rounds as results_rounds
from pacbayes_fl.study.file import Study
from tests.cli.answers import Answer, Call, assert_one_line
from tests.tiny import ROUNDS, TABLE, assert_same_results, assert_same_state, rows, write_csv, write_study

NAN = float("nan")


def test_run_prints_the_table_and_writes_the_folder(call: Call, finished: Path, tmp_path: Path) -> None:
    code, out, err = call("run", "tiny.toml", "--out", "here")
    assert code == 0
    assert_same_results(tmp_path / "here", finished)
    title, header, *lines, folder = out.splitlines()
    assert title == f"tiny, pac-pfl, seed 3, round {ROUNDS}"
    assert header.split() == ["over", "clients", "mean", "[95", "%", "interval]", "median", "worst", "client"]
    assert folder == "run folder: here"
    summary = json.loads((finished / "metrics.json").read_text())["groups"]
    result = results.load(finished)
    for at, group in ((0, "existing"), (6, "new")):
        assert lines[at] == f"{group}, {summary[group]['n_clients']} clients"
        rows = [line.split() for line in lines[at + 1 : at + 6]]
        assert [row[0] for row in rows] == ["rsmse", "ce", "nlpd", "crps", "rmse_raw"]
        for name, mean, low, high, median, client, worst in rows:
            entry = summary[group][name]
            assert [mean, median] == [f"{entry['mean']:.3f}", f"{entry['median']:.3f}"]
            assert [low, high] == [f"[{entry['interval'][0]:.3f},", f"{entry['interval'][1]:.3f}]"]
            own = {row.name: row.metrics[name] for row in result.clients if row.group == group}
            assert worst == f"{max(own.values()):.3f}" and own[client] == max(own.values())
    lines = err.splitlines()
    assert lines[0].startswith("preset recommended; differs from paper in: method.particles=2 (paper 4), ")
    assert len(lines) == 1 + ROUNDS  # no terminal: plain lines, here one a round
    assert lines[1].startswith("pac-pfl on tiny: 1/12 rsmse 1.") and "log_evidence -" in lines[1]
    assert "\x1b" not in err and lines[-1].startswith("pac-pfl on tiny: 12/12 ")


def test_quiet_prints_results_only(call: Call, finished: Path) -> None:
    code, out, err = call("run", "tiny.toml", "--out", "here", "--quiet")
    assert (code, err) == (0, "")
    assert out == call("show", finished).out + "run folder: here\n"


def test_a_terminal_gets_a_bar(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    code, out, err = call("run", "tiny.toml", "--out", "here")
    assert code == 0 and "12/12" in err and "rsmse 1." in err
    assert "12/12" not in out


def test_options_are_assignments_and_a_preset_says_that_it_is_the_papers(call: Call, tmp_path: Path) -> None:
    arguments = ("--seed", 9, "--rounds", 2, "--device", "cpu", "--set", "method.preset=paper", "--set", "name=x")
    code, _, err = call("run", "tiny.toml", "--out", "here", *arguments, "--set", "method.particles=4")
    got = Study.from_toml(tmp_path / "here" / "study.toml")
    assert (code, got.seed, got.federation.rounds, got.method.preset, got.name) == (0, 9, 2, "paper", "x")
    assert err.splitlines()[0] == (
        "preset paper; differs from paper in: model.mean_widths=[4] (paper [32, 32]), "
        "model.kernel_widths=[4] (paper [32, 32]), federation.rounds=2 (paper 1000)"
    )
    sets = ("method.name=ridge", "model.mean_widths=[32, 32]", "model.kernel_widths=[32, 32]", "federation.rounds=400")
    bare = call("run", "tiny.toml", "--out", "bare", *(part for one in sets for part in ("--set", one)))
    assert bare.err.splitlines()[0] == "preset recommended; differs from paper in: nothing"


def test_the_default_folder_is_a_fresh_one_and_resume_takes_the_last(call: Call, tmp_path: Path) -> None:
    arguments = ("run", "tiny.toml", "--quiet", "--set", "method.name=ridge")
    places = [call(*arguments).out.splitlines()[-1] for _ in range(3)]
    assert places == [f"run folder: runs/tiny-ridge-seed3{end}" for end in ("", "-2", "-3")]
    assert call(*arguments, "--resume").out.splitlines()[-1] == places[-1]
    assert len(list((tmp_path / "runs").iterdir())) == 3


def test_a_stopped_run_is_exit_code_130_and_goes_on(
    call: Call, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = results_rounds.append_round

    def stop(folder: Path, record: results_rounds.RoundRecord) -> None:
        real(folder, record)
        if record.round == 5:
            os.kill(os.getpid(), 2)

    monkeypatch.setattr(results_rounds, "append_round", stop)
    code, out, err = call("run", "tiny.toml", "--out", "here", "--quiet")
    assert (code, out, err) == (130, "", "pacbayes-fl: stopped; go on with --resume\n")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    code, _, err = call("run", "tiny.toml", "--out", "here", "--resume")
    assert code == 0 and "pac-pfl on tiny: 6/12" in err and "5/12" not in err
    assert_same_results(tmp_path / "here", finished)


def test_what_a_run_refuses(call: Call, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = ("--quiet", "--out", "new")
    assert_one_line(call("run", "tiny.tom", *quiet), "there is no study 'tiny.tom'")
    assert_one_line(call("run", "polynomail", *quiet), "there is no study 'polynomail' (did you mean 'polynomial'?)")
    wrong = call("run", "tiny.toml", *quiet, "--set", "method.tua=1")
    assert_one_line(wrong, "tiny.toml [method] of pac-pfl: unknown key 'tua'", "(did you mean 'tau'?)")
    assert_one_line(call("run", "tiny.toml", *quiet, "--set", "method=ridge"), "method must be a table, got 'ridge'")
    assert_one_line(call("run", "tiny.toml", *quiet, "--set", "seed"), "--set takes KEY=VALUE, got 'seed'")
    assert_one_line(call("run", "tiny.toml", *quiet, "--seed", "-1"), "seed must be a whole number")
    assert_one_line(call("run", "tiny.toml", *quiet, "--set", "federation.checkpoint_every=0"), "checkpoint_every")
    assert_one_line(call("run", "tiny.toml", *quiet, "--set", "method.name=persistence"), "persistence needs a feature")
    (tmp_path / "bad.toml").write_text("[model\n")
    assert_one_line(call("run", "bad.toml", *quiet), "bad.toml is not TOML")
    monkeypatch.delenv("PACBAYES_FL_DATA", raising=False)
    assert_one_line(call("run", "pv-ew-150-bern", *quiet), "PACBAYES_FL_DATA is not set", "(export PACBAYES_FL_DATA=")
    assert_one_line(call("run", "tiny.toml", "--quiet", "--out", finished), "holds a run already (go on with --resume")
    assert_one_line(
        call("run", "tiny.toml", "--quiet", "--out", "tiny.toml"), "tiny.toml: is a file, where a folder is to be"
    )
    resumed = ("run", "tiny.toml", "--quiet", "--out", finished, "--resume", "--set")
    assert_one_line(call(*resumed, "method.rate=0.5"), "method.rate: saved 0.01, now 0.5", "(set the values back")
    assert_one_line(call(*resumed, "federation.rounds=5"), "has finished round 12, and rounds is 5")
    with lock.RunLock(tmp_path / "taken"):
        assert_one_line(call("run", "tiny.toml", "--quiet", "--out", "taken"), f"in use by pid {os.getpid()}")


def test_what_a_run_refuses_of_a_table(call: Call, tmp_path: Path) -> None:
    table = rows()
    path = tmp_path / "rows.csv"

    def run(changed: list[dict[str, Any]], *sets: str) -> Answer:
        write_csv(path, changed)
        write_study(tmp_path, TABLE | {"data": {"source": str(path)}})
        return call("run", "tiny.toml", "--quiet", "--out", "new", *(part for one in sets for part in ("--set", one)))

    assert_one_line(run(table, "data.client=house"), "has no column 'house' (it has client, lag_1, wind, y,")
    assert_one_line(run(table, "data.target=power"), "has no column 'power'")
    nan = [row | {"wind": "nan"} if i in (10, 12) else row for i, row in enumerate(table)]
    assert_one_line(run(nan), "client 'existing_1': ", "line 12, column 'wind': nan is not a finite number")
    word = [row | {"wind": "calm"} if i == 4 else row for i, row in enumerate(table)]
    assert_one_line(run(word), "line 6, column 'wind': 'calm' is not a number")
    empty = [row | {"split": "test"} if row["client"] == "existing_2" else row for row in table]
    assert_one_line(run(empty), "client 'existing_2': has no training samples", "(drop it, or let it join")
    blind = [row | {"y": NAN} if i == 0 else row for i, row in enumerate(table)]
    assert_one_line(run(blind), "line 2, column 'y': '' is not a number")
    assert_one_line(run([row for row in table if row["group"] == "new"]), "has no existing client")
    assert_one_line(run(table, "data.source=other.csv"), "there is no file ", "other.csv")
    assert not (tmp_path / "new").exists()  # nor the folder with its lock alone
    (tmp_path / "new").mkdir()
    run(table, "data.target=power")
    assert [*(tmp_path / "new").iterdir()] == []  # the user's folder stays


def test_a_refused_run_says_one_line_and_a_run_without_rounds_its_preset(call: Call, finished: Path) -> None:
    """Without --quiet: what the run would have been is said only when it is one."""
    assert_one_line(
        call("run", "tiny.toml", "--out", "new", "--set", "data.source=none.csv"), "there is no file", "none.csv"
    )
    assert_one_line(call("run", "tiny.toml", "--out", finished), "holds a run already")
    again = call("run", "tiny.toml", "--out", finished, "--resume")
    assert again.code == 0 and again.err.startswith("preset recommended; ") and again.err.count("\n") == 1


def test_a_damaged_checkpoint_is_said_and_passed_over(call: Call, finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    newest, older = (folder / "checkpoints" / f"round_{n:06d}" / "state.safetensors" for n in (12, 8))
    newest.write_bytes(newest.read_bytes()[:-3])
    code, _, err = call("run", "tiny.toml", "--out", "run", "--resume")
    assert code == 0 and "warning: state.safetensors of round 12 is damaged; using round 8\n" in err
    assert_same_state(folder, finished)
    newest.write_bytes(b"")
    older.unlink()
    answer = call("run", "tiny.toml", "--out", "run", "--resume", "--quiet")
    assert_one_line(
        answer, "state.safetensors of round 12 is damaged; state.safetensors of round 8 is missing", "(start"
    )
    assert_one_line(call("predict", "run", "--client", "poly_00", "--data", "x.csv"), "no round in ", " is intact")


@pytest.mark.slow
def test_a_run_whose_budget_is_spent_says_so_on_the_command_line(tmp_path: Path) -> None:
    """In a process of its own, as people call it: there warnings point at the script."""
    write_study(tmp_path)
    program = "import sys; from pacbayes_fl.cli import main; sys.exit(main())"
    private = ["privacy.epsilon=5", "privacy.multiplier=1.5", "federation.rounds=30", "report.evaluate_every=7"]
    sets = [part for one in private for part in ("--set", one)]
    done = subprocess.run(
        [sys.executable, "-c", program, "run", "tiny.toml", "--out", "run", *sets],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[2])},
    )
    assert done.returncode == 0
    assert "warning: the run ends before its last round" in done.stderr
    rounds = [json.loads(line) for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
    assert 0 < len(rounds) < 30
    assert "rsmse" in rounds[-1]["values"]  # the last round is scored, whichever it is
