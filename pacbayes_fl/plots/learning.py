"""How a run went: score, evidence and spread of the particles over its rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pacbayes_fl.errors import kinds_checked, listed
from pacbayes_fl.plots.style import (
    BLUE,
    CYCLE,
    MODEL_LINES,
    RED,
    NothingToDrawError,
    count_whole,
    metric_label,
    panels,
    run_title,
)
from pacbayes_fl.results.metrics import MODELS, headline
from pacbayes_fl.results.recorded import RECORDED
from pacbayes_fl.results.records import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SPARSE = 40  # points up to which each has a marker
_NAMED = 3  # dropped clients that a legend names


@kinds_checked
def learning_curve(result: Result, values: Sequence[str] | None = None) -> Figure:
    """Draw numbers of the rounds against the round, one panel each, with the rounds that dropped a client marked.

    Args:
        result: a finished or a living run.
        values: names in `RoundRecord.values`, a panel each; those of `drawn_by_default` when None.

    Returns:
        A matplotlib figure; rounds where the number is absent or not finite are left out.

    Raises:
        NothingToDrawError: when no round recorded any of these numbers.
        PacBayesFLError: when matplotlib is not installed.

    Example:
        >>> import pacbayes_fl as fl
        >>> result = fl.run(fl.Study.from_toml("polynomial", ["federation.rounds=2", "method.particles=2"]))
        >>> figure = fl.plots.learning_curve(result)
        >>> [axis.get_ylabel() for axis in figure.axes]
        ['RSMSE', 'mean log evidence (nats)', 'particle spread']
    """
    wanted = values or drawn_by_default()
    known = recorded_names(result)
    chosen = [name for name in wanted if name in known]
    if not chosen:
        raise NothingToDrawError(f"no round of the result recorded any of {', '.join(wanted)}")
    drawn = [(name,) for name in chosen] if values else _default_panels(chosen)
    with panels(1, len(drawn), run_title(result)) as (figure, axes):
        for axis, names, colour in zip(axes[0], drawn, CYCLE * len(drawn), strict=False):
            for name in names:
                draw_rounds(axis, result, name, BLUE if name in _scores() else colour)
            if len(names) > 1:
                label = headline("classification").label
                axis.set(title=f"test {label}", ylabel=label)
                axis.legend()
        _mark_dropped(figure, axes[0], result)
    return figure


def drawn_by_default() -> tuple[str, ...]:
    """Name the default quantities of the learning curve.

    Returns:
        The headline score of every task (of classifiers those of personal and global model, which share a panel), what
        methods climb or descend, and the spread of particles.
    """
    return (*_scores(), *(name for name, one in RECORDED.items() if one.learning))


def recorded_names(result: Result) -> list[str]:
    """Name the numbers of which some round has a finite one.

    Args:
        result: a finished or a living run.

    Returns:
        Names, in the order in which the rounds first mention them.
    """
    values = [name for record in result.rounds for name, value in record.values.items() if math.isfinite(value)]
    return list(dict.fromkeys(values))


def _scores() -> tuple[str, ...]:
    return tuple(dict.fromkeys((headline("regression").name, *_of_both())))


def _of_both() -> tuple[str, ...]:
    """Name the headline score of both models of a classifier."""
    return tuple(f"{model}.{headline('classification').name}" for model in MODELS)


def _default_panels(known: Sequence[str]) -> list[tuple[str, ...]]:
    """Put the scores of both models into one panel."""
    both = _of_both() if set(_of_both()) <= set(known) else ()
    alone: list[tuple[str, ...]] = [(name,) for name in known if name not in both]
    return [both, *alone] if both else alone


def draw_rounds(axis: Axes, result: Result, name: str, colour: str) -> None:
    """Draw a number against the round; rounds where it is absent or not finite are left out.

    Args:
        axis: where.
        result: a finished or a living run.
        name: in `RoundRecord.values`.
        colour: of the line.
    """
    points = [(record.round, record.values[name]) for record in result.rounds if name in record.values]
    points = [(number, value) for number, value in points if math.isfinite(value)]
    rounds, numbers = zip(*points, strict=True)
    model = name.split(".")[0]
    dots = "o" if len(points) <= _SPARSE else None
    axis.plot(rounds, numbers, MODEL_LINES.get(model, "-"), color=colour, marker=dots, label=MODELS.get(model, name))
    label = metric_label(name, result)
    title = RECORDED[name].title if name in RECORDED else f"test {label}" if name in _scores() else label
    axis.set(title=title, xlabel="round", ylabel=label, xlim=_limits(result))
    count_whole(axis.xaxis)


def _mark_dropped(figure: Figure, axes: Sequence[Axes], result: Result) -> None:
    """Put a cross on the lower edge at every round that left a client out, and say which clients."""
    rounds = [record.round for record in result.rounds if record.dropped]
    if not rounds:
        return
    names = list(dict.fromkeys(name for record in result.rounds for name in record.dropped))
    who = listed(names, _NAMED)
    for axis in axes:
        (marks,) = axis.plot(
            rounds, [0.0] * len(rounds), "x", color=RED, transform=axis.get_xaxis_transform(), clip_on=False, zorder=5
        )
        marks.set_label(f"round without {who}")
    figure.legend(handles=[marks], loc="outside lower center")


def _limits(result: Result) -> tuple[float, float]:
    first, last = result.rounds[0].round, result.rounds[-1].round
    margin = 0.03 * max(last - first, 1)
    return first - margin, last + margin
