"""Choosing cFedBayes's number of clusters: by the likelihood of training rows that the federation was not given."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pacbayes_fl.data import split, tables
from pacbayes_fl.errors import DataError
from pacbayes_fl.methods.weight_recipes import CFedBayesOptions
from pacbayes_fl.results import write_atomic
from pacbayes_fl.study_file import Study
from pacbayes_fl.tune import held_out_scores

_FILE = "clusters.json"
_FOLDS = 5


def open_question(study: Study) -> bool:
    """Whether a study leaves its number of clusters to be chosen.

    Args:
        study: any.

    Returns:
        True for cFedBayes with `clusters = "held-out"`.
    """
    return isinstance(study.method.options, CFedBayesOptions) and study.method.options.clusters == "held-out"


def choose(study: Study, dataset: tables.Dataset) -> tuple[Study, dict[str, Any]]:
    """Train each number of clusters on four fifths of every client's training rows, and score it on the rest.

    The score is the mean over clients of the log likelihood of a held-out row under the personal model, averaged over
    draws of the weights. Test and validation rows are not looked at.

    Args:
        study: with `clusters = "held-out"`.
        dataset: its data.

    Returns:
        The study with the best number, the smallest of equals, and what labels should say of the choice.
    """
    options = study.method.options
    train = dataset.groups["existing"].train
    rest, held = (split.folds if dataset.classes is None else split.stratified_folds)(train, _FOLDS)[0]
    part = replace(dataset, groups={"existing": tables.Group(rest, held)})
    scores = {}
    for clusters in range(1, options.max_clusters + 1):
        one = _with(study, clusters)
        one = replace(one, federation=replace(one.federation, rounds=options.cluster_rounds))
        scores[clusters] = -held_out_scores(one, part)["nlpd" if dataset.classes is None else "nll"]
    known = {clusters: score for clusters, score in scores.items() if math.isfinite(score)}
    best = max(known or scores, key=lambda clusters: scores[clusters])
    words = f"mean log likelihood per held-out training row after {options.cluster_rounds} rounds, in nats"
    shown = {str(clusters): score if clusters in known else None for clusters, score in scores.items()}
    return _with(study, best), {"clusters": {"chosen": best, "scores": shown, "rule": words}}


def remember(folder: Path, notes: Mapping[str, Any]) -> None:
    """Write a choice into a run folder, so that a resumed run need not choose again.

    Args:
        folder: of the run.
        notes: what `choose` says.

    Raises:
        CheckpointError: when it cannot be written.
    """
    write_atomic(folder / _FILE, (json.dumps(notes, indent=1) + "\n").encode())


def recall(study: Study, folder: Path) -> tuple[Study, dict[str, Any]]:
    """Take the choice that a run folder holds.

    Args:
        study: any; one that leaves nothing to be chosen is given back.
        folder: of a run.

    Returns:
        The study with the number of clusters that was chosen, and what labels should say of it, if anything.

    Raises:
        DataError: when the choice cannot be read.
    """
    path = folder / _FILE
    if not open_question(study) or not path.is_file():
        return study, {}
    try:
        notes = json.loads(path.read_text("utf-8"))
        return _with(study, int(notes["clusters"]["chosen"])), notes
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error}", hint="choose another --out") from error


def _with(study: Study, clusters: int) -> Study:
    options = replace(study.method.options, clusters=clusters)
    return replace(study, method=replace(study.method, options=options))
