"""Fingerprints of clients' rows under a run's salt: by them a run knows rows again that it does not keep."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pacbayes_fl.data import split, tables, twins
from pacbayes_fl.study.data import positions_by_client, rows_by_client

_SKETCH: Final = 8  # fingerprints of a column of a client, in either grid
_ODD: Final = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplier for 64 bits

Cells = npt.NDArray[Any]


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

    A row is known by its cells of `twins.rounding_cells`, in whatever order its columns are. Whichever columns a study
    takes, a client is known by its name and two values of a column that are neighbours in size: of numbers to be
    predicted by all such pairs, and by each to the bit, and of any feature with fractions by eight pairs, of the least
    checksums. Those of a single value are so few that clients of one name would share some by chance, and that
    whoever holds the fingerprints could try them all; so are pairs of whole numbers, which count days or years.

    Args:
        dataset: all rows, in the data's own units.

    Returns:
        SHA-256 of every row of the existing clients, by client; no order.
    """
    train = dataset.groups["existing"].train
    numbers, result = train.y.is_floating_point(), dict[str, frozenset[bytes]]()
    flat = train.x.dim() == 3  # of images nobody takes some pixels
    for name, rows in zip(train.names, split.rows_of(train), strict=True):
        prints = {*_rounded("row", rows, ordered=False)}
        if numbers:
            prints.update(hashlib.sha256(f"{name!r} {y!r}".encode()).digest() for y in rows[:, -1].tolist())
            prints.update(_pairs(name, rows[:, -1]))
        for column in rows[:, :-1].T if flat else ():
            if not np.array_equal(column, np.round(column)):
                prints.update(_pairs(name, column, _SKETCH))
        result[name] = frozenset(prints)
    return result


def _pairs(name: str, values: split.Array, most: int | None = None) -> Iterator[bytes]:
    """Fingerprint the values [R] of a client's column, two that are neighbours in size at a time; all, or some."""
    known = np.unique(values)
    return _rounded(f"values {name!r}", np.stack((known[:-1], known[1:]), 1), most)


def _rounded(what: str, rows: split.Array, most: int | None = None, ordered: bool = True) -> Iterator[bytes]:
    """Fingerprint rows [R, c] by their cells, in either grid: all, or those of the least checksums."""
    for grid, cells in enumerate(twins.rounding_cells(rows)):
        start = hashlib.sha256(f"{what} {grid}\n".encode())
        cells = cells if ordered else np.sort(cells, 1)
        for row in cells if most is None else cells[np.argsort(_checksums(cells), kind="stable")[:most]]:
            code = start.copy()
            code.update(row.tobytes())
            yield code.digest()


def _checksums(cells: Cells) -> Cells:
    """Mix the numbers of rows [R, c] into one [R] that says nothing of their size: a copy chooses alike by it."""
    mixed = np.zeros(len(cells), dtype=np.uint64)
    for column in cells.astype(np.uint64).T:
        mixed = (mixed ^ column) * _ODD
        mixed ^= mixed >> np.uint64(29)
    return mixed


def of_dataset(dataset: tables.Dataset) -> str:
    """Fingerprint all rows of all clients together, to tell data sets apart.

    Args:
        dataset: all rows.

    Returns:
        SHA-256 in hexadecimal digits.
    """
    return hashlib.sha256(json.dumps(of_all_rows(dataset, ""), sort_keys=True).encode()).hexdigest()


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
