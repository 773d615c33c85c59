"""What equal rows have in common, whatever they are: copies must not count as draws of their own."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
from torch import Tensor

from pacbayes_fl.certificates.outputs import array_of
from pacbayes_fl.errors import AssumptionError


def keys_of(inputs: Sequence[object]) -> list[object]:
    """Give what equal rows have in common.

    Args:
        inputs: of the rows [n]: an array, a tensor, a table or a sequence of whatever.

    Returns:
        One a row, to be compared and hashed: equal where rows are, and only there.

    Raises:
        AssumptionError: when there are rows of a type whose content nobody can compare.
    """
    try:
        return [_key(each) for each in array_of(inputs)]
    except (ValueError, TypeError, RuntimeError):  # rows of several lengths, or tensors that numpy has no type of
        return [_key(each) for each in inputs]


def _key(row: Any, above: tuple[int, ...] = ()) -> object:
    """Give a key by content; -0 is 0, 1 is 1.0, and NaN is NaN. Text would leave the middle of a long array out."""
    if isinstance(row, Tensor):
        row = array_of(row)
    if isinstance(row, np.ndarray) and row.dtype != object:
        return row.shape, (row + 0 if row.dtype.kind in "fc" else row).tobytes()
    if id(row) in above:
        return "again", above.index(id(row))
    within = (*above, id(row))
    if isinstance(row, Mapping):
        return tuple((name, _key(each, within)) for name, each in sorted(row.items(), key=repr))
    if isinstance(row, np.ndarray | list | tuple):
        return tuple(_key(each, within) for each in row)
    value = row.item() if isinstance(row, np.generic) else row
    if isinstance(value, float) and value != value:
        return "NaN"
    if isinstance(value, weakref.ref):  # of an object to what holds it
        return "reference"
    kind: type[object] = type(value)
    own = kind.__hash__ not in (None, object.__hash__) and kind.__eq__ is not object.__eq__
    if own or value is None or isinstance(value, type | FunctionType | BuiltinFunctionType):
        return value
    if hasattr(value, "toarray"):  # a sparse row
        return kind, _key(np.asarray(value.toarray()))
    if hasattr(value, "__array_interface__") or hasattr(value, "__array__"):  # an image
        return kind, _key(np.asarray(value))
    return kind, _key(_content(value), within)


def _content(value: object) -> object:
    """List what an object holds, as pickling it would: by `__dict__`, `__slots__` or a method of its own."""
    try:
        made = value.__reduce_ex__(4)
    except Exception as error:  # of any type, by any code
        what = f"rows of the type {type(value).__name__} cannot be compared, and copies must count once: {error}"
        raise AssumptionError(what, hint="give arrays, or rows whose type has __eq__ and __hash__") from error
    if isinstance(made, str):
        return made
    return [*made[:3], *([*each] for each in made[3:5] if each is not None)]
