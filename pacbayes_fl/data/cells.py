"""Cells of a user's table: columns of names, numbers and words, read so that an error can say where each one stands."""

from __future__ import annotations

import itertools
import math
import re
import unicodedata
from collections.abc import Collection, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pacbayes_fl.data import times
from pacbayes_fl.errors import DataError, shown

Numbers = npt.NDArray[np.float64]

BLANK: Final = frozenset({""})
"""What says that a target is to be predicted."""

GAPS: Final = frozenset({"", "nan", "-nan", "na", "n/a", "<na>", "#n/a", "null", "none", "nat", "-"})
"""What says in lower case that a value is missing, where it may be."""

_UNNAMED: Final = re.compile(r"|Unnamed: \d+(\.\d+)*|rownames|__index_level_\d+__")
_TRUE_OR_FALSE: Final = MappingProxyType({"true": 1.0, "false": 0.0})


class Cells(NamedTuple):
    """A column as it stands in a file.

    Args:
        path: of the file.
        name: of the column.
        values: as read [R].
        places: where each row stands, such as "line 4" [R].
        owners: whose each row is [R].
    """

    path: Path
    name: str
    values: Sequence[object]
    places: Sequence[str]
    owners: Sequence[str] = ()

    def at(self, row: int) -> str:
        """Say where the value of a row stands."""
        return f"{self.path} {self.places[row]}, column {self.name!r}"


def owners(cells: Cells) -> list[str]:
    """Read the name of each row's client.

    Args:
        cells: of the client column.

    Returns:
        Names [R].

    Raises:
        DataError: when one is blank, or two look alike.
    """
    for row, value in enumerate(cells.values):
        if value is None or not str(value).strip():
            raise DataError(f"{cells.at(row)}: the client's name is blank")
    result = [str(value) for value in cells.values]
    check_names(list(dict.fromkeys(result)))
    return result


def check_names(names: Sequence[str]) -> None:
    """Refuse names that look alike: a blank at the end, or an accent written in two ways, makes no other client.

    Args:
        names: of clients, each once.

    Raises:
        DataError: naming the second of two that look alike.
    """
    seen: dict[str, str] = {}
    for name in names:
        first = seen.setdefault(unicodedata.normalize("NFC", name).strip(), name)
        if first != name:
            raise DataError(f"its name differs from {first!r} by what nobody sees", client=name, hint="write it alike")


def array_of(part: object, client: str) -> object:
    """Take what a program holds of a client's rows to something that torch takes.

    Args:
        part: a tensor, an array, or a table or a column of pandas.
        client: its name.

    Returns:
        The tensor, an array in one piece, or anything else as it is.

    Raises:
        DataError: when numbers are complex, or some are masked.
    """
    if isinstance(part, np.ma.MaskedArray) and bool(np.ma.getmaskarray(part).any()):
        raise DataError("some of its numbers are masked", client=client, hint="leave these rows out, or fill them")
    given = part.to_numpy() if hasattr(part, "to_numpy") else part
    if str(getattr(given, "dtype", "")).removeprefix("torch.").startswith("complex"):
        raise DataError("its rows must be real numbers, got complex ones", client=client)
    if not isinstance(given, np.ndarray):
        return given
    whole = np.ascontiguousarray(given)  # torch takes none that is reversed, and warns of one that is read-only
    return whole if whole.flags.writeable else whole.copy()


def numbers(cells: Cells, gaps: Collection[str] = (), hint: str | None = None) -> Numbers:
    """Read a column of numbers; True and False are 1 and 0.

    Args:
        cells: the column.
        gaps: texts in lower case that stand for a missing value; with any, None and NaN do too.
        hint: what to do about a text that is no number.

    Returns:
        [R], finite, or NaN where a value is missing.

    Raises:
        DataError: naming the place of a value that is no finite number.
    """
    values = cells.values
    if not any(isinstance(value, str) and not _plain(value) for value in values):
        try:
            result = np.array(values, dtype=object).astype(np.float64)
        except (TypeError, ValueError, OverflowError):
            pass  # a value has to be named, or means something else
        else:
            if np.isfinite(result).all():
                return result
    result = np.empty(len(values))
    for row, value in enumerate(values):
        result[row] = _number(cells, row, value, gaps, hint)
    return result


def _number(cells: Cells, row: int, value: Any, gaps: Collection[str], hint: str | None) -> float:
    text = value.strip().lower() if isinstance(value, str) else None
    if gaps and (value is None or text in gaps):
        return math.nan
    if text is not None and text in _TRUE_OR_FALSE:
        return _TRUE_OR_FALSE[text]
    try:
        if text is not None and not _plain(value):
            raise ValueError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        if times.read(value):
            hint = "data.time names a column of times"
        raise DataError(f"{cells.at(row)}: {shown(value)} is not a number", hint=hint) from None
    if not math.isfinite(number) and not (gaps and math.isnan(number)):
        raise DataError(f"{cells.at(row)}: {number} is not a finite number", client=cells.owners[row])
    return number


def true_or_false(value: Any) -> Any:
    """Give 1 for a text that says True, 0 for False, and any other value as it is."""
    return _TRUE_OR_FALSE.get(value.strip().lower(), value) if isinstance(value, str) else value


def _plain(value: str) -> bool:
    """Whether a text may be a number: Python takes 1_000 for one and any script's digits, and a table does not."""
    return "_" not in value and value.isascii()


def is_gap(value: object) -> bool:
    """Say whether a cell holds no value: blank, NaN, or one of `GAPS`."""
    return value is None or value != value or str(value).strip().lower() in GAPS  # NaN is not itself


def is_empty(values: Sequence[object]) -> bool:
    """Say whether a column of at least one cell holds no value at all."""
    return bool(values) and all(map(is_gap, values))


def names_rows(name: str, values: Sequence[object]) -> bool:
    """Say whether a column numbers or names the rows of a file, as R and pandas write them in front of the others.

    Args:
        name: of the column: none, or what these two make of none.
        values: of the column, in the order of the file or of the clients.

    Returns:
        Whether it does: no value comes twice, or whole numbers count up and begin again.
    """
    if not _UNNAMED.fullmatch(name.strip()) or len(values) < 2 or any(map(is_gap, values)):
        return False
    texts = [str(value).strip() for value in values]
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return len({*texts}) == len(texts)
    if not all(number.is_integer() for number in numbers):
        return False
    steps = itertools.pairwise(numbers)
    return len({*numbers}) == len(numbers) or all(after in (before + 1, 0, 1) for before, after in steps)


def mostly_words(values: Sequence[object]) -> bool:
    """Say whether more than half of a column's cells that hold a value hold a text that is no number."""
    given = [value for value in values if not is_gap(value)]
    return 2 * sum(map(_is_word, given)) > len(given)


def _is_word(value: object) -> bool:
    if not isinstance(value, str) or value.strip().lower() in _TRUE_OR_FALSE:
        return False
    try:
        float(value)
    except ValueError:
        return True
    return not _plain(value)


def words(cells: Cells, gaps: Collection[str] = ()) -> list[str | None]:
    """Read a column of words, each of which is a category.

    Args:
        cells: the column.
        gaps: texts in lower case that stand for a missing word; with any, None and NaN do too.

    Returns:
        [R], None where a word is missing.

    Raises:
        DataError: naming the place of a word that is missing and may not be.
    """
    result: list[str | None] = []
    for row, value in enumerate(cells.values):
        text = "" if value is None or value != value else str(value).strip()  # NaN is not itself
        if not text or text.lower() in gaps:
            if not gaps:
                raise DataError(f"{cells.at(row)}: a category is missing", hint=MISSING_HINT)
            result.append(None)
        else:
            result.append(text)
    return result


MISSING_HINT: Final = "data.missing = 'drop' leaves such rows out, 'median' fills them in, but for bounds"


def check_labels(cells: Cells, labels: Numbers) -> None:
    """Check that the labels that are given are whole and not negative.

    Args:
        cells: of the target.
        labels: as read [R].

    Raises:
        DataError: naming the place of the first that is not.
    """
    for row in np.flatnonzero(~np.isnan(labels) & ((labels < 0) | (labels != np.round(labels)))).tolist():
        hint = "number the classes 0, 1, 2, ..."
        raise DataError(f"{cells.at(row)}: {labels[row]:g} is not a label", client=cells.owners[row], hint=hint)
