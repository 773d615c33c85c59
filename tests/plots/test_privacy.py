"""The privacy-utility figure has every score at the epsilon that was spent."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from pacbayes_fl.errors import PacBayesFLError
from pacbayes_fl.plots import NothingToDrawError, privacy_utility, save_joint
from pacbayes_fl.results.bootstrap import nested_bootstrap
from pacbayes_fl.results.records import Result

pytestmark = pytest.mark.filterwarnings("error")
Maker = Callable[..., Result]
NO_BASELINE = "no run without privacy was given"


def private(result: Result, epsilon: float | None, mechanism: str = "gaussian", **changes: Any) -> Result:
    about = {
        "mechanism": mechanism,
        "clip": 1.0,
        "multiplier": 4.0,
        "epsilon": epsilon,
        "delta": 1e-3,
        "rho": 0.1,
        "pure": None,
        "claimed": None,
        "cohort": "poisson",
        "neighbours": "replace",
        "releases": 20,
        "randomness": "simulation",
        "statement": "",
    }
    return replace(result, labels={**result.labels, "privacy": about | changes})


def lines(axis: Axes) -> dict[str, tuple[list[float], np.ndarray, np.ndarray]]:
    """Return where the points of each line stand, their heights, and the ends of their bars."""
    result = {}
    for container in axis.containers:
        assert isinstance(container, ErrorbarContainer)
        line, _, (bars,) = container.lines
        assert isinstance(bars, LineCollection)
        ends = np.array([segment[:, 1] for segment in bars.get_segments()])
        where = [float(x) for x in np.asarray(line.get_xdata())]
        result[str(container.get_label())] = where, np.asarray(line.get_ydata(), dtype=np.float64), ends
    return result


def expected(results: Sequence[Result], group: str, metric: str) -> tuple[float, float, float]:
    return nested_bootstrap([result.column(group, metric) for result in results])


def legend_of(figure: Figure) -> set[str]:
    (legend,) = figure.legends
    return {text.get_text() for text in legend.get_texts()}


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_points_are_means_over_seeds_and_clients_at_the_epsilon_spent(task: str, made: Maker, classes: Maker) -> None:
    maker, metric = (made, "rsmse") if task == "regression" else (classes, "pm.accuracy")
    runs = {
        (mechanism, epsilon): [
            private(maker(seed=seed, level=0.5 + 0.1 / epsilon), epsilon, mechanism) for seed in (1, 2, 3)
        ]
        for mechanism in ("gaussian", "knorm")
        for epsilon in (8.0, 0.5, 2.0)
    }
    figure = privacy_utility([run for same in runs.values() for run in same])
    words = [f"{group} clients, 3 seeds: mean with 95 % interval" for group in ("existing", "new")]
    assert [axis.get_title() for axis in figure.axes] == words
    for axis, group in zip(figure.axes, ("existing", "new"), strict=True):
        drawn = lines(axis)
        assert list(drawn) == ["gaussian", "knorm"]
        for mechanism, (where, heights, ends) in drawn.items():
            assert where == [0.5, 2.0, 8.0]
            for epsilon, height, end in zip(where, heights, ends, strict=True):
                scores = expected(runs[mechanism, epsilon], group, metric)
                np.testing.assert_allclose([height, *end], scores, rtol=1e-12)
        assert axis.get_xscale() == "log"
        assert axis.get_xlabel() == "ε spent, at δ = 0.001\n(smaller is more private)"
        assert axis.get_ylabel() == ("RSMSE" if task == "regression" else "accuracy, personal model")
    assert legend_of(figure) == {"gaussian", "knorm", NO_BASELINE}
    figure.canvas.draw()


def test_what_the_paper_claims_is_joined_to_what_holds(made: Maker) -> None:
    runs = {
        claimed: [
            private(made(seed=seed, level=1 / claimed), spent + 1e-3 * seed, "paper_algorithm_3", claimed=claimed)
            for seed in (1, 2)
        ]
        for claimed, spent in ((10.0, 93.0), (2.0, 15.0))
    }
    figure = privacy_utility([run for same in runs.values() for run in same])
    for axis, group in zip(figure.axes, ("existing", "new"), strict=True):
        where, heights, _ = lines(axis)["paper algorithm 3"]
        assert where == [15.002, 93.002]  # the larger of the seeds
        means = [expected(runs[claimed], group, "rsmse")[0] for claimed in (2.0, 10.0)]
        np.testing.assert_allclose(heights, means, rtol=1e-12)
        (claims,) = [line for line in axis.lines if line.get_label() == "paper algorithm 3, as claimed"]
        np.testing.assert_allclose(np.asarray(claims.get_data(), dtype=np.float64), [[2.0, 10.0], means], rtol=1e-12)
        assert claims.get_linestyle() == "None" and (claims.get_alpha() or 1) < 1
        (joins,) = [c for c in axis.collections if isinstance(c, LineCollection) and np.ptp(c.get_segments()[0][:, 0])]
        segments = np.array([[[2.0, means[0]], [15.002, means[0]]], [[10.0, means[1]], [93.002, means[1]]]])
        np.testing.assert_allclose(np.array(joins.get_segments()), segments, rtol=1e-12)
    assert legend_of(figure) == {"paper algorithm 3", "paper algorithm 3, as claimed", NO_BASELINE}


def test_runs_that_are_not_private_are_a_level_with_its_interval(made: Maker) -> None:
    plain = [made(seed=seed) for seed in (1, 2)] + [made("fedavg", level=0.9)]
    unvaried = replace(made(seed=3), method="pac_pfl epsilon=none")
    about = {"key": "privacy.epsilon", "value": "none", "method": "pac_pfl"}
    plain.append(replace(unvaried, labels={**unvaried.labels, "varied": about, "privacy": None}))
    figure = privacy_utility([private(made(), 1.0), *plain])
    for axis, group in zip(figure.axes, ("existing", "new"), strict=True):
        bands = [patch for patch in axis.patches if isinstance(patch, Rectangle)]
        for name, same in (("pac_pfl", [*plain[:2], plain[3]]), ("fedavg", plain[2:3])):
            mean, low, high = expected(same, group, "rsmse")
            (level,) = [line for line in axis.lines if line.get_label() == f"{name}, not private"]
            assert level.get_linestyle() == "--" and np.asarray(level.get_ydata()).tolist() == [mean, mean]
            band = bands[0 if name == "pac_pfl" else 1]
            np.testing.assert_allclose([band.get_y(), band.get_y() + band.get_height()], [low, high], rtol=1e-12)
    assert legend_of(figure) == {"gaussian", "pac_pfl, not private", "fedavg, not private"}


def test_a_varied_budget_is_one_line_and_another_varied_value_is_not(made: Maker) -> None:
    def varied(key: str, value: float, epsilon: float) -> Result:
        result = private(replace(made(), method=f"pac_pfl {key}={value}"), epsilon)
        about = {"key": key, "value": value, "method": "pac_pfl"}
        return replace(result, labels={**result.labels, "varied": about})

    budgets = [varied("privacy.epsilon", value, value) for value in (1.0, 4.0)]
    assert {name: x for name, (x, *_) in lines(privacy_utility(budgets).axes[0]).items()} == {"gaussian": [1.0, 4.0]}
    rates = [varied("method.rate", value, 1.0) for value in (0.1, 0.2)]
    assert set(lines(privacy_utility(rates).axes[0])) == {
        f"gaussian, pac_pfl method.rate={value}" for value in (0.1, 0.2)
    }


@pytest.mark.parametrize(
    ("key", "values", "names"),
    [
        ("delta", (0, 1e-3), ("gaussian, δ = 0", "gaussian, δ = 0.001")),
        ("neighbours", ("replace", "add-or-remove"), ("gaussian, replace", "gaussian, add-or-remove")),
        ("clip", (0.5, 2.0), ("gaussian, clip 0.5", "gaussian, clip 2.0")),
        ("cohort", ("all", "poisson"), ("gaussian, cohort all", "gaussian, cohort poisson")),
    ],
)
def test_what_is_not_comparable_has_a_line_of_its_own(
    key: str, values: tuple[Any, Any], names: tuple[str, str], made: Maker
) -> None:
    figure = privacy_utility([private(made(), 1.0, **{key: value}) for value in values])
    assert tuple(lines(figure.axes[0])) == names
    assert ("the δ of each line" in figure.axes[0].get_xlabel()) == (key == "delta")


def test_a_clip_for_each_epsilon_leaves_one_line(made: Maker) -> None:
    (drawn,) = lines(privacy_utility([private(made(), float(e), clip=e) for e in (1, 2)]).axes[0]).values()
    assert drawn[0] == [1.0, 2.0]


def test_methods_and_studies_have_lines_of_their_own(made: Maker) -> None:
    results = [private(made(method), 1.0) for method in ("pac_pfl", "fedavg")]
    assert set(lines(privacy_utility(results).axes[0])) == {"gaussian, pac_pfl", "gaussian, fedavg"}
    results = [private(made(study=study), 1.0) for study in ("one", "two")]
    figure = privacy_utility([*results, made(study="one"), made(study="two")])
    names = {"gaussian, one", "gaussian, two", "pac_pfl, one, not private", "pac_pfl, two, not private"}
    assert legend_of(figure) == names


def test_groups_metrics_and_missing_numbers(made: Maker) -> None:
    results = [private(made(new=0), 1.0), private(made(existing=0), 2.0)]
    first, second = privacy_utility(results, "ce").axes
    assert (first.get_ylabel(), second.get_ylabel()) == ("calibration error", "calibration error")
    assert (lines(first)["gaussian"][0], lines(second)["gaussian"][0]) == ([1.0], [2.0])
    one = private(made(new=0), 1.0)
    lost = replace(one.clients[0], metrics={"rsmse": math.nan})
    (axis,) = privacy_utility([replace(one, clients=(lost, *one.clients[1:]))]).axes
    np.testing.assert_allclose(lines(axis)["gaussian"][1], [np.mean(one.column("existing", "rsmse")[1:])], rtol=1e-12)
    assert lines(privacy_utility([one, private(made(), None), private(made(), math.inf)]).axes[0])["gaussian"][0] == [1]


def test_what_cannot_be_drawn_is_named(made: Maker) -> None:
    for results in ([], [made()], [private(made(existing=0, new=0), 1.0)], [private(made(), None)]):
        with pytest.raises(NothingToDrawError, match=r"no client of a private run .* with an epsilon has rsmse"):
            privacy_utility(results)
    with pytest.raises(NothingToDrawError, match=r"has pm\.accuracy"):
        privacy_utility([private(made(), 1.0)], "pm.accuracy")


@pytest.mark.slow
def test_a_comparison_with_a_private_run_has_the_figure(made: Maker, tmp_path: Path) -> None:
    results = [private(made(), 1.0), made()]
    written = save_joint(results, tmp_path / "one")
    names = [f"{name}.{ending}" for name in ("box_plots", "intervals", "privacy_utility") for ending in ("png", "svg")]
    assert [path.name for path in written] == names
    written = [path for path in written if path.suffix == ".svg"]
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30}):
        settings = dict(matplotlib.rcParams)
        again = save_joint(results, tmp_path / "two", ["svg"])
        assert dict(matplotlib.rcParams) == settings
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written]


@pytest.mark.usefixtures("names_only")
def test_a_comparison_without_a_private_run_has_none(made: Maker, tmp_path: Path) -> None:
    assert [path.name for path in save_joint([made()], tmp_path, ["png"])] == ["box_plots.png"]


def test_missing_matplotlib_says_what_to_install(made: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PacBayesFLError, match=r"pip install 'pacbayes_fl\[plots\]'"):
        privacy_utility([private(made(), 1.0)])
