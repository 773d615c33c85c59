"""Results of a comparison: a table of methods, and the folders of its runs."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pacbayes_fl.errors import DataError, StudyError
from pacbayes_fl.files import refuse_link, sha256
from pacbayes_fl.names import as_html, printable, to_folder
from pacbayes_fl.results import records as results
from pacbayes_fl.results import run_failures
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.folder import refuse_links
from pacbayes_fl.results.frames import frame
from pacbayes_fl.results.grouping import by_settings, distinct
from pacbayes_fl.results.manifest import verify
from pacbayes_fl.results.metrics import comparison_columns, metric_of, run_columns
from pacbayes_fl.results.records import Result

if TYPE_CHECKING:
    from pandas import DataFrame

FILE: Final = "compare.json"
"""What a folder has that is a comparison's."""
_AGAIN: Final = "run compare again with the same --out: finished runs are read"


def direction(metric: str, result: Result | None = None) -> str:
    """The better direction of a metric.

    Args:
        metric: its name, such as "pm.accuracy".
        result: of a run, which knows its metrics of one's own.

    Returns:
        "lower" or "higher"; nothing where neither end is, as of a coverage.
    """
    if (known := metric_of(metric)) is not None:
        return known.better
    own = {} if result is None else result.labels.get("own_better", {})
    return str(own.get(metric.rpartition(".")[2], ""))


def shown_columns(result: Result) -> list[str]:
    """Name the columns that tables of a run show, those of metrics of one's own among them.

    Args:
        result: a finished run.

    Returns:
        Names.
    """
    return [*(name for name in run_columns(result.task) if name in result.metrics), *_own_columns(result)]


def compared_columns(result: Result) -> list[str]:
    """Name the columns that tables of a comparison show, those of metrics of one's own among them.

    Args:
        result: one of its runs.

    Returns:
        Names.
    """
    return [*comparison_columns(result.task), *_own_columns(result)]


def _own_columns(result: Result) -> list[str]:
    """Name the columns of metrics of one's own."""
    return [name for name in result.metrics if name.rpartition(".")[2] in result.labels.get("own_metrics", {})]


class Worst(NamedTuple):
    """The client that a metric is worst for.

    Args:
        client: its name.
        value: of the metric, the mean over seeds.
    """

    client: str
    value: float


class Cell(NamedTuple):
    """A metric of a method on a group of clients.

    Args:
        method: its name, with the value of what was varied behind it, and what else tells its runs from others.
        group: "existing" or "new".
        metric: its name.
        mean: over clients and seeds.
        low: lower end of the 95 % bootstrap interval over seeds and clients.
        high: upper end.
        median: over clients and seeds.
        seeds: number of seeds.
        scores: how many the mean is of: those that are not NaN.
        asked: how many there are, of all clients and seeds.
        not_finite: clients that have none that is finite, with what they have, such as ("c1", "nan"); with several
            seeds under the first in which it is so.
        round: whose models were scored; the first and the last one where runs have ended at different rounds.
        worst: the metric of the client that it is worst for, mean over seeds; NaN where no end of it is bad.
        worst_client: that client's name.
    """

    method: str
    group: str
    metric: str
    mean: float
    low: float
    high: float
    median: float
    seeds: int
    scores: int = 0
    asked: int = 0
    not_finite: tuple[tuple[str, str], ...] = ()
    round: str = ""
    worst: float = math.nan
    worst_client: str = ""


def worst(results: Sequence[Result], group: str, metric: str) -> Worst | None:
    """Name the client of a group that a metric is worst for.

    Args:
        results: runs of one method that differ in their seed.
        group: "existing" or "new".
        metric: its name.

    Returns:
        The client, the first of equals, and its mean over seeds; None where no client has a number, or of metrics of
        which neither a small nor a large value is bad.
    """
    if not (results and (better := direction(metric, results[0]))):
        return None
    values: dict[str, list[float]] = {}
    for result in results:
        for name, value in zip(result.rows.names(group), result.column(group, metric), strict=True):
            if not math.isnan(value):
                values.setdefault(name, []).append(value)
    means = {client: statistics.fmean(numbers) for client, numbers in values.items()}
    if not means:
        return None
    sign = 1.0 if better == "lower" else -1.0
    client = max(means, key=lambda client: sign * means[client])
    return Worst(client, means[client])


class Comparison(list[Result]):
    """The results of a comparison, seed by seed within study by study.

    Example:
        >>> import pacbayes_fl as fl
        >>> study = fl.Study.from_toml("polynomial", ["federation.rounds=2", "method.particles=2"])
        >>> comparison = fl.compare([study], seeds=2)
        >>> comparison
        Comparison(polynomial: pac-pfl; 2 runs, 2 seeds)
        >>> [result.seed for result in comparison]
        [0, 1]
    """

    def __repr__(self) -> str:
        """Methods, seeds and the study in one line."""
        return f"Comparison({self._title})" if self else "Comparison()"

    @property
    def _title(self) -> str:
        names = list(dict.fromkeys(one.method for one in self))
        some = ", ".join(names[:6]) + (", ..." if names[6:] else "")
        seeds = len({one.seed for one in self})
        return printable(f"{self[0].study}: {some}; {len(self)} runs, {seeds} seed{'s' if seeds > 1 else ''}")

    def _repr_html_(self) -> str:
        """The table of the comparison, for notebooks."""
        header = ("method", "clients", "metric", "mean", "95 % from", "to", "median", "worst", "worst client")
        cells = table(self) if self else []
        rows = [
            (one.method, one.group, one.metric, *one[3:7], one.worst, one.worst_client)  # from the mean to the median
            for one in sorted(cells, key=lambda one: (one.group, compared_columns(self[0]).index(one.metric)))
        ]
        return as_html(self._title if self else "no runs", header, rows)

    def to_pandas(self) -> DataFrame:
        """Give every metric of every method and group as a data frame, as `compare.csv` has them.

        Returns:
            A row per method, group and metric, with the columns of `Cell`.

        Raises:
            PacBayesFLError: when pandas is not installed.
        """
        cells = table(self, list(dict.fromkeys(name for one in self for name in one.metrics))) if self else []
        return frame({name: [getattr(cell, name) for cell in cells] for name in Cell._fields})


def table(results: Sequence[Result], metrics: Sequence[str] | None = None) -> list[Cell]:
    """Summarise runs by method, group and metric.

    Args:
        results: of one study, as a rule; runs of one method that differ in more than their seed have lines of their
            own, named by what they differ in.
        metrics: their names; those of the task when None.

    Returns:
        A cell for every combination that has numbers.

    Warns:
        UserWarning: naming results that are there twice, and are counted once.
    """
    metrics = compared_columns(results[0]) if metrics is None else metrics
    every = by_settings(distinct(results))
    cells = [_cell(name, group, one, runs) for name, runs in every.items() for group in GROUPS for one in metrics]
    return [cell for cell in cells if cell is not None]


def _cell(method: str, group: str, metric: str, runs: Sequence[Result]) -> Cell | None:
    """Summarise a metric over the clients of all runs; None where no client has it."""
    columns = [result.column(group, metric) for result in runs]
    known = [[value for value in column if not math.isnan(value)] for column in columns]
    known = [column for column in known if column]
    odd = {name: value for result in reversed(runs) for name, value in result.not_finite(group, metric).items()}
    if not (known or odd):
        return None
    numbers = (math.nan,) * 4
    if known:
        from pacbayes_fl.results.bootstrap import nested_bootstrap

        numbers = *nested_bootstrap(known), statistics.median(value for column in known for value in column)
    counts = sum(map(len, known)), sum(map(len, columns))
    rounds = sorted({result.round for result in runs})
    ends = "-".join(str(number) for number in (rounds[0], *rounds[1:][-1:]))
    client, value = worst(runs, group, metric) or ("", math.nan)
    return Cell(
        method,
        group,
        metric,
        *numbers,
        len({run.seed for run in runs}),
        *counts,
        tuple(odd.items()),
        ends,
        value,
        client,
    )


def runs_of(results: Sequence[Result], those: Sequence[bool]) -> list[str]:
    """Name some runs of a comparison, by their methods where all seeds of these are among them.

    Args:
        results: results of one study.
        those: for each, whether it is named.

    Returns:
        Names in the order of the results; none where all are named.
    """
    if all(those):
        return []
    runs = [(result.method, result.seed, named) for result, named in zip(results, those, strict=True)]
    parted = {method for method, _, named in runs if not named}
    return list(dict.fromkeys(f"{one} seed {seed}" if one in parted else one for one, seed, named in runs if named))


def run_folder(method: str, seed: int) -> str:
    """Name of a run's folder in a comparison.

    Args:
        method: its name in the table, with what was varied.
        seed: of the run.

    Returns:
        The name, below the folder of the comparison.
    """
    return f"{to_folder(method)}-seed{seed}"


def scores_sha256(folder: Path | str) -> str | None:
    """Fingerprint the scores of a run, by which a comparison knows it.

    Args:
        folder: of the run.

    Returns:
        SHA-256 of its clients.csv; None where it has none.
    """
    path = Path(folder) / "clients.csv"
    return sha256(path) if path.is_file() else None


def is_comparison(folder: Path | str) -> bool:
    """Whether a folder holds a finished comparison.

    Args:
        folder: any.

    Returns:
        True where a comparison wrote its table.
    """
    return (Path(folder) / FILE).is_file()


def load(folder: Path | str) -> Comparison:
    """Read the runs of a finished comparison.

    Args:
        folder: what a comparison was given.

    Returns:
        The results as `study.compare.compare` gave them, in their order.

    Raises:
        StudyError: when it is no finished comparison, or one of its runs is not there.
        DataError: naming the file that cannot be read, or the run that is not the one that was compared.
        CheckpointError: when a link stands in place of a run.

    Warns:
        DamageWarning: of files that were altered since they were written.
    """
    folder = Path(folder)
    refuse_links(folder)
    path = folder / FILE
    if not path.is_file():
        what = f"{folder} is not a finished comparison: {FILE} is missing"
        what, hint = run_failures.unfinished(folder, what, _AGAIN)
        raise StudyError(what, hint=hint)
    verify(folder, (FILE,))
    try:
        summary = json.loads(path.read_text("utf-8"))
        runs = [(str(run["folder"]), str(run["method"]), run.get("scores_sha256")) for run in summary["runs"]]
        varied = {str(name): dict(about) for name, about in summary.get("varied", {}).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} cannot be read: {error}", hint=_AGAIN) from error
    loaded = Comparison()
    for name, method, scores in runs:
        if Path(name).name != name:
            raise DataError(f"{path} names a run outside of its folder: {name!r}", hint=_AGAIN)
        refuse_link(folder / name)
        result = results.load(folder / name)
        if scores_sha256(folder / name) != scores:
            what = f"{folder / name} is not the run that was compared: its scores have changed since"
            raise DataError(what, hint="put that run back, or run compare again with the same --out")
        if about := varied.get(method):
            result = replace(result, method=method, labels={**result.labels, "varied": about})
        loaded.append(result)
    if not loaded:
        raise DataError(f"{path} names no run", hint=_AGAIN)
    return loaded
