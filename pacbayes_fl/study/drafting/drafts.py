"""A first study of a user's table is made one that runs: what a run would refuse is decided, and said."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from pacbayes_fl import settings
from pacbayes_fl.data import class_labels, division, split, user_tables
from pacbayes_fl.data.layout import span
from pacbayes_fl.data.tables import Dataset
from pacbayes_fl.errors import DataError, StudyError, listed
from pacbayes_fl.files import JsonTable
from pacbayes_fl.study.config.parts import DataPart
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study

_NEAR: Final = 0.05  # of the largest target, below which the least one is near 0
_PERCENT: Final = re.compile(r"per_?c|pct|%|share|rate|ratio", re.I)


class Draft(NamedTuple):
    """A study that runs.

    Args:
        table: what it says.
        study: the same.
        dataset: its data.
        remarks: sentences on what was decided.
    """

    table: JsonTable
    study: Study
    dataset: Dataset
    remarks: tuple[str, ...]


def runnable(table: JsonTable, where: Path) -> Draft:
    """Leave out the clients that have no training or no test rows, and allow rows that repeat, where a study has some.

    Args:
        table: of the study, of a user's table.
        where: of the study, for errors.

    Returns:
        The study as it runs.

    Raises:
        StudyError: when it names what there is not, or all clients would be left out.
        DataError: when the rows cannot be used.
    """
    remarks = list[str]()
    study = Study.from_table(table, str(where))
    try:
        dataset = _load(study)
    except DataError:
        short, every = _short(study)
        if not short:
            raise
        remarks.append(
            f"{len(short)} of {every} clients left out by exclude_clients, without rows for both training and test: "
            f"{listed(short)}; `join` forecasts for them"
        )
        table = settings.merge(table, {"data": {"exclude_clients": short}})
        study = Study.from_table(table, str(where))
        dataset = _load(study)
    repeats: dict[str, list[int]] = {}
    for group in dataset.groups.values():
        repeats |= split.shared(group.train, group.test, group.times)
    if repeats:
        table = settings.merge(table, {"data": {"duplicate_rows": "allow"}})
        count = sum(map(len, repeats.values()))
        remarks.append(
            f"test rows that equal a training row are allowed by duplicate_rows, {count} of {listed([*repeats])}: "
            "scores may flatter, certificates count no row that was trained on; 'refuse' stops instead"
            f"{'' if study.data.time else ', and data.time tells rows apart by their times'}"
        )
        study = Study.from_table(table, str(where))
    remarks += _impossible(study, dataset)
    return Draft(table, study, dataset, tuple(remarks))


def _load(study: Study) -> Dataset:
    return load(replace(study, data=replace(study.data, duplicate_rows="allow")))


def _short(study: Study) -> tuple[list[str], int]:
    """Name the clients that cannot be divided into training and test rows, and count all."""
    part = study.data
    task: user_tables.Task = "classification" if part.task == "classification" else "regression"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they say is said when the others are read
        rows = user_tables.read_rows(Path(part.source), part, task)
    names = division.lacking(rows, part.test.share, None if part.test.last is None else span(part.test.last))
    if names and len(names) == len(rows.clients):
        what = f"no client in column {part.client!r} of {part.source} has rows to train on and others to test on"
        raise StudyError(what, hint=_of_nobody(part, rows))
    return names, len(rows.clients)


def _of_nobody(part: DataPart, rows: user_tables.Table) -> str:
    """Say what is done about a table of which no client has rows for both sides."""
    if rows.split is None:
        most = max(len(y) for _, y in rows.clients.values())
        each = "every client has a single row; " if most == 1 else ""
        return f"{each}--client names a column whose values repeat"
    some = f"column {part.split!r} gives none both 'train' and 'test': mark some rows of each client"
    return f"{some}; or rename it, and the last rows of each are test rows"


def _impossible(study: Study, dataset: Dataset) -> list[str]:
    """Say that predictions may lie where no target does, of targets that end near 0, at 1 or at 100."""
    if dataset.classes is not None or study.data.task == "classification":
        return []
    batches = [batch for group in dataset.groups.values() for batch in (group.train, group.test)]
    values = np.concatenate([batch.y[batch.mask].cpu().numpy() for batch in batches])
    low, high = float(values.min()), float(values.max())
    if not 0 <= low < high or class_labels.like_labels(values.tolist()):
        return []
    name = dataset.target.name
    if high <= 1 and bool((values % 1).any()):
        return [f"targets {name!r} lie in [0, 1], and predictions may not: lower_bound = 0 and upper_bound = 1 say so"]
    if high <= 100 and _PERCENT.search(name):
        ends = "lower_bound = 0 and upper_bound = 100 say so of percentages"
        return [f"targets {name!r} lie in [0, 100], and predictions may not: {ends}"]
    if low <= _NEAR * high:
        other = "transform = 'log1p' learns them on a scale of ratios"
        return [f"targets {name!r} are never below 0, and predictions may be: lower_bound = 0 says so; {other}"]
    return []
