"""Choosing what a study leaves open: by the likelihood of training rows that the federation was not given."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pacbayes_fl import settings
from pacbayes_fl.data import split, tables
from pacbayes_fl.errors import ClientError, DataError, NumericalError, StudyError
from pacbayes_fl.results import RoundRecord, write_atomic
from pacbayes_fl.study_file import Study
from pacbayes_fl.tune import held_out_scores

FILE = "choice.json"
"""What a run folder calls its choice."""

_FOLDS = 5


def choose(
    study: Study, dataset: tables.Dataset, on_trial: Callable[[RoundRecord], None] | None = None
) -> tuple[Study, dict[str, Any]]:
    """Train each candidate on four fifths of every client's training rows, and score it on the rest.

    The score is the mean over clients of the log likelihood of a held-out row under the personal model, averaged over
    draws of the weights. Test and validation rows are not looked at.

    Args:
        study: one that leaves an option open.
        dataset: its data.
        on_trial: called after every candidate with a record of round 0, whose one value is the score, such as
            "clusters=2".

    Returns:
        The study with the best candidate, the first of equals, and what labels should say of the choice.

    Raises:
        StudyError: when the study leaves nothing open, or every candidate fails.
    """
    asked = study.held_out
    if asked is None:
        raise StudyError(f"{study.method.name} leaves nothing to be chosen", hint="run the study as it is")
    rounds = min(study.method.options.trial_rounds, study.plan.rounds)
    train = dataset.groups["existing"].train
    rest, held = (split.folds if dataset.classes is None else split.stratified_folds)(train, _FOLDS)[0]
    part = replace(dataset, groups={"existing": tables.Group(rest, held)})
    scores: dict[Any, float] = {}
    for candidate in asked.candidates(study.method.options):
        one = _with(study, asked.option, candidate)
        one = replace(one, federation=replace(one.federation, rounds=rounds))
        scores[candidate] = _score(one, part)
        if on_trial is not None:
            on_trial(RoundRecord(0, train.clients, values={f"{asked.option}={candidate}": scores[candidate]}))
    known = {candidate: score for candidate, score in scores.items() if math.isfinite(score)}
    if not known:
        raise StudyError(f"no candidate of {asked.option} could be trained: {', '.join(map(str, scores))}")
    best = max(known, key=lambda candidate: known[candidate])
    words = f"mean log likelihood per held-out training row after {rounds} rounds, in nats"
    shown = {str(candidate): score if candidate in known else None for candidate, score in scores.items()}
    return _with(study, asked.option, best), {asked.option: {"chosen": best, "scores": shown, "rule": words}}


def _score(study: Study, part: tables.Dataset) -> float:
    """Mean log likelihood of the held-out rows; NaN for a candidate that fails, which is no reason to stop."""
    try:
        return -held_out_scores(study, part)["nlpd" if part.classes is None else "nll"]
    except (ClientError, NumericalError):
        return math.nan


def remember(folder: Path, notes: Mapping[str, Any]) -> None:
    """Write a choice into a run folder, so that a resumed run need not choose again.

    Args:
        folder: of the run.
        notes: what `choose` says.

    Raises:
        CheckpointError: when it cannot be written.
    """
    write_atomic(folder / FILE, (json.dumps(notes, indent=1) + "\n").encode())


def recall(study: Study, folder: Path) -> tuple[Study, dict[str, Any]]:
    """Take the choice that a run folder holds.

    Args:
        study: any; one that leaves nothing to be chosen is given back.
        folder: of a run.

    Returns:
        The study with what was chosen, and what labels should say of it, if anything.

    Raises:
        DataError: when the choice cannot be read.
    """
    path, asked = folder / FILE, study.held_out
    if asked is None or not path.is_file():
        return study, {}
    try:
        notes = json.loads(path.read_text("utf-8"))
        chosen = {asked.option: notes[asked.option]["chosen"]}
        settings.parse(type(study.method.options), chosen, f"{path}:")  # of the option's type
        return _with(study, asked.option, chosen[asked.option]), notes
    except (ValueError, KeyError, TypeError, StudyError) as error:
        raise DataError(f"{path} cannot be read: {error}", hint="choose another --out") from error


def reopened(study: Study, folder: Path) -> Study:
    """Leave open again what a run folder's choice has settled: rows that are kept from then on had a part in it.

    Args:
        study: of the run, with what was chosen.
        folder: of the run.

    Returns:
        The study as it was before the choice; the same where nothing was chosen.
    """
    asked = study.recipe.held_out
    if asked is None or not (folder / FILE).is_file():
        return study
    return _with(study, asked.option, "held-out")


def _with(study: Study, option: str, value: Any) -> Study:
    options = replace(study.method.options, **{option: value})
    return replace(study, method=replace(study.method, options=options))
