"""The sweep shows every method's mean and interval at each value that was varied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.container import ErrorbarContainer

from pacbayes_fl.errors import StudyError
from pacbayes_fl.plots import NothingToDrawError, save_joint, sweep_curve
from pacbayes_fl.results.bootstrap import nested_bootstrap
from pacbayes_fl.results.records import Result

pytestmark = pytest.mark.filterwarnings("error")
Maker = Callable[..., Result]


def varied(result: Result, value: Any, key: str = "method.local_steps") -> Result:
    about = {"key": key, "value": value, "method": result.method}
    return replace(result, method=f"{result.method} {value}", labels={**result.labels, "varied": about})


def points(axis: Axes, number: int) -> tuple[list[float], np.ndarray, np.ndarray]:
    """Return where the points of a line stand, their heights, and the ends of their bars."""
    container = axis.containers[number]
    assert isinstance(container, ErrorbarContainer)
    line, _, (bars,) = container.lines
    assert isinstance(bars, LineCollection)
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    return [float(x) for x in np.asarray(line.get_xdata())], np.asarray(line.get_ydata(), dtype=np.float64), ends


@pytest.mark.parametrize("group", ["existing", "new"])
def test_points_are_means_over_seeds_and_clients_with_their_interval(group: str, classes: Maker) -> None:
    values, seeds = (20, 5, 10), (1, 2, 3)
    results = [
        varied(classes(method, seed, level=0.5 + value / 100), value)
        for method in ("fedsi", "fedavg")
        for value in values
        for seed in seeds
    ]
    results += [classes("other"), varied(classes("none", existing=0, new=0), 3)]  # nothing to draw of these
    (axis,) = sweep_curve(results, group=group).axes
    assert len(axis.containers) == 2
    for number, method in enumerate(("fedsi", "fedavg")):
        where, heights, ends = points(axis, number)
        assert where == [5, 10, 20]
        for value, height, end in zip(where, heights, ends, strict=True):
            runs = [r for r in results[:18] if r.method == f"{method} {value:.0f}"]
            expected = nested_bootstrap([r.column(group, "pm.accuracy") for r in runs])
            np.testing.assert_allclose([height, *end], expected, rtol=1e-12)
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("local steps", "accuracy, personal model")
    assert [float(tick) for tick in axis.get_xticks()] == [20, 5, 10] and axis.get_xscale() == "linear"
    legend = axis.get_legend()
    assert legend is not None and [text.get_text() for text in legend.get_texts()] == ["fedsi", "fedavg"]


def test_values_that_are_no_numbers_stand_side_by_side(made: Maker) -> None:
    results = [varied(made(level=level), value) for value, level in (("zero", 0.4), ([4, 4], 0.6), (3, 0.5))]
    (axis,) = sweep_curve(results).axes
    assert points(axis, 0)[0] == [0, 1, 2] and axis.get_ylabel() == "RSMSE"
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["zero", "[4, 4]", "3"]
    ce = sweep_curve(results, "ce").axes[0]
    np.testing.assert_allclose(points(ce, 0)[1], [np.mean(r.column("existing", "ce")) for r in results], rtol=1e-12)


def test_values_over_several_decades_stand_on_a_logarithmic_axis(made: Maker) -> None:
    (axis,) = sweep_curve([varied(made(existing=1), value) for value in (1e-4, 1e-3, 1e-2)]).axes
    assert axis.get_xscale() == "log"
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["0.0001", "0.001", "0.01"]


def test_what_cannot_be_drawn_is_named(made: Maker) -> None:
    for results in ([], [made()], [varied(made(existing=0), 1)]):
        with pytest.raises(NothingToDrawError, match="no existing client of the results has rsmse at a value"):
            sweep_curve(results)
    with pytest.raises(StudyError, match=r"vary different values: method\.local_steps, method\.rate"):
        sweep_curve([varied(made(), 1), varied(made(), 2, "method.rate")])


@pytest.mark.usefixtures("names_only")
def test_a_comparison_that_varies_a_value_has_the_figure(made: Maker, tmp_path: Path) -> None:
    results = [varied(made(particles=count), count, "method.particles") for count in (1, 2)]
    assert [path.name for path in save_joint(results, tmp_path, ["png"])] == [
        "box_plots.png",
        "intervals.png",
        "sweep.png",
    ]
    assert "sweep.png" not in [path.name for path in save_joint([made()], tmp_path / "other", ["png"])]
