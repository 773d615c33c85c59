"""A first study of a user's table: every option as a comment, with its meaning and default."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Final, NamedTuple

from pacbayes_fl import settings
from pacbayes_fl.data import cells, class_labels, user_tables
from pacbayes_fl.data.layout import Layout
from pacbayes_fl.errors import StudyError, counted, shown
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.methods import METHODS
from pacbayes_fl.names import printable
from pacbayes_fl.options import Option, options_of
from pacbayes_fl.results.folder import write_atomic
from pacbayes_fl.study import check
from pacbayes_fl.study.config.parts import DataPart
from pacbayes_fl.study.drafting import column_roles, drafts
from pacbayes_fl.study.file import Study

_COLUMNS: Final = 100  # of a comment
_WORDS: Final = 50  # categories that a column may have
_ROW_NUMBERS: Final = "it numbers or names the rows, as R and pandas write them; data.features names what is used"


class Columns(NamedTuple):
    """Roles of the columns of a table.

    Args:
        client: name of the column of clients.
        target: name of the target.
        time: name of the column of times, if there is one.
        labels: that the targets look like; none where they look like numbers.
        categorical: names of the columns of words of which there are few.
        features: names of the columns that are features, where some cannot be; empty where all are.
        gaps: whether values are missing.
        remarks: sentences on columns that are not what one might take them for: left out, and why, or passed over.
        own_marks: "split" and "group" where columns of these names mark nothing, and are like others.
        zone: by whose clocks features are made of times that have one; none where none are.
    """

    client: str
    target: str
    time: str | None
    labels: tuple[int, ...]
    categorical: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    gaps: bool = False
    remarks: tuple[str, ...] = ()
    own_marks: tuple[str, ...] = ()
    zone: str | None = None


def look(path: Path, client: str | None = None, target: str | None = None, time: str | None = None) -> Columns:
    """Guess the roles of a table's columns that are not given.

    The client is the column "client", or else one with such a name whose values repeat, or the only column of texts;
    the time is the first column of dates; the target is the column "y", or else the last one that is left and holds
    numbers. Columns of a few words are categorical, others of texts or dates no features, nor are numbers of rows.
    Where no column is a feature the cycles of the times are.

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
    own = column_roles.own_marks(columns, (client, target, time))
    taken = {*Layout().marks}.difference(own) | {client, target, time}
    empty = [name for name, values in columns.items() if name not in taken and cells.is_empty(values)]
    free = {name: values for name, values in columns.items() if name not in (*taken, *empty)}
    remarks = [_own_mark(name) for name in own if name in free]
    numbers = [name for name, values in free.items() if cells.names_rows(name, values)]
    remarks += [f"column {name!r} is left out: {_ROW_NUMBERS}" for name in numbers]
    free = {name: values for name, values in free.items() if name not in numbers}
    if time is None:
        dated = (name for name, values in free.items() if name != "client" and column_roles.dates(values))
        time = next((name for name in dated if column_roles.two_kinds(free[name], where) is None), None)
        free.pop(time or "", None)
    if client is None:
        client, said = column_roles.client(path, free)
        remarks += said
        del free[client]
    if target is None:
        if not free:
            raise StudyError(f"{path} has no column that could be the target", hint="name it with --target")
        plain = [name for name, values in free.items() if not column_roles.words(values)] or [*free]
        meant = "y" if "y" in free else [*free][-1]
        stays = meant in plain or (meant == "y" and not cells.mostly_words(free["y"]))  # but for mistakes
        target = meant if stays else plain[-1]
        if target != meant:
            remarks.append(column_roles.not_target(meant, free[meant], target))
        free.pop(target)
    labels = class_labels.like_labels(value for value in columns[target] if not cells.is_gap(value))
    used, categorical, said = _features(free, where)
    gaps = any(cells.is_gap(value) for name in (target, *used) for value in columns[name])
    remarks += [*said, *(f"column {name!r} is left out: it holds no value" for name in empty)]
    features = used if len(used) < len(free) + len(numbers) + len(empty) else ()
    cycles = () if time is None else column_roles.cycles(columns[time])
    if free and not used and not cycles:
        raise StudyError(f"{path} has no column that could be a feature", hint="; ".join(said))
    zoned = bool(cycles) and column_roles.zoned(columns[str(time)])
    remarks += [_of_times(str(time), used, cycles, zoned)] if cycles else []
    features, zone = (features, None) if used else (cycles, "UTC" if zoned else None)
    return Columns(client, target, time, labels, categorical, features, gaps, tuple(remarks), own, zone)


def _of_times(time: str, used: Sequence[str], cycles: Sequence[str], zoned: bool) -> str:
    """Say that the cycles of times are the features where no column is one, and elsewhere how they become some."""
    if not used:
        clocks = "; data.zone names their clocks, UTC here" if zoned else ""
        return f"no column is a feature, and the cycles of the times {time!r} are: {', '.join(cycles)}{clocks}"
    every, clocks = settings.to_value([*used, *cycles]), ", with data.zone," if zoned else ""
    return f"{time!r} orders rows and is no feature: data.features = {every}{clocks} learns its cycles"


def _features(
    free: Mapping[str, Sequence[object]], where: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...], list[str]]:
    """Choose the features among columns, and those of words among them, and say which are left out, and why."""
    words = {name: column_roles.words(values) for name, values in free.items()}
    dated = {name for name, own in words.items() if column_roles.dates([*own]) or column_roles.like_dates(own)}
    few = [name for name, own in words.items() if 1 < len(own) <= _WORDS and name not in dated]
    codes = {name: column_roles.odd_codes(free[name]) for name in few if column_roles.mostly_numbers(free[name])}
    categorical = tuple(name for name in few if codes.get(name, [name]))
    if free and few and not categorical and all(words.values()):  # without which there would be no feature at all
        categorical = tuple(few)
    used = tuple(name for name, own in words.items() if not own or name in categorical)
    remarks = [
        f"column {name!r} is left out: {column_roles.why_left_out(free[name], where)}"
        for name in free
        if name not in used
    ]
    for name in codes:
        if name in categorical:
            odd = ", ".join(map(repr, codes[name][:3])) or "words"
            remarks.append(f"column {name!r} holds numbers and {odd}, and each value is taken for a word (categorical)")
    return used, categorical, remarks


def _own_mark(name: str) -> str:
    """Say of a column that is called as one that marks rows or clients that it is taken as any other."""
    one, other = Layout().marks[name]
    return f"column {name!r} does not hold {one!r} and {other!r}, and is one like others: data.{name} = 'none' says so"


class Written(NamedTuple):
    """A study that was written.

    Args:
        study: as `run` takes it.
        remarks: sentences on what was decided, and how it is undone.
    """

    study: Study
    remarks: tuple[str, ...]


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


def write(data: Path, method: str, out: Path, columns: Columns) -> Written:
    """Write a commented study of a table, after a look at whether it can run.

    Clients that cannot be divided into training and test rows are left out, and rows that repeat are allowed.

    Args:
        data: the table.
        method: name of a method.
        out: the study's file, which must not exist.
        columns: of the table.

    Returns:
        The study, and what there is to say of it.

    Raises:
        StudyError: when there is something at `out`, or there is no such method, or it does not fit the data.
        DataError: when the rows cannot be used.
        CheckpointError: when it cannot be written; nothing of it is left.
    """
    if os.path.lexists(out):
        raise StudyError(f"{out} is there already: nothing is written over", hint="choose another --out")
    table, study, dataset, said = drafts.runnable(values_of(data, columns, method) | {"name": out.stem}, out)
    check.check(study, dataset)
    clients = sum(len(group.train.names) for group in dataset.groups.values())
    features = ", ".join(column.name for column in dataset.features)
    labels = f"{dataset.classes} classes" if dataset.classes else "numbers"
    head = [f"A study of {data.name}: {counted(clients, 'client')}, targets that are {labels}; features: {features}."]
    if columns.labels and not dataset.classes:
        head.append("; ".join(class_labels.labels_said(f"Column {columns.target!r}", columns.labels)) + ".")
    remarks = (*columns.remarks, *said)
    head += [f"{remark[0].upper()}{remark[1:]}." for remark in remarks]
    head.append("Lines that begin with # and a name are options at their defaults: take the # away to change one.")
    source = Path(os.path.relpath(data.resolve(), out.resolve().parent)).as_posix()
    written = settings.merge(table, {"data": {"source": source}})
    text = "\n".join([*_comments(head), *_lines(study, written)]) + "\n"
    write_atomic(out, text.encode())  # half a study may be another one
    return Written(study, remarks)


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
    if columns.zone is not None:
        part["zone"] = columns.zone
    if columns.features:
        part["features"] = [*columns.features]
    if columns.categorical:
        part["categorical"] = [*columns.categorical]
    if columns.gaps:
        part["missing"] = "drop"
    part |= dict.fromkeys(columns.own_marks, settings.NONE)
    recipe = METHODS.get(method)
    if class_labels.are_numbered(columns.labels) and recipe is not None and "classification" in recipe.learns:
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
