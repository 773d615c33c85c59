"""Whether a classifier's confidence comes true: accuracy against confidence, and how often it is how sure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pacbayes_fl.errors import StudyError
from pacbayes_fl.plots.style import (
    FAINT,
    GROUP_COLOURS,
    INK,
    RED,
    NothingToDrawError,
    panels,
    predicted,
)
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.metrics import BINS, MODELS, PERSONAL
from pacbayes_fl.results.records import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[np.float64]


def reliability_diagram(result: Result, bins: int | None = None, model: str = PERSONAL) -> Figure:
    """Draw accuracy against confidence above, and how often which confidence occurs below (BPFed, Figure 6).

    The rows of all clients of a group are pooled and sorted into equal bins (lo, hi] by the probability of their most
    probable class. A bar is the accuracy of a bin; what separates it from the bin's mean confidence, which lies on the
    diagonal, is the gap. Where the lines of average accuracy and average confidence cross on the diagonal, the model
    is as sure as it is right on the whole. ECE and MCE weigh rows, and their means over clients weigh clients: with few
    rows a client, the latter are larger by chance alone.

    Args:
        result: a finished run of a classifier, with predictions.
        bins: equal bins on [0, 1]; those of the result's own ECE when None.
        model: "pm" for the personal models, "gm" for the global model.

    Returns:
        A matplotlib figure with a column for existing and for new clients.

    Raises:
        StudyError: when there is no bin, or no model of that name.
        NothingToDrawError: when the result holds no class probabilities of that model for test rows.
        PacBayesFLError: when matplotlib is not installed.
    """
    bins = int(result.labels.get(BINS.setting, BINS.default)) if bins is None else bins
    if model not in MODELS or bins < 1:
        raise StudyError(f"model must be one of {', '.join(MODELS)} and bins at least 1, got {model!r} and {bins}")
    rows = {group: _rows(result, group, model) for group in GROUPS}
    shown = {group: clients for group, clients in rows.items() if clients}
    if not shown:
        raise NothingToDrawError(f"the result holds no class probabilities ({model}.probs) of test rows")
    about = f"seed {result.seed}, round {result.round}, {MODELS[model]}, {bins} bins"
    title = f"{result.method} on {result.study}\n{about}"  # one panel is narrow
    with panels(2, len(shown), title, 3.5, 3.1) as (figure, axes):
        for (top, bottom), (group, clients) in zip(axes.T, shown.items(), strict=True):
            pooled = _binned(
                np.concatenate([part[0] for part in clients]), np.concatenate([p[1] for p in clients]), bins
            )
            each = [_binned(confidence, hit, bins) for confidence, hit in clients]
            _diagram(top, pooled, GROUP_COLOURS[group])
            _histogram(bottom, pooled, GROUP_COLOURS[group])
            top.set_title(f"{group} clients ({len(clients)})")
            mean, largest = np.mean([client.gaps for client in each], 0)
            ece, mce = pooled.gaps
            text = f"pooled rows: ECE {ece:.3f}, MCE {mce:.3f}\nmean over clients: {mean:.3f}, {largest:.3f}"
            bottom.set_title(text, fontsize=8)
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2 * len(shown))
    return figure


@dataclass(frozen=True)
class _Bins:
    """Share of rows, accuracy and mean confidence by bin [H]; the latter two zero where there is no row."""

    share: Array
    accuracy: Array
    confidence: Array

    @property
    def averages(self) -> tuple[float, float]:
        """Accuracy and confidence over all rows."""
        return float(self.share @ self.accuracy), float(self.share @ self.confidence)

    @property
    def gaps(self) -> tuple[float, float]:
        """Expected and maximum calibration error."""
        gap = np.abs(self.accuracy - self.confidence)
        return float(self.share @ gap), float(gap.max())


def _rows(result: Result, group: str, model: str) -> list[tuple[Array, Array]]:
    """Return the confidence and the hits of each client with test rows that have probabilities, [m] each."""
    arrays = predicted(result, group, f"{model}.probs", "y_test", "mask_test")
    if not arrays:
        return []
    probs, y, mask = arrays[f"{model}.probs"].astype(np.float64), arrays["y_test"], arrays["mask_test"]
    confidence, hit = probs.max(-1), (probs.argmax(-1) == y).astype(np.float64)
    mask = mask & ~np.isnan(confidence)  # of NaN the first class would be the most probable
    return [(sure[real], right[real]) for sure, right, real in zip(confidence, hit, mask, strict=True) if real.any()]


def _binned(confidence: Array, hit: Array, bins: int) -> _Bins:
    place = np.searchsorted(np.arange(1, bins) / bins, confidence)
    count, right, sure = (np.bincount(place, weights, bins) for weights in (None, hit, confidence))
    return _Bins(count / len(hit), right / np.maximum(count, 1), sure / np.maximum(count, 1))


def _diagram(axis: Axes, pooled: _Bins, colour: str) -> None:
    centre, width = _places(pooled)
    axis.plot([0, 1], [0, 1], "--", color=FAINT, linewidth=1.0, label="perfect calibration")
    axis.bar(centre, pooled.accuracy, width, color=colour, alpha=0.55, edgecolor=colour, label="accuracy")
    low, gap = np.minimum(pooled.accuracy, pooled.confidence), np.abs(pooled.accuracy - pooled.confidence)
    axis.bar(centre, gap, width, low, color=(RED, 0.15), edgecolor=RED, linewidth=0.8, hatch="////", label="gap")
    axis.axhline(pooled.averages[0], color=INK, label="average accuracy")
    axis.axvline(pooled.averages[1], color=INK, linestyle=":", label="average confidence")
    axis.set(xlabel="confidence", ylabel="accuracy", xlim=(0, 1), ylim=(0, 1))


def _histogram(axis: Axes, pooled: _Bins, colour: str) -> None:
    centre, width = _places(pooled)
    axis.bar(centre, pooled.share, width, color=colour, alpha=0.55, edgecolor=colour)
    axis.axvline(pooled.averages[0], color=INK, label="average accuracy")
    axis.axvline(pooled.averages[1], color=INK, linestyle=":", label="average confidence")
    axis.set(xlabel="confidence", ylabel="share of test rows", xlim=(0, 1), ylim=(0, 1))


def _places(pooled: _Bins) -> tuple[Array, float]:
    """Return the centres [H] and the width of the bins."""
    bins = pooled.share.size
    return (np.arange(bins) + 0.5) / bins, 1 / bins
