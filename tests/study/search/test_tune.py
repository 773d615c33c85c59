"""The search for hyper-parameters: what it scores, what it must not look at, and the study that it writes."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeCV

from pacbayes_fl import settings
from pacbayes_fl.data import split, tables
from pacbayes_fl.errors import DataError, NumericalError, StudyError
from pacbayes_fl.federation import engine, personalisation
from pacbayes_fl.methods import METHODS, LogUniform, OneOf
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.search import tune
from pacbayes_fl.study.search.trials import Trial
from pacbayes_fl.study.search.tune import candidates, cross_validate, write
from tests.tiny import TABLE, on_csv, rows, tiny, write_csv, write_study
from tests.tiny_images import table, tiny_images, write_root
from tests.user_objects import write as write_file

ALPHAS = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
SPACE = {
    "method.rate": LogUniform(1e-3, 1e-1),
    "model.mean_widths": OneOf(((), (4,))),
    "federation.rounds": OneOf((2, 5)),
}
STEPS = [*METHODS["pfedgp"].search["federation.rounds"].values]  # type: ignore[union-attr]


# candidates -----------------------------------------------------------------------------------------------------


def test_candidates_depend_on_the_seed_alone() -> None:
    drawn = candidates(SPACE, 50, 1)
    assert drawn == candidates(SPACE, 50, 1)
    assert drawn[:20] == candidates(SPACE, 20, 1)  # a larger budget goes on
    assert drawn != candidates(SPACE, 50, 2)
    assert candidates(SPACE, 0, 1) == []


@pytest.mark.parametrize("name", [name for name, recipe in METHODS.items() if recipe.search])
def test_candidates_lie_inside_the_space(name: str) -> None:
    search = METHODS[name].search
    drawn = candidates(search, 300, 0)
    for values in drawn:
        assert set(values) == set(search) - {"federation.rounds"}
    for key in drawn[0]:
        space, values = search[key], [one[key] for one in drawn]
        if isinstance(space, OneOf):
            assert set(values) == set(space.values)  # every value is met
        else:
            assert space.low * 0.995 <= min(values) and max(values) <= space.high * 1.005  # three digits are kept
            logs = np.log(np.array(values) / space.low) / math.log(space.high / space.low)
            assert abs(logs.mean() - 0.5) < 0.06 and abs((logs < 0.25).mean() - 0.25) < 0.08


# cross-validation -----------------------------------------------------------------------------------------------


def test_ridge_is_cross_validated_as_by_hand(tmp_path: Path) -> None:
    dataset = load(on_csv(write_csv(tmp_path / "rows.csv", rows())))
    got = cross_validate(tiny("method.name=ridge"), dataset, 3)
    rsmse, nlpd = [], []
    train = dataset.groups["existing"].train
    for k in range(4):
        m = int(train.size[k])
        x, y = train.x[k, :m].numpy(), train.y[k, :m].numpy()
        squares, losses = [], []
        for fold in range(3):
            held = np.zeros(m, bool)
            held[m * fold // 3 : m * (fold + 1) // 3] = True
            loc, std = (x[~held].mean(0), y[~held].mean()), (x[~held].std(0), y[~held].std())
            ridge = RidgeCV(alphas=ALPHAS, store_cv_results=True)
            ridge.fit((x[~held] - loc[0]) / std[0], (y[~held] - loc[1]) / std[1])
            variance = max(ridge.cv_results_[:, ALPHAS.index(ridge.alpha_)].mean(), 1e-8) * std[1] ** 2
            mean = loc[1] + std[1] * ridge.predict((x[held] - loc[0]) / std[0])
            squares += [*(mean - y[held]) ** 2]
            losses += [*0.5 * ((mean - y[held]) ** 2 / variance + np.log(2 * np.pi * variance))]
        assert len(squares) == m
        rsmse.append(np.sqrt(np.mean(squares)) / y.std())
        nlpd.append(np.mean(losses) - np.log(y.std()))  # as it would be, were y standardised
    assert got == {
        1: {"rsmse": pytest.approx(np.mean(rsmse), rel=1e-9), "nlpd": pytest.approx(np.mean(nlpd), rel=1e-9)}
    }


@pytest.mark.parametrize("method", ["pac-pfl", "pooled-ridge"])
def test_test_rows_and_new_clients_are_never_looked_at(method: str) -> None:
    dataset = load(tiny())
    existing, new = dataset.groups["existing"], dataset.groups["new"]
    huge = replace(existing.test, x=existing.test.x * 1e30, y=existing.test.y + 1e30)
    strangers = replace(new.train, y=new.train.y * math.inf)
    poisoned = replace(
        dataset, groups={"existing": tables.Group(existing.train, huge), "new": tables.Group(strangers, huge)}
    )
    study = tiny(f"method.name={method}", "federation.rounds=3")
    clean = cross_validate(study, dataset, 2)
    assert cross_validate(study, poisoned, 2) == clean
    assert cross_validate(study, replace(dataset, groups={"existing": existing}), 2) == clean
    other = replace(existing.train, y=existing.train.y.flip(1))
    assert cross_validate(study, replace(dataset, groups={"existing": tables.Group(other, huge)}), 2) != clean


@pytest.mark.parametrize("share", [0, 0.7])
def test_a_mark_scores_as_a_run_of_so_many_rounds_would(share: float) -> None:
    dataset, averaged = load(tiny()), f"federation.average_last={share}"
    marked = cross_validate(tiny("federation.rounds=99", averaged), dataset, 2, [6, 0, 3])
    assert list(marked) == [0, 3, 6]
    for mark in (0, 3, 6):
        assert cross_validate(tiny(f"federation.rounds={mark}", averaged), dataset, 2) == {mark: marked[mark]}
    assert share == 0 or marked[6] != cross_validate(tiny("federation.rounds=6"), dataset, 2)[6]
    assert len({scores["nlpd"] for scores in marked.values()}) == 3


def test_clients_with_fewer_rows_than_folds_are_named() -> None:
    with pytest.raises(DataError, match="client 'poly_00': needs at least 8 rows for 8 folds, has 7"):
        cross_validate(tiny("method.name=ridge"), load(tiny()), 8)


# the search -----------------------------------------------------------------------------------------------------


class Scorer:
    """Stands in for cross-validation: a score from the configuration alone, and failures on demand."""

    def __init__(self, failing: Sequence[int] = ()) -> None:
        self.seen: list[Study] = []
        self.marks: list[Sequence[int]] = []
        self.failing = failing

    def __call__(
        self, study: Study, dataset: Any, folds: int, marks: Sequence[int]
    ) -> Mapping[int, Mapping[str, float]]:
        self.seen.append(study)
        self.marks.append(marks)
        if len(self.seen) - 1 in self.failing:
            raise NumericalError("the server's state is not finite", round=1)
        rate = study.method.options.rate
        return {mark: {"rsmse": abs(math.log10(rate) + 2) + mark / 1e4, "nlpd": rate - mark / 1e4} for mark in marks}


def test_the_best_trial_is_the_smallest_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = Scorer()
    monkeypatch.setattr(tune, "cross_validate", scorer)
    told: list[tuple[int, Trial]] = []
    path = write_study(tmp_path, TABLE | {"methods": {"pfedgp": {"method": {"rate": 0.5}}}})
    best, trials = tune.tune(
        path, "pfedgp", 6, 2, 0, sets=["data.options.samples=5"], on_trial=lambda *a: told.append(a)
    )
    assert [study.method.name for study in scorer.seen] == ["pfedgp"] * 6
    assert scorer.seen[0] == Study.from_toml(
        path, ["method.name=pfedgp", "data.options.samples=5"]
    )  # the study's own, first
    drawn = candidates(METHODS["pfedgp"].search, 5, 0)
    assert [study.method.options.rate for study in scorer.seen[1:]] == [values["method.rate"] for values in drawn]
    assert [study.model.mean_widths for study in scorer.seen[1:]] == [values["model.mean_widths"] for values in drawn]
    assert scorer.marks == [[12, *STEPS]] + [STEPS] * 5
    assert len(trials) == len(STEPS) * 6 + 1
    assert best is min(trials, key=lambda trial: trial.scores["rsmse"]) and best.values["federation.rounds"] == 50
    assert [number for number, _ in told] == [*range(6)] and best in [trial for _, trial in told]
    other, _ = tune.tune(path, "pfedgp", 6, 2, 0, "nlpd", ["data.options.samples=5"])
    assert other.values["federation.rounds"] == STEPS[-1] and other.values != best.values
    assert tune.tune(path, "pfedgp", 6, 2, 0, sets=["data.options.samples=5"])[1] == trials


def test_a_failing_configuration_is_infinite_and_the_search_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "cross_validate", Scorer(failing=[0, 2]))
    told: list[Trial] = []
    best, trials = tune.tune(write_study(tmp_path), "pfedgp", 4, 2, on_trial=lambda _, trial: told.append(trial))
    failed = [trial for trial in trials if trial.failure]
    assert [trial.failure for trial in failed] == ["round 1: the server's state is not finite"] * 2
    assert all(trial.scores == {"rsmse": math.inf, "nlpd": math.inf} for trial in failed)
    assert len(trials) == 2 + 2 * len(STEPS) and [bool(trial.failure) for trial in told] == [True, False, True, False]
    assert not best.failure and math.isfinite(best.scores["rsmse"])


def test_a_search_without_a_score_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_study(tmp_path)
    with pytest.raises(
        StudyError, match="every configuration of vanilla-gp failed, the last one: client 'poly_00': needs at least 8"
    ):
        tune.tune(path, "vanilla-gp", 1, 8)
    monkeypatch.setattr(tune, "cross_validate", lambda *_: {1: {"rsmse": math.nan, "nlpd": math.nan}})
    with pytest.raises(StudyError, match="every configuration of vanilla-gp failed, the last one: no score is finite"):
        tune.tune(path, "vanilla-gp", 2, 2)


def test_what_cannot_be_tuned_is_refused(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    with pytest.raises(StudyError, match="score must be one of rsmse, nlpd, error, nll, got 'crps'"):
        tune.tune(path, "pfedgp", score="crps")
    with pytest.raises(StudyError, match=r"ridge has nothing to tune \(drop it from --methods\)"):
        tune.tune(path, "ridge")
    with pytest.raises(StudyError, match="unknown method 'rigde'"):
        tune.tune(path, "rigde")
    with pytest.raises(StudyError, match="budget must be at least 1, got 0"):
        tune.tune(path, "pfedgp", 0)
    with pytest.raises(StudyError, match="folds must be at least 2, got 1"):
        tune.tune(path, "pfedgp", folds=1)
    fixed = [
        f"{key}={settings.to_value(value)}" for key, value in candidates(METHODS["vanilla-gp"].search, 1, 0)[0].items()
    ]
    with pytest.raises(StudyError, match="vanilla-gp has nothing to tune"):
        tune.tune(path, "vanilla-gp", sets=fixed)


def test_what_an_assignment_fixes_is_not_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = Scorer()
    monkeypatch.setattr(tune, "cross_validate", scorer)
    path, sets = write_study(tmp_path), ["method.rate=0.5", "federation.rounds=7"]
    assert tune.searched(path, "pfedgp", sets).keys() == METHODS["pfedgp"].search.keys() - {
        "method.rate",
        "federation.rounds",
    }
    best, trials = tune.tune(path, "pfedgp", 4, 2, sets=sets)
    assert scorer.marks == [[7]] * 4 and {study.method.options.rate for study in scorer.seen} == {0.5}
    assert len({study.method.options.init_std for study in scorer.seen}) > 1  # the rest is
    assert best.values["federation.rounds"] == 7 and all("method.rate" not in trial.values for trial in trials)


def test_what_a_study_leaves_open_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_study(tmp_path, {name: value for name, value in TABLE.items() if name not in ("model", "method")})
    sets = ["method.name=cfedbayes", "method.clusters=held-out", "method.max_clusters=3", "federation.rounds=2"]
    seen: list[Study] = []

    def scored(one: Study, *_: Any) -> dict[int, dict[str, float]]:
        seen.append(one)
        return {2: {"rsmse": 1.0, "nlpd": 1.0}}

    monkeypatch.setattr(tune, "cross_validate", scored)
    tune.tune(path, "cfedbayes", 4, sets=sets)
    assert [one.method.options.clusters for one in seen] == [1] * 4  # fixed by the assignment: the first candidate
    recipe = METHODS["cfedbayes"]
    open_one = replace(
        recipe, search={}, presets={**recipe.presets, "recommended": {"method": {"clusters": "held-out"}}}
    )
    monkeypatch.setattr("pacbayes_fl.study.file.METHODS", {**METHODS, "cfedbayes": open_one})
    del sets[1]
    assert tune.searched(path, "cfedbayes", sets) == {"method.clusters": OneOf((1, 2, 3))}
    seen.clear()
    best, trials = tune.tune(path, "cfedbayes", 9, sets=sets)
    numbers = [one.method.options.clusters for one in seen]
    assert numbers[0] == 1 and set(numbers) == {1, 2, 3} and best.values["method.clusters"] == 1
    assert [trial.values["method.clusters"] for trial in trials] == numbers


def test_widths_of_networks_are_searched_where_there_are_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "cross_validate", Scorer())
    path, widths = write_study(tmp_path), {"model.mean_widths", "model.kernel_widths"}
    for name in ("pac-pfl", "pfedgp", "vanilla-gp", "pooled-gp"):
        assert {*tune.searched(path, name, ["model.networks=false"])} == {*tune.searched(path, name)} - widths
    write_study(tmp_path, TABLE | {"model": TABLE["model"] | {"networks": "held-out"}})
    _, trials = tune.tune(path, "pfedgp", 9, 2)
    networks = [bool(trial.values["model.networks"]) for trial in trials[len(STEPS) + 1 :]]
    assert {*networks} == {True, False}
    assert [len(widths & trial.values.keys()) for trial in trials[len(STEPS) + 1 :]] == [2 * one for one in networks]


def test_one_run_is_enough_where_only_rounds_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = Scorer()
    monkeypatch.setattr(tune, "cross_validate", scorer)
    drawn = candidates(METHODS["pfedgp"].search, 1, 0)[0]
    sets = [f"{key}={settings.to_value(value)}" for key, value in drawn.items()]
    assert len(tune.tune(write_study(tmp_path), "pfedgp", 4, 2, sets=sets)[1]) == 1 + len(STEPS)
    assert scorer.marks == [[12, *STEPS]]


def test_a_real_search_scores_what_it_says(tmp_path: Path) -> None:
    sets = ["method.steps=2", "data.options.samples=4"]
    best, trials = tune.tune(write_study(tmp_path), "vanilla-gp", 1, 2, sets=sets)
    study = tiny("method.name=vanilla-gp", *sets)
    assert trials == [best] == [Trial({}, cross_validate(study, load(study), 2)[1])]
    assert best.scores["rsmse"] > 0


# what is written ------------------------------------------------------------------------------------------------


CHOSEN = {
    "pac-pfl": Trial({"method.tau": 0.125, "model.mean_widths": (), "federation.rounds": 50}, {}),
    "pfedgp": Trial({"method.rate": 0.004, "model.mean_widths": "zero"}, {}),
    "vanilla-gp": Trial({}, {}),
}


def test_the_written_study_gives_each_method_its_values(tmp_path: Path) -> None:
    path, target = write_study(tmp_path), tmp_path / "tuned.toml"
    write(path, CHOSEN, target, ["data.options.samples=5", "seed=8"])
    assert Study.from_toml(path) == tiny()
    base = tiny("data.options.samples=5", "seed=8")
    got = Study.from_toml(target)
    assert got == tiny(
        "data.options.samples=5", "seed=8", "method.tau=0.125", "model.mean_widths=[]", "federation.rounds=50"
    )
    other = Study.from_toml(target, ["method.name=pfedgp"])
    assert (other.method.options.rate, other.model.mean_widths, other.federation.rounds) == (0.004, "zero", 12)
    ridge = Study.from_toml(target, ["method.name=ridge"]).model
    assert ridge == tiny("data.options.samples=5", "seed=8", "method.name=ridge").model != base.model
    assert Study.from_toml(target, ["method.tau=0.5"]).method.options.tau == 0.5
    assert got.name == "tiny"


def test_a_study_can_be_tuned_again(tmp_path: Path) -> None:
    path, target = write_study(tmp_path), tmp_path / "tuned.toml"
    write(path, CHOSEN, target)
    write(target, {"pac-pfl": Trial({"method.tau": 0.5}, {})}, target)
    got = Study.from_toml(target)
    assert (got.method.options.tau, got.federation.rounds) == (0.5, 50)


def test_the_written_study_loads_when_an_assignment_chose_the_method(tmp_path: Path) -> None:
    """The options of the table's own method, here `particles`, are not those of the assigned one."""
    path, target = write_study(tmp_path), tmp_path / "tuned.toml"
    sets = ["method.name=pfedgp", "method.minibatch=3"]
    write(path, {"pfedgp": CHOSEN["pfedgp"]}, target, sets)
    got = Study.from_toml(target)
    assert got == Study.from_table(TABLE, "tiny", [*sets, "method.rate=0.004", "model.mean_widths=zero"])


def test_the_written_study_gives_what_was_searched_with(tmp_path: Path) -> None:
    """Assignments hold for every tuned method, count more than an older search, and leave the table's own method be."""
    path, target = write_study(tmp_path), tmp_path / "tuned.toml"
    older = Trial({"model.kernel_widths": (7,), "method.rate": 0.9}, {})
    write(path, {"pfedgp": older}, path)
    sets = ["method.init_std=0.7", "model.kernel_widths=[5]", "method.rate=0.1"]
    write(path, {"pfedgp": Trial({"method.rate": 0.2}, {}), "vanilla-gp": Trial({}, {})}, target, sets)
    for name, rate in (("pfedgp", 0.2), ("vanilla-gp", 0.1)):
        got = Study.from_toml(target, [f"method.name={name}"])
        assert (got.method.options.rate, got.method.options.init_std, got.model.kernel_widths) == (rate, 0.7, (5,))
    assert Study.from_toml(target).method == tiny().method


# labels ---------------------------------------------------------------------------------------------------------


def test_labels_are_cross_validated_as_by_hand(tmp_path: Path) -> None:
    """Every training row is predicted once, by a federation without it; a client's scores are over all of its rows."""
    study = tiny_images(write_root(tmp_path), "federation.rounds=2", "method.draws=2")
    dataset = load(study)
    train = dataset.groups["existing"].train
    wrong, nll = torch.zeros(4), torch.zeros(4)
    for rest, held in split.stratified_folds(train, 3):
        method, groups = prepare(study, replace(dataset, groups={"existing": tables.Group(rest, held)}))
        state = engine.run_rounds(method, groups["existing"].train, study.plan)
        (_, posterior), *_ = personalisation.personalise(method, state, groups["existing"].train, study.plan)
        probs = posterior.predict(held.x).probs
        wrong += ((probs.argmax(-1) != held.y) & held.mask).sum(1)
        nll -= torch.where(held.mask, probs.gather(-1, held.y.unsqueeze(-1)).squeeze(-1).log(), 0.0).sum(1)
    expected = {"error": (wrong / 20).mean().item(), "nll": (nll / 20).mean().item()}
    assert train.size.tolist() == [20.0] * 4
    assert cross_validate(study, dataset, 3) == {2: pytest.approx(expected, rel=1e-5)}


def test_scores_are_for_their_task(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"score 'nll' is not for these data \(one of rsmse, nlpd is\)"):
        tune.tune(write_study(tmp_path), "pfedgp", 1, 2, score="nll")
    root = write_root(tmp_path)
    path = tmp_path / "images.toml"
    path.write_text(settings.to_toml(table(root)), encoding="utf-8")
    sets = ["method.steps=1", "method.finetune=1", "federation.rounds=1"]
    best, trials = tune.tune(path, "fedavg-ft", 2, 2, sets=sets)
    assert set(best.scores) == {"error", "nll"} and best is min(trials, key=lambda trial: trial.scores["error"])
    other, trials = tune.tune(path, "fedavg-ft", 2, 2, score="nll", sets=sets)
    assert other is min(trials, key=lambda trial: trial.scores["nll"])


MINE = """
from dataclasses import dataclass, replace

from pacbayes_fl.inference import map_estimate
from pacbayes_fl.methods import LogUniform, OneOf
from pacbayes_fl.methods.baselines.fedavg import RECIPE as OTHER
from pacbayes_fl.methods.baselines.averaging import WeightAveraging
from pacbayes_fl.options import option


@dataclass(frozen=True)
class Mine(WeightAveraging):
    \"\"\"FedAvg.

    Args:
        first: any.
        second: any.
    \"\"\"

    first: int = option(1, low=1, high=5)
    second: int = option(1, low=1, high=5)

    def __post_init__(self):
        super().__post_init__()
        if self.first > self.second:
            raise ValueError("first is above second")

    def descend(self, theta, batch, noise, passes=1):
        return map_estimate.fit(self.model, self.local, theta, batch, noise, passes)


RECIPE = replace(OTHER, method=Mine, presets={{}}, search={})
"""


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ("{'method.first': OneOf((1, 2, 7))}", "first must be from 1 to 5, got 7"),
        ("{'method.frist': OneOf((1,))}", "unknown key 'frist'"),
        ("{'first': OneOf((1,))}", "'first' is no option of a study"),
        ("{'method.first': (1, 2)}", "method.first must vary by OneOf"),
        ("{'method.rate': LogUniform(0.0, 1.0)}", "method.rate must vary by OneOf"),
        ("{'method.first': OneOf(())}", "method.first must vary by OneOf"),
    ],
)
def test_a_space_of_impossible_values_is_refused_before_the_first_trial(
    search: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tune, "cross_validate", lambda *_: pytest.fail("nothing may be tried"))
    path = write_file(tmp_path, "mine.py", MINE.format(search))
    study, sets = write_study(tmp_path), ["model.widths=[2]", "model.noise_std=0.4"]
    with pytest.raises(StudyError, match=f"^search of {re.escape(str(path))}:RECIPE: .*{said}"):
        tune.tune(study, f"{path}:RECIPE", 2, 2, sets=sets)


def test_a_combination_that_the_methods_own_code_refuses_is_a_failed_trial(tmp_path: Path) -> None:
    space = "{'method.first': OneOf((1, 2, 3)), 'method.second': OneOf((1, 2, 3)), 'federation.rounds': OneOf((1,))}"
    path = write_file(tmp_path, "mine.py", MINE.format(space))
    sets = ["model.widths=[2]", "model.noise_std=0.4", "method.steps=1"]
    best, trials = tune.tune(write_study(tmp_path), f"{path}:RECIPE", 8, 2, sets=sets)
    failed = [trial for trial in trials if trial.failure]
    assert best.values.get("method.first", 1) <= best.values.get("method.second", 1)
    assert failed and all("first is above second" in trial.failure for trial in failed) and len(failed) < len(trials)
