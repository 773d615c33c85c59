"""How a run went: score, evidence and spread of the particles over its rounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pacbayes_fl.plots.style import (
    BLUE,
    CYCLE,
    MODEL_LINES,
    MODELS,
    RED,
    NothingToDrawError,
    metric_label,
    panels,
)
from pacbayes_fl.results import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_SCORES: Final = ("rsmse", "pm.accuracy", "gm.accuracy", "accuracy")
OBJECTIVES: Final = MappingProxyType(
    {
        "log_evidence": ("log evidence of the clients", "mean log evidence (nats)"),
        "elbo": ("evidence lower bound of the clients", "mean ELBO (nats)"),
        "loss": ("training loss of the clients", "mean loss (nats per row)"),
    }
)
"""What methods climb or descend, by its name in the records of their rounds: title and label of a panel."""
_OTHERS: Final = MappingProxyType({**OBJECTIVES, "spread": ("spread of the particles", "particle spread")})
_SPARSE = 40  # points up to which each has a marker
_NAMED = 3  # dropped clients that a legend names


def learning_curve(result: Result, values: Sequence[str] | None = None) -> Figure:
    """Draw numbers of the rounds against the round, one panel each, with the rounds that dropped a client marked.

    Args:
        result: a finished or a living run.
        values: names in `RoundRecord.values`, a panel each; by default the score of the evaluation rounds (rsmse, or
            the accuracies of personal and global model in one panel), what the method climbs or descends
            (`OBJECTIVES`), and the spread of the particles, as far as the run recorded them.

    Returns:
        A matplotlib figure; rounds where the number is absent or not finite are left out.

    Raises:
        NothingToDrawError: when no round recorded any of these numbers.
        PacBayesFLError: when matplotlib is not installed.
    """
    known = {name for record in result.rounds for name, value in record.values.items() if math.isfinite(value)}
    chosen = [name for name in (values or (*_SCORES, *_OTHERS)) if name in known]
    if not chosen:
        wanted = ", ".join(values or (*_SCORES, *_OTHERS))
        raise NothingToDrawError(f"no round of the result recorded any of {wanted}")
    drawn = [(name,) for name in chosen] if values else _default_panels(chosen)
    with panels(1, len(drawn), f"{result.method} on {result.study}, seed {result.seed}") as (figure, axes):
        for axis, names, colour in zip(axes[0], drawn, CYCLE * len(drawn), strict=False):
            for name in names:
                _curve(axis, result, name, BLUE if name in _SCORES else colour)
            if len(names) > 1:
                axis.set(title="test accuracy", ylabel="accuracy")
                axis.legend()
        _mark_dropped(figure, axes[0], result)
    return figure


def _default_panels(known: Sequence[str]) -> list[tuple[str, ...]]:
    """Put both accuracies into one panel, and leave out a loss that only mirrors what is drawn."""
    both = tuple(f"{model}.accuracy" for model in MODELS)
    if not set(both) <= set(known):
        both = ()
    mirrored = {"loss"} if {"log_evidence", "elbo"} & set(known) else set()
    alone: list[tuple[str, ...]] = [(name,) for name in known if name not in both and name not in mirrored]
    return [both, *alone] if both else alone


def _curve(axis: Axes, result: Result, name: str, colour: str) -> None:
    from matplotlib.ticker import MaxNLocator

    points = [(record.round, record.values[name]) for record in result.rounds if name in record.values]
    points = [(number, value) for number, value in points if math.isfinite(value)]
    rounds, numbers = zip(*points, strict=True)
    model = name.split(".")[0]
    dots = "o" if len(points) <= _SPARSE else None
    axis.plot(rounds, numbers, MODEL_LINES.get(model, "-"), color=colour, marker=dots, label=MODELS.get(model, name))
    words = metric_label(name, result)
    title, label = _OTHERS.get(name, (f"test {words}" if name in _SCORES else words, words))
    axis.set(title=title, xlabel="round", ylabel=label, xlim=_limits(result))
    axis.xaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True))


def _mark_dropped(figure: Figure, axes: Sequence[Axes], result: Result) -> None:
    """Put a cross on the lower edge at every round that left a client out, and say which clients."""
    rounds = [record.round for record in result.rounds if record.dropped]
    if not rounds:
        return
    names = list(dict.fromkeys(name for record in result.rounds for name in record.dropped))
    who = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
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
