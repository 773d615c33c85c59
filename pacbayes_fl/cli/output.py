"""Output of the command line: tables and predictions."""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple, TextIO

from pacbayes_fl.cli.layout import fitted, number, room
from pacbayes_fl.errors import counted, listed
from pacbayes_fl.files import JsonMapping
from pacbayes_fl.names import printable, shortened, width
from pacbayes_fl.results import comparison, run_failures
from pacbayes_fl.results.certificates import CertifiedRun, is_vacuous, rounded_up
from pacbayes_fl.results.comparison import Cell, Worst, worst
from pacbayes_fl.results.metrics import METRICS, Option, headline
from pacbayes_fl.results.records import SIMULATED_EPSILON, Result, nested

if TYPE_CHECKING:
    from pacbayes_fl.study.run import Trained
    from pacbayes_fl.study.serving.forecast import Forecast

_SHOWN = 5  # names in a line


def say(text: str, file: TextIO | None = None, flush: bool = False) -> None:
    """Print a line in which nothing steers the terminal, whatever names and paths stand in it.

    Args:
        text: the line.
        file: stdout when None.
        flush: show it at once.
    """
    print(printable(text), file=file, flush=flush)


def print_comparison(results: Sequence[Result]) -> None:
    """Print a comparison: cells, settings of metrics, too narrow intervals, scaling of rows and privacy costs.

    Args:
        results: the runs.
    """
    print_cells(comparison.table(results))
    print_metric_settings(results)
    print_too_seldom(results)
    print_rows(results)
    print_privacy(results)


def check_forecast(options: argparse.Namespace) -> None:
    """Refuse levels and files of a forecast, before a run is opened for it.

    Args:
        options: of `arguments.forecast_options`.
    """
    from pacbayes_fl.study.serving.forecast import check_out
    from pacbayes_fl.study.serving.out_file import check_apart
    from pacbayes_fl.study.serving.predict import levels_of

    levels_of(options.quantiles)
    if options.out is not None:
        check_out(options.out)
        check_apart(options.out, options.run, options.data, getattr(options, "later", None))


def give_forecast(forecast: Forecast, options: argparse.Namespace) -> None:
    """Print a forecast as CSV or JSON, or write it to a file; blank, or null, where there is no prediction.

    Args:
        forecast: of a table.
        options: of `arguments.forecast_options`.
    """
    if options.json:
        print(json.dumps(forecast.by_client()))
    if options.out is not None:
        forecast.save(options.out)
        say(f"{options.out}: {forecast.counts}", file=sys.stderr)
    elif not options.json:
        text = forecast.to_csv()  # in which nothing steers the terminal
        print(text, end="")


def say_unfinished(trained: Trained) -> None:
    """Say on stderr that a run has not made all its rounds, and from which one its answers come.

    Args:
        trained: as `open_run` gives it.
    """
    folder = trained.folder
    if folder is not None and not (folder / "metrics.json").is_file():
        at = f"what follows is of round {trained.round} of {trained.study.plan.rounds}"
        if run_failures.read(folder) is not None:
            said = f"holds a run that ended in an error: {at}"
        elif trained.round >= trained.study.plan.rounds:
            said = "has no scores yet, or goes on to more rounds (run the study with --resume to write them)"
        else:
            said = f"has not been finished: {at} (run the study with --resume to finish it)"
        say(f"warning: {folder} {said}", file=sys.stderr)


def print_table(result: Result) -> None:
    """Print a run's table: one line per metric, by group; and the results under other rules of choosing a round.

    Args:
        result: a finished run.
    """
    (method,) = _shown_methods([result.method]).values()
    say(_titled(result.study, f"{method}, seed {result.seed}, round {result.round}"))
    names = comparison.shown_columns(result)
    rows: dict[str, list[_Row]] = {}
    for group, entry in result.summary()["groups"].items():
        every = result.labels.get("group_sizes", {}).get(group)  # where nodes did not tell of all
        known = f"{entry['n_clients']} of " if every else ""
        title = f"{group}, {known}{counted(every or entry['n_clients'], 'client')}"
        rows[title] = [
            _Row(name, *_statistics(results), worst([result], group, name))
            for name in names
            if (results := nested(entry, name))
        ]
    _print_rows(rows)
    for group, entry in result.summary()["groups"].items():
        _say_not_finite(group, entry["n_clients"], {name: nested(entry, name) or {} for name in names}, "clients")
    _print_fallen(result.labels)
    print_metric_settings([result])
    print_too_seldom([result])
    print_rows([result])
    _say_choices(result.labels)
    if "privacy" in result.labels:
        say(f"privacy: {result.labels['privacy']['statement']}")
    for model, rules in result.labels.get("selections", {}).items():
        for rule, chosen in rules.items():
            score = headline(result.task).name
            text = f"{score} {chosen[score]:.4f} at round {chosen['round']}, mean weights"
            say(f"{model}.{rule}: {text} ({chosen['rule']})")


def _say_not_finite(where: str, asked: int, entries: Mapping[str, JsonMapping], what: str) -> None:
    """Print of which scores a mean is, and who has none that is finite: a line for metrics that say the same."""
    alike: dict[tuple[int, tuple[tuple[str, str], ...]], list[str]] = {}
    for name, entry in entries.items():
        if odd := entry.get("not_finite"):
            alike.setdefault((entry.get("n_clients", asked), tuple(odd.items())), []).append(name)
    for (count, odd), names in alike.items():
        shown = listed([f"{client}: {value}" for client, value in odd], _SHOWN)
        say(f"{where} {', '.join(names)}: mean over {count} of {asked} {what}; {shown}")


def _say_choices(labels: JsonMapping) -> None:
    """Say what held-out rows have chosen, and what that shows of the fit."""
    for key, note in labels.items():
        if isinstance(note, Mapping) and {"chosen", "scores", "rule"} <= note.keys():
            known = [f"{value}: {score:.3f}" for value, score in note["scores"].items() if score is not None]
            scores = "; ".join(filter(None, (", ".join(known), note.get("unless"))))
            how = f" was chosen by held-out rows ({scores})" if known else f", as usual: {note['rule']}"
            say(f"{key} = {note['chosen']}{how}")
            if "remark" in note:
                say(f"{key}: {note['remark']}")


def _print_fallen(labels: JsonMapping) -> None:
    """Say which newer rounds were damaged, so that an older one was used; nothing where none was."""
    for text in labels.get("fell_back", ()):
        say(f"fell back: {text}")


class _Row(NamedTuple):
    """A line of a table: mean over clients, its interval, the median, and the client with the worst value."""

    name: str
    mean: float | None
    low: float | None
    high: float | None
    median: float | None
    worst: Worst | None


def _print_rows(groups: Mapping[str, Sequence[_Row]]) -> None:
    """Print rows below their titles, all aligned; on a narrow terminal the worst client has a line of its own."""
    columns = room()
    head = ["over clients", "mean", "[95 % interval]", "median", "worst client", ""]
    cells = [head] + [
        [
            f"  {row.name}",
            number(row.mean),
            f"[{number(row.low)}, {number(row.high)}]",
            number(row.median),
            row.worst.client if row.worst else "",
            number(row.worst.value) if row.worst else "",
        ]
        for rows in groups.values()
        for row in rows
    ]
    lines = fitted(cells, (0, 4), columns, right=(1, 2, 3, 5))
    if columns is not None and any(width(line) > columns for line in lines):
        lines = fitted([row[:4] for row in cells], (0,), columns, right=(1, 2, 3))
        below = [f"    worst: {shortened(row[4], columns - 22)} {row[5]}" if row[4] else "" for row in cells[1:]]
    else:
        below = [""] * (len(cells) - 1)
    say(lines[0])
    rest = iter(zip(lines[1:], below, strict=True))
    for title, rows in groups.items():
        say(title)
        for _ in rows:
            for line in filter(None, next(rest)):
                say(line)


def _short(name: str) -> str:
    """Shorten a name in the middle of a line on a terminal."""
    columns = room()
    return name if columns is None else shortened(name, columns // 2)


def _beside(line: str, note: str) -> list[str]:
    """Put a note behind a line, or below it where there is no room."""
    columns = room()
    if not note or columns is None or width(line) + 2 + width(note) <= columns:
        return [f"{line}  {note}".rstrip()]
    return [line, *wrap(note, columns, initial_indent="    ", subsequent_indent="    ")]


def _titled(name: str, about: str) -> str:
    """Put a name in front of a line, short enough that the rest of it still fits."""
    columns = room()
    return f"{name}, {about}" if columns is None else f"{shortened(name, max(12, columns - len(about) - 2))}, {about}"


def _shown_methods(names: Sequence[str]) -> dict[str, str]:
    """Show users' methods by files without their folders, "mine.py:MyMethod", where no two are called alike."""
    short = {name: Path(name).name for name in names if ".py:" in name}
    often = Counter(short.values())
    return {name: short[name] if often[short.get(name, "")] == 1 else name for name in names}


def _statistics(entry: JsonMapping) -> tuple[float | None, float | None, float | None, float | None]:
    low, high = entry["interval"]
    return entry["mean"], low, high, entry["median"]


def print_cells(cells: Sequence[Cell]) -> None:
    """Print a comparison's table: methods below each other, by metric and group.

    Args:
        cells: as `results.comparison.table` gives them.
    """
    seeds = max((cell.seeds for cell in cells), default=0)
    say(f"over clients and {seeds} seed{'s' if seeds != 1 else ''}, intervals by the bootstrap")
    groups: dict[str, list[_Row]] = {}
    shown = _shown_methods([cell.method for cell in cells])
    for group, metric in dict.fromkeys((cell.group, cell.metric) for cell in cells):
        groups[f"{metric}, {group} clients"] = [
            _Row(
                shown[cell.method],
                cell.mean,
                cell.low,
                cell.high,
                cell.median,
                Worst(cell.worst_client, cell.worst) if cell.worst_client else None,
            )
            for cell in cells
            if (cell.group, cell.metric) == (group, metric)
        ]
    _print_rows(groups)
    rounds = {f"{shown[cell.method]} {cell.round}": None for cell in cells if cell.round}
    if rounds:
        say(f"scored at round: {', '.join(rounds)}")
    for method, group in dict.fromkeys((cell.method, cell.group) for cell in cells):
        own = [cell for cell in cells if (cell.method, cell.group) == (method, group)]
        entries = {cell.metric: {"n_clients": cell.scores, "not_finite": dict(cell.not_finite)} for cell in own}
        _say_not_finite(f"{shown[method]} {group}", max(cell.asked for cell in own), entries, "scores")


def print_metric_settings(results: Sequence[Result]) -> None:
    """Print the settings of metrics, such as bins of confidence; nothing where no metric has any.

    Args:
        results: results of a table.
    """
    for option, names in _spoken_options().items():
        values = sorted({result.labels[option.setting] for result in results if option.setting in result.labels})
        if values:
            say(f"{' and '.join(names)}: {option.sentence.format(' or '.join(map(str, values)))}")


def print_too_seldom(results: Sequence[Result]) -> None:
    """Print whose intervals hold too seldom; nothing where all hold.

    Args:
        results: results of a table.
    """
    from pacbayes_fl.results.calibration import too_seldom

    for line in too_seldom(results):
        say(line)


def print_rows(results: Sequence[Result]) -> None:
    """Print which rows are test rows, and which columns of which runs are not scaled by client, where runs say so.

    Args:
        results: results of a table.
    """
    for text in dict.fromkeys(result.labels["test_rows"] for result in results if "test_rows" in result.labels):
        say(f"test rows: {text}")
    for how, words in (
        ("towards all clients", "scaled by moments shrunk towards those of all clients"),
        ("across clients", "scaled across clients"),
        ("own units", "not scaled"),
        ("bounds", "bounds"),
        ("transform", "transform"),
        ("client inputs", "further inputs of each client's training rows"),
    ):
        every = [result.labels.get("scaling", {}).get(how) for result in results]
        for columns in dict.fromkeys(filter(None, every)):
            named = comparison.runs_of(results, [one == columns for one in every])
            where = f", in {listed(named, _SHOWN)}" if named else ""
            say(f"{words}{where}: {columns}")


def print_privacy(results: Sequence[Result]) -> None:
    """Print privacy costs: one line per method and value; nothing where no run is private.

    Args:
        results: results of a comparison.
    """
    private = [result for result in results if "privacy" in result.labels]
    for name in dict.fromkeys(result.method for result in private):
        labels = [result.labels["privacy"] for result in private if result.method == name]
        for called in ("epsilon", SIMULATED_EPSILON):
            if spent := [one for one in labels if called in one]:
                say(f"{name}: {_most(spent, called)}")
    if len(private) > 1:
        say("each number is of one run: what several runs on the same rows tell adds up")


def _most(spent: Sequence[JsonMapping], called: str) -> str:
    """Say what the run that has spent most has spent."""
    most = max(spent, key=lambda one: math.inf if one[called] is None else float(one[called]))
    epsilon = "infinity" if most[called] is None else rounded_up(most[called])
    claimed = "" if most["claimed"] is None else f"; PAC-PFL claims {called} {most['claimed']:g}, which does not hold"
    return f"{most['mechanism']} spent {called} {epsilon} at delta {rounded_up(most['delta'])}{claimed}"


def print_certificates(table: CertifiedRun) -> None:
    """Print the bounds of a run: one line per client, and a summary.

    Args:
        table: as `certificates.clients.certify` gives it.
    """
    whom = "of all lines at once" if table.labels.get("jointly") else "of each line on its own"
    at = f", round {table.model['round']}" if table.model else ""
    say(
        f"{table.method} on {_short(table.study)}, seed {table.seed}{at}: {table.theorem}, delta {table.delta:g} {whom}"
    )
    _print_fallen(table.labels)
    say(f"risk: {table.risk}")
    if table.number is not None:
        text = (
            f"request {table.number} for certificates of these rows: delta is shared as among {table.labels['tried']}"
        )
        say(f"{text} (requests are {table.labels['requests']})")
    for group, reasons in table.reasons.items():
        if reasons:
            say(f"{group}: valid = false: {'; '.join(reasons)}")
        else:
            _print_group(table, group)
    for name, why in table.labels.get("left_out", {}).items():
        say(f"{name} has no certificate: {why}")


def _print_group(table: CertifiedRun, group: str) -> None:
    lines = [line for line in table.clients if line.group == group]
    units = table.labels.get("units", {})
    say(f"{group}: {table.labels['rows'][group]}" + (f"; targets {units[group]}" if group in units else ""))
    beside = any(line.holdout_bound == line.holdout_bound for line in lines)
    titles = ["client", "n", "risk", "KL", "bound", "test risk", "test n", "fixed risk", "hold-out bound"]
    rows = [titles[: 9 if beside else 7], *(line.cells(beside) for line in lines)]
    notes = ["", *("  ".join(line.notes(table.high)) for line in lines)]
    for text, note in zip(fitted(rows, (0,), room(), right=range(1, 9)), notes, strict=True):
        for part in _beside(text, note):
            say(part)
    below = sum(not line.test_risk > line.bound for line in lines)
    useful = sum(not is_vacuous(line.bound, table.high, line.trivial) for line in lines)
    middle = rounded_up(statistics.median(line.bound for line in lines))
    say(
        f"median bound {middle}; not vacuous, so below the bound of the trivial predictor at the same n: "
        f"{useful} of {len(lines)}; test risk not above it: {below} of {len(lines)}"
    )
    if beside:
        say(table.holdout_text(group))
    if group in table.summary:
        average = rounded_up(table.summary[group]["value"])
        say(f"average over the clients' rows: at most {average}, with a delta {table.delta:g} of its own")
    elif any(line.repeats for line in lines):
        say("average over the clients' rows: none, as some rows repeat others")
    elif "no_average" in table.labels:
        say(f"average over the clients' rows: none, as {table.labels['no_average']}")


def _spoken_options() -> dict[Option, list[str]]:
    """Collect the options whose values tables print, each with the names of the metrics that depend on it."""
    result: dict[Option, list[str]] = {}
    for name, metric in METRICS.items():
        for option in metric.options:
            if option.sentence:
                result.setdefault(option, []).append(name)
    return result
