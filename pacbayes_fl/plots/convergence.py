"""How fast methods learn: test accuracy against the round, run beside run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pacbayes_fl.errors import kinds_checked
from pacbayes_fl.plots.style import (
    CYCLE,
    INK,
    MODEL_LINES,
    NothingToDrawError,
    count_whole,
    joint_title,
    left_out,
    panels,
    seed_count,
)
from pacbayes_fl.results.grouping import by_settings, distinct
from pacbayes_fl.results.metrics import MODELS, headline
from pacbayes_fl.results.records import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@kinds_checked
def convergence_curves(results: Sequence[Result]) -> Figure:
    """Draw the test accuracy of several runs against the round (pFedBayes journal, Figure 4).

    One colour a run: a method, its study where there are several, and the settings that runs of it do not share; the
    personal model is solid, the global one dashed. A line is the mean over the seeds at the rounds that all of them
    evaluated, the band reaches from the lowest to the highest seed.

    Args:
        results: finished or living runs, one or several; those without accuracies are named in the legend.

    Returns:
        A matplotlib figure.

    Raises:
        NothingToDrawError: when no round of any run recorded an accuracy.
        PacBayesFLError: when matplotlib is not installed.
    """
    from matplotlib.lines import Line2D

    results, score = distinct(results), headline("classification").name
    scored = [one for one in results if any(f"{m}.{score}" in record.values for record in one.rounds for m in MODELS)]
    runs = by_settings(scored)
    lines = {(name, model): _shared(seeds, f"{model}.{score}") for name, seeds in runs.items() for model in MODELS}
    lines = {key: points for key, points in lines.items() if points}
    drawn = [one for name in dict.fromkeys(name for name, _ in lines) for one in runs[name]]
    if not lines:
        raise NothingToDrawError(
            f"no round of the results recorded {' or '.join(f'{model}.{score}' for model in MODELS)}"
        )
    colours = dict(zip(dict.fromkeys(name for name, _ in lines), CYCLE * len(lines), strict=False))
    with panels(1, 1, joint_title(drawn), 5.6, 3.4) as (figure, axes):
        axis: Axes = axes[0, 0]
        for (name, model), points in lines.items():
            rounds, values = list(points), np.array(list(points.values()))  # [R], [R, seeds]
            dots = "o" if len(rounds) == 1 else None
            text = f"{name}, {MODELS[model]}"
            axis.plot(rounds, values.mean(1), MODEL_LINES[model], color=colours[name], marker=dots, label=text)
            if values.shape[1] > 1:
                axis.fill_between(rounds, values.min(1), values.max(1), color=colours[name], alpha=0.18, linewidth=0)
        seeds, banded = seed_count(drawn), any(len(one) > 1 for points in lines.values() for one in points.values())
        axis.set_title(f"mean over {seeds}, band from lowest to highest" if banded else seeds)
        axis.set(xlabel="round", ylabel="test accuracy")
        count_whole(axis.xaxis)
        keys = [Line2D([], [], color=colour, label=name) for name, colour in colours.items()]
        for model in dict.fromkeys(model for _, model in lines):
            keys.append(Line2D([], [], color=INK, label=MODELS[model]))
            keys[-1].set(linestyle=MODEL_LINES[model])
        figure.legend(handles=[*keys, *left_out(results, drawn, "accuracy of rounds")], loc="outside right center")
    return figure


def _shared(seeds: Sequence[Result], metric: str) -> dict[int, list[float]]:
    """Return the values by round, of the rounds where all seeds have one."""
    curves = [{record.round: record.values.get(metric, math.nan) for record in result.rounds} for result in seeds]
    rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
    points = {number: [curve[number] for curve in curves] for number in rounds}
    return {number: values for number, values in points.items() if all(map(math.isfinite, values))}
