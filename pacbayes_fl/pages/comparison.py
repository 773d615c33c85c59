"""The page of a comparison: intervals side by side, paired differences over clients, ranks, time and bytes."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from pacbayes_fl.errors import UNREADABLE, counted
from pacbayes_fl.names import shortened
from pacbayes_fl.pages import axis
from pacbayes_fl.pages.chart import Chart
from pacbayes_fl.pages.document import page
from pacbayes_fl.pages.markup import Element, definitions, figures, folded, number, section, table, tag
from pacbayes_fl.pages.run import FILE
from pacbayes_fl.pages.scores import better, boxes, label
from pacbayes_fl.results.client_rows import GROUPS, members
from pacbayes_fl.results.comparison import Cell, compared_columns, direction, load, run_folder
from pacbayes_fl.results.comparison import table as cells_of
from pacbayes_fl.results.manifest import put
from pacbayes_fl.results.metrics import headline_column
from pacbayes_fl.results.paired import DRAWS, EXACT, paired, ranks
from pacbayes_fl.results.records import Result

_NAME: Final = 40
_BOXES: Final = 2  # metrics whose spread is drawn


def comparison_page(results: Sequence[Result], sizes: dict[str, int] | None = None) -> str:
    """Make the page of a comparison.

    Args:
        results: its runs, one at least.
        sizes: bytes of what the server sends a client, by method; those that are not known are left out.

    Returns:
        HTML, self-contained.
    """
    columns = compared_columns(results[0])
    cells = sorted(cells_of(results), key=lambda cell: (columns.index(cell.metric), cell.group))
    methods = list(dict.fromkeys(one.method for one in results))
    seeds = sorted({one.seed for one in results})
    clients = members({group: results[0].rows.size_of(group) for group in GROUPS})
    lead = (
        f"{counted(len(methods), 'method')} {'was' if len(methods) == 1 else 'were'} run on "
        f"{shortened(results[0].study, 80)}, each with seed"
        f"{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}: {counted(len(results), 'run')} on the rows of "
        f"{clients}. Intervals are 95 % of the bootstrap over seeds and clients."
    )
    own = [
        _warnings(results, cells),
        _results(cells, results[0]),
        _pairs(results, methods),
        _ranks(results, methods),
        _spread(results, methods),
        _cost(results, methods, sizes or {}),
        _repeat(results),
    ]
    return page(f"Comparison on {shortened(results[0].study, 90)}", "Report of a comparison", [lead], own)


def write_comparison(folder: Path | str, results: Sequence[Result] | None = None) -> Path:
    """Write the page of a comparison into its folder.

    Args:
        folder: of a finished comparison.
        results: its runs; read from the folder when None.

    Returns:
        The file.

    Raises:
        StudyError, DataError, CheckpointError: when it is no finished comparison, or cannot be read or written.
    """
    folder = Path(folder)
    results = load(folder) if results is None else results
    sizes = {}
    for one in results:
        if one.method not in sizes and (size := _server_bytes(folder / run_folder(one.method, one.seed))):
            sizes[one.method] = size
    put(folder, {FILE: comparison_page(results, sizes).encode()}, last=True)
    return folder / FILE


def _server_bytes(folder: Path) -> int | None:
    """Bytes of the server's state after the last saved round, by the head of its file; None where it is not known."""
    saved = sorted(folder.glob("checkpoints/round_*/state.safetensors"))
    if not saved:
        return None
    try:
        with saved[-1].open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            head = json.loads(file.read(min(length, 1 << 24)))
        ends = [one["data_offsets"] for name, one in head.items() if name.startswith("server")]
        return sum(int(end) - int(begin) for begin, end in ends)
    except (*UNREADABLE, struct.error):
        return None


def _warnings(results: Sequence[Result], cells: Sequence[Cell]) -> Element | None:
    said = []
    if len({one.seed for one in results}) == 1:
        said.append("One seed: intervals are over clients alone, and do not say how much another seed would change.")
    for cell in cells:
        if cell.not_finite:
            who = ", ".join(f"{shortened(name, _NAME)} {value}" for name, value in cell.not_finite[:3])
            said.append(
                f"{cell.method}, {cell.metric}, {cell.group}: over {cell.scores} of {cell.asked} scores ({who})."
            )
    rounds = {one.method: {other.round for other in results if other.method == one.method} for one in results}
    said += [f"{name} was scored at different rounds: {sorted(own)}." for name, own in rounds.items() if len(own) > 1]
    if not said:
        return None
    return section("warnings", "Warnings", tag("ul", *(tag("li", one) for one in said), class_="warning"))


def _results(cells: Sequence[Cell], one: Result) -> Element:
    lines = [
        (
            cell.method,
            label(cell.metric, one),
            cell.group,
            better(cell.metric, one) or "–",
            number(cell.mean),
            f"{number(cell.low)} to {number(cell.high)}",
            number(cell.median),
            str(cell.seeds),
            f"{shortened(cell.worst_client, _NAME)}: {number(cell.worst)}" if cell.worst_client else "–",
        )
        for cell in cells
    ]
    head = (
        *("method", "metric", "clients", "direction", "mean", "95 % interval", "median", "seeds"),
        "worst client, mean over seeds",
    )
    drawn = [
        _forest([cell for cell in cells if (cell.group, cell.metric) == key], one)
        for key in dict.fromkeys((cell.group, cell.metric) for cell in cells)
    ]
    main = 2 * len({cell.group for cell in cells})
    more = folded("Intervals of all other metrics", figures(drawn[main:])) if drawn[main:] else None
    body = table("Mean over clients and seeds", head, lines, numeric=(4, 5, 6, 7), sortable=True)
    return section("results", "Results", figures(drawn[:main]), more, body)


def _forest(cells: Sequence[Cell], one: Result) -> Element:
    """Draw means with their intervals, a method a line."""
    metric, group = cells[0].metric, cells[0].group
    way = better(metric, one)
    text = label(metric, one)
    numbers = np.array([(cell.mean, cell.low, cell.high, cell.median) for cell in cells], dtype=np.float64)
    x = axis.linear(f"{text} ({way})" if way else text, numbers)
    y = axis.named("method", [cell.method for cell in cells])
    says = "; ".join(f"{cell.method} {number(cell.mean)}, {number(cell.low)} to {number(cell.high)}" for cell in cells)
    chart = Chart(f"{text}, {group} clients", x, y, says, 420, 60 + 26 * len(cells), names=True)
    place = np.arange(len(cells), dtype=np.float64)
    chart.spans(place, numbers[:, 1], numbers[:, 2], "s1", "95 % interval", upright=False)
    chart.dots(numbers[:, 0], place, "s1", "mean")
    chart.dots(numbers[:, 3], place, "ink", "median over clients and seeds")
    return chart.figure()


def _best(results: Sequence[Result], methods: Sequence[str], group: str, metric: str) -> str | None:
    """The method with the best mean, with which all others are compared."""
    cells = [cell for cell in cells_of(results, [metric]) if cell.group == group and np.isfinite(cell.mean)]
    if len(cells) < 2:
        return None
    sign = -1.0 if direction(metric, results[0]) == "higher" else 1.0
    return min(cells, key=lambda cell: sign * cell.mean).method


def _pairs(results: Sequence[Result], methods: Sequence[str]) -> Element | None:
    if len(methods) < 2:
        return None
    parts, metrics = list[Element](), [name for name in compared_columns(results[0]) if direction(name, results[0])]
    for metric in metrics:
        for group in GROUPS:
            best = _best(results, methods, group, metric)
            lines = [] if best is None else paired(results, best, group, metric)
            if not lines or best is None:
                continue
            way, text = better(metric, results[0]), label(metric, results[0])
            good = direction(metric, results[0]) == "lower"
            rows = [
                (
                    one.method,
                    number(one.mean),
                    f"{number(one.low)} to {number(one.high)}",
                    f"{one.lower if good else one.higher} of {one.clients}",
                    number(one.p, 3),
                    number(one.adjusted, 3),
                )
                for one in lines
            ]
            head = ("method", "mean difference", "95 % interval", "clients that fare better", "p", "p, Holm")
            caption = f"{text} ({way}), {group} clients: method less {best}, which has the best mean"
            parts.append(table(caption, head, rows, numeric=(1, 2, 4, 5)))
    if not parts:
        return None
    text = (
        f"Differences on the same clients, each client's mean over seeds. p is of the two-sided sign-flip test that "
        f"differences are symmetric about 0, by all signs up to {EXACT} clients and by {DRAWS} draws otherwise, and "
        "adjusted by Holm for the number of methods. The reference was chosen by the same numbers, so that p is too "
        "small for a claim about it; and clients of one federation share a server's model: they are not independent."
    )
    return section("paired", "Paired differences over clients", tag("p", text), *parts)


def _ranks(results: Sequence[Result], methods: Sequence[str]) -> Element | None:
    columns: dict[tuple[str, str], dict[str, float]] = {}
    for metric in compared_columns(results[0]):
        for group in GROUPS:
            if (way := direction(metric, results[0])) and (own := ranks(results, group, metric, way)):
                columns[metric, group] = own
    if len(methods) < 2 or not columns:
        return None
    head = ["method", *(f"{label(metric, results[0])}, {group}" for metric, group in columns)]
    rows = [(name, *(number(own.get(name), 3) for own in columns.values())) for name in methods]
    caption = f"Mean rank over clients, 1 is the best of {len(methods)}"
    return section("ranks", "Ranks", table(caption, head, rows, numeric=range(1, len(head)), sortable=True))


def _spread(results: Sequence[Result], methods: Sequence[str]) -> Element | None:
    metrics = [headline_column(results[0].task), *compared_columns(results[0])]
    drawn = []
    for metric in list(dict.fromkeys(metrics))[:_BOXES]:
        for group in GROUPS:
            lines = []
            for method in methods:
                runs = [one for one in results if one.method == method]
                values = np.array([value for one in runs for value in one.column(group, metric)], dtype=np.float64)
                names = [f"{row.name} (seed {one.seed})" for one in runs for row in one.clients if row.group == group]
                if np.isfinite(values).any():
                    lines.append((method, values, names))
            if lines:
                drawn.append(boxes(f"{label(metric, results[0])}, {group} clients", better(metric, results[0]), lines))
    text = "Every client of every seed is a point."
    return section("spread", "Spread over clients", tag("p", text), figures(drawn)) if drawn else None


def _cost(results: Sequence[Result], methods: Sequence[str], sizes: dict[str, int]) -> Element:
    rows = []
    for method in methods:
        runs = [one for one in results if one.method == method]
        seconds = [sum(record.values.get("seconds", 0.0) for record in one.rounds) for one in runs]
        counts = sorted({len(one.rounds) for one in runs})
        sent = [
            v for one in runs for r in one.rounds for v in (r.values.get("bytes_sparse", r.values.get("bytes_dense")),)
        ]
        known = [value for value in sent if value is not None]
        rows.append(
            (
                method,
                ", ".join(map(str, counts)),
                number(float(np.mean(seconds)), 3),
                number(sum(seconds) / max(1, sum(len(one.rounds) for one in runs)), 3),
                _bytes(sizes.get(method)),
                _bytes(float(np.mean(known)) if known else None),
            )
        )
    head = (
        *("method", "rounds", "seconds in rounds, mean over seeds", "seconds a round"),
        *("server's state, sent to a client a round", "upload of a client a round, where recorded"),
    )
    text = "Time is of this machine, and of rounds alone: personalising and scoring at the end are not in it."
    body = table("Time and bytes", head, rows, numeric=range(1, 6), sortable=True)
    return section("cost", "Time and bytes", tag("p", text), body)


def _bytes(count: float | None) -> str:
    if count is None:
        return "–"
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"


def _repeat(results: Sequence[Result]) -> Element:
    rows = []
    for one in results:
        scores = "\n".join(f"{row.id},{row.group},{sorted(row.metrics.items())!r}" for row in one.clients)
        digest = hashlib.sha256(scores.encode()).hexdigest()
        name = run_folder(one.method, one.seed)
        rows.append((one.method, str(one.seed), str(one.round), name, tag("code", digest[:16])))
    head = ("method", "seed", "round", "folder of the run, with a report of its own", "scores (SHA-256, first half)")
    commands = ["pacbayes-fl compare STUDY --methods A,B --seeds N --out DIR", "pacbayes-fl report DIR --open"]
    return section(
        "repeat",
        "How to repeat it",
        tag("p", "comparison.json holds every value of every study, and each folder its study.toml:"),
        tag("pre", *(tag("code", one) for one in commands)),
        definitions([("seeds", ", ".join(str(seed) for seed in sorted({one.seed for one in results})))]),
        table("Runs", head, rows, numeric=(1, 2)),
    )
