"""The page of a search of `tune`: what was tried, what it scored, and what was chosen."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pacbayes_fl.errors import UNREADABLE, DataError, StudyError
from pacbayes_fl.files import JsonMapping
from pacbayes_fl.names import shortened
from pacbayes_fl.pages import axis
from pacbayes_fl.pages.chart import Chart
from pacbayes_fl.pages.document import page
from pacbayes_fl.pages.markup import Element, figures, number, section, table, tag
from pacbayes_fl.results.folder import write_atomic

TRIALS = ".trials.json"
"""Behind the name of a study that `tune` has written: all trials of the search."""
PAGE = ".report.html"
"""Likewise: its page."""
_CURVES = 6  # options whose values are drawn


class Tried(NamedTuple):
    """A configuration of a search.

    Args:
        values: of options, by dotted key.
        scores: on held-out rows, small is good; infinite where it failed.
        failure: why, or nothing.
    """

    values: JsonMapping
    scores: Mapping[str, float]
    failure: str


def write_search(study: Path | str) -> Path:
    """Write the page of a search beside the study that it has written.

    Args:
        study: the TOML file.

    Returns:
        The page.

    Raises:
        StudyError: when no search has written the study.
        DataError: when its trials cannot be read.
        CheckpointError: when the page cannot be written.
    """
    study = Path(study)
    path = study.with_suffix(TRIALS)
    if not path.is_file():
        raise StudyError(f"{study} is of no search: there is no {path.name}", hint="give a run or a comparison")
    try:
        read = json.loads(path.read_text("utf-8"))
        every = {str(name): [_tried(*one) for one in trials] for name, trials in read.items()}
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read: {error}", hint="tune again") from error
    target = study.with_suffix(PAGE)
    write_atomic(target, search_page(study.stem, every).encode())
    return target


def _tried(values: JsonMapping, scores: Mapping[str, float | None], failure: str | None) -> Tried:
    known = {str(key): math.inf if value is None else float(value) for key, value in scores.items()}
    return Tried(dict(values), known, failure or "")


def search_page(name: str, every: Mapping[str, Sequence[Tried]]) -> str:
    """Make the page of a search.

    Args:
        name: of the study that it has written.
        every: trials by method, in their order.

    Returns:
        HTML, self-contained.
    """
    count = sum(map(len, every.values()))
    lead = (
        f"{count} configurations of {', '.join(every)} were scored by cross-validation inside the clients' training "
        "rows; no test row had a part in it. Scores of the chosen ones are too good for what was chosen by them: run "
        "the study for scores and forecasts of test rows."
    )
    parts = [part for method, trials in every.items() if trials for part in _method(method, trials)]
    return page(f"Search {shortened(name, 80)}", "Report of a search", [lead], parts)


def _method(method: str, trials: Sequence[Tried]) -> list[Element]:
    scores = list(dict.fromkeys(score for one in trials for score in one.scores))
    keys = list(dict.fromkeys(key for one in trials for key in one.values))
    order = sorted(range(len(trials)), key=lambda at: _finite(trials[at].scores.get(scores[0], math.inf)))
    rows = [
        (
            str(at + 1),
            *(number(_known(trials[at].scores.get(score))) for score in scores),
            *(_text(trials[at].values.get(key)) for key in keys),
            trials[at].failure or "–",
        )
        for at in order
    ]
    head = ("trial", *(f"{score}, lower is better" for score in scores), *keys, "failure")
    caption = f"{method}: by {scores[0]}, the best first"
    drawn = [_path(trials, scores[0]), *(_curve(trials, key, scores[0]) for key in keys[:_CURVES])]
    body = table(caption, head, rows, numeric=range(1, len(scores) + 1), sortable=True)
    own = [one for one in drawn if one is not None]
    identity = f"method-{''.join(c if c.isalnum() else '-' for c in method)}"
    return [section(identity, method, tag("p", _chosen(trials[order[0]], scores)), figures(own), body)]


def _chosen(best: Tried, scores: Sequence[str]) -> str:
    if not math.isfinite(best.scores.get(scores[0], math.inf)):
        return f"No configuration has a finite {scores[0]}: none was chosen."
    values = ", ".join(f"{key} = {_text(value)}" for key, value in best.values.items()) or "the study's own values"
    numbers = ", ".join(f"{score} {number(_known(best.scores.get(score)))}" for score in scores)
    return f"Best by {scores[0]}: {values} ({numbers})."


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _text(value: object) -> str:
    return number(value) if isinstance(value, float) else "–" if value is None else str(value)


def _path(trials: Sequence[Tried], score: str) -> Element | None:
    """Draw the score of every trial and the best so far."""
    y = np.array([_finite(one.scores.get(score, math.inf)) for one in trials])
    known = np.isfinite(y)
    if not known.any():
        return None
    x = np.arange(1.0, y.size + 1)
    best = np.minimum.accumulate(y)
    says = f"Best {number(float(y.min()))} at trial {int(y.argmin()) + 1}; {int((~known).sum())} of {y.size} failed."
    chart = Chart(
        "Course of the search",
        axis.linear("trial", x, whole=True),
        axis.linear(f"{score}, lower is better", y[known]),
        says,
    )
    chart.line(x, np.where(np.isfinite(best), best, np.nan), "s1", "best so far")
    chart.dots(x, y, "ink", "trial")
    chart.note(says)
    return chart.figure()


def _curve(trials: Sequence[Tried], key: str, score: str) -> Element | None:
    """Draw the score against the values of one option; the others vary too."""
    pairs = [(one.values.get(key), one.scores.get(score, math.inf)) for one in trials]
    known = [
        (float(v), s) for v, s in pairs if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(s)
    ]
    if len({v for v, _ in known}) < 2:
        return None
    x, y = np.array(known).T
    wide = bool((x > 0).all() and x.max() / x.min() > 50)
    title, values = (f"log10 {key}", np.log10(x)) if wide else (key, x)
    best = int(y.argmin())
    says = f"Best at {key} = {number(float(x[best]))}."
    chart = Chart(key, axis.linear(title, values), axis.linear(f"{score}, lower is better", y), says)
    chart.dots(values, y, "s1", "trial; other options vary too")
    return chart.figure()
