"""Fingerprints of clients' rows under a run's salt: by them a run knows rows again that it does not keep."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from pacbayes_fl.data import split, tables, twins
from pacbayes_fl.study.data import positions_by_client, rows_by_client


def of_training_rows(dataset: tables.Dataset, salt: str) -> dict[str, str]:
    """Fingerprint the training rows of every existing client, in their order.

    Args:
        dataset: all rows.
        salt: of the run, in hexadecimal digits.

    Returns:
        SHA-256 in hexadecimal digits, by client.
    """
    train = dataset.groups["existing"].train
    if dataset.rows is None:
        texts = split.client_hashes(train)
    else:
        where = positions_by_client(dataset.rows)
        texts = {name: repr(where[name]) for name in train.names}
    return _salted(texts, salt)


def for_ledger(dataset: tables.Dataset) -> dict[str, frozenset[bytes]]:
    """Fingerprint every training row by its values, wherever it is read from and however it was rounded.

    A row is known by its cells of `twins.rounding_cells`. Of numbers to be predicted it is known by its client and its
    target too, whichever columns a study takes: by the target to the bit, and by the cells of two targets that are
    neighbours in size. Those of a single target are so few that clients of one name would share some by chance, and
    that whoever holds the fingerprints could try them all.

    Args:
        dataset: all rows, in the data's own units.

    Returns:
        SHA-256 of every row of the existing clients, by client; no order.
    """
    train = dataset.groups["existing"].train
    numbers, result = train.y.is_floating_point(), dict[str, frozenset[bytes]]()
    for name, rows in zip(train.names, split.rows_of(train), strict=True):
        prints = {*_rounded("row", rows)}
        if numbers:
            prints.update(hashlib.sha256(f"{name!r} {y!r}".encode()).digest() for y in rows[:, -1].tolist())
            targets = np.unique(rows[:, -1])
            prints.update(_rounded(f"targets {name!r}", np.stack((targets[:-1], targets[1:]), 1)))
        result[name] = frozenset(prints)
    return result


def _rounded(what: str, rows: split.Array) -> Iterator[bytes]:
    """Fingerprint rows [R, c] by their cells, in either grid."""
    for grid, cells in enumerate(twins.rounding_cells(rows)):
        start = hashlib.sha256(f"{what} {grid}\n".encode())
        for row in cells:
            code = start.copy()
            code.update(row.tobytes())
            yield code.digest()


def of_all_rows(dataset: tables.Dataset, salt: str) -> dict[str, list[str]]:
    """Fingerprint the training and test rows of every client of every group.

    Args:
        dataset: all rows.
        salt: of the run, in hexadecimal digits.

    Returns:
        The group, and SHA-256 in hexadecimal digits, by client.
    """
    if dataset.rows is None:
        known = rows_by_client(dataset)
        group_of = {name: label for name, (label, _) in known.items()}
        texts = {name: f"{rows}" for name, (_, rows) in known.items()}
    else:
        files, where = sorted(dataset.provenance["sha256"].items()), positions_by_client(dataset.rows)
        group_of = {name: label for label, name in _members(dataset.groups)}
        texts = {name: f"{where[name]} {files}" for name in group_of}
    return {name: [group_of[name], code] for name, code in _salted(texts, salt).items()}


def _members(groups: Mapping[str, tables.Group]) -> Iterable[tuple[str, str]]:
    return ((label, name) for label, group in groups.items() for name in group.train.names)


def _salted(texts: Mapping[str, str], salt: str) -> dict[str, str]:
    return {name: hashlib.sha256(f"{salt} {text}".encode()).hexdigest() for name, text in texts.items()}
