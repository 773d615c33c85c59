"""What test rows are drawn against: their times, the only feature, or their order where nothing else is known."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Final, Literal
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from pacbayes_fl.files import JsonMapping
from pacbayes_fl.results.recorded import with_unit
from pacbayes_fl.results.records import Result

Array = npt.NDArray[np.float64]
Kind = Literal["clock", "number", "feature", "order"]
_HOUR: Final = 3600.0
_BEFORE: Final = 12  # usual steps before the test rows, in which training rows are drawn however few these are
_GAP: Final = 3.0  # usual steps between rows, from which on a line is broken


def array(result: Result, name: str) -> Array | None:
    """Take predictions by their flat name.

    Args:
        result: a finished run.
        name: such as "existing.mean".

    Returns:
        [K, *]; None where there are none.
    """
    one = result.predictions.get(name)
    return None if one is None else one.detach().cpu().numpy()


@dataclass(frozen=True)
class Moments:
    """The horizontal axis of a group's rows.

    Args:
        kind: times by clocks, times that are numbers, a feature, or the order of rows.
        label: of the axis.
        train: values [K, N], of clocks seconds since 1970 in UTC.
        test: values [K, M], alike.
        zone: whose clocks are read.
    """

    kind: Kind
    label: str
    train: Array
    test: Array
    zone: tzinfo = UTC

    @property
    def series(self) -> bool:
        """Whether rows follow one another."""
        return self.kind != "feature"

    def gaps(self, values: Array) -> npt.NDArray[np.bool_]:
        """Tell between which sorted values [n] rows are missing [n - 1], bool."""
        steps = np.diff(values)
        if self.kind in ("feature", "order") or steps.size < 2:
            return np.zeros(steps.size, dtype=bool)
        wide: npt.NDArray[np.bool_] = steps > _GAP * max(float(np.median(steps)), 1e-12)
        return wide

    def hours(self) -> Array | None:
        """Hour of day of test rows [K, M], 0 to 23; None where no clock is known."""
        if self.kind != "clock":
            return None
        full, place = np.unique(np.floor(self.test / 900.0), return_inverse=True)  # offsets are of quarters of hours
        offsets = np.array([_offset(900.0 * quarter, self.zone) for quarter in full.tolist()])
        local = self.test + offsets[place].reshape(self.test.shape)
        hours: Array = np.floor(local / _HOUR) % 24
        return hours


def _offset(seconds: float, zone: tzinfo) -> float:
    return (datetime.fromtimestamp(seconds, zone).utcoffset() or timedelta()).total_seconds()


def of_group(result: Result, group: str) -> Moments | None:
    """Find out what the rows of a group are drawn against.

    Args:
        result: a finished run.
        group: "existing" or "new".

    Returns:
        The axis; None where the run keeps no rows.
    """
    x_train, x_test = (array(result, f"{group}.x_{part}") for part in ("train", "test"))
    if x_train is None or x_test is None:
        return None
    train, test = (array(result, f"{group}.time_{part}") for part in ("train", "test"))
    if train is not None and test is not None:
        return _timed(result.labels.get("time", {}), train, test)
    if x_test.ndim == 3 and x_test.shape[-1] == 1:
        names, units = (list(result.labels.get(key, ())) for key in ("feature_name", "feature_unit"))
        label = with_unit(str(names[0]) if names else "x", str(units[0]) if units else "")
        return Moments("feature", label, x_train[..., 0], x_test[..., 0])
    order = [np.broadcast_to(np.arange(x.shape[1], dtype=np.float64), x.shape[:2]) for x in (x_train, x_test)]
    label = "test row, in the order of the table (no column of times was named)"
    return Moments("order", label, order[0] - x_train.shape[1], order[1])


def drawn_before(train: Array, test: Array) -> npt.NDArray[np.bool_]:
    """Tell which training rows are drawn before test rows: half as far back as these reach, or some steps.

    Args:
        train: moments of the training rows [N].
        test: of the test rows that are drawn [M], at least one.

    Returns:
        Which are [N].
    """
    if test.min() == test.max():  # a single moment, which nothing far away can squash
        least = float(np.sort(train)[-_BEFORE:].min(initial=test.max()))
    else:
        steps = np.diff(np.unique(np.concatenate([train, test])))
        least = float(test.min()) - max(float(np.ptp(test)) / 2, _BEFORE * float(np.median(steps)))
    result: npt.NDArray[np.bool_] = train >= least
    return result


def _timed(said: JsonMapping, train: Array, test: Array) -> Moments:
    name, kind = str(said.get("name", "time")), str(said.get("kind", ""))
    if not kind.startswith("date"):
        return Moments("number", with_unit(name, str(said.get("unit", ""))), train.astype(float), test.astype(float))
    zone, where = _zone(said, kind)
    unit = float(said.get("per_second", 1e6))
    return Moments("clock", f"{name} ({where})", train / unit, test / unit, zone)


def _zone(said: JsonMapping, kind: str) -> tuple[tzinfo, str]:
    """Whose clocks a run's times are told by, and what it is called."""
    if said.get("zone"):
        try:
            return ZoneInfo(str(said["zone"])), str(said["zone"])
        except (ValueError, OSError, KeyError):  # a system without that zone
            return UTC, "UTC"
    if said.get("offset") is not None:
        hours = float(said["offset"])
        return timezone(timedelta(hours=hours)), f"UTC{hours:+g} h"
    return UTC, "UTC" if kind.endswith("zone") else "local time"
