"""Several methods or values on one study, over several seeds: a table with intervals."""

from __future__ import annotations

import csv
import io
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple

from pacbayes_fl import files, pages, plots, settings
from pacbayes_fl.data import tables
from pacbayes_fl.errors import (
    DataError,
    PacBayesFLError,
    StudyError,
    caller_stacklevel,
    kinds_checked,
    listed,
    one_line,
)
from pacbayes_fl.federation import checkpoint
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.methods.options import flat_options
from pacbayes_fl.names import to_cell
from pacbayes_fl.results import records as results
from pacbayes_fl.results.comparison import FILE, Cell, Comparison, run_folder, scores_sha256, table
from pacbayes_fl.results.folder import COMPARISON, FILES
from pacbayes_fl.results.manifest import intact, put, read, regain, verify
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord, readable
from pacbayes_fl.study import check
from pacbayes_fl.study.config.plugins import blamed
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study, read_table
from pacbayes_fl.study.rows import fingerprints, saved_rows
from pacbayes_fl.study.run import run
from pacbayes_fl.study.search import choice_file
from pacbayes_fl.study.storage import origins, resuming

_FINISHED: Final = ("device", "threads", "checkpoint_every")  # in what a finished run may differ


@kinds_checked
def compare(
    studies: Sequence[Study],
    seeds: int,
    out: Path | str | None = None,
    on_run: Callable[[Study], Callable[[RoundRecord], None] | None] | None = None,
    vary: str | None = None,
    resume: bool = False,
    on_result: Callable[[Result], None] | None = None,
) -> Comparison:
    """Run studies that differ in their method or in one value, each over several seeds.

    With a folder, every run has its own below it, and a run that is finished there is read instead of repeated; one
    that was stopped goes on from its last checkpoint. What any of the runs would refuse is refused before the first;
    where one fails later, the others are made all the same.

    Args:
        studies: one per method and value, on the same data; what `varied` makes, for example.
        seeds: number of runs of each, with seeds from the study's own upwards.
        out: folder of the comparison; nothing is written when None.
        on_run: called before every run; what it returns is called after every round.
        vary: dotted key of the value in which studies of one method differ, such as "method.fraction", be it of a
            study's tables or of a method that a program gives; the method is then called "fedsi fraction=0.03" in the
            table, in results and in the name of the folder.
        resume: take only the very comparison that the folder was begun with.
        on_result: called with the result of every run that is finished, for who has them where another one fails.

    Returns:
        The results, seed by seed within study by study. With `vary` their labels say `{"varied": {"key", "value",
        "method"}}`, which their folders do not: these hold runs as any other.

    Raises:
        CheckpointError: when a folder holds a run of another study, or is to be resumed and holds another comparison.
        StudyError: when the data of the studies differ (but for the value that is varied), two of them have the same
            method and value, or one has no such value.
        PacBayesFLError: as `study.check.check` or as a run, naming the method and value that cannot run; or, after all
            others, those that have failed.

    Example:
        >>> import pacbayes_fl as fl
        >>> sets = ["federation.rounds=2", "method.particles=2"]
        >>> study = fl.Study.from_toml("polynomial", sets)
        >>> own = fl.PacPFL(fl.DeepKernelGP(1, (4,), (4,)), particles=2)
        >>> fl.compare([study, study.with_instances(method=own)], seeds=1)
        Comparison(polynomial: pac-pfl, instance:PacPFL; 2 runs, 1 seed)
    """
    names = _names(studies, seeds, vary)
    runs = [
        _Run(name, replace(study, seed=seed), None if out is None else Path(out) / run_folder(name, seed))
        for name, study in zip(names, studies, strict=True)
        for seed in range(study.seed, study.seed + seeds)
    ]
    asked = _asked(names, seeds, studies, vary)
    if out is not None:
        resuming.refuse_run(Path(out))
    if out is not None and resume:
        _refuse_other(Path(out), asked)
    _check(runs)

    @cache
    def begin() -> None:  # not before a run has begun: what is refused leaves nothing
        if out is not None:
            put(out, {COMPARISON: (json.dumps(asked, indent=1) + "\n").encode()})

    finished, failures = Comparison(), _Failures(len(runs))
    with nullcontext() if out is None else files.fresh_folder(Path(out)):
        for one in runs:
            on_round = _after(begin, on_run(one.study) if on_run is not None else None)
            with failures.kept(one):
                result = _result(one, vary, on_round)
                begin()
                finished.append(result)
                if on_result is not None:
                    on_result(result)
    failures.tell()
    if out is not None:
        write(out, finished, studies[0].report.page)
    return finished


def _names(studies: Sequence[Study], seeds: int, vary: str | None) -> list[str]:
    """Name what is compared, each by itself."""
    if vary is None or not vary.startswith("data."):
        _refuse_different_rows(studies)
    names = [study.method.name if vary is None else f"{study.method.name} {_setting(study, vary)}" for study in studies]
    if len(set(names)) < len(names) or not names or seeds < 1:
        what = f"need different methods or values and at least 1 seed, got {', '.join(names)} and {seeds}"
        hint = (
            'studies of one method: vary="method.rate" names the value in which they differ' if vary is None else None
        )
        raise StudyError(what, hint=hint)
    return names


def _refuse_different_rows(studies: Sequence[Study]) -> None:
    own = {id(study.instances.data): study.instances.data for study in studies}
    same = all(study.data.rows == studies[0].data.rows for study in studies)
    if len(own) > 1:  # several objects, perhaps of the same rows
        same &= len({None if one is None else fingerprints.of_dataset(one) for one in own.values()}) == 1
    if not same:
        raise StudyError("the studies to compare have different data")


class _Failures:
    """The runs of a comparison that have failed."""

    def __init__(self, runs: int) -> None:
        self._runs, self._of = runs, dict[str, Exception]()

    @contextmanager
    def kept(self, one: _Run) -> Iterator[None]:
        """Keep the error of a run, or of code that studies bring, where the run is not the only one."""
        try:
            yield
        except Exception as error:
            theirs = any(blamed(error)) and not isinstance(error, OSError | MemoryError)
            if self._runs == 1 or not (isinstance(error, PacBayesFLError) or theirs):
                raise
            self._of[f"{one.name}, seed {one.study.seed}"] = error

    def tell(self) -> None:
        """Raise the first error, and name all runs that have failed."""
        if self._of:
            (first, cause), *rest = self._of.items()
            more = f"; so did {listed([name for name, _ in rest])}" if rest else ""
            what = f"{len(self._of)} of {self._runs} runs failed: {first}"
            if isinstance(cause, PacBayesFLError):
                raise type(cause)(f"{what}: {cause}{more}") from cause
            warnings.warn(f"{what}{more}", stacklevel=caller_stacklevel())  # whose the error is, its own trace says
            raise cause


def _result(one: _Run, vary: str | None, on_round: Callable[[RoundRecord], None]) -> Result:
    """Read a run that is finished, or make it."""
    name, study, folder = one
    if folder is not None and _finished(folder):
        result = results.load(folder)
    else:
        result = run(study, folder, resume=folder is not None and folder.exists(), on_round=on_round)
    return result if vary is None else _named(result, name, _value_text(study, vary), _value(study, vary))


def _after(begin: Callable[[], None], on_round: Callable[[RoundRecord], None] | None) -> Callable[[RoundRecord], None]:
    def on_event(record: RoundRecord) -> None:
        begin()
        if on_round is not None:
            on_round(record)

    return on_event


def _asked(names: Sequence[str], seeds: int, studies: Sequence[Study], vary: str | None) -> JsonTable:
    """Say what a comparison is of, as JSON."""
    tables = {name: study.table() for name, study in zip(names, studies, strict=True)}
    return {"methods": list(names), "seeds": seeds, "vary": vary and _value_text(studies[0], vary), "studies": tables}


def _refuse_other(out: Path, asked: JsonMapping) -> None:
    """Refuse to go on with another comparison than a folder was begun with; in one without any it begins."""
    if read(out) is None and not (out / COMPARISON).exists():
        return
    regain(out)
    verify(out, (COMPARISON,))
    with readable(out / COMPARISON) as path:
        before = json.loads(path.read_text("utf-8"))
        then, now = ({name: one[name] for name in ("methods", "seeds", "vary")} for one in (before, asked))
        checkpoint.check_study(then, now, what="comparison")
        checkpoint.check_study(before["studies"], asked["studies"], (*_FINISHED, "out"), what="comparison")


class _Run(NamedTuple):
    """A run of a comparison: its name in tables, its study with its seed, and its folder, if one is written."""

    name: str
    study: Study
    folder: Path | None


class _Rows:
    """Data sets of studies, of which the last one is kept: those of many runs are the same."""

    def __init__(self) -> None:
        self._of: tuple[str, tables.Dataset | None] | None = None

    def of(self, study: Study) -> tables.Dataset | None:
        """Load the data of a study, or give them again; None where they are not there any more."""
        if study.instances.data is not None:
            return study.instances.data
        asked = json.dumps([settings.plain(study.data), study.seed if study.data.follow_seed else None], default=str)
        if self._of is None or self._of[0] != asked:
            self._of = asked, None
            with suppress(DataError, StudyError):
                self._of = asked, load(study)
        return self._of[1]


def _check(runs: Sequence[_Run]) -> None:
    """Refuse before the first run whatever one of them would refuse: folders of other studies, and what cannot run."""
    left: dict[str, Study] = {}
    rows = _Rows()
    for name, study, folder in runs:
        if folder is not None:
            files.refuse_link(folder)
        if folder is not None and (folder / "study.toml").is_file():
            origins.check_folder(folder, study.instances, scores=_finished(folder))
            table, where = read_table(folder / "study.toml")
            saved = Study.from_table(table, where, instances=study.instances).table()
            chosen, _ = choice_file.recall(study, folder)
            checkpoint.check_study(saved, chosen.table(), _FINISHED if _finished(folder) else checkpoint.MAY_CHANGE)
            if saved_rows.holds_data(folder) and (now := rows.of(study)) is not None:
                saved_rows.check_same(folder, now)  # scores of other rows are no part of this comparison
        if not _finished(folder):
            left.setdefault(name, study)  # other seeds of it would be refused for the same reasons
    if len(left) > 1:  # a single one says so itself
        check.check_all(left)


def _finished(folder: Path | None) -> bool:
    """Whether a run need not go on: it has its scores, and nothing is damaged that it would write again."""
    if folder is None or not (folder / "metrics.json").is_file() or (manifest := read(folder)) is None:
        return False
    again = [name for name, content in FILES.items() if content.again and name in manifest.files]
    return all(intact(folder, name) for name in again)


@kinds_checked
def varied(path: Path | str, key: str, values: Sequence[str], sets: Sequence[str] = ()) -> list[Study]:
    """Read a study once for each of several values.

    Args:
        path: a TOML file or the name of a bundled study.
        key: dotted, such as "method.fraction".
        values: as an assignment would give them, such as "0.03" or "[50, 50]".
        sets: further assignments.

    Returns:
        The studies.

    Raises:
        StudyError: when there is no value, or as `Study.from_toml`.

    Example:
        >>> from pacbayes_fl.study.compare import varied
        >>> studies = varied("polynomial", "method.particles", ["2", "8"])
        >>> [study.method.options.particles for study in studies]
        [2, 8]
    """
    if not values:
        raise StudyError(f"there is no value of {key!r} to take", hint=f"such as {key}=1,2,4")
    return [Study.from_toml(path, [*sets, f"{key}={value}"]) for value in values]


def _value(study: Study, key: str) -> Any:
    """Look a dotted key up in what a study has resolved, or among the options of a method that a program has given."""
    given, option = study.instances.method, key.removeprefix("method.")
    if given is not None and option != key:
        places = {one.name: path for path, one in flat_options(type(given)).items()}
        if option in places:
            return attrgetter(places[option])(given)
    value: Any = study.table()
    for part in _value_text(study, key).split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise StudyError(f"{study.method.name} on {study.name} has no value {key!r}", hint="such as method.rate")
        value = value[part]
    return value


def _setting(study: Study, key: str) -> str:
    value = _value(study, key)
    return (
        f"{_value_text(study, key).rpartition('.')[2]}={value if isinstance(value, str) else settings.to_value(value)}"
    )


def _value_text(study: Study, key: str) -> str:
    """Name a key as tables do: the epsilon of a simulation by what it is."""
    simulated = key == "privacy.epsilon" and study.privacy.randomness == "simulation"
    return f"privacy.{results.SIMULATED_EPSILON}" if simulated else key


def _named(result: Result, name: str, key: str, value: object) -> Result:
    about = {"key": key, "value": value, "method": result.method}
    return replace(result, method=name, labels={**result.labels, "varied": about})


def write(out: Path | str, results: Sequence[Result], page: bool = True) -> None:
    """Write a comparison's table, `compare.csv` and `compare.json`, its page, and its figures if there is matplotlib.

    Args:
        out: folder of the comparison.
        results: results of one study.
        page: whether people get a page, `report.html`.

    Warns:
        UserWarning: when the page or figures could not be written: the table is there.
    """
    out = Path(out)
    cells = _cells(results)
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(Cell._fields)
    for cell in cells:
        odd = "; ".join(f"{name}: {value}" for name, value in cell.not_finite)
        row = cell._replace(not_finite=odd)._asdict()  # type: ignore[arg-type]
        writer.writerow([to_cell(value) if isinstance(value, str) else value for value in row.values()])
    table_json = (json.dumps(summary(results, out), indent=1) + "\n").encode()
    put(out, {"compare.csv": buffer.getvalue().encode(), FILE: table_json}, last=True)
    if page:
        try:
            pages.write_comparison(out, results)
        except Exception as error:  # whatever it is: the runs and their table are there
            what = one_line(f"{type(error).__name__}: {error}")
            warnings.warn(f"no report.html: {what} (`pacbayes-fl report {out}` writes it)", stacklevel=2)
    try:
        plots.save_joint(results, out / "figures")
    except PacBayesFLError as error:
        warnings.warn(f"no box plots: {error}", stacklevel=2)


def summary(results: Sequence[Result], out: Path | None = None) -> JsonTable:
    """Summarise a comparison as `compare.json` does.

    Args:
        results: of one study.
        out: folder of the comparison, if it has one.

    Returns:
        "study", "cells" and "runs", with their folders where they have some; and "varied", "calibration_bins" and
        "privacy" by method where there are such.
    """
    runs: list[JsonTable] = []
    for one in results:
        place = run_folder(one.method, one.seed)
        kept = {} if out is None else {"folder": place, "scores_sha256": scores_sha256(out / place)}
        runs.append({"method": one.method, "seed": one.seed, **kept})
    result: JsonTable = {"study": results[0].study, "cells": [*map(_plain, _cells(results))], "runs": runs}
    for label in ("varied", "calibration_bins", "privacy"):
        if by_method := {one.method: one.labels[label] for one in results if label in one.labels}:
            result[label] = by_method
    return result


def _cells(results: Sequence[Result]) -> list[Cell]:
    return table(results, list(dict.fromkeys(name for result in results for name in result.metrics)))


def _plain(cell: Cell) -> JsonTable:
    """Give a cell as JSON can hold it, a number that is not finite as None."""
    values = cell._asdict().items()
    return {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values}
