"""The command `tune` writes a study that runs, and replaces nothing else."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pacbayes_fl.errors import NumericalError
from pacbayes_fl.methods import METHODS
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.search import tune
from tests.cli.answers import Call, assert_one_line
from tests.tiny import tiny


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
    *lines, last = out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["vanilla-gp", "pfedgp", "study"]
    assert last == "the study's own method, pac-pfl, was not searched: --set method.name=vanilla-gp runs another"
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


def test_trials_of_other_rows_are_not_gone_on_with(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_scores(monkeypatch)
    arguments = ("tune", "tiny.toml", "--budget", 1, "--quiet", "--methods", "pfedgp")
    assert call(*arguments).code == 0 and call(*arguments, "--resume").code == 0
    monkeypatch.setattr(
        tune,
        "load",
        lambda study: load(replace(study, seed=study.seed + 1, data=replace(study.data, follow_seed=True))),
    )
    assert_one_line(call(*arguments, "--resume"), "rows")


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


def test_a_search_draws_by_the_seed_of_the_study_wherever_it_is_said(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_scores(monkeypatch)
    (tmp_path / "two.toml").write_text(
        "seed = 2\n" + re.sub("(?m)^seed = .*\n", "", (tmp_path / "tiny.toml").read_text())
    )
    found = []
    for study, *seed in (["tiny.toml", "--seed", "2"], ["tiny.toml", "--set", "seed=2"], ["two.toml"], ["tiny.toml"]):
        out = tmp_path / f"{len(found)}.toml"
        assert call("tune", study, "--budget", 4, "--methods", "pac-pfl", "--out", out, *seed).code == 0
        found.append(json.loads(out.with_suffix(".trials.json").read_text()))
        assert json.loads(out.with_suffix(".search.json").read_text())["asked"]["seed"] == Study.from_toml(out).seed
    assert found[0] == found[1] == found[2] != found[3]


def test_what_tune_refuses(call: Call, tmp_path: Path) -> None:
    nothing = call("tune", "tiny.toml", "--methods", "ridge,pooled-ridge", "--out", "deep/best.toml")
    assert_one_line(nothing, "nothing to tune in ridge, pooled-ridge (it has no search space, which a Recipe")
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


def test_configurations_that_were_tried_before_count_too(call: Call, tmp_path: Path) -> None:
    """A search from the winner of another: of each of its three there would have been two more."""
    named = ("--set", "method.name=vanilla-gp", "--set", "data.options.samples=4", "--folds", 2)
    assert call("tune", "tiny.toml", "--budget", 3, *named, "--out", "one.toml")[0] == 0
    assert Study.from_toml(tmp_path / "one.toml").report.certify.tried == 3
    assert call("tune", "one.toml", "--budget", 2, "--folds", 2, "--out", "two.toml")[0] == 0
    assert Study.from_toml(tmp_path / "two.toml").report.certify.tried == 6
    tried = ("--set", "report.certify.tried=200")
    assert call("tune", "tiny.toml", "--budget", 2, *named, *tried, "--out", "three.toml")[0] == 0
    assert Study.from_toml(tmp_path / "three.toml").report.certify.tried == 400


def test_a_method_of_ones_own_is_found_from_the_folder_of_the_tuned_study(
    call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "from dataclasses import dataclass\nfrom pacbayes_fl.methods.baselines.vanilla_gp import VanillaGP\n"
    own += "\n\n@dataclass(frozen=True)\nclass Mine(VanillaGP):\n    'Own.'\n"
    (tmp_path / "mine.py").write_text(own, encoding="utf-8")
    (tmp_path / "deep").mkdir()
    monkeypatch.chdir(tmp_path)
    name, best = "mine.py:Mine", tune.Trial({"method.steps": 3}, {"rsmse": 1.0})
    tune.write("tiny.toml", {name: best}, "deep/own.toml", [f"method.name={name}"], {name: 5})
    got = Study.from_toml("deep/own.toml")
    assert got.method.name.endswith("mine.py:Mine") and got.report.certify.tried == 5
    assert got.method.options.steps == 3  # type: ignore[attr-defined]
