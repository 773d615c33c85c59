"""Choosing hyper-parameters: random search, scored by k-fold cross-validation inside clients on training rows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl import settings
from pacbayes_fl.data import scaling, split, tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import PacBayesFLError, StudyError, kinds_checked, shown
from pacbayes_fl.federation import engine, federation_state, personalisation
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.methods import LogUniform, OneOf, Search
from pacbayes_fl.results.folder import write_atomic
from pacbayes_fl.results.metrics import headlines, search_scores
from pacbayes_fl.study import privacy, residuals
from pacbayes_fl.study.config import choices
from pacbayes_fl.study.config.parts import ReportPart
from pacbayes_fl.study.config.paths import with_references
from pacbayes_fl.study.config.plugins import blamed
from pacbayes_fl.study.data import ScaledGroup, load
from pacbayes_fl.study.evaluate.classification import predictive
from pacbayes_fl.study.evaluate.units import raw_scored_rows, scored_rows, unit_of, units_of
from pacbayes_fl.study.file import Study, assigned, read_table
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.residuals import ErrorShape
from pacbayes_fl.study.rows import fingerprints, held_rows
from pacbayes_fl.study.search.leakage import told
from pacbayes_fl.study.search.trials import Trial, Trials

_ROUNDS = "federation.rounds"


def candidates(search: Search, budget: int, seed: int) -> list[JsonTable]:
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
        values: JsonTable = {}
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
    """Score a study on held-out parts of its existing clients' training rows.

    Every client's rows are cut into contiguous blocks, labelled ones dealt label by label; each part is predicted by a
    federation trained without it, and without rows whose lags or rolling means are made of its targets. A client's
    RSMSE is the root mean squared error over all its held-out rows, over the population std of its training targets;
    its NLPD is in units of that std. Its error is the share of held-out rows that its personal model, averaged over
    draws, takes for another label, its NLL in nats per row.

    Args:
        study: what to score.
        dataset: its data; test and validation rows and new clients are not looked at.
        folds: number of parts.
        marks: numbers of rounds to be scored; the study's own when None.

    Returns:
        Scores by number of rounds, means over clients.
    """
    train = dataset.groups["existing"].train
    marks = sorted(marks if marks is not None else [study.plan.rounds])
    sums = {mark: _Sums(train) for mark in marks}
    cut = split.folds if dataset.classes is None else split.stratified_folds
    for rest, held in cut(train, folds, told(dataset, study.data)):
        _hold_out(study, replace(dataset, groups={"existing": tables.Group(rest, held)}), sums)
    return {mark: one.scores() for mark, one in sums.items()}


def _hold_out(study: Study, part: tables.Dataset, sums: Mapping[int, _Sums]) -> None:
    """Train without the held-out rows, and add up how well they are predicted after each number of rounds."""
    method, groups = prepare(study, part)
    group = groups["existing"]
    start = federation_state.start(method, group.train, study.plan)
    rounds = engine.rounds(method, group.train, replace(study.plan, rounds=max(sums)), start)
    endings = federation_state.Endings(study.plan, sums)
    for state in map(endings.used, chain((start,), (state for _, state in rounds))):
        if state.round in sums:
            settled = federation_state.at_rates(method, state)
            errors = residuals.learn(study, settled, state, group)
            losses = partial(_losses, group, sums[state.round].unit, errors)
            for index, result in personalisation.personalise(settled, state, group.train, study.plan, losses):
                sums[state.round].add(index, group.raw.test.mask[index, : result[0].shape[1]], *result)


def _losses(
    group: ScaledGroup, unit: Tensor, errors: ErrorShape, index: Tensor, posterior: Any
) -> tuple[Tensor, Tensor]:
    """Give a loss and a log density of every held-out row [k, N]: squared errors in units [K] of y, or mistakes."""
    asked, own = scored_rows(group, index), raw_scored_rows(group, index)
    if own.y.is_floating_point():
        result = units_of(errors.around(posterior).predict(asked.x), group, index, own.x)
        error = own.y - result.own.mean * result.unit.unsqueeze(-1)
        return (error / unit[index].unsqueeze(-1)).square(), result.log_prob(own.y)
    mixture = predictive(posterior, asked.x)
    return (mixture.probs.argmax(-1) != own.y).double(), mixture.log_prob(own.y).double()


class _Sums:
    """Losses and log densities of held-out rows, summed by client."""

    def __init__(self, train: ClientBatch) -> None:
        features = scaling.untouched(train.x.shape[-1])
        self._std = scaling.fit(train, features).y_std if train.y.is_floating_point() else None
        self.unit = torch.ones_like(train.size) if self._std is None else unit_of(self._std)
        self._rows, self._loss, self._log_prob = (torch.zeros_like(train.size) for _ in range(3))

    def add(self, index: Tensor, mask: Tensor, loss: Tensor, log_prob: Tensor) -> None:
        at = index.to(self._rows.device)
        for total, values in ((self._rows, mask), (self._loss, loss), (self._log_prob, log_prob)):
            total[at] += torch.where(mask, values, 0).sum(1).to(total)

    def scores(self) -> dict[str, float]:
        loss, nll = self._loss / self._rows, -self._log_prob / self._rows
        if self._std is None:
            task = "classification"
        else:
            task, loss, nll = "regression", loss.sqrt() / (self._std / self.unit), nll - self._std.log()
        return dict(zip(search_scores(task), (float(loss.mean()), float(nll.mean())), strict=True))


def check(budget: int, folds: int, score: str | None) -> None:
    """Check the arguments of a search, before any training.

    Args:
        budget: configurations.
        folds: of the cross-validation.
        score: what is to be small; the task's default when None.

    Raises:
        StudyError: when there would be nothing to run, nothing to hold out, or the score is not known.
    """
    known = [name for task in headlines() for name in search_scores(task)]
    if score is not None and score not in known:
        raise StudyError(f"score must be one of {', '.join(known)}, got {score!r}")
    if budget < 1:
        raise StudyError(f"budget must be at least 1, got {budget}")
    if folds < 2:
        raise StudyError(f"folds must be at least 2, got {folds}")


def asked(
    path: Path | str, methods: Sequence[str], folds: int, score: str | None, sets: Sequence[str], budget: int
) -> JsonTable:
    """Configuration of a search, which a resumed one must share, and its budget.

    Args:
        path: the study.
        methods: names of `METHODS`.
        folds: of the cross-validation.
        score: what is to be small.
        sets: assignments.
        budget: configurations per method.

    Returns:
        Numbers, names, what each method's search varies, every value of each study, and a fingerprint of the rows, as
        JSON.
    """
    table, where = read_table(path)
    made = {name: Study.from_table(table, where, [*sets, f"method.name={name}"]) for name in methods}
    studies = {name: study.table() for name, study in made.items()}
    rows = fingerprints.of_dataset(load(made[methods[0]]))
    varied = {name: {key: repr(space) for key, space in searched(path, name, sets).items()} for name in methods}
    numbers = {"folds": folds, "seed": studies[methods[0]]["seed"], "score": score, "budget": budget}
    result: JsonTable = json.loads(json.dumps({**numbers, "methods": list(methods), "search": varied}))
    return result | {"studies": json.loads(json.dumps(studies)), "rows": rows}


def searched(path: Path | str, method: str, sets: Sequence[str] = ()) -> Search:
    """The search space: the method's without the keys that assignments fix.

    What the study leaves open to be chosen by held-out rows is searched like all else.

    Args:
        path: the study.
        method: name of `METHODS`.
        sets: assignments such as "federation.rounds=20".

    Returns:
        Dotted keys and what each may be; empty where there is nothing to tune.

    Raises:
        StudyError: when the study, the method, an assignment or a value that the method's recipe varies is not valid.
    """
    table, where = read_table(path)
    base = Study.from_table(table, where, [*sets, f"method.name={method}"])
    space = {key: OneOf(values) for key, values in _open(base).items()} | {**base.recipe.search}
    given = assigned(table, sets)[1]
    for key, one in base.recipe.search.items():
        try:
            for value in _ends(key, one):
                Study.from_table(table, where, [*sets, f"method.name={method}", f"{key}={settings.to_value(value)}"])
        except StudyError as error:
            raise StudyError(f"search of {method}: {error}") from error
    return _counting({key: one for key, one in space.items() if not _holds(given, key)}, base)


def _ends(key: str, space: object) -> tuple[object, ...]:
    """List values of a space which are all possible if its others are."""
    if key.count(".") != 1:
        raise StudyError(f"{key!r} is no option of a study", hint='name its table too, such as "method.rate"')
    if isinstance(space, LogUniform) and 0 < space.low <= space.high < math.inf:
        return space.low, space.high
    if isinstance(space, OneOf) and isinstance(space.values, tuple) and space.values:
        return space.values
    raise StudyError(f"{key} must vary by OneOf((1, 2)) or LogUniform(0.1, 10.0), got {shown(space)}")


def _counting(values: Mapping[str, Any], study: Study) -> dict[str, Any]:
    """Leave out the widths of networks where the values, or else the study, have none."""
    networks = values.get("model.networks", getattr(study.model, "networks", True))
    idle = set() if networks else {f"model.{name}" for name in study.model.network_options}
    return {key: value for key, value in values.items() if key not in idle}


def _open(study: Study) -> dict[str, tuple[Any, ...]]:
    """Give the candidates of the options that the study leaves open, by dotted key; a temperature is 1 meanwhile."""
    left = [one for one in study.held_out if one is not choices.TEMPERATURE]
    return {f"{one.table}.{one.option}": choices.candidates(study, one) for one in left}


def _holds(table: JsonMapping, key: str) -> bool:
    part, name = key.split(".")
    return name in table.get(part, {})


@kinds_checked
def tune(
    path: Path | str,
    method: str,
    budget: int = 20,
    folds: int = 5,
    seed: int | None = None,
    score: str | None = None,
    sets: Sequence[str] = (),
    on_trial: Callable[[int, Trial], None] | None = None,
    log: Trials | None = None,
) -> tuple[Trial, list[Trial]]:
    """Search a method's configurations for a study.

    Args:
        path: the study.
        method: name of `METHODS`.
        budget: configurations; the first is the study's own, with the first candidate of what that leaves open.
        folds: of the cross-validation.
        seed: of the search; the study's when None.
        score: one of `results.metrics.search_scores` of the task, the smaller the better; the first when None.
        sets: assignments such as "data.options.samples=20"; a key that they fix is not searched.
        on_trial: called after every configuration that is tried, with its number.
        log: where trials are kept; those that it holds are not made again.

    Returns:
        The best trial, and all of them.

    Raises:
        StudyError: as `check` and `searched`, and when the method has nothing to tune, the score is not for the data,
            or every trial failed.

    Example:
        >>> import pacbayes_fl as fl
        >>> sets = ["federation.rounds=2", "method.particles=2"]
        >>> best, trials = fl.tune("polynomial", "pac-pfl", budget=2, folds=2, sets=sets)
        >>> best in trials, sorted(best.scores)
        (True, ['nlpd', 'rsmse'])
    """
    check(budget, folds, score)
    table, where = read_table(path)
    base = Study.from_table(table, where, [*sets, f"method.name={method}"])
    search = searched(path, method, sets)
    if not search:
        raise StudyError(f"{method} has nothing to tune", hint="drop it from --methods")
    privacy.refuse_choice(base, next(iter(search)))
    space = search.get(_ROUNDS)
    marks = [v for v in space.values if isinstance(v, int)] if isinstance(space, OneOf) else [base.plan.rounds]
    dataset = held_rows.rows_for_tuning(base, held_rows.divide(base, load(base)))
    scores = search_scores(dataset.task)
    wanted = score or scores[0]
    if wanted not in scores:
        raise StudyError(f"score {wanted!r} is not for these data", hint=f"one of {', '.join(scores)} is")
    log, trials = Trials() if log is None else log, []
    seed = base.seed if seed is None else seed
    others = candidates(search, budget - 1, seed) if search.keys() - {_ROUNDS} else []  # one run visits all rounds
    first = {key: values[0] for key, values in _open(base).items() if key != _ROUNDS}
    for number, values in enumerate([first, *(_counting(first | other, base) for other in others)]):
        if (result := log.known(method, number, values)) is None:
            chosen = [f"{key}={settings.to_value(value)}" for key, value in values.items()]
            try:
                study = Study.from_table(table, where, [*sets, f"method.name={method}", *chosen])
                wish = marks if number else sorted({*marks, study.plan.rounds})
                result = _trials(study, values, cross_validate(study, dataset, folds, wish))
            except Exception as error:  # of the library, or of whoever wrote the method: the others go on
                if not isinstance(error, PacBayesFLError) and not any(blamed(error)):
                    raise
                result = [Trial(values, dict.fromkeys(scores, math.inf), str(error) or type(error).__name__)]
            log.keep(method, result)
            if on_trial is not None:
                on_trial(number, min(result, key=lambda trial: _rank(trial, wanted)))
        trials += result
    best = min(trials, key=lambda trial: _rank(trial, wanted))
    if not math.isfinite(_rank(best, wanted)):
        why = trials[-1].failure or "no score is finite"
        raise StudyError(f"every configuration of {method} failed, the last one: {why}", cause=why)
    return best, trials


def _trials(study: Study, values: JsonMapping, scored: Mapping[int, Mapping[str, float]]) -> list[Trial]:
    """Take the scores of one configuration: a trial for every number of rounds."""
    rounds = study.recipe.rounds
    return [Trial({**values, **({_ROUNDS: mark} if rounds else {})}, result) for mark, result in scored.items()]


def _rank(trial: Trial, score: str) -> float:
    value = trial.scores[score]
    return value if math.isfinite(value) else math.inf


def wants_page(path: Path | str, sets: Sequence[str] = ()) -> bool:
    """Whether people get a page of a search: as of the runs of its study.

    Args:
        path: the study that is tuned.
        sets: assignments that the search is run with.

    Returns:
        The study's `report.page`.
    """
    table, given = assigned(read_table(path)[0], sets)
    report = settings.merge(table, given).get("report", {})
    return not isinstance(report, Mapping) or report.get("page", ReportPart.page) is True


def write(
    path: Path | str,
    chosen: Mapping[str, Trial],
    target: Path | str,
    sets: Sequence[str] = (),
    tried: Mapping[str, int] = MappingProxyType({}),
) -> None:
    """Write a study with the values that were chosen for each method, in its tables [methods.NAME.PART].

    Args:
        path: the study that was tuned.
        chosen: best trial by method.
        target: the TOML file to write.
        sets: assignments that the search was run with; they are written into the study, and options of a method into
            the tables of every chosen method, where as in the search they count more than what stood there.
        tried: configurations by method, which certificates have to pay for: their rows may have had a part in it. Of a
            study whose values were chosen among others before, each of these would have led to as many more.
    """
    read, where = read_table(path)
    table, given = assigned(read, sets)
    own = {part: {**given.get(part, {})} for part in ("method", "model", "federation")}
    given["method"] = {key: own["method"].pop(key) for key in ("name", "preset") if key in own["method"]}
    table = settings.merge(table, given)
    for method, trial in chosen.items():
        changes: JsonTable = own
        for key, value in trial.values.items():
            part, name = key.split(".")
            changes = settings.merge(changes, {part: {name: value}})
        if method in tried:
            before = Study.from_table(read, where, [*sets, f"method.name={method}"]).report.certify.tried
            changes = settings.merge(changes, {"report": {"certify": {"tried": before * tried[method]}}})
        table = settings.merge(table, with_references({"methods": {method: changes}}, Path.cwd()))
    write_atomic(Path(target), settings.to_toml(table).encode())
