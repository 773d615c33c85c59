"""Certificates of a run: bounds with n, premises and the bound of a predictor that needs no learning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from pacbayes_fl.names import shortened
from pacbayes_fl.pages import axis
from pacbayes_fl.pages.chart import Chart
from pacbayes_fl.pages.markup import Element, definitions, figures, number, section, table, tag
from pacbayes_fl.results.certificates import CertifiedClient, CertifiedRun, is_vacuous, rounded_up
from pacbayes_fl.results.client_rows import GROUPS

_DRAWN: Final = 40  # clients of a figure, as many as names can be read of
_NAME: Final = 40


def certificates(tables: Sequence[CertifiedRun], stale: Sequence[str] = ()) -> Element | None:
    """Make the section of certificates.

    Args:
        tables: of the run's current state.
        stale: what is said of tables that are of another state.

    Returns:
        The section; None of a run that was not certified.
    """
    if not tables and not stale:
        return None
    text = (
        "With probability at least 1 − δ over the draw of a client's rows, its true risk is at most the bound, if the "
        "premises hold. A bound that says no more than that of a predictor which needs no learning is vacuous."
    )
    parts = [part for one in tables for part in _table(one)]
    notes = [tag("p", one, class_="warning") for one in stale]
    return section("certificates", "Certificates", tag("p", text), *notes, *parts)


def _table(one: CertifiedRun) -> list[Element]:
    whom = "all clients of a group at once" if one.labels.get("jointly") else "each client on its own"
    facts: list[tuple[str, str]] = [
        ("bound", one.theorem or one.bound),
        ("risk", _risk(one)),
        ("δ", f"{one.delta:g} for {whom}"),
        ("range of the loss", f"{one.low:g} to {one.high:g}"),
    ]
    if one.number is not None:
        facts.append(("request", f"number {one.number} for certificates of these rows"))
    parts = [tag("h3", one.theorem or one.bound), definitions(facts)]
    for group in GROUPS:
        if reasons := one.reasons.get(group):
            parts.append(tag("p", f"{group} clients have no certificate: {'; '.join(reasons)}", class_="warning"))
        clients = [client for client in one.clients if client.group == group]
        if clients:
            parts += [_premises(one, group), figures(_figure(one, group, clients)), _lines(one, group, clients)]
    return parts


def _risk(one: CertifiedRun) -> str:
    return (one.risk or "risk").replace("^2", "²")


def _premises(one: CertifiedRun, group: str) -> Element:
    """Say under which premises the lines of a group hold."""
    record = one.certificates.get(group, {})
    premises = record.get("premises", {}) if isinstance(record, dict) else {}
    said = [(name.replace("_", " "), _said(value)) for name, value in premises.items() if value not in (None, "")]
    facts = [*said, ("rows", str(one.labels.get("rows", {}).get(group, "")))]
    facts += [("assumed", str(text)) for text in one.labels.get("assumes", ())]
    average = one.summary.get(group)
    if isinstance(average, dict) and average.get("valid") and isinstance(average.get("value"), int | float):
        name, value = str(average.get("theorem", "")), rounded_up(float(average["value"]))
        facts.append(
            ("average over the clients", f"true risk at most {value} ({name}, delta {average.get('delta', '')})")
        )
    said = [fact for fact in facts if fact[1]]
    return tag("div", tag("h4", f"Premises, {group} clients"), definitions(said)) if said else tag("div")


def _said(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_said(inner)}" for key, inner in value.items() if inner is not None)
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _lines(one: CertifiedRun, group: str, clients: Sequence[CertifiedClient]) -> Element:
    rows = []
    for line in clients:
        hollow = is_vacuous(line.bound, one.high, line.trivial)
        verdict = "vacuous" if hollow else "test risk above it" if line.test_risk > line.bound else "says more"
        bound = rounded_up(line.bound) if np.isfinite(line.bound) else number(line.bound)
        numbers = (number(line.risk), number(line.kl), bound, number(line.trivial), number(line.test_risk))
        rows.append((shortened(line.name, _NAME), str(line.rows), *numbers, str(line.test_rows), verdict))
    header = (
        *("client", "n", "empirical risk", "KL in nats", "bound", "trivial bound", "test risk"),
        *("test rows", "against the trivial bound"),
    )
    caption = f"{one.theorem or one.bound}, {group} clients"
    return table(caption, header, rows, numeric=range(1, 8), sortable=True)


def _figure(one: CertifiedRun, group: str, clients: Sequence[CertifiedClient]) -> Element:
    """Draw empirical risk, bound and test risk, the smallest bounds first."""
    order = sorted(clients, key=lambda client: (client.bound != client.bound, client.bound))
    few = order[:_DRAWN]
    numbers = [(c.risk, c.bound, c.test_risk, c.trivial) for c in few]
    risk, bound, test, trivial = np.array(numbers, dtype=np.float64).T
    ranged = bool(np.isfinite(one.high))
    top = one.high if ranged else float(np.nanmax(bound))  # a loss without a range has no trivial level
    x = axis.linear(_risk(one), np.array([one.low, np.nanmax([*test, top]), *risk[np.isfinite(risk)]]))
    beyond = int((bound > x.high).sum())
    place = np.arange(len(few), dtype=np.float64)
    vacuous = np.array([is_vacuous(c.bound, one.high, c.trivial) for c in few])
    says = f"{int((~vacuous).sum())} of {len(few)} bounds say more than the trivial one."
    names = axis.named("client", [f"{shortened(c.name, 14)} (n {c.rows})" for c in few])
    chart = Chart(f"Bounds, {group} clients", x, names, says, 720, 60 + max(16 * len(few), 30), names=True)
    cut = np.minimum(bound, x.high)
    chart.spans(place, np.fmin(risk, cut), cut, "faint", upright=False)
    if ranged:
        chart.rule(one.high, "faint", "trivial level: the largest loss", upright=True)
    chart.dots(trivial, place, "faint", "trivial bound, from as many rows")
    chart.dots(risk, place, "s1", "empirical risk")
    chart.dots(test, place, "s3", "test risk")
    chart.dots(np.where(vacuous, np.nan, cut), place, "ink", "bound")
    chart.dots(np.where(vacuous, cut, np.nan), place, "s2", "vacuous bound")
    chart.note(says)
    if beyond:
        chart.note(f"{beyond} bounds lie beyond the axis, drawn at its end.")
    if len(order) > len(few):
        chart.note(f"The {len(few)} smallest of {len(order)} bounds are drawn; the table has all.")
    return chart.figure()
