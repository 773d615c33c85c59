"""Choosing hyper-parameters: random search, scored by k-fold cross-validation inside clients on training rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl import settings
from pacbayes_fl.data import scaling, split, tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import PacBayesFLError, StudyError
from pacbayes_fl.federation import engine
from pacbayes_fl.methods import Choice, LogUniform, Search
from pacbayes_fl.results import write_atomic
from pacbayes_fl.study import prepare
from pacbayes_fl.study_data import load
from pacbayes_fl.study_file import Study, assigned, read_table
from pacbayes_fl.study_report import units_of

SCORES = ("rsmse", "nlpd")
_ROUNDS = "federation.rounds"


@dataclass(frozen=True)
class Trial:
    """One configuration and what cross-validation says of it.

    Args:
        values: dotted key -> value.
        scores: mean over clients of every score, over all held-out rows; infinite where training failed.
        failure: why it failed, or nothing.
    """

    values: Mapping[str, Any]
    scores: Mapping[str, float]
    failure: str = ""


def candidates(search: Search, budget: int, seed: int) -> list[dict[str, Any]]:
    """Draw configurations, all alike for the same seed.

    Args:
        search: what varies; `federation.rounds` is left out, because one run visits all its values.
        budget: how many.
        seed: of the draw.

    Returns:
        Dotted keys and values.
    """
    generator = np.random.default_rng(seed)
    drawn = []
    for _ in range(budget):
        values: dict[str, Any] = {}
        for key, space in search.items():
            if key == _ROUNDS:
                continue
            if isinstance(space, LogUniform):
                low, high = math.log(space.low), math.log(space.high)
                values[key] = float(f"{math.exp(generator.uniform(low, high)):.3g}")
            else:
                values[key] = space.values[int(generator.integers(len(space.values)))]
        drawn.append(values)
    return drawn


def cross_validate(
    study: Study, dataset: tables.Dataset, folds: int, marks: Sequence[int] | None = None
) -> dict[int, dict[str, float]]:
    """Score a study on held-out blocks of its existing clients' training rows.

    Every client's rows are cut into contiguous blocks; each block is predicted by a federation trained without it. A
    client's RSMSE is the root mean squared error over all its held-out rows, over the population std of its training
    targets; its NLPD is in units of that std.

    Args:
        study: what to score.
        dataset: its data; test rows and new clients are not looked at.
        folds: number of blocks.
        marks: numbers of rounds to be scored; the study's own when None.

    Returns:
        Scores by number of rounds, means over clients.
    """
    train = dataset.groups["existing"].train
    marks = sorted(marks if marks is not None else [study.plan.rounds])
    errors = {mark: _Sums(train) for mark in marks}
    for rest, held in split.folds(train, folds):
        part = replace(dataset, groups={"existing": tables.Group(rest, held)})
        method, groups = prepare(study, part)
        group = groups["existing"]
        start = engine.start(method, group.train, study.plan)
        rounds = engine.rounds(method, group.train, replace(study.plan, rounds=marks[-1]), start)
        for state in chain((start,), (state for _, state in rounds)):
            if state.round in errors:
                for index, posterior in engine.personalise(method, state, group.train, study.plan):
                    asked, own = group.test.select(index.cpu()), group.raw.test.select(index.cpu())
                    _, predictive = units_of(posterior.predict(asked.x), group, index, method.raw_units)
                    errors[state.round].add(index, own, predictive.mean, predictive.log_prob(own.y))
    return {mark: sums.scores() for mark, sums in errors.items()}


class _Sums:
    """Squared errors and log densities of held-out rows, summed by client."""

    def __init__(self, train: ClientBatch) -> None:
        self._size, self._std = train.size, scaling.fit(train).y_std
        self._squares = torch.zeros_like(self._std)
        self._log_prob = torch.zeros_like(self._std)

    def add(self, index: Tensor, rows: ClientBatch, mean: Tensor, log_prob: Tensor) -> None:
        at = index.to(self._squares.device)
        self._squares[at] += torch.where(rows.mask, (rows.y - mean).square(), 0.0).sum(1).to(self._squares)
        self._log_prob[at] += torch.where(rows.mask, log_prob, 0.0).sum(1).to(self._squares)

    def scores(self) -> dict[str, float]:
        rsmse = (self._squares / self._size).sqrt() / self._std
        nlpd = -self._log_prob / self._size - self._std.log()
        return {"rsmse": float(rsmse.mean()), "nlpd": float(nlpd.mean())}


def check(budget: int, folds: int, score: str) -> None:
    """Check what a search is asked for, before it takes any time.

    Args:
        budget: configurations.
        folds: of the cross-validation.
        score: what is to be small.

    Raises:
        StudyError: when there would be nothing to run, nothing to hold out, or the score is not known.
    """
    if score not in SCORES:
        raise StudyError(f"score must be one of {', '.join(SCORES)}, got {score!r}")
    if budget < 1:
        raise StudyError(f"budget must be at least 1, got {budget}")
    if folds < 2:
        raise StudyError(f"folds must be at least 2, got {folds}")


def searched(path: Path | str, method: str, sets: Sequence[str] = ()) -> Search:
    """Say what a search would vary: the method's search space without the keys that assignments fix.

    Args:
        path: the study.
        method: name of `METHODS`.
        sets: assignments such as "federation.rounds=20".

    Returns:
        Dotted keys and what each may be; empty where there is nothing to tune.

    Raises:
        StudyError: when the study, the method or an assignment is not valid.
    """
    table, where = read_table(path)
    space = Study.from_table(table, where, [*sets, f"method.name={method}"]).recipe.search
    given = assigned(table, sets)[1]
    return {key: one for key, one in space.items() if not _holds(given, key)}


def _holds(table: Mapping[str, Any], key: str) -> bool:
    part, name = key.split(".")
    return name in table.get(part, {})


def tune(
    path: Path | str,
    method: str,
    budget: int = 20,
    folds: int = 5,
    seed: int = 0,
    score: str = "rsmse",
    sets: Sequence[str] = (),
    on_trial: Callable[[int, Trial], None] | None = None,
) -> tuple[Trial, list[Trial]]:
    """Search a method's configurations for a study.

    Args:
        path: the study.
        method: name of `METHODS`.
        budget: configurations; the first is the study's own.
        folds: of the cross-validation.
        seed: of the search.
        score: "rsmse" or "nlpd", the smaller the better.
        sets: assignments such as "data.options.samples=20"; a key that they fix is not searched.
        on_trial: called after every configuration with its number.

    Returns:
        The best trial, and all of them.

    Raises:
        StudyError: as `check` and `searched`, and when the method has nothing to tune, or every trial failed.
    """
    check(budget, folds, score)
    table, where = read_table(path)
    base = Study.from_table(table, where, [*sets, f"method.name={method}"])
    search = searched(path, method, sets)
    if not search:
        raise StudyError(f"{method} has nothing to tune", hint="drop it from --methods")
    space = search.get(_ROUNDS)
    marks = [int(v) for v in space.values] if isinstance(space, Choice) else [base.plan.rounds]
    dataset = load(base)
    trials: list[Trial] = []
    others = candidates(search, budget - 1, seed) if search.keys() - {_ROUNDS} else []  # one run visits all rounds
    for number, values in enumerate([{}, *others]):
        chosen = [f"{key}={settings.to_value(value)}" for key, value in values.items()]
        study = Study.from_table(table, where, [*sets, f"method.name={method}", *chosen])
        try:
            scored = cross_validate(study, dataset, folds, sorted({*marks, study.plan.rounds} if not values else marks))
            found = [
                Trial(values | ({_ROUNDS: mark} if base.recipe.rounds else {}), scores)
                for mark, scores in scored.items()
            ]
        except PacBayesFLError as error:
            found = [Trial(values, dict.fromkeys(SCORES, math.inf), str(error))]
        trials += found
        if on_trial is not None:
            on_trial(number, min(found, key=lambda trial: _rank(trial, score)))
    best = min(trials, key=lambda trial: _rank(trial, score))
    if not math.isfinite(_rank(best, score)):
        why = trials[-1].failure or "no score is finite"
        raise StudyError(f"every configuration of {method} failed, the last one: {why}", cause=why)
    return best, trials


def _rank(trial: Trial, score: str) -> float:
    value = trial.scores[score]
    return value if math.isfinite(value) else math.inf


def write(path: Path | str, chosen: Mapping[str, Trial], target: Path | str, sets: Sequence[str] = ()) -> None:
    """Write a study with the values that were chosen for each method, in its tables [methods.NAME.PART].

    Args:
        path: the study that was tuned.
        chosen: best trial by method.
        target: the TOML file to write.
        sets: assignments that the search was run with; they are written into the study, and options of a method into
            the tables of every chosen method, where as in the search they count more than what stood there.
    """
    table, given = assigned(read_table(path)[0], sets)
    own = {part: {**given.get(part, {})} for part in ("method", "model", "federation")}
    given["method"] = {key: own["method"].pop(key) for key in ("name", "preset") if key in own["method"]}
    table = settings.merge(table, given)
    for method, trial in chosen.items():
        table = settings.merge(table, {"methods": {method: own}})
        for key, value in trial.values.items():
            part, name = key.split(".")
            table = settings.merge(table, {"methods": {method: {part: {name: value}}}})
    write_atomic(Path(target), settings.to_toml(table).encode())
