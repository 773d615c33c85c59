"""Diagnostics beside the learning curve: all other numbers of the rounds, and numbers of clients' states."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from pacbayes_fl.plots.learning import draw_rounds, drawn_by_default, recorded_names
from pacbayes_fl.plots.style import CYCLE, NothingToDrawError, count_whole, metric_label, panels, run_title
from pacbayes_fl.results.recorded import RECORDED
from pacbayes_fl.results.records import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLUMNS = 3


def diagnostics(result: Result) -> Figure:
    """Draw the numbers that a run recorded beside its learning curve, a panel each.

    Numbers of rounds stand against the round, numbers of clients' states as a histogram over the existing clients.

    Args:
        result: a finished or a living run.

    Returns:
        A matplotlib figure.

    Raises:
        NothingToDrawError: when the run recorded nothing that `learning_curve` does not draw.
        PacBayesFLError: when matplotlib is not installed.
    """
    rounds = [name for name in recorded_names(result) if name not in drawn_by_default()]
    clients = [name for name in result.metrics if name in RECORDED and _of_clients(result, name)]
    count = len(rounds) + len(clients)
    if not count:
        raise NothingToDrawError("the result records nothing beside its learning curve")
    columns = min(_COLUMNS, count)
    title = run_title(result)
    with panels(math.ceil(count / columns), columns, title) as (figure, axes):
        places = list(axes.flat)
        for number, (axis, name) in enumerate(zip(places, rounds, strict=False)):
            draw_rounds(axis, result, name, CYCLE[number % len(CYCLE)])
        for number, (axis, name) in enumerate(zip(places[len(rounds) :], clients, strict=False), len(rounds)):
            _draw_clients(axis, result, name, CYCLE[number % len(CYCLE)])
        for axis in places[count:]:
            axis.remove()
    return figure


def _of_clients(result: Result, name: str) -> list[float]:
    return [value for value in result.rows.column("existing", name) if math.isfinite(value)]


def _draw_clients(axis: Axes, result: Result, name: str, colour: str) -> None:
    axis.hist(np.array(_of_clients(result, name)), bins="auto", color=colour, alpha=0.75)
    axis.set(title=f"{RECORDED[name].title}, by client", xlabel=metric_label(name, result), ylabel="existing clients")
    count_whole(axis.yaxis)
