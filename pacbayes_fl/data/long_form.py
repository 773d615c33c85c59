"""Arrays of a data set in long form, a row per observation: which there are, and how their shapes go together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl.data.archives import Array
from pacbayes_fl.data.layout import CLASSES
from pacbayes_fl.errors import DataError, caller_stacklevel, counted, listed, shown

_LONG_FORM = MappingProxyType(  # R rows, d features, C clients
    {"x": "Rd", "y": "R", "client": "R", "test": "R", "client_name": "C", "client_new": "C"}
    | {"feature_name": "f", "feature_unit": "f", "target_name": "", "target_unit": ""}  # f is d, or 1 for images
)
_OPTIONAL = MappingProxyType(
    {"validation": "R", "classes": "", "feature_shape": "s", "time": "R", "time_kind": ""}
    | {"history_client": "H", "history_time": "H", "history_values": "Hh", "history_name": "h"}
)
_CLASSES = 1000  # that labels may tell of with fewer rows


def known_numbers(numbers: Array) -> Array:
    """Give unsigned numbers, of which torch knows bytes alone, as float64.

    Args:
        numbers: any array.

    Returns:
        The same numbers in one block of memory.
    """
    unsigned = numbers.dtype.kind == "u" and numbers.dtype.itemsize > 1
    return np.ascontiguousarray(numbers, dtype=np.float64 if unsigned else None)


def count_classes(where: str, largest: float, rows: int, limit: int = _CLASSES) -> int:
    """Count the classes 0..largest, of which there cannot be many more than rows.

    Args:
        where: what errors call the labels.
        largest: label.
        rows: how many there are.
        limit: classes that there may be of fewer rows.

    Returns:
        The number of classes.

    Raises:
        DataError: when there are more classes than there can be.
    """
    limit = max(limit, rows)
    if largest + 1 > limit:
        what = f"{where}: label {largest:g} would be one of {largest + 1:g} classes of {rows} rows"
        raise DataError(f"{what}, and the limit is {limit}", hint="number the classes 0, 1, 2, ...")
    return int(largest) + 1


def stated_or_counted(where: str, labels: Mapping[str, Tensor], stated: int | None) -> int:
    """Give the number of classes of a classification.

    Args:
        where: what errors call the labels.
        labels: of every client [m].
        stated: the number, where it is not to be told by the labels.

    Returns:
        The number that is stated, else the largest label and 1.

    Raises:
        DataError: naming a client with a label that is none of those stated; when there is no second class, or more
            than there can be.
    """
    largest = {name: float(y.max()) for name, y in labels.items() if len(y)}
    if stated is None:
        classes = count_classes(where, max(largest.values()), sum(map(len, labels.values())))
        if classes < 2:
            what, hint = f"{where} has only the label 0", "a classification needs two classes at least"
            raise DataError(what, hint=f"{hint}; data.classes says how many there are")
        return classes
    for name, label in largest.items():
        if label >= stated:
            what = f"label {label:g} is none of the {stated} classes 0 to {stated - 1} that data.classes states"
            raise DataError(what, client=name, hint="state as many as anybody has, at all nodes alike")
    return stated


def check_learned(where: str, classes: int, trained: Tensor, others: Tensor) -> None:
    """Warn of classes that nobody learns.

    Args:
        where: what warnings call the labels.
        classes: their number.
        trained: labels [m] of the rows of training of all clients that train.
        others: labels [n] of all other rows.

    Warns:
        UserWarning: of classes that no row of training has, and of the rows that are of them.
    """
    missing = torch.bincount(trained, minlength=classes) == 0
    if not bool(missing.any()):
        return
    labels, count = listed([str(k) for k in missing.nonzero().flatten().tolist()]), int(missing[others].sum())
    known = f"nobody learns it, and {counted(count, 'row')} of test or of new clients hold it"
    what = f"{where}: no row of training has label {labels} of the classes 0 to {classes - 1}"
    what += f": {known}" if count else ", nor any other row"
    hint = "labels that do not begin at 0, or leave numbers out, are better numbered 0, 1, 2, ..."
    warnings.warn(f"{what} ({hint})", stacklevel=caller_stacklevel())


def check_arrays(arrays: Mapping[str, Array]) -> tuple[tuple[int, ...], int | None]:
    """Check that the arrays of a data set fit each other.

    Args:
        arrays: by name.

    Returns:
        The shape of one input, empty for rows of features, and the number of classes, None for regression.

    Raises:
        DataError: naming the array that is missing or does not fit.
    """
    for name in _LONG_FORM:
        if name not in arrays:
            raise DataError(f"array {name!r} is missing", hint="is this file one of data_gen's?")
    for name, least in (("classes", 2), ("feature_shape", 1)):
        given = np.asarray(arrays.get(name, least))
        if given.dtype.kind not in "iu" or (given < least).any():
            raise DataError(f"array {name!r} must hold whole numbers of at least {least}, got {shown(given.tolist())}")
    if "time" in arrays and arrays["time"].dtype not in (np.int64, np.float64):
        raise DataError(f"array 'time' must hold int64 or float64, got {arrays['time'].dtype}")
    shape = tuple(int(size) for size in np.ravel(arrays.get("feature_shape", ())))
    sizes = {"d": math.prod(shape), "f": 1} if shape else {}
    for name, letters in {**_LONG_FORM, **_OPTIONAL}.items():
        if name not in arrays:
            continue
        if not shape:
            letters = letters.replace("f", "d")
        got = np.shape(arrays[name])
        fits = [sizes.setdefault(letter, size) == size for letter, size in zip(letters, got, strict=False)]
        if len(got) != len(letters) or not all(fits):
            wanted = ", ".join(f"{letter}={sizes[letter]}" if letter in sizes else letter for letter in letters)
            raise DataError(f"array {name!r} must be [{wanted}], got {list(got)}")
    return shape, count_classes(
        "array 'classes'", int(arrays["classes"]) - 1, sizes["R"], CLASSES
    ) if "classes" in arrays else None
