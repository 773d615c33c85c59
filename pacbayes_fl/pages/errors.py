"""Where predictions of numbers go wrong: residuals and coverage by hour, by the study's column, or by a feature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from pacbayes_fl.pages import axis
from pacbayes_fl.pages.axis import Array
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


class Column(NamedTuple):
    """What errors are shown by.

    Args:
        label: of the axis, with its unit.
        values: of test rows, by group [K, M].
    """

    label: str
    values: dict[str, Array]


def columns(result: Result, groups: dict[str, Rows]) -> list[Column]:
    """Give what errors can be shown by: the column of the study, the hour, and every feature.

    Args:
        result: a finished run of regression.
        groups: rows by group.

    Returns:
        The columns, the one that the study chose first.
    """
    chosen = {name: one for name in groups if (one := array(result, f"{name}.coverage_by")) is not None}
    hours = {name: one for name, rows in groups.items() if (one := rows.moments.hours()) is not None}
    said = result.labels.get("coverage_by", {})
    result_columns = []
    if chosen:
        result_columns.append(Column(with_unit(str(said.get("name")), str(said.get("unit", ""))), chosen))
    elif hours:
        where = next(iter(groups.values())).moments.label
        result_columns.append(Column(f"hour of day, {where}", hours))
    names, units = (list(result.labels.get(key, ())) for key in ("feature_name", "feature_unit"))
    for at, name in enumerate(names[:_FEATURES]):
        if chosen and name == said.get("name"):
            continue
        values = {group: array(result, f"{group}.x_test") for group in groups}
        flat = {group: one[..., at] for group, one in values.items() if one is not None and one.shape[-1] > at}
        if flat:
            result_columns.append(Column(with_unit(str(name), str(units[at]) if at < len(units) else ""), flat))
    return result_columns


def errors(result: Result, groups: dict[str, Rows]) -> Element | None:
    """Make the section of residuals and coverage.

    Args:
        result: a finished run of regression.
        groups: rows by group.

    Returns:
        The section; None without columns.
    """
    if not (every := columns(result, groups)):
        return None
    first, *others = every
    rest = figures([_pair(result, groups, one) for one in others], pairs=True)
    cut = len(list(result.labels.get("feature_name", ()))) - _FEATURES
    more = tag("p", f"{cut} further features are not drawn.", class_="note") if cut > 0 else None
    return section(
        "errors",
        "Residuals and coverage",
        tag(
            "p",
            "A residual is a test target less its predicted mean: away from zero on one side, predictions are off "
            "there. Bars of coverage hold all parts at once with probability .95 if intervals are right and rows "
            "independent; rows of a series are not, and leave them more often.",
        ),
        figures(_pair(result, groups, first), pairs=True),
        folded("By every other feature", rest, more) if others else None,
    )


def _pair(result: Result, groups: dict[str, Rows], column: Column) -> list[Element]:
    """Draw residuals and coverage by one column."""
    edges = errors_by.edges([(v, groups[name].real[:, : v.shape[1]]) for name, v in column.values.items()])
    if edges.size < 3:
        return []
    parts = [
        (name, *_residuals(groups[name], column.values[name], edges), kind)
        for name, kind in (("existing", "s1"), ("new", "s2"))
        if name in column.values
    ]
    centres = _centres(edges)
    x = axis.linear(column.label, centres)
    unit = target_label(result)
    quartiles = np.concatenate([quantiles.ravel() for _, quantiles, _, _, _ in parts])
    y = axis.linear(f"residual of {unit}", np.append(quartiles, 0.0))
    shares = np.concatenate([share for _, _, share, _, _ in parts])
    residual = Chart(f"Residuals by {column.label}", x, y, _says(parts), wide=420)
    residual.rule(0.0, "faint")
    lowest = min(0.8, float(np.nanmin(shares)) - 0.03) if np.isfinite(shares).any() else 0.0
    covered = Chart(
        f"Coverage by {column.label}", x, axis.fixed("share of rows in 95 % interval", max(0.0, lowest), 1.0), "", 420
    )
    covered.rule(HELD, "faint", "95 %")
    shift = 0.12 * float(np.diff(centres).min(initial=1.0))
    for number, (name, quantiles, share, rows, kind) in enumerate(parts):
        at = centres + (shift if number else 0.0)
        residual.spans(at, quantiles[0], quantiles[2], kind)
        residual.dots(at, quantiles[1], kind, f"{name} clients: median and middle half")
        low, high = band(rows, HELD)
        covered.spans(at, np.maximum(low, covered.y.low), np.maximum(high, covered.y.low), f"soft {kind}")
        covered.dots(at, share, kind, f"{name} clients, {int(rows.sum())} rows")
    return [residual.figure(), covered.figure()]


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
