"""A look at a user's table before any run: what it holds, what would be left out or refused, and what a round costs."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pacbayes_fl.data import cells, user_tables
from pacbayes_fl.data.inspection import Finding, inspect
from pacbayes_fl.data.tables import Dataset
from pacbayes_fl.errors import PacBayesFLError, counted, kinds_checked, listed
from pacbayes_fl.files import JsonTable
from pacbayes_fl.study.data import load
from pacbayes_fl.study.drafting.init import Columns, values_of
from pacbayes_fl.study.drafting.timing import Estimate, estimate, ready
from pacbayes_fl.study.file import Study


@dataclass(frozen=True)
class TableCheck:
    """What a table looks like to a study.

    Args:
        findings: rows and lengths first.
        refused: why a run would not start, one line each; empty where it would.
        cost: of a round; None where it is not known.
    """

    findings: tuple[Finding, ...]
    refused: tuple[str, ...] = ()
    cost: Estimate | None = None

    def lines(self) -> list[str]:
        """Say it in lines: what is there, what may be done, what a round costs, and what a run would refuse."""
        result = []
        for one in self.findings:
            result.append(f"{one.topic}: {one.text}")
            result += [f"    {one.advice}"] if one.advice else []
        result += [f"cost: {self.cost}"] if self.cost is not None else []
        return result + [f"a run would be refused: {text}" for text in self.refused]

    def to_json(self) -> JsonTable:
        """Give the same as JSON can hold it, with numbers by client."""
        cost = None if self.cost is None else self.cost._asdict()
        return {"findings": [asdict(one) for one in self.findings], "refused": [*self.refused], "cost": cost}


def study_of(path: Path, columns: Columns, method: str = "pac-pfl", sets: Sequence[str] = ()) -> Study:
    """Make the study of a table that `check` looks at where there is none: the one that `init` would write.

    Args:
        path: of the table.
        columns: roles of its columns, as `study.drafting.init.look` guesses them.
        method: name of a method.
        sets: assignments to values of the study.

    Returns:
        The study.

    Raises:
        StudyError: when there is no such method or key.
    """
    return Study.from_table(values_of(path, columns, method), str(path), sets)


@kinds_checked
def check(path: Path | str, study: Study, cost: bool = True, remarks: Sequence[str] = ()) -> TableCheck:
    r"""Look at a table with the eyes of a study; nothing is trained or written.

    Rows are read by the loader of a run, which is asked to leave out what lacks a value and to take repeats: what the
    study itself would refuse is said behind.

    Args:
        path: CSV or Parquet.
        study: says what the columns are; its own source is not read.
        cost: time a few calls for the cost of a round.
        remarks: why columns are not used, as `study.drafting.init.look` says it, where the study is made of its guess.

    Returns:
        What is there.

    Raises:
        DataError: when the file is no table.

    Example:
        >>> import pacbayes_fl as fl
        >>> _ = open("two.csv", "w").write("client,x,y\n" + "".join(f"a,{k},{k * k}\nb,{k},{k}\n" for k in range(9)))
        >>> study = fl.Study.from_table({"data": {"source": "two.csv"}})
        >>> fl.check("two.csv", study, cost=False).findings[0].text
        '18 rows of 2 clients, 4 of them test rows; smallest a 9, median a 9, largest b 9'
    """
    path = Path(path)
    columns, _ = user_tables.read_columns(path)
    asked = replace(study, data=replace(study.data, source=str(path.resolve())))
    missing = "drop" if study.data.missing == "refuse" else study.data.missing
    low, high = (None if isinstance(end, str) else end for end in (study.data.lower_bound, study.data.upper_bound))
    loose = replace(asked.data, missing=missing, duplicate_rows="allow", lower_bound=low, upper_bound=high)
    lenient = replace(asked, data=replace(loose, transform="none"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what they say is found below
        try:
            dataset = load(lenient)
        except PacBayesFLError as error:
            return TableCheck(_lengths(study, columns), (str(error),))
        whole = None
        if "left_out" in dataset.provenance and missing == "drop":
            with suppress(
                PacBayesFLError
            ):  # a client without any value of a column has no median: gaps of what is left
                whole = load(replace(lenient, data=replace(lenient.data, missing="median")))
        found = inspect(dataset, study.report.certify.twins, study.data.duplicate_rows == "allow", whole)
        found[1:1] = [
            *_words_of(study),
            *_excluded(study),
            *([Finding("columns", text) for text in remarks] or _unused(study, columns)),
            *_left_out(study, dataset),
            *_no_clients(study, columns, dataset),
        ]
        refused, price = list[str](), None
        try:
            load(asked)
            lenient = replace(asked, data=loose)  # every target has a transform
        except PacBayesFLError as error:
            refused.append(str(error))
        try:
            if cost:
                price = estimate(lenient, dataset)
            else:
                ready(lenient, dataset)
        except PacBayesFLError as error:
            refused.append(str(error))
    return TableCheck(tuple(found), tuple(refused), price)


def _lengths(study: Study, columns: Mapping[str, Sequence[object]]) -> tuple[Finding, ...]:
    """Say how many rows there are of whom, of a table that no study has read yet."""
    data = study.data
    rows = Counter(str(name) for name in columns.get(data.client, ()) if str(name) not in data.exclude_clients)
    if not rows:
        return ()
    (low, least), (high, most) = min(rows.items(), key=lambda one: one[1]), rows.most_common(1)[0]
    counts = f"{counted(rows.total(), 'row')} of {counted(len(rows), 'client')}"
    text = f"{counts}; smallest {low} {least}, largest {high} {most}"
    return (Finding("rows", text, "", {name: float(count) for name, count in rows.items()}),)


def _words_of(study: Study) -> list[Finding]:
    if not study.data.categorical:
        return []
    names = list(study.data.categorical)
    return [Finding("words", f"{', '.join(names)}: columns of 0 and 1, one a word", f"data.categorical = {names}")]


def _excluded(study: Study) -> list[Finding]:
    """Name the clients that are not used."""
    names = ", ".join(study.data.exclude_clients)
    return [Finding("excluded", f"{names}: no row is read (data.exclude_clients)")] if names else []


def _unused(study: Study, columns: Mapping[str, Sequence[object]]) -> list[Finding]:
    """Name the columns that are not used."""
    data = study.data
    roles = {data.client, data.target, data.time, *data.marks, data.latitude, data.longitude}
    made_of = {
        *data.features,
        *data.categorical,
        *data.client_features,
        *(name.rpartition(" of ")[2] for name in data.features),
    }
    left = [name for name in columns if name not in roles | made_of]
    if data.features:
        same = {name for name in left if len({str(value) for value in columns[name]}) == 1}
        said = (f"{name} (the same in all rows)" if name in same else name or "''" for name in left)
        text = f"{', '.join(said)}: no features (data.features)"
    else:
        left = [name for name in left if cells.is_empty(columns[name])]
        text = f"{', '.join(left)}: no value in any row"
    return [Finding("not used", text)] if left else []


def _no_clients(study: Study, columns: Mapping[str, Sequence[object]], dataset: Dataset) -> list[Finding]:
    """Name the clients of which too few rows are left."""
    left = {name for group in dataset.groups.values() for name in group.train.names}
    rows = Counter(str(name) for name in columns.get(study.data.client, ()))
    gone = {name: count for name, count in rows.items() if name not in left and name not in study.data.exclude_clients}
    if not gone:
        return []
    each = listed([f"{name} ({counted(count, 'row')} in the table)" for name, count in gone.items()])
    text = f"too few rows of {each} have all values: left out as client{'s' if len(gone) > 1 else ''}"
    advice = "features that need less of the past keep more rows; `join` forecasts for clients that never trained"
    return [Finding("no clients", text, advice, {name: float(count) for name, count in gone.items()})]


def _left_out(study: Study, dataset: Dataset) -> list[Finding]:
    """Say how many rows lack what."""
    known = dataset.provenance.get("left_out", {})
    lacks = Counter[str]()
    for own in known.values():
        lacks.update(own)
    if not lacks:
        return []
    each = ", ".join(f"{name} ({count})" for name, count in lacks.most_common())
    clients = {name: float(sum(own.values())) for name, own in known.items()}
    of = listed([f"{name} {int(count)}" for name, count in clients.items()])
    advice = ""
    if study.data.missing == "refuse":
        advice = (
            "data.missing = 'drop' leaves them out, 'median' fills in features; missing values are refused otherwise"
        )
    lack = "row lacks a value and is" if lacks.total() == 1 else "rows lack a value and are"
    text = f"{lacks.total()} {lack} left out: {each}; {of}"
    return [Finding("missing", text, advice, clients)]
