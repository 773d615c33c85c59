"""Every client: a table that can be sorted and searched, and a panel of its own for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final

import numpy as np

from pacbayes_fl.errors import counted, listed
from pacbayes_fl.names import shortened
from pacbayes_fl.pages.calibration import lowest_coverage
from pacbayes_fl.pages.forecasts import Rows, drawn_clients, forecast, rows_each
from pacbayes_fl.pages.markup import MISSING, Content, Element, definitions, number, section, table, tag
from pacbayes_fl.pages.scores import better, label
from pacbayes_fl.results.client_rows import GROUPS, ClientRow
from pacbayes_fl.results.comparison import shown_columns
from pacbayes_fl.results.metrics import DIVIDES_BY_SPREAD
from pacbayes_fl.results.moments import array
from pacbayes_fl.results.records import Result

_LINES: Final = 5_000  # of the table: some 2 MB
_PANELS: Final = 1_000  # where there are no drawings
_OTHERS: Final = 6  # further numbers of a panel
_NAME: Final = 40
_COVERAGE: Final = "95 % coverage"


def clients(result: Result, groups: Mapping[str, Rows], share: float = 1.0) -> Element:
    """Make the section of all clients.

    Args:
        result: a finished run.
        groups: predictions of regression by group; none where the run keeps none.
        share: of what a page may hold, by which lines and drawings are cut.

    Returns:
        The section, with the tools that only a script can serve hidden until it runs.
    """
    names = shown_columns(result)
    covered = {group: lowest_coverage(result, group) for group in GROUPS}
    has, middles = any(covered.values()), {group: _medians(result, group) for group in GROUPS}
    lines, cut = int(_LINES * share), len(result.clients) - int(_LINES * share)
    rows, attributes, panels = [], list[dict[str, str]](), list[Element]()
    drawings = _drawn(result, groups, share)
    tests = tested_rows(result)
    places = dict.fromkeys(GROUPS, 0)
    for at, row in enumerate(islice(result.clients, lines)):
        place = places[row.group]
        places[row.group] += 1
        identity = f"client-{at}"
        panelled = (row.group, place) in drawings or (not groups and at < _PANELS * share)
        name: Element | str = tag("a", row.name, href=f"#{identity}") if panelled else row.name
        held = covered[row.group].get(row.name)
        last = [number(None if held is None else held[0], 3)] if has else []
        tested = tests[row.group][place] if row.group in tests else None
        sizes = [str(row.m), *([MISSING if tested is None else str(tested)] if tests else [])]
        rows.append((name, row.group, *sizes, *(number(row.metrics.get(one)) for one in names), *last))
        attributes.append({"data-group": row.group})
        if panelled:
            most = drawings.get((row.group, place), 0)
            drawn = forecast(result, groups[row.group], place, row.name, most) if most else None
            panels.append(_panel(identity, row, tested, result, middles[row.group], held, drawn))
    scores: list[Content] = [[label(one, result), tag("span", better(one, result), class_="way")] for one in names]
    sizes = ["training rows", *(["test rows"] if tests else [])]
    header: list[Content] = ["client", "group", *sizes, *scores, *([_COVERAGE] if has else [])]
    caption = counted(len(rows), "client") + (f" of {len(result.clients)}: the page holds no more" if cut > 0 else "")
    body = table(
        caption,
        header,
        rows,
        numeric=range(2, len(header)),
        sortable=True,
        identity="client-table",
        attributes=attributes,
    )
    text = "A name leads to the client's own panel below."
    why = missing(result, tests)
    note = tag("p", f"{MISSING}: not defined. {' '.join(why)}", class_="note") if why else None
    every = _panels(result, panels, drawings)
    return section("clients", "Clients", tag("p", text), _tools(result), body, note, *every)


def tested_rows(result: Result) -> dict[str, list[int]]:
    """Count the test rows of every client.

    Args:
        result: a finished run.

    Returns:
        The numbers by group, in the order of its clients; nothing of a group whose rows the run does not keep.
    """
    masks = {group: array(result, f"{group}.mask_test") for group in GROUPS}
    counts = {group: one.sum(1).astype(int).tolist() for group, one in masks.items() if one is not None}
    return {group: own for group, own in counts.items() if len(own) == result.rows.size_of(group)}


def missing(result: Result, tests: Mapping[str, Sequence[int]]) -> list[str]:
    """Say why clients have no number where others have one.

    Args:
        result: a finished run.
        tests: as of `tested_rows`.

    Returns:
        A sentence for every reason.
    """
    without, single, other = list[str](), list[str](), dict[str, list[str]]()
    for group in GROUPS:
        names = result.rows.names(group)
        counts = tests.get(group, [-1] * len(names))
        without += [name for name, count in zip(names, counts, strict=True) if not count]
        for column in shown_columns(result):
            of_spread = column.rpartition(".")[2] == DIVIDES_BY_SPREAD
            for name, count, value in zip(names, counts, result.column(group, column), strict=True):
                if value != value and count:
                    (single if of_spread and count == 1 else other.setdefault(column, [])).append(name)
    said = [f"No test rows: {_listed(without)}."] if without else []
    if single:
        rows = "one test row, which has" if len(single) == 1 else "one test row each, which have"
        text = f"divides by the spread of a client's test targets: {_listed(single)} ({rows} none)"
        said.append(f"{label(DIVIDES_BY_SPREAD, result)} {text}.")
    return said + [f"{label(column, result)} is no number: {_listed(names)}." for column, names in other.items()]


def _listed(clients: Sequence[str]) -> str:
    return listed([shortened(name, _NAME) for name in clients])


def _drawn(result: Result, groups: Mapping[str, Rows], share: float) -> dict[tuple[str, int], int]:
    """Which clients have a drawing, and of how many rows."""
    every = (
        (group, at) for group, rows in groups.items() for at in range(rows.y.shape[0]) if bool(rows.real[at].any())
    )
    kept = list(islice(every, drawn_clients(share)))
    most = rows_each(len(kept), share)
    return dict.fromkeys(kept, most)


def _tools(result: Result) -> Element:
    taken = [group for group in GROUPS if result.rows.size_of(group)]
    choices = [tag("option", "all groups", value=""), *(tag("option", group, value=group) for group in taken)]
    return tag(
        "div",
        tag("label", "Search ", tag("input", type="search", id="client-search", autocomplete="off")),
        tag("label", "Group ", tag("select", *choices, id="client-group")),
        tag("output", id="client-count", for_="client-search client-group"),
        id="client-tools",
        class_="tools",
        hidden=True,
    )


def _panels(result: Result, panels: Sequence[Element], drawings: Mapping[tuple[str, int], int]) -> list[Element | None]:
    if not panels:
        return []
    notes = []
    if drawings and len(drawings) < len(result.clients):
        text = f"Forecasts of {len(drawings)} of {len(result.clients)} clients are drawn"
        notes.append(tag("p", f"{text}: the others have no test rows here, or the page holds no more.", class_="note"))
    heading = "Forecasts of every client" if drawings else "Every client"
    return [tag("h3", heading, id="panels"), *notes, tag("div", *panels, class_="panels")]


def _medians(result: Result, group: str) -> dict[str, float]:
    """Medians of the shown metrics over the clients of a group; those that nobody has are left out."""
    columns = {name: [v for v in result.column(group, name) if np.isfinite(v)] for name in shown_columns(result)}
    return {name: float(np.median(own)) for name, own in columns.items() if own}


def _panel(
    identity: str,
    row: ClientRow,
    tested: int | None,
    result: Result,
    middles: Mapping[str, float],
    held: tuple[float, bool] | None,
    drawn: Element | None,
) -> Element:
    """Make a client's own part: its scores beside the group's median, and its forecasts."""
    facts = [
        (label(name, result), f"{number(row.metrics.get(name))} (median of {row.group} clients {number(middle)})")
        for name, middle in middles.items()
    ]
    facts = [("training rows", str(row.m)), *([] if tested is None else [("test rows", str(tested))]), *facts]
    others = [name for name in row.metrics if name not in middles and "." not in name][:_OTHERS]
    facts += [(label(name, result), number(row.metrics[name])) for name in others]
    warned = None
    if held is not None and held[1]:
        text = f"Only {held[0]:.0%} of its test rows lie in 95 % intervals, less than chance explains."
        warned = tag("p", text, class_="warning")
    inner = tag("div", warned, drawn, definitions(facts), id=identity, tabindex="-1")
    title = tag("summary", tag("span", shortened(row.name, 120), class_="name"), f" ({row.group})")
    return tag("details", title, inner, class_="client")
