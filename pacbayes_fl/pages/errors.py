"""Where predictions of numbers go wrong: residuals and coverage by the study's column, by time, or by a feature."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import tzinfo
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pacbayes_fl.errors import listed
from pacbayes_fl.pages import axis
from pacbayes_fl.pages.axis import Array, Axis
from pacbayes_fl.pages.chart import Chart
from pacbayes_fl.pages.forecasts import Rows, target_label
from pacbayes_fl.pages.markup import Element, figures, folded, section, tag
from pacbayes_fl.results import errors_by
from pacbayes_fl.results.calibration import HELD, band
from pacbayes_fl.results.moments import array
from pacbayes_fl.results.recorded import with_unit
from pacbayes_fl.results.records import Result

Counts = npt.NDArray[np.int64]

_FEATURES: Final = 12  # that are drawn; more would say little
_WORDS: Final = 20  # of a column, that are a place each


class Column(NamedTuple):
    """What errors are shown by.

    Args:
        label: of the axis, with its unit.
        values: of test rows, by group [K, M]; of words their places.
        words: that the values are places of; empty where they are numbers.
        zone: whose clocks times in seconds since 1970 are read from; None of other numbers.
    """

    label: str
    values: dict[str, Array]
    words: tuple[str, ...] = ()
    zone: tzinfo | None = None


def columns(result: Result, groups: dict[str, Rows]) -> list[Column]:
    """Give what errors can be shown by: the column of the study, the hour or else the time, and every feature.

    Args:
        result: a finished run of regression.
        groups: rows by group.

    Returns:
        The columns, the one that the study chose first. Columns of 0 and 1 that a table's words became are one.
    """
    chosen = {name: one for name in groups if (one := array(result, f"{name}.coverage_by")) is not None}
    said = result.labels.get("coverage_by", {})
    first = _when(groups)
    if chosen:
        first = [Column(with_unit(str(said.get("name")), str(said.get("unit", ""))), chosen)]
    names, units = (list(map(str, result.labels.get(key, ()))) for key in ("feature_name", "feature_unit"))
    x = {group: one for group in groups if (one := array(result, f"{group}.x_test")) is not None and one.ndim == 3}
    names = names[: max((one.shape[-1] for one in x.values()), default=0)]
    features = []
    for members in _together(names, x, groups):
        if len(members) > 1:
            features.append(_of_words([names[at] for at in members], [*members], x, groups))
        elif not chosen or names[members[0]] != said.get("name"):
            at = members[0]
            flat = {group: one[..., at] for group, one in x.items() if one.shape[-1] > at}
            features.append(Column(with_unit(names[at], units[at] if at < len(units) else ""), flat))
    return first + features


def _when(groups: dict[str, Rows]) -> list[Column]:
    """The hour of day where rows have several, and otherwise their times, such as of daily rows."""
    hours = {name: one for name, rows in groups.items() if (one := rows.moments.hours()) is not None}
    timed = {name: rows.moments for name, rows in groups.items() if rows.moments.kind in ("clock", "number")}
    if hours and len({hour for name, one in hours.items() for hour in np.unique(one[groups[name].real])}) > 1:
        return [Column(f"hour of day, {next(iter(groups.values())).moments.label}", hours)]
    if not timed:
        return []
    first, values = next(iter(timed.values())), {name: moments.test for name, moments in timed.items()}
    return [Column(first.label, values, zone=first.zone if first.kind == "clock" else None)]


def _together(names: Sequence[str], x: dict[str, Array], groups: dict[str, Rows]) -> list[tuple[int, ...]]:
    """Put features "column=word" of 0 and 1 together, of which a row has at most one."""
    stems = dict[str, list[int]]()
    for at, name in enumerate(names):
        stem, equals, _ = name.partition("=")
        stems.setdefault(stem + equals, []).append(at)
    result = list[tuple[int, ...]]()
    for stem, members in stems.items():
        one = len(members) > 1 and stem.endswith("=")
        for group, values in x.items():
            one = one and values.shape[-1] > members[-1]
            if one:
                own = values[groups[group].real > 0][:, members]
                one = bool(np.isin(own, (0.0, 1.0)).all()) and bool((own.sum(1) <= 1).all())
        result += [tuple(members)] if one else [(at,) for at in members]
    return result


def _of_words(names: Sequence[str], members: list[int], x: dict[str, Array], groups: dict[str, Rows]) -> Column:
    """Make one column of those of its words; the rarest of very many are one place, as is any word without a column."""
    words = [name.partition("=")[2] for name in names]
    places = {group: one[..., members].argmax(-1) for group, one in x.items()}
    known = {group: one[..., members].any(-1) for group, one in x.items()}
    every = np.concatenate([places[group][known[group] & (groups[group].real > 0)] for group in x])
    kept = np.sort(np.argsort(-np.bincount(every, minlength=len(words)), kind="stable")[:_WORDS])
    new = np.full(len(words), kept.size)
    new[kept] = np.arange(kept.size)
    values = {group: np.where(known[group], new[places[group]], kept.size).astype(np.float64) for group in x}
    rest = any((values[group][groups[group].real] == kept.size).any() for group in x)
    label = names[0].partition("=")[0]
    return Column(label, values, (*(words[at] for at in kept.tolist()), *(["any other"] if rest else [])))


def errors(result: Result, groups: dict[str, Rows]) -> Element | None:
    """Make the section of residuals and coverage.

    Args:
        result: a finished run of regression.
        groups: rows by group.

    Returns:
        The section; None without a column of several values.
    """
    drawn, constant, cut = list[tuple[str, list[Element]]](), list[str](), 0
    for one in columns(result, groups):
        if len(drawn) > _FEATURES:
            cut += 1
        elif pair := _pair(result, groups, one):
            drawn.append((one.label, pair))
        else:
            constant.append(one.label)
    if not drawn:
        return None
    (_, first), *others = drawn
    notes = [f"Not drawn, as all test rows have the same value: {listed(constant)}."] if constant else []
    notes += [f"{cut} further features are not drawn."] if cut else []
    return section(
        "errors",
        "Residuals and coverage",
        tag(
            "p",
            "A residual is a test target less its predicted mean: away from zero on one side, predictions are off "
            "there. Bars of coverage hold all parts at once with probability .95 if intervals are right and rows "
            "independent; rows of a series are not, and leave them more often.",
        ),
        figures(first, pairs=True),
        folded(
            f"By feature: {listed([label for label, _ in others])}", figures([pair for _, pair in others], pairs=True)
        )
        if others
        else None,
        [tag("p", note, class_="note") for note in notes],
    )


def _pair(result: Result, groups: dict[str, Rows], column: Column) -> list[Element]:
    """Draw residuals and coverage by one column."""
    edges: Array = np.arange(len(column.words) + 1, dtype=np.float64) - 0.5
    if not column.words:
        edges = errors_by.edges([(v, groups[name].real[:, : v.shape[1]]) for name, v in column.values.items()])
    if edges.size < 3:
        return []
    parts = [
        (name, *_residuals(groups[name], column.values[name], edges), kind)
        for name, kind in (("existing", "s1"), ("new", "s2"))
        if name in column.values
    ]
    centres = _centres(edges)
    quartiles = np.concatenate([quantiles.ravel() for _, quantiles, _, _, _ in parts])
    off = axis.linear(f"residual of {target_label(result)}", np.append(quartiles, 0.0))
    shares = np.concatenate([share for _, _, share, _, _ in parts])
    lowest = min(0.8, float(np.nanmin(shares)) - 0.03) if np.isfinite(shares).any() else 0.0
    held = axis.fixed("share of rows in 95 % interval", max(0.0, lowest), 1.0)
    residual = _chart(f"Residuals by {column.label}", column, centres, off, _says(parts))
    covered = _chart(f"Coverage by {column.label}", column, centres, held, _lowest(parts))
    upright = not column.words
    residual.rule(0.0, "faint", upright=not upright)
    covered.rule(HELD, "faint", "95 %", upright=not upright)
    shift = 0.12 * float(np.diff(centres).min(initial=np.inf))
    for number, (name, quantiles, share, rows, kind) in enumerate(parts):
        at = centres + (shift if number else 0.0)
        residual.spans(at, quantiles[0], quantiles[2], kind, upright=upright)
        key = f"{name} clients: median and middle half"
        residual.dots(*_turned(at, quantiles[1], upright), kind, key)
        low, high = (np.maximum(one, held.low) for one in band(rows, HELD))
        covered.spans(at, low, high, f"soft {kind}", upright=upright)
        key = f"{name} clients, {int(rows.sum())} rows"
        covered.dots(*_turned(at, share, upright), kind, key)
    return [residual.figure(), covered.figure()]


def _chart(title: str, column: Column, centres: Array, value: Axis, says: str) -> Chart:
    """Make the frame: numbers and times from left to right, words below one another, where there is room for them."""
    if column.words:
        names = axis.named(column.label, column.words)
        return Chart(title, value, names, says, 420, 60 + 24 * len(column.words), names=True)
    if column.zone is not None:
        return Chart(title, axis.times(column.label, centres, column.zone), value, says, 420)
    return Chart(title, axis.linear(column.label, centres), value, says, 420)


def _turned(at: Array, value: Array, upright: bool) -> tuple[Array, Array]:
    """Give x and y of values, which go to the right where they are not upright."""
    return (at, value) if upright else (value, at)


def _centres(edges: Array) -> Array:
    result: Array = (edges[1:] + edges[:-1]) / 2
    return result


def _residuals(rows: Rows, values: Array, edges: Array) -> tuple[Array, Array, Counts]:
    return errors_by.residuals(values, edges, rows.real, rows.y, rows.mean, rows.lower, rows.upper)


def _says(parts: Sequence[tuple[str, Array, Array, Counts, str]]) -> str:
    """Where medians of residuals are largest, in words."""
    said = []
    for name, quartiles, _, _, _ in parts:
        if np.isfinite(quartiles[1]).any():
            said.append(f"{name} clients: largest median residual {np.nanmax(np.abs(quartiles[1])):.3g}")
    return "; ".join(said)


def _lowest(parts: Sequence[tuple[str, Array, Array, Counts, str]]) -> str:
    """Where the least rows lie in their intervals, in words."""
    said = [(name, float(np.nanmin(share))) for name, _, share, _, _ in parts if np.isfinite(share).any()]
    return "; ".join(f"{name} clients: lowest share {least:.3g}" for name, least in said)
