"""Checks of what a study makes of a user's table, where a guarantee rests on rows that nobody else has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from pacbayes_fl.data import inspection, tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.division import Cut
from pacbayes_fl.data.row_counts import one_row
from pacbayes_fl.data.user_tables import TABLES, Table
from pacbayes_fl.errors import DataError, PrivacyError, StudyError, listed
from pacbayes_fl.study.config.parts import DataPart
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.rows.scaling import bounds_of

_MOST: Final = 0.5  # of the test rows


def check_classes(study: Study) -> None:
    """Refuse a number of classes that is told by clients' labels where these are private, or that is of no labels.

    Args:
        study: any.

    Raises:
        PrivacyError: when the classes of a private run would be counted.
        StudyError: when it states classes and learns numbers.
        DataError: when the data set of a program has another number.
    """
    data, given = study.data, study.instances.data
    counted = None if given is None else given.classes
    labels = counted is not None or data.task == "classification"
    if data.classes is None:
        if study.privacy.epsilon is not None and labels and (given is not None or of_table(data.source)):
            what = "[data] classes = 'none' counts the classes by the labels of all clients, which no epsilon covers"
            raise PrivacyError(what, hint="state what everybody may know: data.classes = 10")
    elif not labels:
        what = f"[data] classes = {data.classes} is of labels, and task = {data.task!r} learns numbers"
        raise StudyError(what, hint="data.task = 'classification'; or drop classes")
    elif counted not in (None, data.classes):
        what = f"[data] classes = {data.classes}, and the data set that was given has {counted}"
        raise DataError(what, hint="make it with classes=..., or give the rows of every client")


def of_table(source: str) -> bool:
    """Whether rows are read from a user's table.

    Args:
        source: of a study's data.
    """
    return Path(source).suffix.lower() in TABLES


def check_columns(study: Study) -> None:
    """Refuse features that tell a client of others' rows, or a prior of the rows of its bound.

    Args:
        study: on a table.

    Raises:
        PrivacyError: when the categories of a private run would be those of all clients' rows.
        StudyError: when a bound's rows would stand in other rows' lags, medians or categories.
    """
    data, certify = study.data, study.report.certify
    learned = [name for name in data.categorical if name not in data.categories]
    if learned and study.privacy.epsilon is not None:
        what = f"[data] categories of {listed(learned)} would be the words of all clients' rows"
        hint = f'data.categories = {{ {learned[0]} = ["...", "..."] }} says them'
        raise PrivacyError(f"{what}, and a private run releases nothing else of these", hint=hint)
    if certify.scheme == "none":
        return
    if learned:
        what = f"[data] categories of {listed(learned)} are the words of all training rows"
        hint = f'data.categories = {{ {learned[0]} = ["...", "..."] }} says them'
        raise StudyError(f"{what}, also of those that a certificate needs untouched", hint=hint)
    if made := made_of_others(data):
        raise StudyError(made, hint="report.certify.scheme = 'none'; or leave it out")


def made_of_others(data: DataPart) -> str:
    """Reason why rows have no certificate where the table's features make them of each other.

    Args:
        data: of a study.

    Returns:
        The reason; nothing where each row is its own.
    """
    past = [name for name in data.features if data.feature(name, ()).known_later]
    if not past and data.missing != "median":
        return ""
    name = f"[data] features has {past[0]!r}" if past else "[data] missing = 'median'"
    return f"{name}: rows are made of each other, and a certificate needs rows that are independent draws"


def check_targets(data: DataPart, table: Table) -> None:
    """Refuse targets beyond bounds of their rows, or without a transform, while it is known in which lines these stand.

    Args:
        data: of a study, whose bounds may be columns.
        table: as read.

    Raises:
        StudyError: as `bounds_of`.
        DataError: naming the first client with such a row, and its line.
    """
    by_row = isinstance(data.lower_bound, str) or isinstance(data.upper_bound, str)
    bounds = bounds_of(data, table.features) if by_row else None
    transform = None if data.task == "classification" else data.target_transform
    if bounds is None and transform is None:
        return
    for name, rows in table.clients.items():
        batch = ClientBatch.stack([rows], [name], [0])
        if bounds is not None:
            bounds.check(batch, table.place)
        if transform is not None:
            transform.check(batch, table.place)


def order_of_file(name: str, cut: Cut | None) -> str | None:
    """Say that the order of a table's rows decides which are scored.

    Args:
        name: of the file.
        cut: how its rows were cut, as the data set's provenance has it; None where the file says it itself.

    Returns:
        The remark, None where it does, or a column decides.
    """
    if cut is None or cut["by"] != "file":
        return None
    what = f"{name}: the rows are taken in the order of the file for that of time, and the last ones are test rows"
    return f"{what}; data.time names a column of times, a column 'split' says which are test rows"


def remarks(dataset: tables.Dataset) -> list[str]:
    """Say all that is worth a warning of a table's rows.

    Args:
        dataset: of a table.

    Returns:
        The remarks of `single_rows`, `copied_clients`, `copied_target` and `beyond_training`, of those that have one.
    """
    checks = (single_rows, copied_clients, copied_target, beyond_training)
    return [said for check in checks if (said := check(dataset)) is not None]


def single_rows(dataset: tables.Dataset) -> str | None:
    """Say whose training rows are but one, however often it stands there, and tell no spread.

    Args:
        dataset: of a table.

    Returns:
        The remark, None where there is no such client.
    """
    train = dataset.groups["existing"].train
    who = [name for name, one in zip(train.names, one_row(train).tolist(), strict=True) if one]
    if not who:
        return None
    what = f"{listed(who)}: all training rows are one and the same, or there is but one"
    return f"{what}; how much their columns vary is known from other clients alone"


def copied_clients(dataset: tables.Dataset) -> str | None:
    """Say which clients are copies of one another, which count as several in training, means and intervals.

    Args:
        dataset: of a table.

    Returns:
        The remark, None where there is no such client.
    """
    copies = inspection.same_rows(dataset)
    return "; ".join(inspection.same_rows_said(copies)) if copies else None


def copied_target(dataset: tables.Dataset) -> str | None:
    """Say which features are the target itself, by which scores are as good as they look in vain.

    Args:
        dataset: of a table.

    Returns:
        The remark, None where there is no such feature.
    """
    copies = inspection.target_copies(dataset)
    return ": ".join(inspection.target_copies_said(copies, dataset.target.name)) if copies else None


def beyond_training(dataset: tables.Dataset) -> str | None:
    """Say in which features most test rows lie beyond all training rows, where a model can but go on as it likes.

    Args:
        dataset: of a table.

    Returns:
        The remark, None where there is no such feature.
    """
    train, test = ([getattr(group, part) for group in dataset.groups.values()] for part in ("train", "test"))
    known = [x for batch in train for x in _rows_by_client(batch)]
    asked = [x for batch in test for x in _rows_by_client(batch)]
    if dataset.feature_shape or not known or not asked:
        return None
    low, high = torch.stack([x.amin(0) for x in known]).amin(0), torch.stack([x.amax(0) for x in known]).amax(0)
    beyond = torch.stack([((x < low) | (x > high)).sum(0) for x in asked]).sum(0) / sum(map(len, asked))
    shares = zip(dataset.features, beyond.tolist(), strict=True)
    named = [f"{column.name!r} ({share:.0%})" for column, share in shares if share > _MOST]
    if not named:
        return None
    what = f"most test rows lie beyond the training rows of all clients in {listed(named)}"
    return f"{what}: what is predicted there is an extrapolation, which no training row vouches for"


def _rows_by_client(batch: ClientBatch) -> list[Tensor]:
    """The rows of every client that has some [m_k, d]."""
    return [x[:size] for x, size in zip(batch.x, batch.size.long().tolist(), strict=True) if size]
