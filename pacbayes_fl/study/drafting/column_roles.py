"""What the columns of a user's table look like, before any study says what they are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

from pacbayes_fl.data import cells, class_labels, clock, times
from pacbayes_fl.data.layout import Layout
from pacbayes_fl.errors import StudyError, counted, shown

Values = Sequence[object]

_LOGICAL: Final = frozenset({"true", "false"})
_DATE: Final = re.compile(r"\d{1,4}[-/. ]+(\d{1,2}|[A-Za-z]{3,9})[-/., ]+\d{1,4}\b|\d{4}[-/](0?[1-9]|1[0-2])$")
_NUMBER: Final = re.compile(r"[-+]?[$€£¥]?\s?\d+([.,' ]\d{3})*([.,]\d+)?\s?(%|[$€£¥])?")
_PLAINLY: Final = "numbers are read as 1234.5, without commas, units and signs"
_DAY: Final = 24 * 3600 * 1_000_000  # microseconds
_CYCLES: Final = (("hour", 1.0), ("dayofweek", 7.0), ("dayofyear", 365.25))  # `data.layout.CYCLES`, in days
_CODES: Final = 20  # different values of a column of codes, some of which are numbers
_WHO: Final = (
    *("client", "subject", "patient", "participant", "respondent", "person", "customer", "user", "animal"),
    *("site", "station", "location", "plant", "farm", "field", "building", "house", "household", "home", "family"),
    *("hospital", "clinic", "school", "class", "shop", "store", "branch", "firm", "company", "institution"),
    *("country", "county", "state", "province", "region", "district", "city", "town", "village"),
    *("device", "sensor", "meter", "machine", "vehicle", "turbine", "tree", "plot"),
)
"""Whose rows a table often has."""
_WHO_NAME: Final = re.compile(rf"({'|'.join(_WHO)})s?[\s_.-]*(id|no|nr|num|number|name|code)?|id|.*[\s_.-]id", re.I)
_CAMEL_ID: Final = re.compile(r".*[a-z]I[dD]")


def words(values: Values) -> set[str]:
    """Find the different words of a column.

    Args:
        values: of the column.

    Returns:
        The words, none where it holds numbers, or true and false.
    """
    known = {str(value).strip() for value in values if not cells.is_gap(value)}
    read = {word: times.read(word) for word in known}
    if all(one is not None and one.kind == "number" for one in read.values()) or {*map(str.lower, known)} <= _LOGICAL:
        return set()
    return known


def dates(values: Values) -> bool:
    """Say whether all values are dates or datetimes."""
    result = [times.read(value) for value in values]
    return bool(result) and all(one is not None and one.kind != "number" for one in result)


def two_kinds(values: Values, where: Sequence[str]) -> str | None:
    """Find two times of a column that are of different kinds, such as a date and a datetime, which have no order.

    Args:
        values: of the column [R].
        where: each row stands [R].

    Returns:
        The first and the one that is of another kind; None where all are of one kind, or one is no time.
    """
    if not dates(values):
        return None
    read = [(value, at, one.kind) for value, at in zip(values, where, strict=True) if (one := times.read(value))]
    (value, at, kind), *_ = read
    return next(
        (f"{shown(value)} in {at} is a {kind}, and {shown(v)} in {a} a {k}" for v, a, k in read if k != kind), None
    )


def cycles(values: Values) -> tuple[str, ...]:
    """Find the cycles of a column of times that features can be made of.

    Args:
        values: of the column.

    Returns:
        Such as "hour:cyclic": those that come twice between the first time and the last, of which the median step
        between different times is half at most (Nyquist's criterion); none where one is no date or datetime.
    """
    read = [times.read(value) for value in values if not cells.is_gap(value)]
    moments = {one.value for one in read if one is not None and one.kind != "number"}
    if len(moments) < 2 or any(one is None or one.kind == "number" for one in read):
        return ()
    ordered = sorted(moments)
    step, length = median(b - a for a, b in pairwise(ordered)), ordered[-1] - ordered[0]
    return tuple(f"{name}:cyclic" for name, days in _CYCLES if 2 * step <= days * _DAY <= length / 2)


def zoned(values: Values) -> bool:
    """Say whether a column of times has offsets of time zones, so that the hour of its rows depends on the clock."""
    return any((one := times.read(value)) is not None and one.kind == clock.ZONED for value in values)


def like_dates(texts: Iterable[str]) -> bool:
    """Say whether texts look like dates, be they in a form that is read or not."""
    return all(_DATE.match(word) for word in texts)


def unread_numbers(texts: Iterable[str]) -> str | None:
    """Find a number in a form that is not read, such as 1,234 or 0,5 or 45% or $12.

    Args:
        texts: of a column.

    Returns:
        The first in alphabetical order; None where a text is no number in any form, or all are read.
    """
    odd = _odd(texts)
    return min(odd) if odd and all(_NUMBER.fullmatch(word) for word in odd) else None


def mostly_numbers(values: Values) -> bool:
    """Say whether half of the values or more are numbers, so that the others are mistakes and no words."""
    often = _often(values)
    return 2 * sum(often[word] for word in _odd(often)) <= often.total()


def odd_codes(values: Values) -> list[str]:
    """Find the words in a column of few whole numbers and words, all of which come again and again, as codes do.

    Args:
        values: of the column.

    Returns:
        The words, none where the column holds something else.
    """
    often = _often(values)
    odd = _odd(often)
    whole = all(word in odd or re.fullmatch(r"\d+", word) for word in often)
    return sorted(odd) if whole and len(often) <= _CODES and all(often[word] > 1 for word in odd) else []


def why_left_out(values: Values, where: Sequence[str]) -> str:
    """Say why a column is no feature.

    Args:
        values: of the column [R].
        where: each row stands [R].

    Returns:
        The reason, such as "it holds one word".
    """
    known = [(str(value).strip(), at) for value, at in zip(values, where, strict=True) if not cells.is_gap(value)]
    if two := two_kinds(*zip(*known, strict=True)) if known else None:
        return f"{two}; write all of them in one way, and it is the time"
    if dates([value for value in values if not cells.is_gap(value)]):
        return "it holds dates; --time names the times of the rows"
    odd = _odd({word for word, _ in known})
    unread = unread_numbers(odd)
    if unread or mostly_numbers(values):
        (word, place), *others = [one for one in known if one[0] in odd]
        more = "" if not others else ", nor is one more" if len(others) == 1 else f", nor are {len(others)} more"
        return f"{word!r} in {place} is no number{more}{f'; {_PLAINLY}' if unread else ''}"
    if like_dates(words(values)):
        return "it looks like dates, which are read as 2024-05-01, 2024-05-01T13:00+02:00 or 01.05.2024 13:00"
    count = len(words(values))
    return "it holds one word" if count == 1 else f"it holds {count} different words"


def own_marks(columns: Mapping[str, Values], taken: Iterable[str | None]) -> tuple[str, ...]:
    """Find columns that are called as those that mark rows and clients are, and mark nothing.

    Args:
        columns: of the table.
        taken: names of columns that have another role.

    Returns:
        Keys of [data] to switch off: "split", "group" or both. A column of which any word is one that marks does.
    """
    marks, others = Layout().marks, {"validation", "valid", "val", "dev"}
    found = []
    for name, known in marks.items():
        if name in columns:
            held = {str(value).strip().lower() for value in columns[name] if not cells.is_gap(value)}
            if name in taken or not held & {*known, *(others if name == "split" else ())}:
                found.append(name)
    return tuple(found)


def client(path: Path, columns: Mapping[str, Values]) -> tuple[str, list[str]]:
    """Guess the column of clients: "client", one that is called as clients are and repeats, or the only words.

    Args:
        path: of the table.
        columns: that may be it.

    Returns:
        Its name, and remarks.

    Raises:
        StudyError: when it cannot be told.
    """
    if "client" in columns:
        return "client", []
    named = [name for name, values in columns.items() if _WHO_NAME.fullmatch(name) or _CAMEL_ID.fullmatch(name)]
    named = [name for name in named if _repeats(columns[name])]
    texts = [name for name, values in columns.items() if words(values) and not dates(values)]
    if not named and len(texts) != 1:
        what = f"{path} has no column 'client', and {len(texts) or 'none'} of its columns hold texts"
        raise StudyError(what, hint=f"name the column of clients with --client, one of {', '.join(texts or columns)}")
    name = named[0] if named else texts[0]
    others = [other for other in dict.fromkeys((*named, *texts)) if other != name]
    remarks = []
    count = len({str(value) for value in columns[name] if not cells.is_gap(value)})
    if count <= 2:
        remarks.append(f"column {name!r} makes {counted(count, 'client')} of the table; --client names another")
    elif others or name not in texts:
        also = f", such as {shown(others[0])}" if others else ""
        remarks.append(f"column {name!r} is taken for the {count} clients by its name; --client names another{also}")
    return name, remarks


def not_target(name: str, values: Values, taken: str) -> str:
    """Say why a column is not the target that has its name or place.

    Args:
        name: of the column.
        values: of it.
        taken: name of the target.

    Returns:
        The remark.
    """
    held = words(values)
    dated = dates([value for value in values if not cells.is_gap(value)]) or like_dates(held)
    unread = None if dated else unread_numbers(held)
    what = "dates" if dated else "words" if unread is None else repr(unread)
    said = f"column {name!r} holds {what} and was not taken for the target, but {taken!r}, the last of numbers"
    if unread is not None:
        return f"{said}; {_PLAINLY}"
    if not dated and len(held) == 1:
        return f"{said}; it holds one word, {shown(next(iter(held)))}, where classes are two or more"
    if not dated and len(held) <= class_labels.FEW:
        return f"{said}; {class_labels.numbered(held)}, and then --target {name} --method pfedbayes learns them"
    return f"{said}; --target names another"


def _repeats(values: Values) -> bool:
    """Whether a column can hold clients: whole numbers or words, three or more, with two rows each on average."""
    known = [str(value).strip() for value in values if not cells.is_gap(value)]
    kinds = {*known}
    if len(kinds) < 3 or 2 * len(kinds) > len(values) or len(known) < len(values) or dates([*kinds]):
        return False
    return bool(words(values)) or all(re.fullmatch(r"\d+(\.0*)?", kind) for kind in kinds)


def _often(values: Values) -> Counter[str]:
    return Counter(str(value).strip() for value in values if not cells.is_gap(value))


def _odd(texts: Iterable[str]) -> set[str]:
    """Texts that are no numbers."""
    return {word for word in texts if words([word])}
