"""The rounds of a run: scores and objectives, norms of the clients' steps, and who was left out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from pacbayes_fl.errors import listed
from pacbayes_fl.files import JsonMapping
from pacbayes_fl.names import shortened
from pacbayes_fl.pages import axis
from pacbayes_fl.pages.chart import Chart
from pacbayes_fl.pages.markup import Element, definitions, figures, folded, number, section, table, tag
from pacbayes_fl.pages.scores import better
from pacbayes_fl.results.certificates import rounded_up
from pacbayes_fl.results.metrics import PARTS, VALIDATION, metric_of
from pacbayes_fl.results.recorded import RECORDED, with_unit
from pacbayes_fl.results.records import SIMULATED_EPSILON, Result
from pacbayes_fl.results.rounds import RoundRecord

_SHOWN: Final = 30  # lines of a table of drops
_SPENT: Final = ("epsilon", SIMULATED_EPSILON)


def rounds(result: Result) -> Element | None:
    """Make the section of the rounds.

    Args:
        result: a finished run.

    Returns:
        The section; None of a run without rounds.
    """
    if not result.rounds:
        return None
    first, rest = list[Element](), list[Element]()
    for name in dict.fromkeys(key for record in result.rounds for key in record.values):
        record = RECORDED.get(name)
        metric = metric_of(name)
        if record is None and metric is None:
            continue
        main = (metric is not None and metric.headline) or (record is not None and record.objective)
        drawn = _curve(result.rounds, name)
        if drawn is not None:
            (first if main else rest).append(drawn)
    first += [one for one in (_steps(result.rounds), _taking_part(result.rounds)) if one is not None]
    return section(
        "rounds",
        "Rounds",
        definitions(_facts(result)),
        figures(first),
        _dropped(result.rounds),
        folded("All other numbers of the rounds", figures(rest)) if rest else None,
    )


def _facts(result: Result) -> list[tuple[str, str]]:
    seconds = [record.values["seconds"] for record in result.rounds if "seconds" in record.values]
    facts = [("rounds", str(len(result.rounds)))]
    if seconds:
        facts.append(("time", f"{sum(seconds):.3g} s in rounds, median {float(np.median(seconds)):.3g} s"))
    clients = sorted({record.clients for record in result.rounds})
    taking = f"{clients[0]}" if len(clients) == 1 else f"{clients[0]} to {clients[-1]}"
    facts.append(("clients a round", taking))
    if "ended" in result.labels:
        facts.append(("ended early", str(result.labels["ended"])))
    return facts


def _label(name: str) -> str:
    *parts, last = name.split(".")
    metric, record = metric_of(name), RECORDED.get(last)
    text = metric.label if metric is not None else with_unit(record.label, record.unit) if record else last
    return ", ".join([text, *(PARTS.get(part, part) for part in parts)])


def _curve(records: Sequence[RoundRecord], name: str) -> Element | None:
    """Draw a number of the rounds that have it; a single one is a point."""
    known = [
        (record.round, record.values[name])
        for record in records
        if name in record.values and math.isfinite(record.values[name])
    ]
    if not known:
        return None
    x, y = np.array(known, dtype=np.float64).T
    label, way = _label(name), better(name)
    says = f"{number(y[0])} in round {int(x[0])}, {number(y[-1])} in round {int(x[-1])}."
    title = f"{label} ({way})" if way else label
    chart = Chart(title, axis.linear("round", x, whole=True), axis.linear(label, y, zero=name == "seconds"), says)
    chart.line(x, y, "s1")
    if x.size < 40:
        chart.dots(x, y, "s1")
    if metric_of(name) is not None:
        held = VALIDATION in name.split(".")
        test = "Of test rows of existing clients: to be watched, not to be chosen by."
        chart.note("Of validation rows of existing clients." if held else test)
    return chart.figure()


def _steps(records: Sequence[RoundRecord]) -> Element | None:
    """Draw norms of the clients' steps: the median, and the largest with who made it."""
    known = [(record.round, *record.steps[:2]) for record in records if record.steps is not None]
    if not known:
        return None
    x, median, largest = np.array(known, dtype=np.float64).T
    most = Counter(record.steps.whose for record in records if record.steps is not None).most_common(1)[0]
    says = f"Most often the largest: {shortened(most[0], 40)}, in {most[1]} of {len(known)} rounds."
    y = axis.linear("norm, in units of what is sent", np.concatenate([median, largest]), zero=True)
    chart = Chart("Norms of the clients' steps", axis.linear("round", x, whole=True), y, says)
    chart.line(x, largest, "s2", "largest")
    chart.line(x, median, "s1", "median over clients")
    chart.note(says)
    return chart.figure()


def _taking_part(records: Sequence[RoundRecord]) -> Element | None:
    """Draw how many clients were left out; nothing where nobody was."""
    dropped = np.array([len(record.dropped) for record in records], dtype=np.float64)
    if not dropped.any():
        return None
    x = np.array([record.round for record in records], dtype=np.float64)
    says = f"{int(dropped.sum())} drops in {int((dropped > 0).sum())} of {len(records)} rounds."
    chart = Chart(
        "Clients left out",
        axis.linear("round", x, whole=True),
        axis.linear("clients", dropped, zero=True, whole=True),
        says,
    )
    chart.bars(x - 0.4, x + 0.4, dropped, "s2")
    chart.note(says)
    return chart.figure()


def _dropped(records: Sequence[RoundRecord]) -> Element | None:
    """List who was left out, how often and why, and rounds that were undone."""
    counts = Counter(name for record in records for name in record.dropped)
    undone = [(record.round, why) for record in records for why in record.undone]
    parts = []
    if counts:
        why = {name: reason for record in records for name, reason in record.reasons.items()}
        lines = [(shortened(name, 60), str(times), why.get(name, "–")) for name, times in counts.most_common(_SHOWN)]
        caption = f"Clients that were left out of rounds, {listed([str(len(counts))])} in all"
        parts.append(table(caption, ("client", "rounds", "last reason"), lines, numeric=(1,)))
    if undone:
        lines_ = [(str(at), why_) for at, why_ in undone[:_SHOWN]]
        parts.append(table("Rounds that were undone and played again", ("round", "why"), lines_))
    return tag("div", *parts) if parts else None


def privacy(result: Result) -> Element | None:
    """Make the section of what privacy was spent.

    Args:
        result: a finished run.

    Returns:
        The section; None of a run that is not private.
    """
    said = result.labels.get("privacy")
    if not isinstance(said, dict):
        return None
    called = SIMULATED_EPSILON if SIMULATED_EPSILON in said else "epsilon"
    facts = [(name.replace("_", " "), _up(said[name])) for name in (called, "delta") if name in said]
    for name in ("mechanism", "multiplier", "clip", "cohort", "neighbours", "releases", "rounds", "randomness"):
        if said.get(name) is not None:
            facts.append((_FACTS.get(name, name), _text(said[name])))
    spent = next((name for name in _SPENT if any(name in record.values for record in result.rounds)), None)
    drawn = None if spent is None else _curve(result.rounds, spent)
    return section(
        "privacy",
        "Privacy spent",
        tag("p", f"{said.get('statement', '')}."),
        definitions(facts),
        figures(drawn) if drawn is not None else None,
        _leaves(result.labels),
    )


_FACTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "multiplier": "noise, in units of the clip",
        "clip": "largest norm of what a client sends",
        "neighbours": "what is hidden",
        "randomness": "where noise comes from",
    }
)


def _up(value: object) -> str:
    """Write what was spent, never as less than it is."""
    return "infinity" if value is None else rounded_up(value) if isinstance(value, int | float) else str(value)


def _text(value: object) -> str:
    return "infinity" if value is None else number(value) if isinstance(value, float) else str(value)


def _leaves(labels: JsonMapping) -> Element | None:
    files = labels.get("files", {})
    stay = list(files.get("stay", {})) if isinstance(files, dict) else []
    if not stay:
        return None
    may = ", ".join(files.get("may_leave", ())) or "none"
    text = f"Files that the guarantee covers: {may}. This page and all other files of the run folder stay: they hold "
    return tag("p", f"{text}scores and rows that were measured outside of the guarantee.", class_="warning")
