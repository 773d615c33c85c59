"""Choice of open options by the likelihood of held-out training rows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import settings
from pacbayes_fl.data import split, tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import UNREADABLE, ClientError, DataError, NumericalError, StudyError
from pacbayes_fl.federation import engine, federation_state, personalisation
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.methods import HeldOutChoice
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.tempered import best as best_temperature
from pacbayes_fl.posteriors.tempered import temper
from pacbayes_fl.results.manifest import put
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study import residuals
from pacbayes_fl.study.data import ScaledGroup
from pacbayes_fl.study.evaluate.classification import predictive
from pacbayes_fl.study.evaluate.regression import units_of
from pacbayes_fl.study.file import TEMPERATURE, Study
from pacbayes_fl.study.models import InstanceModel, NetworkModel
from pacbayes_fl.study.prepare import prepare

FILE = "choice.json"
"""What a run folder calls its choice."""

_FOLDS = 5


class _Scored(NamedTuple):
    """Score of one combination of values: mean log likelihood of held-out rows, under the best temperature."""

    values: JsonMapping
    score: float
    temperature: float
    untempered: float


def choose(
    study: Study, dataset: tables.Dataset, on_trial: Callable[[RoundRecord], None] | None = None
) -> tuple[Study, JsonTable]:
    """Choose by a fifth of every client's training rows, predicted by federations that were trained on the rest.

    The score is the mean over clients of the log likelihood of a held-out row under the personal model, averaged over
    draws of the weights. Test and validation rows are not looked at. An option on which training depends takes a
    federation of `trial_rounds` rounds for each candidate, with the first candidates of the others. Those that only
    `personalise` reads, and the temperature, are chosen together on one more federation, of as many rounds as the run:
    how sure models are changes with every round. The run itself then trains on all rows.

    Args:
        study: one that leaves something open.
        dataset: its data.
        on_trial: called after every candidate with a record of round 0, whose one value is the score, such as
            "clusters=2".

    Returns:
        The study with the best candidates, the first of equals, and what labels should say of the choice.

    Raises:
        StudyError: when the study leaves nothing open, or every candidate fails.
    """
    if not study.held_out:
        raise StudyError(f"{study.method.name} leaves nothing to be chosen", hint="run the study as it is")
    train = dataset.groups["existing"].train
    part = _parted(dataset)

    def tell(name: str, score: float) -> None:
        if on_trial is not None:
            on_trial(RoundRecord(0, train.clients, values={name: score}))

    notes: JsonTable = {}
    for asked in study.held_out:
        if not asked.after:
            study, notes[asked.option] = _by_training(study, asked, part, tell)
    if study.held_out:
        study, more = _after_training(study, part, tell)
        notes |= more
    return study, notes


def first(study: Study, dataset: tables.Dataset) -> Study:
    """Take the first candidate of everything that a study leaves open, without any trial.

    Args:
        study: any.
        dataset: its data.

    Returns:
        The study, with which everything can be checked that does not depend on the choice.

    Raises:
        DataError: naming a client that has too few rows to choose by.
    """
    if study.held_out:
        _parted(dataset)
    for asked in study.held_out:
        candidates = (1.0,) if asked is TEMPERATURE else asked.candidates(study.method.options)
        study = _with(study, asked, candidates[0])
    return study


def _parted(dataset: tables.Dataset) -> tables.Dataset:
    """Take a fifth of every client's training rows for test rows."""
    cut = split.folds if dataset.classes is None else split.stratified_folds
    rest, held = cut(dataset.groups["existing"].train, _FOLDS)[0]
    return replace(dataset, groups={"existing": tables.Group(rest, held)})


def _by_training(
    study: Study, asked: HeldOutChoice, part: tables.Dataset, tell: Callable[[str, float], None]
) -> tuple[Study, JsonTable]:
    """Train a short federation for every candidate, with the first candidates of what is open after the rounds."""
    rounds, scores, causes = min(study.method.options.trial_rounds, study.plan.rounds), {}, list[str]()
    first = {one.option: one.candidates(study.method.options)[:1] for one in _later(study)}
    for candidate in asked.candidates(study.method.options):
        try:
            ((_, scores[candidate], _, _),) = _trial(_with(study, asked, candidate), part, rounds, first)
        except (ClientError, NumericalError) as error:  # score NaN, the search continues
            scores[candidate] = math.nan
            causes.append(str(error))
        tell(f"{asked.option}={candidate}", scores[candidate])
    chosen, note = _chosen(asked.option, scores, rounds, causes)
    return _with(study, asked, chosen), note


def _after_training(study: Study, part: tables.Dataset, tell: Callable[[str, float], None]) -> tuple[Study, JsonTable]:
    """Train one federation, and choose among all combinations of what its rounds do not depend on."""
    wanted = {one.option: one.candidates(study.method.options) for one in _later(study)}
    result, notes = _trial(study, part, study.plan.rounds, wanted), {}
    for one in result:
        tell(", ".join(f"{name}={value}" for name, value in one.values.items()) or "temperature=1.0", one.score)
    known = [one for one in result if math.isfinite(one.score)]
    best = max(known, key=lambda one: one.score, default=None)
    for asked in study.held_out:
        if asked is TEMPERATURE:
            if best is not None:
                scores = {"1.0": best.untempered} | {str(best.temperature): best.score}
                note = {"chosen": best.temperature, "scores": scores, "rule": _words(study.plan.rounds)}
                study, notes[asked.option] = _with(study, asked, best.temperature), note
            continue
        by_value: dict[Any, float] = {one.values[asked.option]: math.nan for one in result}
        for one in known:
            before = by_value[one.values[asked.option]]
            by_value[one.values[asked.option]] = one.score if math.isnan(before) else max(before, one.score)
        chosen, notes[asked.option] = _chosen(asked.option, by_value, study.plan.rounds)
        study = _with(study, asked, chosen)
    if best is None:
        raise StudyError("no temperature could be chosen: the likelihood of held-out rows is not finite")
    return study, notes


def _chosen(
    option: str, scores: Mapping[object, float], rounds: int, causes: Sequence[str] = ()
) -> tuple[object, JsonTable]:
    """Take the candidate of the highest score, the first of equals, and say how."""
    known = {candidate: score for candidate, score in scores.items() if math.isfinite(score)}
    if not known:
        why = f"; the first failed so: {causes[0]}" if causes else ""
        raise StudyError(f"no candidate of {option} could be trained: {', '.join(map(str, scores))}{why}")
    best = max(known, key=lambda candidate: known[candidate])
    shown = {str(candidate): score if candidate in known else None for candidate, score in scores.items()}
    return best, {"chosen": best, "scores": shown, "rule": _words(rounds)}


def _words(rounds: int) -> str:
    return (
        f"mean log likelihood per held-out training row after {rounds} rounds on the other four fifths, in nats; the "
        "run trains on all"
    )


def _later(study: Study) -> list[HeldOutChoice]:
    """Options that are open and on which no round depends."""
    return [one for one in study.held_out if one.after and one is not TEMPERATURE]


def _trial(study: Study, part: tables.Dataset, rounds: int, wanted: Mapping[str, Sequence[object]]) -> list[_Scored]:
    """Train one federation; score every combination of wanted values on the rows that it was not given.

    Options with these values are read by `personalise` alone, so that one training serves them all.
    """
    combinations = [dict(zip(wanted, values, strict=True)) for values in product(*wanted.values())]
    studies = [_settled(study, _later(study), values) for values in combinations]
    (method, groups), *others = [prepare(one, part) for one in studies]
    group, plan = groups["existing"], replace(study.plan, rounds=min(rounds, study.plan.rounds))
    state, sums = engine.run_rounds(method, group.train, plan), [_Held(group) for _ in studies]
    method, *rest = (federation_state.at_rates(one, state) for one in (method, *(other for other, _ in others)))

    errors = residuals.learn(study, method, state, group)

    def scored(index: Tensor, message: object, clients: object, rows: ClientBatch, noise: Noise) -> list[Tensor]:
        first = personalisation.posteriors(method, message, clients, rows, noise.copy())
        others = (one.personalise_again(first, message, clients, rows, noise.copy()) for one in rest)
        every = map(errors.around, chain((first,), others))
        return [held.log_prob(one, index) for one, held in zip(every, sums, strict=True)]

    for index, result in personalisation.personal_calls(method, state, group.train, plan, scored):
        for log_prob, held in zip(result, sums, strict=True):
            held.add(log_prob, index)
    tempering = TEMPERATURE in study.held_out
    return [_Scored(values, *held.score(tempering)) for values, held in zip(combinations, sums, strict=True)]


class _Held:
    """Log likelihoods of the held-out rows of all clients."""

    def __init__(self, group: ScaledGroup) -> None:
        self._group, self._labelled = group, not group.train.y.is_floating_point()
        self._log_probs: list[Tensor] = []  # [M, C] of labels, [M] of numbers
        self._y: list[Tensor] = []
        self._weight: list[Tensor] = []  # of a row in the mean over clients

    def log_prob(self, posterior: Any, index: Tensor) -> Tensor:
        """Log probabilities of all labels [k, N, C], or log densities [k, N], of some clients' rows."""
        asked, own = self._group.test.select(index.cpu()), self._group.raw.test.select(index.cpu())
        if self._labelled:
            return predictive(posterior, asked.x).log_probs
        units = units_of(posterior.predict(asked.x), self._group, index)
        return units.log_prob(own.y) + self._group.units.y_std[index].log().unsqueeze(-1)

    def add(self, predictive: Tensor, index: Tensor) -> None:
        """Take what `log_prob` has found."""
        own = self._group.raw.test.select(index.cpu())
        weight = own.size.clamp_min(1.0).reciprocal() / self._group.test.clients
        self._log_probs.append(predictive[own.mask].double())
        self._y.append(own.y[own.mask])
        self._weight.append(weight.unsqueeze(-1).expand_as(own.mask)[own.mask].to(predictive.device).double())

    def score(self, tempering: bool) -> tuple[float, float, float]:
        """Mean log likelihood under the best temperature, that temperature, and the mean under 1."""
        log_probs, y, weight = (torch.cat(parts) for parts in (self._log_probs, self._y, self._weight))
        if not self._labelled:
            plain = float((weight * log_probs).sum())
            return plain, 1.0, plain

        def likelihood(temperature: float) -> float:
            own = temper(log_probs, temperature).gather(-1, y.long().unsqueeze(-1)).squeeze(-1)
            return float((weight * own).sum())

        plain = likelihood(1.0)
        if not tempering or not math.isfinite(plain):
            return plain, 1.0, plain
        result = best_temperature(log_probs, y, weight)
        return likelihood(result), result, plain


def remember(folder: Path, notes: JsonMapping) -> None:
    """Write a choice into a run folder, so that a resumed run need not choose again.

    Args:
        folder: of the run.
        notes: what `choose` says.

    Raises:
        CheckpointError: when it cannot be written.
    """
    put(folder, {FILE: (json.dumps(notes, indent=1) + "\n").encode()})


def recall(study: Study, folder: Path) -> tuple[Study, JsonTable]:
    """Take the choice that a run folder holds.

    Args:
        study: any; one that leaves nothing to be chosen is given back.
        folder: of a run.

    Returns:
        The study with what was chosen, and what labels should say of it, if anything.

    Raises:
        DataError: when the choice cannot be read.
    """
    path = folder / FILE
    if not study.held_out or not path.is_file():
        return study, {}
    try:
        notes = json.loads(path.read_text("utf-8"))
        for asked in study.held_out:
            value = notes[asked.option]["chosen"]
            kind = type(study.model) if asked is TEMPERATURE else type(study.method.options)
            settings.parse(kind, {asked.option: value}, f"{path}:")  # of the option's type
            study = _with(study, asked, value)
        return study, notes
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read: {error}", hint="choose another --out") from error


def without_choice(study: Study, folder: Path) -> Study:
    """Undo a run folder's choice: rows reserved from now on have influenced it.

    Args:
        study: of the run, with what was chosen.
        folder: of the run.

    Returns:
        The study as it was before the choice; the same where nothing was chosen.

    Raises:
        DataError: when the choice cannot be read.
    """
    path = folder / FILE
    if not path.is_file():
        return study
    try:
        notes = json.loads(path.read_text("utf-8"))
        settled = [one for one in (*study.recipe.held_out, TEMPERATURE) if one.option in notes]
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read: {error}", hint="choose another --out") from error
    for asked in settled:
        study = _with(study, asked, "held-out")
    return study


def _settled(study: Study, asked: Sequence[HeldOutChoice], values: JsonMapping) -> Study:
    for one in asked:
        study = _with(study, one, values[one.option])
    return study


def _with(study: Study, asked: HeldOutChoice, value: Any) -> Study:
    if asked is TEMPERATURE and isinstance(study.model, NetworkModel | InstanceModel):
        return replace(study, model=replace(study.model, temperature=value))
    options = replace(study.method.options, **{asked.option: value})
    return replace(study, method=replace(study.method, options=options))
