"""Accuracy against the share of weights kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from pacbayes_fl.errors import kinds_checked
from pacbayes_fl.plots.style import CYCLE, MODEL_LINES, NothingToDrawError, joint_title, left_out, panels, seed_count
from pacbayes_fl.results.grouping import by_settings, differing, distinct
from pacbayes_fl.results.metrics import MODELS, headline
from pacbayes_fl.results.records import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def kept_share(result: Result) -> float | None:
    """Return the share of weights that a run keeps, between 0 and 1.

    Args:
        result: a finished or a living run.

    Returns:
        `labels["kept"]`, or else what the last round counted as `kept`, in whole percent so that seeds of one setting
        agree; None when neither is there.
    """
    if (kept := result.labels.get("kept")) is not None:
        return float(kept)
    last = result.rounds[-1].values.get("kept", math.nan) if result.rounds else math.nan
    return round(last, 2) if math.isfinite(last) else None


@kinds_checked
def sparsity_curve(results: Sequence[Result], group: str = "existing") -> Figure:
    """Draw accuracy against the share of weights kept (pFedBayes journal, Tables 2 and 5).

    A point is the mean over seeds of the mean over clients; the bar reaches from the lowest to the highest seed. The
    personal model is solid, the global one dashed.

    Args:
        results: finished runs of one or several methods that keep different shares of their weights; runs of
            a method that differ in more than one setting are points of their own.
        group: "existing" or "new".

    Returns:
        A matplotlib figure.

    Raises:
        NothingToDrawError: when no result has a share of weights kept and an accuracy.
        PacBayesFLError: when matplotlib is not installed.
    """
    scores: dict[tuple[str, str], dict[float, list[float]]] = {}
    results = distinct(results)
    drawn = [one for one in results if kept_share(one) is not None and any(_scores(one, group, m) for m in MODELS)]
    for name, same in by_settings(drawn, without=_of_axis(drawn)).items():
        for result, model in product(same, MODELS):
            if (kept := kept_share(result)) is not None and (values := _scores(result, group, model)):
                scores.setdefault((name, model), {}).setdefault(kept, []).append(float(np.mean(values)))
    if not scores:
        raise NothingToDrawError(f"no {group} client of the results has an accuracy at a known share of weights kept")
    colours = dict(zip(dict.fromkeys(name for name, _ in scores), CYCLE * len(scores), strict=False))
    with panels(1, 1, joint_title(drawn), 4.6, 3.2) as (figure, axes):
        axis: Axes = axes[0, 0]
        for (name, model), by_share in scores.items():
            shares = sorted(by_share)
            mean, low, high = (np.array([of(by_share[kept]) for kept in shares]) for of in (np.mean, np.min, np.max))
            bars, colour, text = np.stack([mean - low, high - mean]), colours[name], f"{name}, {MODELS[model]}"
            axis.errorbar(shares, mean, bars, fmt=f"o{MODEL_LINES[model]}", capsize=3, color=colour, label=text)
        axis.set(xlabel="share of weights kept", ylabel="test accuracy", title=f"{group} clients, {seed_count(drawn)}")
        axis.legend()
        if keys := left_out(results, drawn, "accuracy at a share of weights kept"):
            figure.legend(handles=keys, loc="outside lower center")
    return figure


def _scores(result: Result, group: str, model: str) -> list[float]:
    column = f"{model}.{headline('classification').name}"
    return [value for value in result.rows.column(group, column) if math.isfinite(value)]


def _of_axis(results: Sequence[Result]) -> list[str]:
    """Name the settings that methods have for the share: the only one in which their runs on a study differ."""
    runs: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        runs.setdefault((result.method, result.study), []).append(result)
    return [keys[0] for same in runs.values() if len(keys := differing(same)) == 1]
