"""Rows that a run keeps from its training, so that its certificates have something to stand on."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl.data import tables
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import DataError, StudyError
from pacbayes_fl.noise import Noise
from pacbayes_fl.results import write_atomic
from pacbayes_fl.study_data import read_arrays
from pacbayes_fl.study_file import Study

FILE = "held_out.npz"
"""What a run folder calls the positions of the rows that its training never saw."""

_STREAM = 2**32 - 2  # round of the noise that shares rows out: no run gets there


class Division(NamedTuple):
    """A data set as the training sees it, and what it does not see.

    Args:
        dataset: with the training rows of existing clients that the training may look at.
        held: the other training rows of the same clients, in the data's own units; None where there are none.
        position: of the held rows among each client's training rows, bool [K, N]; None where there are none.
    """

    dataset: tables.Dataset
    held: ClientBatch | None = None
    position: Tensor | None = None


def divide(study: Study, dataset: tables.Dataset) -> Division:
    """Keep a random part of every existing client's training rows from everything that comes before certificates.

    Which rows, depends on the study's seed, the client's id and the number of its rows, and not on what they hold.

    Args:
        study: its [report.certify] says whether and how many.
        dataset: all rows.

    Returns:
        The division; everything in `dataset` where the scheme is not "split".

    Raises:
        DataError: when a client has too few rows for both parts.
    """
    part = study.report.certify
    if part.scheme != "split":
        return Division(dataset)
    group = dataset.groups["existing"]
    train = group.train
    keys = Noise(study.seed, _STREAM, train.ids).uniform(train.y.new_empty(train.y.shape, dtype=torch.float64))
    order = torch.where(train.mask, keys, torch.inf).argsort(1).argsort(1)
    seen = (part.share * train.size).round().unsqueeze(1)
    few = ((seen < 1) | (seen >= train.size.unsqueeze(1))).squeeze(1)
    if bool(few.any()):
        k = int(few.nonzero()[0])
        what = f"has {int(train.size[k])} training rows, of which a share of {part.share:g} leaves one part empty"
        raise DataError(what, client=train.names[k], hint="another report.certify.share, or scheme = 'folds'")
    held = (order >= seen) & train.mask
    known, kept = (_where(train, rows) for rows in (train.mask & ~held, held))
    groups = {**dataset.groups, "existing": replace(group, train=known)}
    return Division(replace(dataset, groups=groups), kept, held)


def open_rows(study: Study, dataset: tables.Dataset) -> tables.Dataset:
    """Leave what may be chosen by: of a study with certificates, not the rows that they stand on.

    Args:
        study: whose options are to be chosen.
        dataset: all rows.

    Returns:
        The data set without the rows that `divide` holds.

    Raises:
        StudyError: when certificates stand on every row.
        DataError: as `divide`.
    """
    if study.report.certify.scheme == "folds":
        raise StudyError(
            "scheme 'folds' certifies every training row, so that nothing can be chosen by them",
            hint="choose on other data, or without [report.certify] and count what was tried: certify --tried",
        )
    return divide(study, dataset).dataset


def _where(batch: ClientBatch, wanted: Tensor) -> ClientBatch:
    """Take the rows [K, N] that are wanted, in their order."""
    clients = [(batch.x[k][rows], batch.y[k][rows]) for k, rows in enumerate(wanted)]
    return ClientBatch.stack(clients, batch.names, batch.ids)


def save(folder: Path, division: Division) -> None:
    """Write which rows the training does not see; nothing where it sees all.

    Args:
        folder: of the run.
        division: of its data.

    Raises:
        CheckpointError: when it cannot be written.
    """
    if division.held is None or division.position is None:
        return
    arrays = {"client_name": np.array(division.held.names), "held": division.position.numpy()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_atomic(folder / FILE, buffer.getvalue())


def check(folder: Path, division: Division) -> None:
    """Check that the rows that the training does not see are those that it did not see before.

    Clients may have come and gone.

    Args:
        folder: of the run.
        division: of its data as they are today.

    Raises:
        DataError: naming the first client that has others.
    """
    if division.held is None or division.position is None:
        return
    saved = read_arrays(folder / FILE)
    before = {str(name): rows for name, rows in zip(saved["client_name"], saved["held"], strict=True)}
    for name, rows in zip(division.held.names, division.position.numpy(), strict=True):
        if name in before and np.flatnonzero(before[name]).tolist() != np.flatnonzero(rows).tolist():
            raise DataError(
                "the rows that were kept from the training are not those that the run was started with",
                client=name,
                hint="restore the data, or choose another --out",
            )
