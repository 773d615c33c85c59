"""Accuracy against the share of weights kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pacbayes_fl.errors import kinds_checked
from pacbayes_fl.plots.style import CYCLE, MODEL_LINES, NothingToDrawError, joint_title, panels, run_names, seed_count
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
        results: finished runs of one or several methods that keep different shares of their weights.
        group: "existing" or "new".

    Returns:
        A matplotlib figure.

    Raises:
        NothingToDrawError: when no result has a share of weights kept and an accuracy.
        PacBayesFLError: when matplotlib is not installed.
    """
    score = headline("classification").name
    scores: dict[tuple[str, str], dict[float, list[float]]] = {}
    for name, result in zip(run_names(results), results, strict=True):
        kept = kept_share(result)
        for model in MODELS:
            values = [value for value in result.rows.column(group, f"{model}.{score}") if math.isfinite(value)]
            if kept is not None and values:
                scores.setdefault((name, model), {}).setdefault(kept, []).append(float(np.mean(values)))
    if not scores:
        raise NothingToDrawError(f"no {group} client of the results has an accuracy at a known share of weights kept")
    colours = dict(zip(dict.fromkeys(name for name, _ in scores), CYCLE * len(scores), strict=False))
    with panels(1, 1, joint_title(results), 4.6, 3.2) as (figure, axes):
        axis: Axes = axes[0, 0]
        for (name, model), by_share in scores.items():
            shares = sorted(by_share)
            mean, low, high = (np.array([of(by_share[kept]) for kept in shares]) for of in (np.mean, np.min, np.max))
            bars, colour, text = np.stack([mean - low, high - mean]), colours[name], f"{name}, {MODELS[model]}"
            axis.errorbar(shares, mean, bars, fmt=f"o{MODEL_LINES[model]}", capsize=3, color=colour, label=text)
        axis.set(
            xlabel="share of weights kept", ylabel="test accuracy", title=f"{group} clients, {seed_count(results)}"
        )
        axis.legend()
    return figure
