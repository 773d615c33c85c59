"""The figure of a bound against the number of rows."""

from __future__ import annotations

import math

import pytest

from pacbayes_fl.errors import ShapeError
from pacbayes_fl.plots import NothingToDrawError, bound_curve


def test_points_stand_in_the_order_of_rows_on_a_logarithmic_axis() -> None:
    figure = bound_curve([1e4, 1e2, 1e3], [0.1, 0.4, 0.2], "seeger", risk=0.05)
    (axis,) = figure.axes
    curve, risk = axis.get_lines()
    assert curve.get_xydata().tolist() == [[1e2, 0.4], [1e3, 0.2], [1e4, 0.1]]
    assert axis.get_xscale() == "log" and list(risk.get_ydata()) == [0.05, 0.05]
    assert bound_curve([10, 20], [0.4, math.nan], "x").axes[0].get_xscale() == "linear"


def test_a_bound_for_every_number_of_rows() -> None:
    with pytest.raises(ShapeError, match="one for each of the 2 numbers of rows n, got 1"):
        bound_curve([10, 100], [0.5], "Seeger")


def test_no_certificate_is_no_figure() -> None:
    with pytest.raises(NothingToDrawError, match="none of the bounds is a certificate"):
        bound_curve([10, 20], [math.nan, math.nan], "x")
