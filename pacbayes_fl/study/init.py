"""A first study of a user's table: every option as a comment, with its meaning and default."""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Final, NamedTuple

from pacbayes_fl import settings
from pacbayes_fl.data import cells, times, user_tables
from pacbayes_fl.errors import StudyError, counted, shown
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.methods import METHODS
from pacbayes_fl.names import printable
from pacbayes_fl.options import Option, options_of
from pacbayes_fl.study import check
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.parts import DataPart

_COLUMNS: Final = 100  # of a comment
_WORDS: Final = 50  # categories that a column may have
_LOGICAL: Final = frozenset({"true", "false"})
_DATE: Final = re.compile(r"\d{1,4}[-/. ]+(\d{1,2}|[A-Za-z]{3,9})[-/., ]+\d{1,4}\b")


class Columns(NamedTuple):
    """Roles of the columns of a table.

    Args:
        client: name of the column of clients.
        target: name of the target.
        time: name of the column of times, if there is one.
        labels: whether the targets look like labels 0, 1, 2, ...
        categorical: names of the columns of words of which there are few.
        features: names of the columns that are features, where some cannot be; empty where all are.
        gaps: whether values are missing.
        remarks: sentences on columns that are not what one might take them for: left out, and why, or passed over.
    """

    client: str
    target: str
    time: str | None
    labels: bool
    categorical: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    gaps: bool = False
    remarks: tuple[str, ...] = ()


def look(path: Path, client: str | None = None, target: str | None = None, time: str | None = None) -> Columns:
    """Guess the roles of a table's columns that are not given.

    The client is the column "client", or else the only column of texts; the time is the first column of dates; the
    target is the column "y", or else the last one that is left and holds numbers. Columns of a few words are
    categorical, others of texts or dates no features.

    Args:
        path: .csv or .parquet.
        client: name of the client column, if it is known.
        target: name of the target column, if it is known.
        time: name of the column of times, if it is known.

    Returns:
        The columns.

    Raises:
        StudyError: when it cannot be told, or there is no such column.
        DataError: when the file is no table.
    """
    columns, where = user_tables.read_columns(path)
    for given in (client, target, time):
        if given is not None and given not in columns:
            raise StudyError(f"{path} has no column {shown(given)}", hint=settings.nearest(given, columns))
    known = ("split", "group", client, target, time)
    empty = [name for name, values in columns.items() if name not in known and cells.is_empty(values)]
    free = {name: values for name, values in columns.items() if name not in (*known, *empty)}
    if time is None:
        time = next((name for name, values in free.items() if name != "client" and _dates(values)), None)
        free.pop(time or "", None)
    if client is None:
        client = _client(path, free)
        del free[client]
    remarks = []
    if target is None:
        if not free:
            raise StudyError(f"{path} has no column that could be the target", hint="name it with --target")
        numbers, last = [name for name, values in free.items() if not _words(values)], [*free][-1]
        target = "y" if "y" in free else (numbers or [*free])[-1]
        if target not in ("y", last):
            remarks.append(
                f"the last column, {last!r}, holds words and was not taken for the target; --target names it"
            )
        free.pop(target)
    labels = user_tables.like_labels(columns[target])
    words = {name: _words(values) for name, values in free.items()}
    few = [name for name, own in words.items() if 1 < len(own) <= _WORDS and not (_dates([*own]) or _like_dates(own))]
    categorical = tuple(name for name in few if not _mostly_numbers(free[name]))
    used = tuple(name for name, own in words.items() if not own or name in categorical)
    gaps = any(cells.is_gap(value) for name in (target, *used) for value in columns[name])
    remarks += [f"column {name!r} is left out: {_why(free[name], where)}" for name in free if name not in used]
    remarks += [f"column {name!r} is left out: it holds no value" for name in empty]
    features = used if len(used) < len(free) + len(empty) else ()
    return Columns(client, target, time, labels, categorical, features, gaps, tuple(remarks))


def _like_dates(words: Iterable[str]) -> bool:
    """Whether texts look like dates, be they in a form that is read or not."""
    return all(_DATE.match(word) for word in words)


def _mostly_numbers(values: Sequence[object]) -> bool:
    """Whether half of the values or more are numbers, so that the others are mistakes and no words."""
    times_of = Counter(str(value).strip() for value in values if not cells.is_gap(value))
    return 2 * sum(times_of[word] for word in _odd(times_of)) <= times_of.total()


def _odd(words: Iterable[str]) -> set[str]:
    """Texts that are no numbers."""
    return {word for word in words if _words([word])}


def _why(values: Sequence[object], where: Sequence[str]) -> str:
    """Say why a column is no feature."""
    known = [(str(value).strip(), at) for value, at in zip(values, where, strict=True) if not cells.is_gap(value)]
    if _dates([value for value in values if not cells.is_gap(value)]):
        return "it holds dates; --time names the times of the rows"
    if _mostly_numbers(values):
        odd = _odd({word for word, _ in known})
        (word, place), *others = [one for one in known if one[0] in odd]
        more = "" if not others else ", nor is one more" if len(others) == 1 else f", nor are {len(others)} more"
        return f"{word!r} in {place} is no number{more}"
    if _like_dates(_words(values)):
        return "it looks like dates, which are read as 2024-05-01, 2024-05-01T13:00+02:00 or 01.05.2024 13:00"
    count = len(_words(values))
    return "it holds one word" if count == 1 else f"it holds {count} different words"


def _words(values: Sequence[object]) -> set[str]:
    """Find the different words of a column, none where it holds numbers, or true and false."""
    known = {str(value).strip() for value in values if not cells.is_gap(value)}
    read = {word: times.read(word) for word in known}
    if all(one is not None and one.kind == "number" for one in read.values()) or {*map(str.lower, known)} <= _LOGICAL:
        return set()
    return known


def _client(path: Path, columns: Mapping[str, Sequence[object]]) -> str:
    if "client" in columns:
        return "client"
    texts = [name for name, values in columns.items() if _words(values) and not _dates(values)]
    if len(texts) != 1:
        what = f"{path} has no column 'client', and {len(texts) or 'none'} of its columns hold texts"
        raise StudyError(what, hint=f"name the column of clients with --client, one of {', '.join(texts or columns)}")
    return texts[0]


def _dates(values: Sequence[object]) -> bool:
    """Whether all values are dates or datetimes."""
    result = [times.read(value) for value in values]
    return bool(result) and all(one is not None and one.kind != "number" for one in result)


def roles(study: Study) -> str:
    """Say in a line what a study of a table takes its columns for.

    Args:
        study: of a table.

    Returns:
        Such as "clients: column 'client'; target 'y', numbers; all others are features".
    """
    data = study.data
    task = "labels" if data.task == "classification" else "numbers"
    time = f", times {data.time!r}" if data.time is not None else ""
    features = f"features: {', '.join(data.features)}" if data.features else "all others are features"
    words = f"; words: {', '.join(data.categorical)}" if data.categorical else ""
    gaps = "; rows that lack a value are left out" if data.missing == "drop" else ""
    return f"clients: column {data.client!r}; target {data.target!r}, {task}{time}; {features}{words}{gaps}"


def write(data: Path, method: str, out: Path, columns: Columns) -> Study:
    """Write a commented study of a table, after a look at whether it can run.

    Args:
        data: the table.
        method: name of a method.
        out: the study's file, which must not exist.
        columns: of the table.

    Returns:
        The study.

    Raises:
        StudyError: when there is something at `out`, or there is no such method, or it does not fit the data.
        DataError: when the rows cannot be used.
    """
    if os.path.lexists(out):
        raise StudyError(f"{out} is there already: nothing is written over", hint="choose another --out")
    table = values_of(data, columns, method) | {"name": out.stem}
    study = Study.from_table(table, str(out))
    dataset = load(study)
    check.check(study, dataset)
    clients = sum(len(group.train.names) for group in dataset.groups.values())
    features = ", ".join(column.name for column in dataset.features)
    labels = f"{dataset.classes} classes" if dataset.classes else "numbers"
    head = [f"A study of {data.name}: {counted(clients, 'client')}, targets that are {labels}; features: {features}."]
    if columns.labels and not dataset.classes:
        head.append("The targets could be labels of classes, which methods on networks learn, such as pfedbayes.")
    head += [f"{remark[0].upper()}{remark[1:]}." for remark in columns.remarks]
    head.append("Lines that begin with # and a name are options at their defaults: take the # away to change one.")
    source = Path(os.path.relpath(data.resolve(), out.resolve().parent)).as_posix()
    written = settings.merge(table, {"data": {"source": source}})
    text = "\n".join([*_comments(head), *_lines(study, written)]) + "\n"
    with out.open("x", encoding="utf-8") as file:
        file.write(text)
    return study


def values_of(data: Path, columns: Columns, method: str) -> JsonTable:
    """Give the values that the study of a table does not leave at their defaults.

    Args:
        data: the table.
        columns: of the table.
        method: name of a method.

    Returns:
        A study, named after the table.
    """
    part: JsonTable = {"source": str(data.resolve()), "client": columns.client, "target": columns.target}
    if columns.time is not None:
        part["time"] = columns.time
    if columns.features:
        part["features"] = [*columns.features]
    if columns.categorical:
        part["categorical"] = [*columns.categorical]
    if columns.gaps:
        part["missing"] = "drop"
    recipe = METHODS.get(method)
    if columns.labels and recipe is not None and "classification" in recipe.learns:
        part["task"] = "classification"
    private = {"epsilon": settings.NONE}  # which a table [privacy] has to say
    return {"name": data.stem, "data": part, "method": {"name": method}, "privacy": private}


def _lines(study: Study, given: JsonMapping) -> Iterator[str]:
    """Write all tables; what is not given stands as a comment."""
    resolved = study.table()
    yield f"name = {settings.to_value(given['name'])}"
    yield from _option(options_of(Study)["seed"], resolved["seed"])
    data = {name: option for name, option in options_of(DataPart).items() if name != "options"}  # of generators
    yield from _part("data", data, resolved["data"], given["data"])
    yield from _part("model", options_of(type(study.model)), resolved["model"], paper=_paper(study, "model"))
    yield "\n[method]"
    yield f"name = {settings.to_value(study.method.name)}"
    yield from _comments([f"Values where this file is silent; also: {', '.join(_others(study))}."])
    yield f"#preset = {settings.to_value(study.method.preset)}"
    yield from _options(options_of(study.recipe.options), resolved["method"], paper=_paper(study, "method"))
    for name in ("federation", "report", "privacy", "deploy"):
        kind = type(getattr(study, name))
        yield from _part(name, options_of(kind), resolved[name], given.get(name), _paper(study, name))


def _others(study: Study) -> list[str]:
    return [settings.to_value(preset) for preset in study.recipe.presets if preset != study.method.preset]


def _paper(study: Study, part: str) -> JsonMapping:
    return study.recipe.presets["paper"].get(part, {})


def _part(
    name: str,
    options: Mapping[str, Option],
    values: JsonMapping,
    given: JsonMapping | None = None,
    paper: JsonMapping | None = None,
) -> Iterator[str]:
    """Write a table and the tables inside of it."""
    plain = {key: one for key, one in options.items() if not dataclasses.is_dataclass(one.default)}
    yield f"\n[{name}]"
    yield from _options(plain, values, given or {}, paper or {})
    for key in options.keys() - plain.keys():
        yield from _part(f"{name}.{key}", options_of(type(options[key].default)), values[key])


def _options(
    options: Mapping[str, Option],
    values: JsonMapping,
    given: JsonMapping | None = None,
    paper: JsonMapping | None = None,
) -> Iterator[str]:
    for name, option in options.items():
        own = (given or {}).get(name)
        if own is None:
            yield from _option(option, values[name], (paper or {}).get(name))
        else:
            yield from _comments([_explained(option)])
            yield f"{name} = {settings.to_value(own)}"


def _option(option: Option, value: object, paper: object = None) -> Iterator[str]:
    """Write an option as a comment, with its meaning above it."""
    yield from _comments([_explained(option)])
    said = settings.plain(paper)
    note = "" if paper is None or said == value else f"  # paper: {settings.to_value(said)}"
    yield f"#{option.name} = {settings.to_value(value)}{note}"


def _explained(option: Option) -> str:
    meaning = option.meaning[:1].upper() + option.meaning[1:]
    return f"{meaning} {option.allowed[:1].upper()}{option.allowed[1:]}.".strip()


def _comments(paragraphs: Sequence[str]) -> Iterator[str]:
    for text in paragraphs:
        yield from wrap(printable(text), _COLUMNS, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)
