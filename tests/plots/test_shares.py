"""Figures of F(y) and of coverage show what the table of a run holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from pacbayes_fl.plots import NothingToDrawError, coverage, pit_histograms
from pacbayes_fl.results.calibration import coverage_by, coverage_by_client, pit_histogram
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.records import Result

pytestmark = pytest.mark.filterwarnings("error")


def test_bars_are_the_shares_and_the_band_is_behind_them(result: Result) -> None:
    figure = pit_histograms(result)
    for axis, group in zip(figure.axes, GROUPS, strict=True):
        one = pit_histogram(result, group)
        assert one is not None
        heights = [patch.get_height() for patch in axis.patches]  # type: ignore[attr-defined]
        np.testing.assert_allclose(heights, one.share)
        (band,) = axis.collections
        drawn = np.asarray(band.get_paths()[0].vertices)[:, 1]
        assert (drawn.min(), drawn.max()) == (one.band[0].min(), one.band[1].max())
        assert (axis.get_xlabel(), axis.get_ylabel()) == ("predictive probability F(y)", "share of test rows")
    with pytest.raises(NothingToDrawError, match="pit"):
        pit_histograms(replace(result, predictions={}))


def test_coverage_is_drawn_by_column_where_one_is_named_and_by_client(result: Result) -> None:
    assert [axis.get_xlabel() for axis in coverage(result).axes] == ["clients, by coverage"] * 2
    hours = {f"{group}.coverage_by": result.predictions[f"{group}.x_test"][..., 0].floor() for group in GROUPS}
    labels = {**result.labels, "coverage_by": {"name": "hour of day", "unit": "h, local time"}}
    told = replace(result, predictions={**result.predictions, **hours}, labels=labels)
    figure = coverage(told)
    assert [axis.get_xlabel() for axis in figure.axes] == [
        *["hour of day (h, local time)"] * 2,
        *["clients, by coverage"] * 2,
    ]
    for axis, group in zip(figure.axes[:2], GROUPS, strict=True):
        one = coverage_by(told, group)
        assert one is not None
        (line,) = [line for line in axis.lines if line.get_label() == "seen"]
        np.testing.assert_allclose(np.asarray(line.get_data()), [one.low, one.share])
    clients = coverage_by_client(told, "new")
    (line,) = [line for line in figure.axes[3].lines if line.get_label() == "seen"]
    assert clients is not None and np.asarray(line.get_ydata()).tolist() == sorted(clients.share.tolist())
    with pytest.raises(NothingToDrawError, match="intervals"):
        coverage(replace(result, predictions={}))


@pytest.mark.parametrize("count", [1, 3])
def test_clients_are_counted_by_whole_numbers(count: int, made: Callable[..., Result]) -> None:
    (axis,) = coverage(made(existing=count, new=0)).axes
    low, high = axis.get_xlim()
    assert [float(tick) for tick in axis.get_xticks() if low <= tick <= high] == list(range(1, count + 1))
