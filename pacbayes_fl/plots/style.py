"""Common style of figures: sizes, colours, axis labels, and matplotlib, imported when first used.

No pyplot and no global state: every figure is a `matplotlib.figure.Figure` of its own, drawn in the same style whatever
the user's settings are, and needs no display.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from textwrap import fill
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pacbayes_fl.errors import PacBayesFLError, StudyError, listed
from pacbayes_fl.names import shortened, to_drawing
from pacbayes_fl.results.grouping import by_settings
from pacbayes_fl.results.metrics import MODELS, PARTS, Metric, is_raw, metric_of
from pacbayes_fl.results.recorded import RECORDED, with_unit
from pacbayes_fl.results.records import Result

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.artist import Artist
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
BLACK, YELLOW = "#000000", "#F0E442"
CYCLE: Final = (BLUE, ORANGE, GREEN, RED, PURPLE, SKY, BLACK, YELLOW)
"""Colours of Okabe and Ito (2008), told apart with every common kind of colour blindness."""
INK, FAINT = "#333333", "#9A9A9A"
GROUP_COLOURS: Final[Mapping[str, str]] = MappingProxyType({"existing": BLUE, "new": GREEN})

_STYLE: Final = MappingProxyType(
    {
        "font.size": 9.0,
        "axes.titlesize": 9.5,
        "axes.labelsize": 9.0,
        "axes.labelcolor": INK,
        "axes.edgecolor": FAINT,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.color": "#E6E6E6",
        "grid.linewidth": 0.6,
        "xtick.color": INK,
        "ytick.color": INK,
        "xtick.labelsize": 8.0,
        "ytick.labelsize": 8.0,
        "text.color": INK,
        "lines.linewidth": 1.5,
        "lines.markersize": 4.0,
        "legend.frameon": False,
        "legend.fontsize": 8.0,
        "figure.titlesize": 11.0,
        "figure.titleweight": "bold",
        "svg.hashsalt": "pacbayes_fl",
        "pdf.fonttype": 42,  # letters stay letters: journals refuse the type 3 that matplotlib writes otherwise
    }
)
MODEL_LINES: Final[Mapping[str, str]] = MappingProxyType(dict(zip(MODELS, ("-", "--"), strict=True)))
_TICK_COLUMNS: Final = 40  # of letters, of a tick or a key of a legend
_LINE_COLUMNS: Final = 100
_NOTE_COLUMNS: Final = 40  # of a line in a legend


class NothingToDrawError(StudyError):
    """A result does not have the data of a figure."""


@contextmanager
def drawing() -> Iterator[None]:
    """Draw in the library's style, and leave matplotlib's settings as they were.

    Raises:
        PacBayesFLError: when matplotlib is not installed, saying how to get it.
    """
    try:
        from matplotlib import style
    except ImportError as error:
        raise PacBayesFLError(
            "figures need matplotlib, which is not installed", hint="pip install 'pacbayes_fl[plots]'"
        ) from error
    with style.context(["default", dict(_STYLE)]):
        yield


@contextmanager
def panels(
    rows: int, columns: int, title: str, width: float = 3.3, height: float = 2.7
) -> Iterator[tuple[Figure, np.ndarray]]:
    """Open a figure of small multiples.

    Args:
        rows: panels from top to bottom.
        columns: panels from left to right.
        title: of the whole figure.
        width: of one panel, in inches.
        height: of one panel, in inches.

    Yields:
        The figure and an array [rows, columns] of its axes.

    Raises:
        PacBayesFLError: when matplotlib is not installed, saying how to get it.
    """
    with drawing():
        from matplotlib.figure import Figure

        figure = Figure(figsize=(width * columns, height * rows + 0.4), layout="constrained")
        figure.suptitle(title)
        yield figure, figure.subplots(rows, columns, squeeze=False)
        _take_literally(figure)


def _take_literally(figure: Figure) -> None:
    """Let every text be drawn as it stands: names in it are no formulas, and fit."""
    from matplotlib.text import Text
    from matplotlib.ticker import FuncFormatter

    for axis in [axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]:
        formatter = axis.get_major_formatter()
        if isinstance(formatter, FuncFormatter):  # of labels that were given: they are written when the figure is drawn
            axis.set_major_formatter(FuncFormatter(partial(_tick, formatter)))
    keys = {text for axes in figure.axes if (legend := axes.get_legend()) for text in legend.get_texts()}
    for text in figure.findobj(Text):
        text.set_text(to_drawing(text.get_text(), _TICK_COLUMNS if text in keys else _LINE_COLUMNS))


def _tick(formatter: Callable[[float, Any], str], value: float, position: Any) -> str:
    return to_drawing(formatter(value, position), _TICK_COLUMNS)


def run_title(result: Result) -> str:
    """Name a run above its figure: method, study and seed."""
    return f"{result.method} on {result.study}, seed {result.seed}"


def target_label(result: Result) -> str:
    """Name the target with its unit, from the labels `target_name` and `target_unit`."""
    return with_unit(str(result.labels.get("target_name", "y")), str(result.labels.get("target_unit", "")))


def metric_label(column: str, result: Result) -> str:
    """Name a column of scores, or a recorded number, for an axis: "pm.accuracy" is "accuracy, personal model"."""
    *parts, name = column.split(".")
    metric = metric_of(column)
    if metric is None:
        label = with_unit(RECORDED[name].label, RECORDED[name].unit) if name in RECORDED else name.replace("_", " ")
    else:
        label = with_unit(metric.label, _raw_unit(metric, result) if is_raw(column) else metric.unit)
        said = [one.text.format(result.labels.get(one.setting, one.default)) for one in metric.options if one.text]
        label += f" ({', '.join(said)})" if said else ""
    return ", ".join([label, *(PARTS.get(part, part) for part in parts)])


def _raw_unit(metric: Metric, result: Result) -> str:
    """Return the unit of a metric that is taken in the data's own units."""
    target = str(result.labels.get("target_unit", ""))
    return target if metric.raw == "times unit" else f"{metric.unit}, of targets in {target or 'their own unit'}"


def run_names(results: Sequence[Result]) -> list[str]:
    """Name each result by its method, and by its study where there are several; seeds of one run share a name."""
    several = len({result.study for result in results}) > 1
    return [f"{result.method}, {result.study}" if several else result.method for result in results]


def seed_count(results: Sequence[Result]) -> str:
    """Count the seeds of several runs: "1 seed", "5 seeds", or "2 to 5 seeds" where runs have different numbers.

    Args:
        results: finished or living runs; values that a comparison varied make runs of their own.

    Returns:
        The words.
    """
    counts = sorted({len({one.seed for one in same}) for same in by_settings(results).values()})
    number = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return f"{number} seed{'s' * (counts[-1] > 1)}"


def joint_title(results: Sequence[Result]) -> str:
    """Name the studies, the seeds and the rounds of several results: of those that a figure draws."""
    parts = zip(*((r.study, r.seed, r.round) for r in results), strict=True)
    studies, seeds, rounds = (list(dict.fromkeys(part)) for part in parts)
    counted = [("seed", seeds), ("round", rounds)]
    said = [f"{name}{'s' if numbers[1:] else ''} {', '.join(map(str, numbers))}" for name, numbers in counted]
    return ", ".join([*studies, *said])


def left_out(results: Sequence[Result], drawn: Sequence[Result], missing: str) -> list[Artist]:
    """Say in the legend of a figure which of the results it does not draw, and why.

    Args:
        results: what the figure was asked to draw.
        drawn: what it draws.
        missing: what the others do not have.

    Returns:
        An entry without a mark; none where all are drawn.
    """
    from matplotlib.lines import Line2D

    there = {id(one) for one in drawn}
    names = [name for name, one in zip(run_names(results), results, strict=True) if id(one) not in there]
    if not names:
        return []
    short = [shortened(name, _TICK_COLUMNS) for name in dict.fromkeys(names)]
    text = fill(f"not drawn: {listed(short, 2)} (no {missing})", _NOTE_COLUMNS)
    return [Line2D([], [], linestyle="none", label=text)]


def count_whole(axis: Axis) -> None:
    """Let the ticks of an axis that counts be whole numbers.

    Args:
        axis: the one of x or that of y.
    """
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def group_names(result: Result, group: str) -> list[str]:
    """Return the names of a group's clients, in the order of the rows of its predictions."""
    return result.rows.names(group)


def predicted(result: Result, group: str, *names: str) -> dict[str, np.ndarray]:
    """Take predictions of a group as arrays.

    Args:
        result: a finished run.
        group: "existing" or "new".
        *names: such as "pit" or "mask_test".

    Returns:
        The arrays by name, clients first; empty when the result holds no predictions for the group.
    """
    if any(f"{group}.{name}" not in result.predictions for name in names):
        return {}
    return {name: result.predictions[f"{group}.{name}"].detach().cpu().numpy() for name in names}
