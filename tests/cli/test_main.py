"""The command line: every command's happy path, its exit codes, and one line for whatever is wrong."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from pacbayes_fl import cli, plots
from pacbayes_fl.cli.parser import LISTED
from pacbayes_fl.errors import NumericalError
from pacbayes_fl.federation import lock
from pacbayes_fl.methods import METHODS
from pacbayes_fl.results import records as results
from pacbayes_fl.results import rounds as results_rounds
from pacbayes_fl.results.bootstrap import nested_bootstrap
from pacbayes_fl.results.manifest import put
from pacbayes_fl.study import run as study
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.search import tune
from tests.tiny import ROUNDS, TABLE, assert_same_results, assert_same_state, rows, tiny, write_csv, write_study

COMMANDS = ("run", "compare", "tune", "list", "show", "plot", "certify", "bound", "join", "predict")
NAN = float("nan")


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Call = Callable[..., Answer]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run a command in an empty folder that holds tiny.toml."""
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path)

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        code = cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Answer(code, out, err)

    return run


def assert_one_line(answer: Answer, *fragments: str) -> None:
    """Check that a command failed in a named way: one line, with all that it should say."""
    assert answer.code == 1
    assert answer.out == ""
    assert answer.err.startswith("pacbayes-fl: ") and answer.err.count("\n") == 1 and answer.err.endswith("\n")
    for fragment in fragments:
        assert fragment in answer.err


# usage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [[], *([name] for name in COMMANDS)])
def test_help_is_no_failure(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([*arguments, "-h"])
    out = capsys.readouterr().out
    assert left.value.code == 0
    assert "usage: pacbayes-fl" in out and "%%" not in out
    assert all(name in out for name in ([] if arguments else COMMANDS))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["train"],
        ["run"],
        ["run", "tiny.toml", "--rounds", "many"],
        ["run", "tiny.toml", "--device", "gpu"],
        ["list", "bugs"],
        ["predict", "run"],
        ["tune", "tiny.toml", "--score", "crps"],
        ["bound", "seeger", "--risk", "0.1", "--kl", "1"],
        ["certify"],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(arguments)
    assert left.value.code == 2
    assert "pacbayes-fl" in capsys.readouterr().err


@pytest.mark.parametrize("what", LISTED)
def test_list(call: Call, what: str) -> None:
    code, out, err = call("list", what)
    assert (code, err) == (0, "")
    first = [line.split()[0] for line in out.splitlines()]
    if what == "methods":
        assert first == list(METHODS)
    assert len(first) == len(set(first)) > 0 and all(len(line.split()) > 1 for line in out.splitlines())


# run ------------------------------------------------------------------------------------------------------------


def test_run_prints_the_table_and_writes_the_folder(call: Call, finished: Path, tmp_path: Path) -> None:
    code, out, err = call("run", "tiny.toml", "--out", "here")
    assert code == 0
    assert_same_results(tmp_path / "here", finished)
    title, header, *lines, folder = out.splitlines()
    assert title == f"tiny, pac-pfl, seed 3, round {ROUNDS}"
    assert header.split() == ["over", "clients", "mean", "[95", "%", "interval]", "median", "worst", "client"]
    assert folder == "run folder: here"
    summary = json.loads((finished / "metrics.json").read_text())["groups"]
    found = results.load(finished)
    for at, group in ((0, "existing"), (6, "new")):
        assert lines[at] == f"{group}, {summary[group]['n_clients']} clients"
        rows = [line.split() for line in lines[at + 1 : at + 6]]
        assert [row[0] for row in rows] == ["rsmse", "ce", "nlpd", "crps", "rmse_raw"]
        for name, mean, low, high, median, client, worst in rows:
            entry = summary[group][name]
            assert [mean, median] == [f"{entry['mean']:.3f}", f"{entry['median']:.3f}"]
            assert [low, high] == [f"[{entry['interval'][0]:.3f},", f"{entry['interval'][1]:.3f}]"]
            own = {row.name: row.metrics[name] for row in found.clients if row.group == group}
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
    assert_one_line(call("run", "tiny.toml", *quiet, "--set", "method.tua=1"), "tiny.toml [method]: unknown key 'tua'",
                    "(did you mean 'tau'?)")  # fmt: skip
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
    assert_one_line(call("run", "tiny.toml", "--quiet", "--out", "tiny.toml"), "tiny.toml: File exists")
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


# show and plot --------------------------------------------------------------------------------------------------


def test_show(call: Call, finished: Path) -> None:
    code, out, err = call("show", finished)
    assert (code, err, len(out.splitlines())) == (0, "", 14)
    code, out, _ = call("show", finished, "--json")
    assert code == 0 and json.loads(out) == json.loads((finished / "metrics.json").read_text())


def test_show_survives_numbers_that_are_none_and_columns_that_are_wide(call: Call, tmp_path: Path) -> None:
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


def test_plot_draws_from_the_folder_alone(call: Call, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "moved")
    code, out, err = call("plot", "moved", "--clients", "poly_01,new_poly_00")
    assert (code, err) == (0, "")
    figures = ("learning", "diagnostics", "clients", "calibration", "predictions")
    names = {f"{name}.{end}" for name in figures for end in ("png", "svg")}
    assert (
        {Path(line).name for line in out.splitlines()}
        == names
        == {p.name for p in (tmp_path / "moved/figures").iterdir()}
    )
    assert (tmp_path / "moved/figures/learning.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "moved/figures/predictions.svg").read_text()
    assert_one_line(call("plot", "moved", "--clients", "nobody", "--quiet")._replace(out=""), "nobody")


def test_plot_of_several_runs_compares_them(
    call: Call, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "save_all", lambda *_, **__: [])  # each run's own figures, drawn above
    shutil.copytree(finished, tmp_path / "one")
    call("run", "tiny.toml", "--out", "two", "--set", "method.particles=3", "--quiet")
    code, out, _ = call("plot", "one", "two")
    assert code == 0
    assert [str(Path(line)) for line in out.splitlines()[-4:]] == [
        f"figures/{name}.{end}" for name in ("box_plots", "particles") for end in ("png", "svg")
    ]
    assert (tmp_path / "figures" / "particles.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("command", ["show", "plot", "predict", "join", "certify"])
def test_a_folder_that_is_no_run_is_refused(call: Call, command: str) -> None:
    more = {"predict": ["--client", "a", "--data", "a.csv"], "join": ["--data", "a.csv"]}.get(command, [])
    assert_one_line(call(command, ".", *more), "run folder", "missing")


# certificates ---------------------------------------------------------------------------------------------------


def test_a_bound_from_numbers_alone(call: Call) -> None:
    numbers = ("--risk", 0.03, "--kl", 500, "--n", 30000, "--delta", 0.025)
    said = (*numbers, "--prior", "data-free", "--independent")
    code, out, err = call("bound", "seeger", *said)
    assert (code, err) == (0, "")
    assert "risk at most 0.07248 with probability at least 0.975" in out and "taken on trust: the rows are" in out
    assert "L <= a + R kl^-1((L^ - a) / R, (KL + ln(xi(n) / delta)) / n)" in out
    record = json.loads(call("bound", "seeger", *said, "--json").out)
    assert (record["valid"], record["value"]) == (True, pytest.approx(0.0724708, abs=1e-7))
    unsaid = call("bound", "seeger", *numbers).out
    assert "not declared independent" in unsaid and "nobody said where the prior" in unsaid and "0.07" not in unsaid
    broken = json.loads(call("bound", "seeger", *said[:-1], "--json").out)
    assert (broken["valid"], broken["value"]) == (False, None)
    assert_one_line(call("bound", "seger", *numbers), "bound must be one of seeger")
    assert_one_line(call("bound", "seeger", *numbers[:2], *numbers[4:]), "needs kl")
    assert_one_line(call("bound", "seeger", *numbers, "--epsilon", 0.5), "epsilon is of a private prior, got 0.5")
    vote = call("bound", "seeger", *said, "--predictor", "majority vote", "--loss", "0-1").out
    assert "0-1 loss of the majority vote predictor" in vote and "risk at most 0.1" in vote
    private = call("bound", "seeger", *numbers, "--independent", "--prior", "client-level DP", "--epsilon", 0.4).out
    assert "prior: client-level DP with epsilon 0.4" in private
    assert_one_line(call("bound", "seeger", *numbers, "--draws-delta", 0.01), "without draws")
    assert_one_line(call("bound", "gibbs", *numbers[4:], "--log-z", -1, "--beta", 2, "--draws", 5), "no use for draws")
    assert_one_line(call("bound", "seeger", *numbers[:2], "--kl", "inf", *numbers[4:]), "kl must be finite")


def test_certify_prints_a_line_a_client_and_keeps_the_table(call: Call, tmp_path: Path) -> None:
    call("run", "tiny.toml", "--set", "report.certify.scheme=split", "--out", "run", "--quiet")
    code, out, err = call("certify", "run")
    assert (code, err.splitlines()[-1].strip()) == (0, "certify clients: 6/6")
    assert call("certify", "run", "--quiet") == Answer(0, out, "")
    table = json.loads((tmp_path / "run/certificates/seeger.json").read_text())
    for client in table["clients"]:
        (line,) = [line.split() for line in out.splitlines() if line.split()[0] == client["name"]]
        assert line[1:4] == [str(client["rows"]), f"{client['risk']:.4f}", f"{client['kl']:.3f}"]
        assert float(line[4]) >= client["bound"]
    assert out.count("test risk not above it") == 2 and "valid = false" not in out
    assert json.loads(call("certify", "run", "--bound", "catoni", "--beta", "rows", "--json").out)["bound"] == "catoni"
    assert "average over the clients' rows: at most" in out
    at_beta = call("certify", "run", "--bound", "catoni", "--beta", "rows", "--quiet").out
    assert "average over the clients' rows: none, as the bound 'catoni' is on each client on its own" in at_beta
    written = call("plot", "run").out
    assert all(f"certificates-{name}.png" in written for name in ("seeger", "catoni-beta-rows"))
    assert_one_line(call("certify", "run", "--bound", "catoni"), "needs a beta")
    assert_one_line(call("certify", "run", "--loss", "nlpd"), "unbounded")
    assert_one_line(call("certify", "run", "--loss", "0-1"), "not for real targets")


def test_certificates_of_an_earlier_round_are_neither_shown_nor_drawn(call: Call, tmp_path: Path) -> None:
    sets = ("--set", "report.certify.scheme=split", "--out", "run", "--quiet")
    call("run", "tiny.toml", "--rounds", 2, *sets)
    _, out, _ = call("certify", "run")
    assert "round 2" in out and "below the bound of the trivial predictor at the same n" in out
    assert call("show", "run").out.endswith(out.split("file: ")[0]) and "certificates-seeger" in call("plot", "run").out
    call("run", "tiny.toml", "--rounds", 3, "--resume", *sets)
    for command in ("show", "plot"):
        code, out, err = call(command, "run")
        assert (code, "bound" in out, "certificates-seeger" in out) == (0, False, False)
        assert "seeger.json is stale: it is of round 2, and the run is at round 3; certify again" in err
    assert list((tmp_path / "run/figures").glob("certificates-*")) == []
    assert "request 2 for certificates of these rows: delta is shared as among 6" in call("certify", "run").out


def test_an_edited_bound_is_refused_by_name(call: Call, tmp_path: Path) -> None:
    call("run", "tiny.toml", "--set", "report.certify.scheme=split", "--out", "run", "--quiet", "--rounds", 2)
    call("certify", "run", "--quiet")
    path = tmp_path / "run/certificates/seeger.json"
    path.write_text(path.read_text().replace('"bound": 0.9', '"bound": 0.1', 1))
    for command in ("show", "plot"):
        code, _, err = call(command, "run")
        assert code == 1 and "seeger.json cannot be read as certificates" in err


def test_retrain_says_what_is_wrong_before_it_trains(call: Call, tmp_path: Path) -> None:
    write_csv(tmp_path / "rows.csv", rows())
    call("run", "tiny.toml", "--set", "data={source='rows.csv'}", "--out", "run", "--quiet", "--rounds", 2)
    code, out, err = call("certify", "run", "--retrain", "--bound", "new-clients")
    assert (code, out) == (1, "") and not (tmp_path / "run-certify").exists()
    assert "report.certify.independent = true" in err and "report.certify.drawn_clients = true" in err


def test_certify_refuses_a_run_that_kept_nothing_and_makes_it_again(call: Call, finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    code, out, _ = call("certify", "run")
    assert code == 0
    assert "existing: valid = false: the prior saw the rows of the bound" in out
    assert "new_poly_00" in out and "\npoly_00" not in out
    code, out, _ = call("certify", "run", "--retrain", "--quiet")
    assert code == 0
    assert "\npoly_00" in out and "valid = false" not in out
    before = (tmp_path / "run-certify/rounds.jsonl").read_bytes()
    assert call("certify", "run", "--retrain").out == out
    assert (tmp_path / "run-certify/rounds.jsonl").read_bytes() == before


# join and predict -----------------------------------------------------------------------------------------------


def test_predict_gives_what_the_run_reported(call: Call, finished: Path, tmp_path: Path) -> None:
    flat = results.load(finished).predictions
    for client, group, k in (("poly_02", "existing", 2), ("new_poly_01", "new", 1)):
        write_csv(tmp_path / "ask.csv", [{"client": client, "x": x} for x in flat[f"{group}.x_test"][k, :, 0].tolist()])
        code, out, err = call("predict", finished, "--client", client, "--data", "ask.csv", "--json")
        assert (code, err) == (0, "")
        got = json.loads(out)
        assert list(got) == [client]
        for name in ("mean", "std", "lower", "upper"):
            assert got[client][name] == pytest.approx(flat[f"{group}.{name}"][k].tolist(), rel=1e-9, abs=1e-12)
        _, out, _ = call("predict", finished, "--client", client, "--data", "ask.csv")
        lines = list(csv.reader(io.StringIO(out)))
        assert lines[0] == ["client", "row", "mean", "std", "lower", "upper", "round"]
        assert {line[-1] for line in lines[1:]} == {str(ROUNDS)} and got[client]["round"] == ROUNDS
        assert [line[:2] for line in lines[1:]] == [[client, str(row)] for row in range(8)]
        assert [float(line[2]) for line in lines[1:]] == pytest.approx(got[client]["mean"], rel=1e-5)


def test_later_rows_change_a_prediction(call: Call, finished: Path, tmp_path: Path) -> None:
    write_csv(tmp_path / "ask.csv", [{"x": 0.1}])
    write_csv(tmp_path / "later.csv", [{"x": 0.1, "y": 5.0}])
    asked = ("predict", finished, "--client", "poly_02", "--data", "ask.csv", "--json")
    before, after = (json.loads(call(*asked, *more).out)["poly_02"] for more in ((), ("--later", "later.csv")))
    assert after["mean"][0] > before["mean"][0] + 0.1


def test_join_predicts_the_rows_without_a_target(call: Call, finished: Path, tmp_path: Path) -> None:
    """The run's own new client, joined from a table, gets the predictions that the run reported."""
    flat = results.load(finished).predictions
    train = zip(flat["new.x_train"][0, :, 0].tolist(), flat["new.y_train"][0].tolist(), strict=True)
    table = [{"client": 'a, "b"', "x": x, "y": y} for x, y in train]
    table += [{"client": 'a, "b"', "x": x, "y": NAN} for x in flat["new.x_test"][0, :, 0].tolist()]
    write_csv(tmp_path / "new.csv", table)
    code, out, err = call("join", finished, "--data", "new.csv", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)['a, "b"']["mean"] == pytest.approx(flat["new.mean"][0].tolist(), rel=1e-9, abs=1e-12)
    lines = list(csv.reader(io.StringIO(call("join", finished, "--data", "new.csv").out)))
    assert [line[0] for line in lines[1:]] == ['a, "b"'] * 8 and all(len(line) == 7 for line in lines)


def test_a_client_without_labels_gets_the_prior_and_a_warning(call: Call, finished: Path, tmp_path: Path) -> None:
    write_csv(tmp_path / "new.csv", [{"client": "c", "x": 0.3, "y": NAN}])
    code, out, err = call("join", finished, "--data", "new.csv", "--json")
    assert code == 0 and "warning: c has no rows with a target: the prior's prediction" in err
    trained = study.open_run(finished)
    model: Any = trained.method.model  # type: ignore[attr-defined]
    units = trained.groups["existing"].units  # what the federation's clients have on average
    x = (torch.tensor([[[0.3]]], dtype=torch.float64) - units.x_mean.mean(0)) / units.x_std.mean(0)
    mean = model.mean(trained.state.server.particles.unsqueeze(0), x).mean()
    assert json.loads(out)["c"]["mean"] == pytest.approx([(units.y_mean.mean() + units.y_std.mean() * mean).item()])
    assert call("join", finished, "--data", "new.csv", "--quiet").err == ""


def test_what_predict_and_join_refuse(call: Call, finished: Path, tmp_path: Path) -> None:
    write_csv(tmp_path / "good.csv", [{"client": "poly_00", "x": 0.3, "y": 0.1}])
    write_csv(tmp_path / "other.csv", [{"client": "poly_00", "z": 0.3, "y": 0.1}])
    write_csv(tmp_path / "more.csv", [{"client": "poly_00", "x": 0.3, "z": 0.3, "y": 0.1}])
    write_csv(tmp_path / "nan.csv", [{"client": "poly_00", "x": "nan", "y": 0.1}])
    both = (("predict", finished, "--client", "poly_00", "--data"), ("join", finished, "--data"))
    for command in both:
        text = "client 'poly_00': features must be x; missing:"
        assert_one_line(call(*command, "other.csv"), f"{text} x, not known: z")
        assert_one_line(call(*command, "more.csv"), f"{text} none, not known: z")
        assert_one_line(
            call(*command, "nan.csv", "--quiet"), "client 'poly_00': nan.csv line 2, column 'x': nan is not a finite"
        )
        assert_one_line(call(*command, "none.csv"), "there is no file none.csv")
    unknown = call("predict", finished, "--client", "poly_99", "--data", "good.csv")
    assert_one_line(unknown, "client 'poly_99': the run does not know it (it knows poly_00,")


# compare --------------------------------------------------------------------------------------------------------


def test_compare_prints_writes_and_reads_again(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("compare", "tiny.toml", "--methods", "ridge, pooled-ridge", "--seeds", 2, "--out", "all")
    code, out, err = call(*arguments)
    assert code == 0
    title, header, *lines, rounds, folder = out.splitlines()
    assert rounds == "scored at round: ridge 1, pooled-ridge 1"
    assert title == "over clients and 2 seeds, intervals by the bootstrap" and header.split()[2] == "mean"
    groups = [
        f"{metric}, {group} clients" for group in ("existing", "new") for metric in ("rsmse", "ce", "nlpd", "crps")
    ]
    assert lines[::3] == groups
    assert [line.split()[0] for line in lines[1::3]] == ["ridge"] * 8
    assert [line.split()[0] for line in lines[2::3]] == ["pooled-ridge"] * 8
    assert folder == "folder: all"
    assert [line.split()[1] for line in err.splitlines()] == ["0/4", "1/4", "2/4", "3/4", "4/4"]
    values = [results.load(tmp_path / "all" / f"ridge-seed{seed}").column("new", "rsmse") for seed in (3, 4)]
    mean, low, high = nested_bootstrap(values)
    assert lines[13].split()[1:4] == [f"{mean:.3f}", f"[{low:.3f},", f"{high:.3f}]"]
    with (tmp_path / "all" / "compare.csv").open(newline="") as file:
        (row,) = [
            r for r in csv.DictReader(file) if (r["method"], r["group"], r["metric"]) == ("ridge", "new", "rsmse")
        ]
    assert (float(row["mean"]), float(row["low"]), float(row["high"])) == (mean, low, high)
    assert json.loads((tmp_path / "all" / "compare.json").read_text())["study"] == "tiny"
    monkeypatch.setattr(study, "train", lambda *_: pytest.fail("trained again"))
    again = call(*arguments, "--quiet")
    assert again == (0, out, "")


def test_compare_varies_a_value_of_every_method(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "save_joint", lambda *_: [])
    varied = ("--vary", "model.mean_widths=zero,[4],[4,2]", "--set", "federation.rounds=1", "--out", "all")
    code, out, err = call("compare", "tiny.toml", "--methods", "pac-pfl,pfedgp", *varied)
    widths = ("zero", "[4]", "[4, 2]")
    names = [f"{method} mean_widths={value}" for method in ("pac-pfl", "pfedgp") for value in widths]
    assert code == 0 and err.splitlines()[-1].split() == ["runs:", "6/6"]
    rsmse = out.splitlines()[3:9]
    assert [line[2 : 2 + len(name)] for line, name in zip(rsmse, names, strict=True)] == names
    assert sorted(path.name for path in (tmp_path / "all").glob("*-seed3")) == sorted(f"{name}-seed3" for name in names)
    run = Study.from_toml(tmp_path / "all" / "pfedgp mean_widths=[4, 2]-seed3" / "study.toml")
    assert (run.method.name, run.model.mean_widths) == ("pfedgp", (4, 2))  # type: ignore[union-attr]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_compare_says_how_to_go_on(call: Call, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(study, "train", lambda *_: os.kill(os.getpid(), number))
    arguments = ("compare", "tiny.toml", "--methods", "ridge", "--quiet")
    told = "pacbayes-fl: stopped; go on with --resume, finished runs are read\n"
    assert call(*arguments, "--out", "all") == (130, "", told)
    assert call(*arguments) == (130, "", "pacbayes-fl: stopped; nothing was kept, for want of --out\n")
    assert signal.getsignal(signal.SIGTERM) == before


def test_what_compare_refuses(call: Call) -> None:
    base = ("compare", "tiny.toml", "--quiet")
    assert_one_line(call(*base, "--seeds", 0), "--seeds must be at least 1, got 0")
    assert_one_line(call(*base, "--methods", "ridge,rigde"), "unknown method 'rigde' (did you mean 'ridge'?)")
    assert_one_line(call(*base, "--methods", "ridge,ridge"), "need different methods")
    for words in ("method.rate", "rate=1", "method.=1", "=1,2"):
        assert_one_line(call(*base, "--vary", words), f"--vary takes KEY=V1,V2, got {words!r}")
    assert_one_line(call(*base, "--vary", "method.rate=, "), "there is no value of 'method.rate' to take")
    assert_one_line(call(*base, "--methods", "ridge", "--vary", "method.rate=1"), "unknown key 'rate'")


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

    def joint(found: list[results.Result], folder: Path) -> list[Path]:
        drawn.append((len(found), str(folder)))
        return [folder / "intervals.png"]

    monkeypatch.setattr(plots, "save_joint", joint)
    monkeypatch.setattr(plots, "save_all", lambda result, folder, clients: [folder / "learning.png"])
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


def test_what_is_no_finished_run_says_what_it_is(call: Call, finished: Path, tmp_path: Path) -> None:
    assert_one_line(call("show", "nowhere"), "there is no folder nowhere (runs are in runs/")
    (tmp_path / "empty").mkdir()
    assert_one_line(call("show", "empty"), "empty is not a run folder: metrics.json and ")
    shutil.copytree(finished, tmp_path / "half")
    for name in ("metrics.json", "manifest.json"):
        (tmp_path / "half" / name).unlink()
    for command in ("show", "plot"):
        assert_one_line(call(command, "half"), "half is not a finished run folder: metrics.json is missing", "--resume")
    shutil.copytree(finished, tmp_path / "all" / "pac-pfl-seed3")
    assert_one_line(call("show", "all"), "all holds a comparison that has not finished (run compare again with the sam")
    put(tmp_path / "all", {"compare.json": b"{}"})
    for command in ("certify", "predict", "join"):
        more = {"predict": ("--client", "c", "--data", "x.csv"), "join": ("--data", "x.csv")}.get(command, ())
        assert_one_line(call(command, "all", *more), "all holds a comparison (give one of its runs: pac-pfl-seed3)")
    assert_one_line(call("show", "all"), "compare.json cannot be read: 'runs' (run compare again")
    runs = {"runs": [{"folder": "../half", "method": "ridge", "seed": 3}]}
    put(tmp_path / "all", {"compare.json": json.dumps(runs).encode()})
    assert_one_line(call("plot", "all"), "compare.json names a run outside of its folder: '../half'")
    runs["runs"][0]["folder"] = "lost-seed3"
    put(tmp_path / "all", {"compare.json": json.dumps(runs).encode()})
    assert_one_line(call("plot", "all"), "there is no folder all/lost-seed3")


# tune -----------------------------------------------------------------------------------------------------------


def test_tune_writes_a_study_that_runs(call: Call, tmp_path: Path) -> None:
    named = ("--set", "method.name=vanilla-gp", "--set", "method.steps=2", "--set", "data.options.samples=4")
    code, out, err = call("tune", "tiny.toml", "--budget", 1, "--folds", 2, *named, "--out", "deep/best.toml")
    assert code == 0
    assert err.startswith("vanilla-gp 1/1: rsmse ") and err.endswith("the study's own values\n")
    assert out.splitlines()[-1] == "study: deep/best.toml"
    got = Study.from_toml(tmp_path / "deep" / "best.toml")
    assert got == tiny(*(named[i] for i in (1, 3, 5)))
    ((values, scores, failure),) = json.loads((tmp_path / "deep" / "best.trials.json").read_text())["vanilla-gp"]
    assert (values, set(scores), failure) == ({}, {"rsmse", "nlpd"}, "")
    assert f"rsmse {scores['rsmse']:.4f} nlpd {scores['nlpd']:.4f}" in out


def test_tune_says_which_configuration_failed_and_goes_on(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Study] = []

    def scored(one: Study, dataset: Any, folds: int, marks: Any) -> dict[int, dict[str, float]]:
        calls.append(one)
        if len(calls) % 2:
            raise NumericalError("the server's state is not finite", round=1)
        return {mark: {"rsmse": 1.0 / mark, "nlpd": 2.0} for mark in marks}

    monkeypatch.setattr(tune, "cross_validate", scored)
    code, out, err = call("tune", "tiny.toml", "--methods", "pfedgp,pac-pfl", "--budget", 2, "--seed", 5)
    assert code == 0
    steps = METHODS["pac-pfl"].search["federation.rounds"].values  # type: ignore[union-attr]
    most = max(steps)
    assert "pfedgp 1/2: round 1: the server's state is not finite the study's own values\n" in err
    assert f"pac-pfl 2/2: rsmse {1 / most:.4f} nlpd 2.0000 method.tau=" in err
    assert out.splitlines()[-1] == "study: tiny-tuned.toml"
    trials = json.loads(
        (tmp_path / "tiny-tuned.trials.json").read_text(), parse_constant=lambda word: pytest.fail(word)
    )
    assert [len(trials[name]) for name in ("pfedgp", "pac-pfl")] == [1 + len(steps)] * 2
    assert trials["pfedgp"][0] == [{}, {"rsmse": None, "nlpd": None}, "round 1: the server's state is not finite"]
    tuned = Study.from_toml(tmp_path / "tiny-tuned.toml")
    assert tuned.federation.rounds == most and tuned.method.options.tau == calls[3].method.options.tau
    assert Study.from_toml(tmp_path / "tiny-tuned.toml", ["method.name=pfedgp"]).model == calls[1].model


def fake_scores(monkeypatch: pytest.MonkeyPatch, stop: Callable[[Study], object] = lambda _: None) -> list[str]:
    """Let every configuration score alike; return the names of the methods that were scored."""
    names: list[str] = []

    def scored(one: Study, dataset: Any, folds: int, marks: Any) -> dict[int, dict[str, float]]:
        stop(one)
        names.append(one.method.name)
        return {mark: {"rsmse": 1.0, "nlpd": 2.0} for mark in marks}

    monkeypatch.setattr(tune, "cross_validate", scored)
    return names


def test_tune_leaves_out_what_has_nothing_to_tune(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    names = fake_scores(monkeypatch)
    arguments = ("tune", "tiny.toml", "--budget", 1, "--methods", "vanilla-gp,ridge,pfedgp,pooled-ridge")
    code, out, err = call(*arguments)
    assert (code, names) == (0, ["vanilla-gp", "pfedgp"])
    assert err.splitlines()[0] == "note: nothing to tune in ridge, pooled-ridge, left out"
    assert [line.split(":")[0] for line in out.splitlines()] == ["vanilla-gp", "pfedgp", "study"]
    assert call(*arguments, "--quiet").err == ""
    names.clear()
    assert_one_line(call("tune", "tiny.toml", "--methods", "pfedgp,rigde"), "unknown method 'rigde'")
    assert names == []  # all names are checked first


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_tune_keeps_the_methods_that_were_finished(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def stop(one: Study) -> None:
        if one.method.name == "pfedgp":
            os.kill(os.getpid(), number)

    fake_scores(monkeypatch, stop)
    arguments = ("tune", "tiny.toml", "--budget", 1, "--quiet", "--methods")
    assert call(*arguments, "pfedgp") == (130, "", "pacbayes-fl: stopped; no method was finished\n")
    assert not (tmp_path / "tiny-tuned.toml").exists()
    code, out, err = call(*arguments, "pac-pfl,pfedgp")
    told = "pacbayes-fl: stopped; the methods that were finished are in tiny-tuned.toml; go on with --resume\n"
    assert (code, err, out.splitlines()[-1]) == (130, told, "study: tiny-tuned.toml")
    assert list(json.loads((tmp_path / "tiny-tuned.trials.json").read_text())) == ["pac-pfl"]
    assert Study.from_toml(tmp_path / "tiny-tuned.toml").federation.rounds == 12


def test_a_method_that_fails_costs_no_other(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(one: Study) -> None:
        if one.method.name == "pfedgp":
            raise NumericalError("not finite")

    fake_scores(monkeypatch, fail)
    code, out, err = call("tune", "tiny.toml", "--budget", 1, "--quiet", "--methods", "pac-pfl,pfedgp")
    assert (code, out.splitlines()[-1]) == (1, "study: tiny-tuned.toml")
    assert err == "pacbayes-fl: every configuration of pfedgp failed, the last one: not finite\n"
    assert list(json.loads((tmp_path / "tiny-tuned.trials.json").read_text())) == ["pac-pfl"]


def test_the_options_of_tune_stand_in_the_written_study(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All but the device: it belongs to the machine of the search."""
    fake_scores(monkeypatch)
    (tmp_path / "tiny.toml").write_text((tmp_path / "tiny.toml").read_text().replace('device = "cpu"', ""))
    options = ("--seed", 9, "--rounds", 5, "--device", "cpu", "--set", "method.init_std=0.7")
    assert call("tune", "tiny.toml", "--budget", 2, "--methods", "pfedgp", *options).code == 0
    got = Study.from_toml(tmp_path / "tiny-tuned.toml", ["method.name=pfedgp"])
    assert (got.seed, got.federation.rounds, got.method.options.init_std) == (9, 5, 0.7)
    assert got.federation.device == "auto"


def test_what_tune_refuses(call: Call, tmp_path: Path) -> None:
    nothing = call("tune", "tiny.toml", "--methods", "ridge,pooled-ridge", "--out", "deep/best.toml")
    assert_one_line(nothing, "nothing to tune in ridge, pooled-ridge (")
    for_both = ("tune", "tiny.toml", "--methods", "ridge,vanilla-gp", "--out", "deep/best.toml")
    assert_one_line(call(*for_both, "--budget", 0), "budget must be at least 1, got 0")
    assert_one_line(call(*for_both, "--folds", 1), "folds must be at least 2, got 1")
    answer = call("tune", "tiny.toml", "--methods", "vanilla-gp", "--folds", 9, "--budget", 1, "--quiet")
    assert_one_line(
        answer, "every configuration of vanilla-gp failed, the last one: client 'poly_00': needs at least 9"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.toml"]


def test_tune_replaces_nothing_but_what_a_search_has_written(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pacbayes_fl.study.search.tune.cross_validate", lambda *_: {1: {"rsmse": 1.0, "nlpd": 1.0}})
    tuned = ("tune", "tiny.toml", "--budget", 1, "--quiet", "--set", "method.name=vanilla-gp", "--out")
    (tmp_path / "rows.csv").write_text("client,x,y\n")
    (tmp_path / "other.toml").write_text("name = 'other'\n")
    (tmp_path / "folder.toml").mkdir()
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert_one_line(call(*tuned, "rows.csv"), "tune writes a study, and rows.csv does not end in .toml")
    for name in ("other.toml", "tiny.toml", "folder.toml"):
        assert_one_line(call(*tuned, name), f"{name} is there already, and no search has written it: it would be")
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before
    for _ in range(2):
        assert call(*tuned, "best.toml").code == 0
    again = ("tune", "best.toml", "--budget", 1, "--quiet", "--out", "best.toml")
    assert_one_line(call(*again), "best.toml is the study that is tuned: it would be written over")


def test_a_refused_search_leaves_no_folder(call: Call, tmp_path: Path) -> None:
    asked = ("tune", "tiny.toml", "--methods", "vanilla-gp", "--folds", 9, "--budget", 2, "--quiet", "--out")
    assert_one_line(call(*asked, "deep/er/best.toml"), "needs at least 9")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tiny.toml"]


# endings --------------------------------------------------------------------------------------------------------


def test_a_reader_that_has_gone_is_no_failure(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        assert cli.main(["show", str(finished)]) == 0
        monkeypatch.undo()


def test_warnings_and_their_printing_are_as_before(call: Call) -> None:
    import warnings

    before = (warnings.showwarning, list(warnings.filters))
    call("list", "methods")
    assert (warnings.showwarning, list(warnings.filters)) == before


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


def test_compare_says_what_private_runs_have_spent(call: Call, tmp_path: Path) -> None:
    sets = ("--set", "privacy.mechanism=paper_algorithm_3", "--rounds", 4, "--out", "both", "--quiet")
    code, out, _ = call("compare", "tiny.toml", *sets, "--vary", "privacy.epsilon=1,10")
    assert code == 0
    spent = json.loads((tmp_path / "both/compare.json").read_text())["privacy"]
    for claimed in (1.0, 10.0):
        name = f"pac-pfl epsilon={claimed}"
        (line,) = [line for line in out.splitlines() if line.startswith(f"{name}: ")]
        assert f"claims epsilon {claimed:g}, which does not hold" in line
        assert float(line.split("epsilon ")[1].split()[0]) >= spent[name]["epsilon"]
    assert "adds up" in out
