"""The column by which a run says how often its intervals hold: a feature, or the hour of day."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from pacbayes_fl.data import tables
from pacbayes_fl.errors import StudyError
from pacbayes_fl.files import JsonTable
from pacbayes_fl.study.file import Study

HOUR: Final = "hour"
"""What `report.coverage_by` calls the hour of day of the rows' times."""

_DAY: Final = 24
_MICROSECONDS: Final = 3_600_000_000
_ZONE: Final = "datetime with a time zone"


def check(study: Study, dataset: tables.Dataset) -> None:
    """Check that there is such a column, before anything is trained.

    Args:
        study: its [report] names the column.
        dataset: of the study.

    Raises:
        StudyError: when no feature is called so, the rows have no time of day, or the targets are labels.
    """
    name = study.report.coverage_by
    if name is None:
        return
    what = f"[report] coverage_by = {name!r}"
    if dataset.classes is not None:
        raise StudyError(f"{what} is of intervals, and a classifier has none", hint="drop it")
    features = [column.name for column in dataset.features]
    if name in features:
        return
    if name != HOUR:
        raise StudyError(f"{what} is no feature", hint=f"one of {', '.join(features)}, or {HOUR!r}")
    if _hours(dataset, "existing") is None:
        hint = "name the column of dates with times as data.time, or a feature here"
        raise StudyError(f"{what} needs rows whose time of day is known", hint=hint)


def column(study: Study, dataset: tables.Dataset) -> Callable[[str], Tensor | None]:
    """Give what reads the column's values in the test rows of a group.

    Args:
        study: its [report] names the column.
        dataset: of the study.

    Returns:
        Takes "existing" or "new", gives [K, M], float64, of a feature in its own unit, of the hour of day 0 to 23; None
        where no column is named.
    """
    name, features = study.report.coverage_by, [one.name for one in dataset.features]

    def values(group: str) -> Tensor | None:
        if name in features:
            return dataset.groups[group].test.x[..., features.index(name)].double()
        return None if name is None else _hours(dataset, group)

    return values


def labels(study: Study, dataset: tables.Dataset) -> JsonTable:
    """Describe the column (`labels.json`).

    Args:
        study: its [report] names the column.
        dataset: of the study.

    Returns:
        "coverage_by" with a name and a unit; nothing where no column is named.
    """
    name = study.report.coverage_by
    if name is None:
        return {}
    units = {column.name: column.unit for column in dataset.features}
    zone = "UTC" if dataset.time_kind == _ZONE else "local time"
    said = {"name": name, "unit": units[name]} if name in units else {"name": "hour of day", "unit": f"h, {zone}"}
    return {"coverage_by": said}


def time_labels(study: Study, dataset: tables.Dataset) -> JsonTable:
    """Describe the times of rows (`labels.json`).

    Args:
        study: its [data] names their column and their zone.
        dataset: of the study.

    Returns:
        "time" with a name and a kind as `data.times` calls it; of clocks also how many units a second has and whose
        clocks are read: a "zone", or an "offset" from UTC in hours. Nothing where no times are known.
    """
    if all(group.times is None for group in dataset.groups.values()):
        return {}
    name = study.data.time or "time"
    if dataset.time_kind.startswith("date"):
        return {"time": {"name": name, "kind": dataset.time_kind, "per_second": 1_000_000, "zone": study.data.zone}}
    known = dataset.provenance.get("hours_of_day")
    if isinstance(known, dict) and "utc_offset" in known:
        return {"time": {"name": name, "kind": _ZONE, "per_second": 1, "offset": float(known["utc_offset"])}}
    return {"time": {"name": name, "kind": dataset.time_kind or "number"}}


def _hours(dataset: tables.Dataset, group: str) -> Tensor | None:
    """Hour of day of test rows [K, M], 0 to 23; None where no time of day is known."""
    times = dataset.groups[group].times
    if times is None:
        return None
    if dataset.time_kind.startswith("datetime"):
        return times.test.div(_MICROSECONDS, rounding_mode="floor").remainder(_DAY).double()
    known = dataset.provenance.get("hours_of_day")  # of `data_gen`: its times are seconds of UTC
    if not isinstance(known, dict) or "utc_offset" not in known:
        return None
    seconds = times.test + round(3600 * float(known["utc_offset"]))
    return seconds.to(torch.int64).div(3600, rounding_mode="floor").remainder(_DAY).double()
