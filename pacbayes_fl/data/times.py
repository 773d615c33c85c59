"""A column of times: ISO 8601 or dotted dates or datetimes, or numbers, read to whole microseconds or as they are."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.errors import DataError, shown

Kind = Literal["number", "date", "datetime", "datetime with a time zone"]

_DOTTED: Final = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})(?:[ T](\d{1,2}:\d{2}(?::\d{2})?))?", re.ASCII)
_DAY: Final = len("2024-05-01")
_SMALLEST, _LARGEST = -(2**63), 2**63 - 1


class Time(NamedTuple):
    """A time of some kind: microseconds since 1970, or the number that it is."""

    kind: Kind
    value: int | float


def parse(where: Sequence[str], owners: Sequence[str], values: Sequence[object]) -> Tensor:
    """Read times that are all of one kind.

    Args:
        where: what errors call the place of each value.
        owners: name of each row's client.
        values: numbers, dates, datetimes, or text that says one of these.

    Returns:
        [R]: microseconds since 1970 (UTC where a time zone is given, local otherwise) or whole numbers, int64; numbers
        that are not whole, float64.

    Raises:
        DataError: naming the client, the place and the value that is no time, or of another kind than the first.
    """
    times: list[Time] = []
    for row, value in enumerate(values):
        result = read(value)
        if result is None:
            hint = "ISO 8601, such as 2024-05-01 or 2024-05-01T13:00+02:00, or 01.05.2024 13:00, or a number"
            raise DataError(f"{where[row]}: {shown(value)} is no time", client=owners[row], hint=hint)
        times.append(result)
        if result.kind != times[0].kind:
            first = f"{shown(values[0])}, the first time, is a {times[0].kind}"
            what = f"{where[row]}: {shown(value)} is a {result.kind}, and {first}"
            raise DataError(what, client=owners[row], hint="write all times of a table in one way")
    numbers = [time.value for time in times]
    whole = all(isinstance(one, int) and _SMALLEST <= one <= _LARGEST for one in numbers)
    if not whole:
        _require_apart(where, owners, values, numbers)
    return torch.tensor(numbers, dtype=torch.int64 if whole else torch.float64)


def _require_apart(
    where: Sequence[str], owners: Sequence[str], values: Sequence[object], numbers: Sequence[int | float]
) -> None:
    """Refuse numbers that differ and do not as float64: rows would lose their order."""
    first: dict[float, int] = {}
    for i, number in enumerate(numbers):
        before = first.setdefault(float(number), i)
        if numbers[before] != number:
            what = f"{where[i]}: {shown(values[before])} and {shown(values[i])} are different times, and one number"
            raise DataError(f"{what} of 64 bits", client=owners[i], hint="count from a later start, or in larger units")


def read(value: object) -> Time | None:
    """Read one time.

    Args:
        value: a number, a date, a datetime, or text that says one of these: in ISO 8601, or day.month.year.

    Returns:
        The time; None where it is none.

    Example:
        >>> from pacbayes_fl.data.times import read
        >>> read("31.12.1970") == read("1970-12-31")
        True
    """
    if isinstance(value, str):
        return _text(value.strip())
    if isinstance(value, datetime):  # before date, which it is too
        return _moment(value)
    if isinstance(value, date):
        return Time("date", _moment(datetime(value.year, value.month, value.day)).value)
    if isinstance(value, int) and not isinstance(value, bool):
        return Time("number", value) if abs(value) <= sys.float_info.max else None
    if isinstance(value, float | Decimal) and math.isfinite(value):
        return Time("number", float(value))
    return None


def _text(text: str) -> Time | None:
    for number in (int, float) if text.isascii() and "_" not in text else ():  # which Python takes for digits
        with suppress(ValueError, OverflowError):
            return read(number(text))
    if match := _DOTTED.fullmatch(text):
        day, month, year, clock = match.groups()
        hour = f"T{clock:0>5}" if clock and clock.count(":") == 1 else f"T{clock:0>8}" if clock else ""
        text = f"{year}-{month:0>2}-{day:0>2}{hour}"
    with suppress(ValueError):
        return read(date.fromisoformat(text) if len(text) == _DAY else datetime.fromisoformat(text))
    return None


def _moment(value: datetime) -> Time:
    zone = value.tzinfo is not None and value.utcoffset() is not None
    since = value - (datetime(1970, 1, 1, tzinfo=UTC) if zone else datetime(1970, 1, 1))
    return Time("datetime with a time zone" if zone else "datetime", since // timedelta(microseconds=1))
