"""Text tables: values between commas, or between semicolons or tabs, where decimals may be commas."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pacbayes_fl.data import cells, memory
from pacbayes_fl.errors import DataError, shown

_PER_BYTE: Final = 15  # bytes that a table takes in memory for each byte of its text
_WHOLE: Final = re.compile(r"[+-]?\d+", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?", re.ASCII)
_THOUSANDS: Final = re.compile(r"[+-]?\d{1,3}(?:\.\d{3})+", re.ASCII)


def read(path: Path) -> tuple[dict[str, list[Any]], list[str]]:
    """Read a table of texts.

    Values stand between commas; between semicolons or tabs where the header has these and no comma. There "21,5" is the
    number 21.5 in a column of numbers, as spreadsheets write it where decimals are commas.

    Args:
        path: of the file, UTF-8.

    Returns:
        Texts by column, and where each row stands.

    Raises:
        DataError: when it is no such table, or it cannot be told whether a dot groups thousands.
    """
    rows, places = [], []
    memory.require(_PER_BYTE * path.stat().st_size, f"{path}, read,", "keep fewer rows or columns", DataError)
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:  # without the mark that Excel puts first
            separator = _separator(stream.readline(), stream.readline())
            stream.seek(0)
            reader = csv.reader(stream, delimiter=separator)
            names = distinct(path, next(reader, []))
            end = reader.line_num
            for row in reader:
                start, end = end + 1, reader.line_num  # a value in quotes may hold line breaks
                if not row:
                    continue
                places.append(f"line {start}")
                if len(row) != len(names):  # which pandas would fill up in silence
                    which = {",": "comma", ";": "semicolon", "\t": "tab"}[separator]
                    hint = f"is a {which} missing or one too many?"
                    raise DataError(f"{path} {places[-1]}: expected {len(names)} values", hint=hint)
                rows.append(row)
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a CSV table in UTF-8: {error}", hint="save it as UTF-8") from error
    except csv.Error as error:
        raise DataError(f"{path} is not a CSV table: {error}") from error
    columns: dict[str, list[Any]] = {name: [row[j] for row in rows] for j, name in enumerate(names)}
    return (columns if separator == "," else _with_points(path, columns, places)), places


def _separator(header: str, second: str) -> str:
    """Find what stands between the names of the columns, and as often between the values of a row."""
    counts = {}
    for one in (",", ";", "\t"):
        names, values = (len(next(csv.reader([line], delimiter=one), [])) for line in (header, second))
        if names > 1 and values == names:
            counts[one] = names
    if counts:
        return max(counts, key=lambda one: counts[one])
    if len(next(csv.reader([header]), [])) > 1:
        return ","
    return next((one for one in (";", "\t") if one in header), ",")


def distinct(path: Path, names: Sequence[str]) -> list[str]:
    """Check the names of columns.

    Args:
        path: of the file.
        names: as they stand there.

    Returns:
        The names.

    Raises:
        DataError: when there is none, or one twice.
    """
    if not names:
        raise DataError(f"{path} has no columns")
    for name in names:
        if list(names).count(name) > 1:
            raise DataError(f"{path} has two columns {name!r}")
    return list(names)


def _with_points(path: Path, columns: dict[str, list[Any]], places: Sequence[str]) -> dict[str, list[Any]]:
    """Write decimal commas as points."""
    result = {name: _numbers(values) for name, values in columns.items()}
    changed = [name for name in columns if result[name] is not columns[name]]
    for name, values in columns.items() if changed else ():
        known = [(value.strip(), place) for value, place in zip(values, places, strict=True) if not _gap(value)]
        grouped = [(value, place) for value, place in known if "." in value]
        if grouped and all(_WHOLE.fullmatch(value) or _THOUSANDS.fullmatch(value) for value, _ in known):
            value, place = grouped[0]
            what = f"{path} {place}, column {name!r}: {shown(value)} may be a decimal or thousands, in a table whose"
            hint = f"write {shown(value.replace('.', ''))} or {shown(value.replace('.', ','))}, throughout the column"
            raise DataError(f"{what} column {changed[0]!r} has decimal commas", hint=hint)
    return result


def _gap(value: str) -> bool:
    return value.strip().lower() in cells.GAPS


def _numbers(values: list[Any]) -> list[Any]:
    """Change a column all of whose values are numbers, some with a decimal comma; give any other back."""
    known = [value.strip() for value in values if not _gap(value)]
    if not any("," in value for value in known):
        return values
    if not all(_WHOLE.fullmatch(value) or _DECIMAL.fullmatch(value) for value in known):
        return values
    return [value.replace(",", ".") for value in values]
