"""Classifiers: reliability, confusion, accuracy by client, and how uncertain predictions are."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from pacbayes_fl.names import shortened
from pacbayes_fl.pages import axis
from pacbayes_fl.pages.axis import Array
from pacbayes_fl.pages.chart import Chart
from pacbayes_fl.pages.markup import Content, Element, figures, folded, number, section, table, tag
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.metrics import MODELS
from pacbayes_fl.results.moments import array
from pacbayes_fl.results.recorded import ENTROPY
from pacbayes_fl.results.records import Result

_BINS: Final = 10
_CLASSES: Final = 30  # of a table of confusion that can be read
_ENTROPY_BINS: Final = 20
_NAMES: Final = 12


def class_names(result: Result, count: int) -> list[str]:
    """Name the classes.

    Args:
        result: a finished run.
        count: of classes.

    Returns:
        Their names where the labels have them, else their numbers.
    """
    names = result.labels.get("class_name", ())
    known = [str(name) for name in names] if isinstance(names, list) else []
    return known if len(known) == count else [str(one) for one in range(count)]


def classes(result: Result) -> Element | None:
    """Make the section of a classifier's predictions.

    Args:
        result: a finished run of classification.

    Returns:
        The section; None where no predictions are kept.
    """
    drawn, tables = [], []
    for model, words in MODELS.items():
        for group in GROUPS:
            taken = _taken(result, group, model)
            if taken is None:
                continue
            probs, y = taken
            drawn += [_reliability(result, probs, y, f"{words}, {group} clients")]
            if model == "pm":
                drawn.append(_entropy(probs, y, f"{group} clients"))
                tables.append(_confusion(result, probs, y, f"{words}, {group} clients"))
    if not drawn:
        return None
    text = (
        "Predictions are reliable where the share of right ones is the confidence: below the diagonal they are too "
        "sure. Entropy is 0 where a single class is certain and 1 where all are alike."
    )
    return section("classes", "Reliability, confusion and uncertainty", tag("p", text), figures(drawn), *tables)


def _taken(result: Result, group: str, model: str) -> tuple[Array, npt.NDArray[np.int64]] | None:
    """Probabilities [R, C] and labels [R] of a group's test rows that have some: of NaN no class is most probable."""
    probs, y, mask = (array(result, f"{group}.{name}") for name in (f"{model}.probs", "y_test", "mask_test"))
    if probs is None or y is None or mask is None:
        return None
    mask = np.logical_and(mask, ~np.isnan(probs).any(-1))
    if not mask.any():
        return None
    return probs[mask].astype(np.float64), y[mask].astype(np.int64)


def _reliability(result: Result, probs: Array, y: npt.NDArray[np.int64], whose: str) -> Element:
    """Accuracy against confidence by equal bins, and how many rows each bin has."""
    bins = int(result.labels.get("calibration_bins", _BINS))
    confidence, right = probs.max(1), probs.argmax(1) == y
    place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    rows = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore", divide="ignore"):
        accuracy, sure = np.bincount(place, right, bins) / rows, np.bincount(place, confidence, bins) / rows
    error = float(np.nansum(rows * np.abs(accuracy - sure)) / rows.sum())
    says = f"Expected calibration error of all {y.size} test rows together {error:.3f}, by {bins} bins of confidence."
    ends = (axis.fixed("confidence of the most probable class", 0, 1), axis.fixed("share that is right", 0, 1))
    chart = Chart(f"Reliability, {whose}", *ends, says, 360, 330)
    edges = np.linspace(0, 1, bins + 1)
    chart.bars(edges[:-1], edges[1:], rows / rows.max(), "faint", f"rows in a bin, of {rows.max()} in the fullest")
    chart.line(np.array([0.0, 1.0]), np.array([0.0, 1.0]), "faint", "perfect calibration")
    chart.line(sure, accuracy, "s1")
    chart.dots(sure, accuracy, "s1", "accuracy at mean confidence of a bin")
    chart.note(says)
    return chart.figure()


def _entropy(probs: Array, y: npt.NDArray[np.int64], whose: str) -> Element:
    """Histogram of the predictive entropy of right and of wrong predictions."""
    entropy = -(probs * np.log(np.maximum(probs, 1e-300))).sum(1) / np.log(max(2, probs.shape[1]))
    right = probs.argmax(1) == y
    edges = np.linspace(0, 1, _ENTROPY_BINS + 1)
    counts = [np.histogram(np.clip(entropy[own], 0, 1), edges)[0] / y.size for own in (right, ~right)]
    medians = [float(np.median(entropy[own])) if own.any() else float("nan") for own in (right, ~right)]
    says = f"Median entropy {number(medians[0], 2)} where right, {number(medians[1], 2)} where wrong."
    share = axis.linear("share of test rows", np.concatenate(counts), zero=True)
    chart = Chart(f"Uncertainty, {whose}", axis.fixed("predictive entropy / ln C", 0, 1), share, says, 360, 330)
    chart.bars(edges[:-1], edges[1:], counts[0], "s1", f"right ({int(right.sum())} rows)")
    chart.steps(edges, counts[1], "s2", f"wrong ({int((~right).sum())} rows)")
    chart.note(says)
    return chart.figure()


def _confusion(result: Result, probs: Array, y: npt.NDArray[np.int64], whose: str) -> Element:
    """Table of labels against the most probable classes, or the pairs that are most often confused."""
    count = probs.shape[1]
    names = [shortened(name, _NAMES) for name in class_names(result, count)]
    counts = np.zeros((count, count), dtype=np.int64)
    np.add.at(counts, (y, probs.argmax(1)), 1)
    if count > _CLASSES:
        wrong = counts - np.diag(np.diag(counts))
        order = np.argsort(-wrong, axis=None, kind="stable")[:_CLASSES]
        pairs = [(int(at // count), int(at % count)) for at in order if wrong.flat[at]]
        rows = [(names[a], names[b], str(wrong[a, b]), number(wrong[a, b] / counts[a].sum(), 2)) for a, b in pairs]
        caption = f"Most frequent confusions, {whose}"
        return table(caption, ("label", "predicted", "rows", "of the label's"), rows, numeric=(2, 3))
    lines: list[list[Content]] = []
    for label in range(count):
        total = max(1, int(counts[label].sum()))
        cells = [
            tag("span", str(value), class_=f"heat h{min(5, -(-5 * int(value) // total))}") for value in counts[label]
        ]
        recall = number(counts[label, label] / total, 3) if counts[label].any() else "–"
        lines.append([names[label], *cells, recall])
    caption = f"Confusion, {whose}: rows are labels, columns the most probable classes"
    header = ("label", *names, "share right")
    return table(caption, header, lines, numeric=range(1, count + 2))


def uncertainty_rounds(result: Result) -> Element | None:
    """Draw how the entropy of predictions changed over rounds.

    Args:
        result: a finished run of classification.

    Returns:
        A figure of the mean over the clients' histograms by recorded round; None where none was recorded.
    """
    lines = [(record.round, _mean_histogram(dict(record.histograms))) for record in result.rounds if record.histograms]
    known = [(at, shares) for at, shares in lines if shares is not None]
    if not known:
        return None
    top = axis.linear("share of test rows", np.concatenate([shares for _, shares in known]), zero=True)
    says = "Mean over clients of the histograms that rounds recorded."
    chart = Chart("Uncertainty over rounds", axis.fixed("predictive entropy / ln C", 0, 1), top, says, 360, 330)
    for number_, (at, shares) in enumerate(known[:6]):
        chart.steps(np.linspace(0, 1, shares.size + 1), shares, f"s{number_ + 1}", f"round {at}")
    return folded("Uncertainty over rounds", figures(chart.figure()))


def _mean_histogram(histograms: dict[str, tuple[float, ...]]) -> Array | None:
    own = [shares for name, shares in histograms.items() if name.startswith(f"{ENTROPY}.")]
    return np.nanmean(np.array(own, dtype=np.float64), 0) if own and len({len(one) for one in own}) == 1 else None
