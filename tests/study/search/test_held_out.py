"""What a study leaves open: chosen by validation rows or held-out training rows, remembered by the run folder, told."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pacbayes_fl import settings
from pacbayes_fl.data import split, tables
from pacbayes_fl.errors import DataError, NumericalError, PrivacyError, StudyError
from pacbayes_fl.federation import engine, personalisation
from pacbayes_fl.methods import HeldOutChoice
from pacbayes_fl.methods.fedsi import ALPHAS, PERSONAL_ALPHAS, RULES
from pacbayes_fl.results import records as results
from pacbayes_fl.results.manifest import adopt
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study import run
from pacbayes_fl.study.compare import compare
from pacbayes_fl.study.config.choices import ROUNDS, candidates
from pacbayes_fl.study.config.parts import FederationPart
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.search import choice_file, held_out, paths
from pacbayes_fl.study.search.held_out import choose
from pacbayes_fl.study.search.path import Path as Along
from pacbayes_fl.study.search.path import follow
from tests.tiny import quick, rows, tiny, write_csv
from tests.tiny_images import tiny_images, write_root

OPEN = ("method.name=cfedbayes", "method.clusters=held-out", "method.max_clusters=2", "method.trial_rounds=2")
CHEAP = ("method.steps=2", "method.draws=2", "method.minibatch=8", "federation.rounds=2")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_root(tmp_path_factory.mktemp("images"))


def no_validation(dataset: tables.Dataset) -> tables.Dataset:
    """The same clients without their validation rows."""
    group = dataset.groups["existing"]
    return replace(dataset, groups={"existing": tables.Group(group.train, group.test)})


def asked(root: Path, *sets: str) -> Study:
    return tiny_images(root, *OPEN, *CHEAP, *sets)


def test_only_a_study_that_asks_leaves_the_question_open(root: Path, tmp_path: Path) -> None:
    (asks,) = asked(root).held_out
    assert asks.candidates(asked(root, "method.max_clusters=3").method.options) == (1, 2, 3)
    assert asked(root, "method.clusters=2").held_out == () == tiny().held_out
    with pytest.raises(StudyError, match="pac-pfl leaves nothing to be chosen"):
        choose(tiny(), load(tiny()))
    for one in (tiny(), asked(root)):
        assert choice_file.recall(one, tmp_path) == (one, {})


def test_the_choice_has_the_highest_likelihood_of_rows_held_out(root: Path) -> None:
    """By hand: one fold of every client's training rows, a federation without it, and the personal models' average."""
    one = asked(root)
    dataset = no_validation(load(one))
    chosen, notes = choose(one, dataset)
    rest, held = split.stratified_folds(dataset.groups["existing"].train, 5)[0]
    scores = {}
    for clusters in (1, 2):
        fixed = asked(root, f"method.clusters={clusters}")
        method, groups = prepare(fixed, replace(dataset, groups={"existing": tables.Group(rest, held)}))
        group = groups["existing"]
        state = engine.run_rounds(method, group.train, fixed.plan)
        (_, posterior), *_ = personalisation.personalise(method, state, group.train, fixed.plan)
        log_prob = posterior.predict(group.test.x).log_prob(group.test.y)
        scores[str(clusters)] = float((torch.where(held.mask, log_prob, 0.0).sum(1) / held.size).mean())
    said = notes["clusters"]
    assert said["scores"] == pytest.approx(scores, rel=1e-5)
    assert str(said["chosen"]) == max(scores, key=lambda clusters: scores[clusters])
    assert chosen == asked(root, f"method.clusters={said['chosen']}")


def test_test_rows_are_not_looked_at(root: Path) -> None:
    one = asked(root)
    dataset = load(one)
    existing = dataset.groups["existing"]
    poisoned = replace(existing.test, x=existing.test.x * torch.nan)
    other = replace(dataset, groups={"existing": tables.Group(existing.train, poisoned, existing.validation)})
    assert choose(one, other) == choose(one, dataset)


@pytest.mark.slow
def test_validation_rows_choose_where_every_client_has_some(root: Path) -> None:
    """By hand: trials train on all training rows, for the rounds and after them; elsewhere on four fifths of them."""
    one = left_open(root, *PERSONAL, "method.alpha=held-out", "method.trial_rounds=1")
    dataset = load(one)
    group = dataset.groups["existing"]
    held = group.validation
    assert held is not None
    chosen, notes = choose(one, dataset)
    assert notes["personal_alpha"]["rule"] == (
        "mean log likelihood per validation row after 3 rounds on all training rows, in nats"
    )
    judged = replace(dataset, groups={"existing": tables.Group(group.train, held)})
    for key, rounds, settled in (("alpha", 1, PERSONAL_ALPHAS[0]), ("personal_alpha", 3, notes["alpha"]["chosen"])):
        for value in notes[key]["scores"]:
            sets = (f"method.alpha={value}", f"method.personal_alpha={settled}")
            if key == "personal_alpha":
                sets = (f"method.alpha={settled}", f"method.personal_alpha={value}")
            fixed = left_open(root, *PERSONAL, *sets)
            method, groups = prepare(fixed, judged)
            plan = replace(fixed.plan, rounds=rounds)
            state = engine.run_rounds(method, groups["existing"].train, plan)
            (_, posterior), *_ = personalisation.personalise(method, state, groups["existing"].train, plan)
            log_prob = posterior.predict(groups["existing"].test.x).log_prob(held.y)
            score = float((torch.where(held.mask, log_prob, 0.0).sum(1) / held.size).mean())
            assert notes[key]["scores"][value] == pytest.approx(score, rel=1e-6)
        best = max(notes[key]["scores"], key=lambda value: notes[key]["scores"][value])
        assert best == str(notes[key]["chosen"])
    assert chosen.held_out == ()
    some = replace(held, mask=held.mask & (torch.arange(held.clients) > 0).unsqueeze(1))
    lacking = replace(dataset, groups={"existing": tables.Group(group.train, group.test, some)})
    assert choose(one, lacking) == choose(one, no_validation(dataset))


def test_regression_is_scored_by_its_density() -> None:
    sets = (*OPEN, "method.steps=2", "method.draws=2", "federation.rounds=2")
    table = {name: value for name, value in tiny().table().items() if name not in ("model", "method")}
    one = Study.from_table(table | {"method": {"name": "cfedbayes"}}, "tiny", sets)
    chosen, notes = choose(one, load(one))
    assert set(notes["clusters"]["scores"]) == {"1", "2"} and chosen.method.options.clusters in (1, 2)


def test_a_run_remembers_its_choice(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    first = run.run(asked(root), folder)
    number = first.labels["clusters"]["chosen"]
    assert first.labels["settings"]["method.clusters"] == "held-out", "seeds that choose differently are pooled"
    assert Study.from_toml(folder / "study.toml") == asked(root, f"method.clusters={number}")
    assert set(first.labels["clusters"]["scores"]) == {"1", "2"}
    assert all(row.metrics["cluster"] in range(number) for row in first.clients if row.group == "existing")

    def again(*_: object) -> None:
        raise AssertionError("chosen again")

    monkeypatch.setattr(held_out, "choose", again)
    more = run.run(asked(root, "federation.rounds=3"), folder, resume=True)
    assert more.labels["clusters"] == first.labels["clusters"] and len(more.rounds) == 3
    assert more.labels["settings"] == {**first.labels["settings"], "federation.rounds": 3}
    assert results.load(folder) == more
    for text in ("{", '{"clusters": {}}', '{"clusters": {"chosen": "two"}}', '{"clusters": {"chosen": [2]}}'):
        (folder / choice_file.FILE).write_text(text)
        with pytest.raises(DataError, match=r"choice\.json is damaged or was edited"):
            run.run(asked(root, "federation.rounds=4"), folder, resume=True)
        adopt(folder)
        with pytest.raises(DataError, match=r"choice\.json cannot be read"):
            run.run(asked(root, "federation.rounds=4"), folder, resume=True)


def test_a_comparison_reads_a_finished_run_whose_clusters_were_chosen(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pacbayes_fl.plots.save_joint", lambda *_: [])
    first = compare([asked(root)], 1, tmp_path)
    assert compare([asked(root)], 1, tmp_path) == first


def test_every_candidate_is_told_before_the_first_round(root: Path) -> None:
    seen: list[RoundRecord] = []
    result = run.run(asked(root), on_round=seen.append)
    scores = result.labels["clusters"]["scores"]
    assert [(r.round, r.clients, dict(r.values)) for r in seen[:2]] == [
        (0, 4, {f"clusters={clusters}": scores[clusters]}) for clusters in ("1", "2")
    ]
    assert [record.round for record in seen[2:]] == [1, 2] == [record.round for record in result.rounds]


@pytest.mark.parametrize(
    ("option", "values"), [("rate", (1e-9, 0.02)), ("start", ("random", "uploads")), ("assign_draws", (1, 2))]
)
def test_numbers_and_words_can_be_chosen_too(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, values: tuple[Any, ...]
) -> None:
    one = asked(root, "method.clusters=2")
    asks = HeldOutChoice(option, values)
    monkeypatch.setattr(Study, "held_out", property(lambda s: (asks,) if s is one else ()))
    chosen, notes = choose(one, load(one))
    best = notes[option]["chosen"]
    assert getattr(chosen.method.options, option) == best in values
    assert list(notes[option]["scores"]) == [str(value) for value in values]
    choice_file.remember(tmp_path, notes)
    assert choice_file.recall(one, tmp_path) == (chosen, notes)


def test_the_first_of_equals_is_taken_and_what_is_not_finite_is_not(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = asked(root, "method.max_clusters=4")
    losses = {1: math.nan, 2: 0.5, 3: 0.25, 4: 0.25}

    def scored(trial: Study, *_: Any) -> tuple[list[Any], dict[str, float]]:
        score = -losses[trial.method.options.clusters]
        return [held_out._Scored({}, score, 1.0, score)], {}

    monkeypatch.setattr(held_out, "_trial", scored)
    chosen, notes = choose(one, load(one))
    assert chosen.method.options.clusters == notes["clusters"]["chosen"] == 3
    assert notes["clusters"]["scores"] == {"1": None, "2": -0.5, "3": -0.25, "4": -0.25}


def test_a_candidate_that_fails_loses_and_the_run_goes_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, usual = asked(root), held_out._trial

    def failing(trial: Study, *given: Any) -> Any:
        if trial.method.options.clusters in bad:
            raise NumericalError("its update is not finite")
        return usual(trial, *given)

    monkeypatch.setattr(held_out, "_trial", failing)
    for bad in ((1,), (2,)):
        chosen, notes = choose(one, load(one))
        assert notes["clusters"]["chosen"] == chosen.method.options.clusters == 3 - bad[0]
        assert notes["clusters"]["scores"][str(bad[0])] is None
    bad = (1, 2)
    with pytest.raises(StudyError, match="no candidate of clusters could be trained: 1, 2"):
        choose(one, load(one))


def test_trials_are_no_longer_than_the_run(root: Path) -> None:
    _, notes = choose(asked(root, "method.trial_rounds=50"), load(asked(root)))
    assert "after 2 rounds" in notes["clusters"]["rule"]


# what rounds do not depend on --------------------------------------------------------------------------------------

PERSONAL = ("method.name=fedsi", "method.alpha=0.1", "method.personal_alpha=held-out", "method.fraction=0.2")
TEMPERED = ("method.name=pfedbayes", "model.temperature=held-out")


def left_open(root: Path, *sets: str) -> Study:
    return tiny_images(root, *CHEAP[:-1], "method.minibatch=8", "federation.rounds=3", *sets)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the rounds of every federation that is trained from now on."""
    trained, usual = [], engine.rounds

    def counting(method: Any, batch: Any, plan: Any, *more: Any) -> Any:
        trained.append(plan.rounds)
        return usual(method, batch, plan, *more)

    monkeypatch.setattr(engine, "rounds", counting)
    return trained


def test_personal_options_are_chosen_on_one_federation_of_all_rounds(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: a federation without a fold trained once, and personal models fine-tuned anew for every candidate."""
    one = left_open(root, *PERSONAL)
    dataset, trained = no_validation(load(one)), counted(monkeypatch)
    chosen, notes = choose(one, dataset)
    assert trained == [3]
    rest, held = split.stratified_folds(dataset.groups["existing"].train, 5)[0]
    part, scores, state = replace(dataset, groups={"existing": tables.Group(rest, held)}), {}, None
    for alpha in PERSONAL_ALPHAS:
        method, groups = prepare(left_open(root, *PERSONAL, f"method.personal_alpha={alpha}"), part)
        group = groups["existing"]
        state = state or engine.run_rounds(method, group.train, one.plan)
        (_, posterior), *_ = personalisation.personalise(method, state, group.train, one.plan)
        log_prob = posterior.predict(group.test.x).log_prob(group.test.y)
        scores[str(alpha)] = float((torch.where(held.mask, log_prob, 0.0).sum(1) / held.size).mean())
    said = notes["personal_alpha"]
    assert said["scores"] == pytest.approx(scores, rel=1e-6) and len(set(scores.values())) == len(scores)
    assert str(said["chosen"]) == max(scores, key=lambda alpha: scores[alpha])
    assert chosen == left_open(root, *PERSONAL, f"method.personal_alpha={said['chosen']}")


@pytest.mark.slow
def test_rules_and_variances_are_chosen_together_and_after_what_training_needs(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("method.alpha=held-out", "method.personal_subnetwork=held-out", "method.trial_rounds=1")
    one, trained = left_open(root, *PERSONAL, *more), counted(monkeypatch)
    chosen, notes = choose(one, load(one))
    assert trained == [1] * len(ALPHAS) + [3] and chosen.held_out == ()
    assert list(notes) == ["alpha", "personal_subnetwork", "personal_alpha"]
    assert set(notes["personal_subnetwork"]["scores"]) == set(RULES)
    best = {
        max(score for score in notes[name]["scores"].values()) for name in ("personal_subnetwork", "personal_alpha")
    }
    assert len(best) == 1, "both are of the best combination"


def test_a_temperature_makes_held_out_rows_most_likely(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, on a grid; and the run predicts with it, remembers it, and tells."""
    one, dataset = left_open(root, *TEMPERED), no_validation(load(left_open(root, *TEMPERED)))
    trained, told = counted(monkeypatch), list[RoundRecord]()
    chosen, notes = choose(one, dataset, told.append)
    result = notes["model.temperature"]["chosen"]
    assert dict(told[0].values) == {f"temperature={result:.3g}": notes["model.temperature"]["scores"][str(result)]}
    assert trained == [3] and chosen == left_open(root, *TEMPERED, f"model.temperature={result!r}")
    rest, held = split.stratified_folds(dataset.groups["existing"].train, 5)[0]
    method, groups = prepare(
        left_open(root, *TEMPERED[:1]), replace(dataset, groups={"existing": tables.Group(rest, held)})
    )
    group = groups["existing"]
    state = engine.run_rounds(method, group.train, one.plan)
    (_, posterior), *_ = personalisation.personalise(method, state, group.train, one.plan)
    log_probs = posterior.predict(group.test.x).log_probs.double()  # type: ignore[union-attr]

    def score(temperature: float) -> float:
        own = (log_probs / temperature).log_softmax(-1).gather(-1, held.y.long().unsqueeze(-1)).squeeze(-1)
        return float((torch.where(held.mask, own, 0.0).sum(1) / held.size).mean())

    assert notes["model.temperature"]["scores"] == pytest.approx(
        {"1.0": score(1.0), str(result): score(result)}, rel=1e-7
    )
    grid = [0.1 * 100 ** (i / 400) for i in range(401)]
    assert score(result) >= max(map(score, grid)) - 1e-12 and score(result) > score(1.0)


def test_a_client_whose_held_out_labels_are_wrong_is_named(root: Path, recwarn: pytest.WarningsRecorder) -> None:
    sets = ("method.rate=0.05", "method.steps=30", "method.zeta=0.01", "method.draws=4", "data.options.train=7")
    one = left_open(root, *TEMPERED, *sets, "model.widths=[20]")
    dataset = load(one)
    group = dataset.groups["existing"]
    choose(one, dataset)
    assert not [each for each in recwarn if "mislabelled" in str(each.message)]
    held = group.validation
    assert held is not None
    for wrong, named in (((1,), True), ((1, 2), False)):  # of two clients of four, the models are as likely wrong
        labels = held.y.clone()
        labels[list(wrong)] = (labels[list(wrong)] + 1) % 10
        spoilt = replace(dataset, groups={"existing": replace(group, validation=replace(held, y=labels))})
        recwarn.clear()
        choose(one, spoilt)
        said = [str(each.message) for each in recwarn if "mislabelled" in str(each.message)]
        assert len(said) == named
        if named:
            assert f"validation rows of {held.names[1]!r} (-" in said[0] and held.names[2] not in said[0]


def test_a_run_predicts_with_its_temperature_also_when_resumed_and_opened(root: Path, tmp_path: Path) -> None:
    folder, one = tmp_path / "run", left_open(root, *TEMPERED)
    first = run.run(one, folder)
    chosen = first.labels["model.temperature"]["chosen"]
    plain = run.run(left_open(root, *TEMPERED[:1]))
    for name, probs in first.predictions.items():
        if name.endswith("probs"):
            expected = (plain.predictions[name].double().log() / chosen).softmax(-1)
            torch.testing.assert_close(probs.double(), expected, rtol=1e-4, atol=1e-6, equal_nan=True)
    assert run.open_run(folder).method.temperature == chosen  # type: ignore[attr-defined]
    again = run.run(replace(one, federation=replace(one.federation, rounds=4)), folder, resume=True)
    assert again.labels["model.temperature"] == first.labels["model.temperature"] and len(again.rounds) == 4


def test_a_temperature_is_for_classes() -> None:
    table = {name: value for name, value in tiny().table().items() if name not in ("model", "method")}
    for value in ("held-out", "2.0"):
        one = Study.from_table(table | {"method": {"name": "pfedbayes"}}, "tiny", [f"model.temperature={value}"])
        with pytest.raises(StudyError, match=r"\[model\] temperature .* is for classes, and the targets are numbers"):
            run.run(one)
    for value in ("0.0", "-1.0", "inf", "nan"):
        with pytest.raises(StudyError, match=r"temperature must be (positive and finite|a finite number)"):
            Study.from_table({"method": {"name": "pfedbayes"}, "model": {"temperature": float(value)}})


def test_regression_has_personal_options_too() -> None:
    table = {name: value for name, value in tiny().table().items() if name not in ("model", "method")}
    one = Study.from_table(
        table | {"method": {"name": "fedsi"}}, "tiny", [*PERSONAL, "method.steps=2", "federation.rounds=2"]
    )
    chosen, notes = choose(one, load(one))
    assert set(notes["personal_alpha"]["scores"]) == {str(alpha) for alpha in PERSONAL_ALPHAS}
    assert chosen.method.options.personal_alpha in PERSONAL_ALPHAS


def test_a_private_study_chooses_nothing_by_its_rows(root: Path, tmp_path: Path) -> None:
    for name, sets in (("method.personal_alpha", PERSONAL), ("model.temperature", TEMPERED)):
        one = left_open(root, *sets, "privacy.epsilon=1.0")
        with pytest.raises(PrivacyError, match=f"{name} would be chosen by the clients' rows"):
            run.run(one, tmp_path / "run")


# the number of rounds, and what clients are held out for ------------------------------------------------------------


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let numbers of rounds be chosen among two."""
    monkeypatch.setattr(held_out, "candidates", lambda one, asks: (2, 4) if asks is ROUNDS else candidates(one, asks))
    monkeypatch.setattr(held_out, "MARKS", (2, 4))


def test_the_number_of_rounds_is_the_best_of_one_path(few: None) -> None:
    study = tiny("federation.rounds=held-out")
    seen: list[RoundRecord] = []
    chosen, notes = choose(study, load(study), seen.append)
    path, said = follow(study, load(study), (0, 2, 4), final=True), notes["federation.rounds"]
    assert said["scores"] == {str(mark): score for mark, score in path.scores.items()}
    assert chosen == tiny(f"federation.rounds={path.best}") and said["chosen"] == path.best == chosen.plan.rounds
    assert [dict(record.values) for record in seen] == [
        *({f"federation.rounds={mark}": score} for mark, score in path.scores.items()),
        {"rounds": path.best},
    ]


def test_no_round_is_taken_where_the_regression_is_better_than_any(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def along(*_: object, **__: object) -> Along:
        return Along({0: -1.0, 2: -2.0, 4: -3.0}, clients={k: (-k, -k, -k) for k in (0, 2, 4)})

    monkeypatch.setattr(paths, "follow", along)
    one = tiny("federation.rounds=held-out", "model.linear=ridge")
    with pytest.warns(
        UserWarning, match="no round improves on the regression .* -1 nats per row and -2 after 2; 0 are"
    ):
        settled, notes = choose(one, load(one))
    assert settled.plan.rounds == notes["federation.rounds"]["chosen"] == 0
    assert len(run.run(settled).column("existing", "nlpd")) == 4


@pytest.mark.law
@pytest.mark.parametrize(("linear", "marks"), [("ridge", (0, 2, 4)), ("zero", (2, 4)), ("none", (2, 4))])
def test_the_start_is_looked_at_where_it_is_a_model(linear: str, marks: tuple[int, ...], few: None) -> None:
    one = tiny("federation.rounds=held-out", "method.tau=held-out", "method.trial_rounds=4", f"model.linear={linear}")
    seen: list[RoundRecord] = []
    choose(one, load(one), seen.append)
    told = [f"federation.rounds={mark}" for mark in marks]
    assert [name for record in seen for name in record.values if name in told] == told


@pytest.mark.slow
@pytest.mark.parametrize(("name", "values"), [("tau", (1.0, 0.3, 0.1)), ("bandwidth", ("off-diagonal", "independent"))])
def test_other_options_are_judged_by_the_best_round_of_theirs(name: str, values: tuple[Any, ...], few: None) -> None:
    sets = ("federation.rounds=held-out", "method.trial_rounds=4")
    study = tiny(f"method.{name}=held-out", *sets)
    chosen, notes = choose(study, load(study))
    scores = {}
    for value in values:
        path = follow(tiny(f"method.{name}={value}", *sets), load(study), (2, 4))
        scores[str(value)] = max(path.scores.values())
    assert notes[name]["scores"] == scores and str(notes[name]["chosen"]) == max(scores, key=lambda one: scores[one])
    assert chosen.held_out == () and list(notes) == [name, "federation.rounds"]


@pytest.mark.parametrize("gains", [(0.4, 0.5, 0.6), (-0.9, 0.2, 2.2), (-0.2, -0.3, 2.0), (-1.0, -1.0, -1.0)])
@pytest.mark.parametrize(
    ("key", "other", "margin"),
    [
        ("method.hyper_prior_std", 1.0, "for more than half of the clients"),
        ("model.networks", False, ""),
        ("model.noise_widths", (16,), "by two standard errors"),
    ],
)
def test_lines_have_to_be_better_in_the_mean_a_wide_hyper_prior_for_most_and_a_noise_network_clearly(
    key: str, other: object, margin: str, gains: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean of the other value is .5 above in the first three, with standard errors of .06, .9 and .8."""
    table, option = key.split(".")

    def along(study: Study, _: object, marks: Sequence[int], *__: object, rival: Along | None, **___: object) -> Along:
        options: Any = study.method.options if table == "method" else study.model
        clients = gains if getattr(options, option) == other else (0.0, 0.0, 0.0)
        return Along({max(marks): sum(clients) / 3}, clients={max(marks): clients})

    monkeypatch.setattr(paths, "follow", along)
    one = tiny(f"{key}=held-out", "federation.rounds=50")
    (usual,) = {candidate for asked in one.held_out for candidate in candidates(one, asked)} - {other}
    settled, notes = choose(one, load(one))
    enough = {"": True, "by two standard errors": gains[0] > 0}.get(margin, gains[1] > 0)
    note, better = notes[key.removeprefix("method.")], sum(gains) > 0 and enough
    assert note["chosen"] == (other if better else usual)
    assert settled == tiny(f"{key}={settings.to_value(note['chosen'])}", "federation.rounds=50")
    assert note["rule"].count("another than the first") == bool(margin) and margin in note["rule"]
    assert bool(note.get("unless")) is (sum(gains) > 0 and not better) and margin in note.get("unless", margin)


def test_a_wide_hyper_prior_is_judged_at_its_best_round_along_the_path_that_the_rounds_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The wide one is behind at first and clearly ahead at the end; its path is followed once."""
    followed: list[tuple[float, tuple[int, ...], Along | None]] = []

    def along(
        study: Study, _: object, marks: tuple[int, ...], *__: object, rival: Along | None, **___: object
    ) -> Along:
        options: Any = study.method.options
        followed.append((options.hyper_prior_std, marks, rival))
        ends = {marks[0]: -1.0, marks[-1]: -0.5 if options.hyper_prior_std == 1.0 else -0.9}
        return Along(ends, clients={mark: (at, at + 1e-3, at - 1e-3) for mark, at in ends.items()})

    monkeypatch.setattr(paths, "follow", along)
    one = tiny("method.hyper_prior_std=held-out", "federation.rounds=held-out")
    settled, _ = choose(one, load(one))
    assert settled == tiny("method.hyper_prior_std=1.0", "federation.rounds=200")
    assert [(std, marks == (0, *candidates(one, ROUNDS)), rival is not None) for std, marks, rival in followed] == [
        (0.3, True, False),
        (1.0, True, False),
    ]


def test_lines_are_left_where_networks_leave_them_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """They begin at the regression: what is behind after as many rounds will not be ahead of the best of all."""
    rivals: list[Along | None] = []

    def along(
        study: Study, _: object, marks: tuple[int, ...], *__: object, rival: Along | None, **___: object
    ) -> Along:
        rivals.append(rival)
        return Along({marks[-1]: 0.0}, clients={marks[-1]: (0.0, 0.0)})

    monkeypatch.setattr(paths, "follow", along)
    one = tiny("model.networks=held-out", "federation.rounds=held-out")
    choose(one, load(one))
    assert [rival is not None for rival in rivals] == [False, True]


@pytest.mark.parametrize(
    "asks",
    [
        HeldOutChoice("feature_dim", (1, 2), table="model", clients=True),
        HeldOutChoice("scale", ("client", "pooled"), table="data", clients=True),
        HeldOutChoice("noise_std", (1.0, 0.1), table="model"),
    ],
    ids=lambda asks: asks.option,
)
def test_options_of_other_tables_can_be_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: HeldOutChoice
) -> None:
    one = tiny("federation.rounds=2")
    monkeypatch.setattr(Study, "held_out", property(lambda s: (asks,) if s is one else ()))
    chosen, notes = choose(one, load(one))
    best = notes[f"{asks.table}.{asks.option}"]["chosen"]
    assert chosen == tiny("federation.rounds=2", f"{asks.table}.{asks.option}={best}")
    choice_file.remember(tmp_path, notes)
    assert choice_file.recall(one, tmp_path) == (chosen, notes)


@pytest.mark.law
@pytest.mark.parametrize(
    "key",
    [
        "model.linear_kernel",
        "model.noise_widths",
        "model.networks",
        "model.residuals",
        "data.scale",
        "data.client_inputs",
    ],
)
@pytest.mark.parametrize("name", ["pac-pfl", "pfedgp"])
def test_a_study_leaves_its_prior_open_by_the_word(name: str, key: str, tmp_path: Path) -> None:
    table = {part: values for part, values in tiny().table().items() if part not in ("model", "method")}
    sets = ["model.linear=ridge", "method.trial_rounds=2", "federation.rounds=2"]
    one = Study.from_table(table | {"method": {"name": name}}, "tiny", [*sets, f"{key}=held-out"])
    (asks,) = one.held_out
    with pytest.raises(StudyError, match=f"{key} is still 'held-out'"):
        prepare(one, load(one))
    chosen, notes = choose(one, load(one))
    assert asks.key == key and list(notes[key]["scores"]) == [str(value) for value in candidates(one, asks)]
    assert all(math.isfinite(score) for score in notes[key]["scores"].values()) and chosen.held_out == ()
    choice_file.remember(tmp_path, notes)
    assert choice_file.recall(one, tmp_path)[0] == chosen and choice_file.without_choice(chosen, tmp_path) == one


def test_what_a_method_does_not_try_is_refused_by_its_name() -> None:
    one = Study.from_table({"method": {"name": "vanilla-gp"}, "model": {"linear_kernel": "held-out"}})
    with pytest.raises(StudyError, match=r"model\.linear_kernel = 'held-out' is not for vanilla-gp"):
        prepare(one, load(tiny()))


def test_rows_that_cannot_be_spared_leave_the_usual_number(few: None) -> None:
    x = torch.linspace(-1, 1, 4, dtype=torch.float64).unsqueeze(1)
    study = tiny("federation.rounds=held-out", "data.test.share=0.5")
    single = study.with_instances(data={f"c{k}": (x[:2] + k, x[:2, 0]) for k in range(4)})
    with pytest.warns(UserWarning, match=r"federation\.rounds = 400, as usual: no client has two training rows"):
        chosen, notes = choose(single, load(single))
    assert chosen.plan.rounds == 400 and notes["federation.rounds"]["scores"] == {}


@pytest.mark.parametrize("key", ["federation.rounds", "method.init_std"])
def test_held_out_rows_whose_likelihood_is_no_number_are_not_said_to_be_missing(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "follow", lambda *_, **__: Along({1: math.nan, 2: math.nan}))
    study = tiny("method.name=pfedgp", f"{key}=held-out")
    with pytest.warns(UserWarning, match=r", as usual: the likelihood of held-out rows is not finite; check the col"):
        choose(study, load(study))


@pytest.mark.slow
def test_a_client_with_an_input_of_1e30_does_not_take_the_choice_from_all(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    table = [
        {"client": f"c{k}", "x": 1e30 if k == 0 else at, "y": 2 * at, "split": "test" if j > 9 else "train"}
        for k in range(6)
        for j, at in enumerate(random.normal(size=12))
    ]
    data = {"source": str(write_csv(tmp_path / "rows.csv", table)), "scale": "none", "duplicate_rows": "allow"}
    given = {"data": data, "method": {"name": "pfedbayes", "trial_rounds": 2}, "federation": {"rounds": 2}}
    study = Study.from_table(given, sets=["model.widths=[4]", "method.steps=4"])
    _, notes = choose(study, load(study))
    assert all(score is not None and math.isfinite(score) for score in notes["zeta"]["scores"].values())
    assert len({*notes["zeta"]["scores"].values()}) > 1


@pytest.mark.parametrize("sizes", [(1, 3, 12), (1, 1, 1)], ids=["some", "none"])
def test_a_client_with_few_rows_spares_one_and_of_a_single_row_none(sizes: tuple[int, ...], tmp_path: Path) -> None:
    """As where a user's table has such clients and FedSI leaves its variances to held-out rows by default."""
    rows = [
        {"client": f"c{k}", "split": part, "x": at / m, "y": at % 2}
        for k, m in enumerate(sizes)
        for part, count in (("train", m), ("test", 2))
        for at in range(count)
    ]
    data = {"source": str(write_csv(tmp_path / "rows.csv", rows)), "task": "classification"}
    table = {"data": {**data, "duplicate_rows": "allow"}, "method": {"name": "fedsi", "steps": 1, "trial_rounds": 1}}
    study = Study.from_table(table, sets=["federation.rounds=1", "model.widths=[2]", "model.temperature=held-out"])
    with nullcontext() if max(sizes) > 1 else pytest.warns(UserWarning, match="as usual: no client has two"):
        chosen, notes = choose(study, load(study))
    assert chosen.held_out == () and {one.key.rpartition(".")[2] for one in study.held_out} <= {
        name.rpartition(".")[2] for name in notes
    }
    if max(sizes) == 1:
        assert chosen.model.temperature == 1.0 and all(note["scores"] == {} for note in notes.values())


@pytest.mark.slow
def test_a_file_of_ones_own_from_training_to_certificates(few: None, tmp_path: Path) -> None:
    """Chosen once, written as a number, and open again for a run that reserves rows."""
    rows = [{"client": f"c{k}", "x": at, "y": (at * (k + 1)) % 5} for k in range(4) for at in range(12)]
    table = {**tiny().table(), "data": {"source": str(write_csv(tmp_path / "rows.csv", rows))}}
    table["federation"] = {"device": "cpu", "threads": 1}
    study = Study.from_table(table, "own.toml")
    assert study.federation.rounds == "held-out"
    first = run.run(study, tmp_path / "run")
    chosen = first.labels["federation.rounds"]["chosen"]
    assert Study.from_toml(tmp_path / "run" / "study.toml").federation.rounds == chosen == first.round
    again = run.run(study, tmp_path / "run", resume=True)
    assert again.labels["federation.rounds"] == first.labels["federation.rounds"]
    settled = Study.from_toml(tmp_path / "run" / "study.toml")
    assert choice_file.without_choice(settled, tmp_path / "run").federation.rounds == "held-out"
    assert run.open_run(tmp_path / "run").round == chosen


def test_a_fall_of_the_likelihood_is_said_and_kept(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    falls = Along({2: -1.0, 4: -1.5}, {2: -20.0, 4: -15.0}, "log_evidence")
    monkeypatch.setattr(paths, "follow", lambda *_, **__: falls)
    study = tiny("federation.rounds=held-out")
    with pytest.warns(UserWarning, match=r"overfits: from round 2 to round 4 .*-20 to -15 nats.*; 2 are taken"):
        _, notes = choose(study, load(study))
    assert notes["federation.rounds"]["remark"] == falls.remark()
    monkeypatch.setattr(paths, "follow", lambda *_, **__: Along(failure="it diverged"))
    for asked, other in (("federation.rounds", "model.noise_std=0.4"), ("model.noise_std", "federation.rounds=2")):
        study = tiny(*quick("fedavg"), other, f"{asked}=held-out")
        with pytest.raises(StudyError, match=f"^{asked} could not be chosen: it diverged"):
            choose(study, load(study))


@pytest.mark.slow
@pytest.mark.parametrize("rounds", ["held-out", "6"])
def test_the_noise_is_that_of_the_best_round(rounds: str, few: None, tmp_path: Path) -> None:
    """Targets that nothing explains leave a noise of their own spread, and few rounds or many find it alike."""
    random = np.random.default_rng(5)
    table = [{**row, "y": random.normal()} for row in rows(sizes=(30,) * 6)]
    source = write_csv(tmp_path / "rows.csv", table)
    sets = [*quick("fedavg"), f"data.source={source}", f"federation.rounds={rounds}", "model.noise_std=held-out"]
    study = Study.from_table({"seed": 1}, "tiny.toml", sets)
    seen: list[RoundRecord] = []
    chosen, notes = choose(study, load(study), seen.append)
    assert [*notes] == [*(["federation.rounds"] if rounds == "held-out" else []), "model.noise_std"]
    marks = (2, 4) if rounds == "held-out" else (6,)
    path = follow(study, load(study), marks)
    by_noise = path.noise[path.best or 0]
    assert notes["model.noise_std"]["scores"] == {str(noise): score for noise, score in by_noise.items()}
    assert chosen.model.noise_std == max(by_noise, key=lambda noise: by_noise[noise]) and 0.8 <= chosen.model.noise_std
    assert chosen.plan.rounds == path.best and prepare(chosen, load(study))[0].model.likelihood.noise_std > 0.7
    assert seen[-1].values == {"noise_std": chosen.model.noise_std}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run.run(study, tmp_path / "run")
    assert choice_file.recall(study, tmp_path / "run")[0] == chosen and result.round == chosen.plan.rounds


@pytest.mark.parametrize(("rounds", "followed"), [(6, 6), (80, 80), (120, 80), (400, 200)])
def test_the_noise_of_a_run_of_known_length_is_chosen_half_way(
    rounds: int, followed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(study: Study, dataset: object, marks: Sequence[int], *_: object, **__: object) -> Along:
        return Along({marks[-1]: -1.0}, noise={marks[-1]: {0.4: -2.0, 0.8: -1.0}})

    monkeypatch.setattr(paths, "follow", reached)
    study = tiny(*quick("fedavg"), f"federation.rounds={rounds}", "model.noise_std=held-out")
    chosen, notes = choose(study, load(study))
    assert f"after {followed} rounds" in notes["model.noise_std"]["rule"]
    assert (chosen.plan.rounds, chosen.model.noise_std) == (rounds, 0.8)


def variational(name: str, source: Path, *sets: str) -> Study:
    """A study of rows of one's own whose networks have a weight of the divergence and a noise."""
    return Study.from_table({"seed": 1}, "tiny.toml", [*quick(name), f"data.source={source}", *sets])


@pytest.mark.parametrize("name", ["pfedbayes", "sfedbayes", "cfedbayes", "bpfed"])
def test_a_weight_and_a_noise_fit_as_any_other_two_whose_product_is_the_same(name: str, tmp_path: Path) -> None:
    """sigma^2 (E_q[-ln p] + zeta KL) has the same minimum, and steps of Adam do not depend on a factor."""
    source = write_csv(tmp_path / "rows.csv", rows(sizes=(12,) * 4, new=()))
    sets = ("model.dtype=float64", "federation.rounds=2")
    one, other = (
        run.run(variational(name, source, *sets, f"method.zeta={zeta}", f"model.noise_std={noise}")).predictions
        for zeta, noise in ((0.5, 0.4), (2.0, 0.2))
    )
    torch.testing.assert_close(one["existing.mean"], other["existing.mean"], rtol=1e-4, atol=1e-4, equal_nan=True)
    assert bool((one["existing.std"] > other["existing.std"])[one["existing.std"].isfinite()].all())


def test_the_weight_of_a_divergence_goes_with_the_noise_that_is_chosen_after_it(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    table = [
        {**row, "y": 2 * float(str(row["wind"])) + 0.05 * random.normal()} for row in rows(sizes=(30,) * 6, new=())
    ]
    source = write_csv(tmp_path / "rows.csv", table)
    held = ("method.zeta=held-out", "model.noise_std=held-out", "federation.rounds=4", "method.trial_rounds=2")
    study = variational("pfedbayes", source, *held)
    chosen, notes = choose(study, load(study))
    assert [*notes] == ["zeta", "model.noise_std"]
    scores, noise = notes["zeta"]["scores"], notes["model.noise_std"]["chosen"]
    best = float(max(scores, key=lambda one: scores[one]))
    assert noise != 0.4 and chosen.model.noise_std == noise
    assert chosen.method.options.zeta == notes["zeta"]["chosen"] == pytest.approx(best * (0.4 / noise) ** 2, rel=5e-3)
    assert f"{best:g} with a noise of 0.4, as in the trials, fits as" in notes["zeta"]["rule"]
    result = run.run(study, tmp_path / "run")
    assert choice_file.recall(study, tmp_path / "run")[0] == chosen
    assert result.labels["zeta"]["chosen"] == chosen.method.options.zeta
    settled = variational("pfedbayes", source, "federation.rounds=4", f"method.zeta={best}", "model.noise_std=held-out")
    assert choose(settled, load(settled))[0].method.options.zeta == best, "what a study says stays"


def test_labels_have_no_noise_to_choose(few: None, tmp_path: Path) -> None:
    """A file says only when it is read that its targets are labels."""
    source = write_csv(tmp_path / "rows.csv", [{**row, "y": at % 2} for at, row in enumerate(rows())])
    sets = [*quick("fedavg"), f"data.source={source}", "data.task=classification", "model.noise_std=held-out"]
    study = Study.from_table({"federation": {"rounds": 2}}, "tiny.toml", sets)
    chosen, notes = choose(study, load(study))
    assert chosen.model.noise_std == 0.4
    assert notes == {"model.noise_std": {"chosen": 0.4, "scores": {}, "rule": "targets are labels, which have none"}}


def test_without_a_row_to_spare_the_usual_noise_stays(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "rows.csv", rows(sizes=(4, 4, 4, 4), new=()))
    sets = [*quick("fedavg"), f"data.source={source}", "federation.rounds=held-out", "model.noise_std=held-out"]
    study = Study.from_table({}, "tiny.toml", sets)
    with pytest.warns(UserWarning, match=r"model.noise_std = 0.4, as usual: no client has two training rows"):
        chosen, _ = choose(study, load(study))
    assert (chosen.model.noise_std, chosen.federation.rounds) == (0.4, FederationPart().rounds)
