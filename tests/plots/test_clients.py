"""Box plots and the ablation show the clients' metrics."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from pacbayes_fl.errors import StudyError
from pacbayes_fl.plots import NothingToDrawError, box_plots, client_boxes, particle_ablation
from pacbayes_fl.results.records import Result

pytestmark = pytest.mark.filterwarnings("error")
Maker = Callable[..., Result]


def dots(axis: Axes) -> list[Any]:
    return [line.get_ydata() for line in axis.lines if line.get_marker() == "o"]


def medians(axis: Axes) -> list[float]:
    return [float(np.asarray(line.get_ydata())[0]) for line in axis.lines if line.get_linewidth() == 1.6]


def ticks(axis: Axes) -> list[str]:
    return [label.get_text() for label in axis.get_xticklabels()]


def test_each_method_has_a_box_over_its_clients_and_seeds(made: Maker) -> None:
    results = [made(method, seed) for method in ("pac_pfl", "fedavg") for seed in (1, 2)]
    figure = box_plots(results)
    assert [axis.get_title() for axis in figure.axes] == [
        "existing clients (12), 2 seeds",
        "new clients (6), 2 seeds",
        "",
        "",
    ]
    assert [axis.get_ylabel().split("\n")[0] for axis in figure.axes] == ["RSMSE"] * 2 + ["calibration error"] * 2
    panels = [(metric, group) for metric in ("rsmse", "ce") for group in ("existing", "new")]
    for axis, (metric, group) in zip(figure.axes, panels, strict=True):
        assert ticks(axis) == ["pac_pfl", "fedavg"]
        expected = [[*a.column(group, metric), *b.column(group, metric)] for a, b in (results[:2], results[2:])]
        assert [list(values) for values in dots(axis)] == expected
        assert medians(axis) == [np.median(values) for values in expected]
        low, high = axis.get_ylim()
        assert low < np.min(expected) and high > np.max(expected)
    for row in (figure.axes[:2], figure.axes[2:]):
        assert row[0].get_ylim() == row[1].get_ylim()
    assert figure.get_suptitle() == "polynomial, seeds 1, 2, round 120"
    figure.canvas.draw()


def test_studies_are_kept_apart_and_units_are_named(made: Maker) -> None:
    results = [made(study="pv-s-150"), made(study="pv-ew-150", new=0)]
    figure = box_plots(results, ["rmse_raw"])
    assert ticks(figure.axes[0]) == ["pac_pfl\npv-s-150", "pac_pfl\npv-ew-150"]
    assert figure.axes[0].get_ylabel().split("\n")[0] == "RMSE (kW)"
    assert [len(values) for values in dots(figure.axes[1])] == [6, 0]
    figure.canvas.draw()


def test_nan_is_left_out(made: Maker) -> None:
    result = made(new=0)
    first = replace(result.clients[0], metrics={"rsmse": math.nan, "ce": 0.1})
    (axis,) = box_plots([replace(result, clients=(first, *result.clients[1:]))], ["rsmse"]).axes
    assert list(dots(axis)[0]) == result.column("existing", "rsmse")[1:]


def test_one_run_compares_its_groups(result: Result) -> None:
    figure = client_boxes(result)
    for axis, metric in zip(figure.axes, ("rsmse", "ce"), strict=True):
        assert ticks(axis) == ["existing\n(12 clients)", "new\n(6 clients)"]
        assert [list(values) for values in dots(axis)] == [
            result.column(group, metric) for group in ("existing", "new")
        ]
    others = tuple(replace(row, metrics={"own": 0.9, "gm.ece": 0.1, "third": 1.0}) for row in result.clients)
    labels = [axis.get_ylabel().split("\n")[0] for axis in client_boxes(replace(result, clients=others)).axes]
    assert labels == ["own", "expected calibration error (10 bins), global model"]


def test_classifiers_show_accuracies_and_calibration(classes: Maker) -> None:
    result = classes()
    shown = ("pm.accuracy", "gm.accuracy", "pm.ece")
    words = [
        "accuracy, personal model",
        "accuracy, global model",
        "expected calibration error (10 bins), personal model",
    ]
    figure = client_boxes(result)
    assert [axis.get_ylabel().split("\n")[0] for axis in figure.axes] == words
    for axis, metric in zip(figure.axes, shown, strict=True):
        assert [list(values) for values in dots(axis)] == [result.column(g, metric) for g in ("existing", "new")]
    personal = tuple(
        replace(row, metrics={k: v for k, v in row.metrics.items() if k[:2] == "pm"}) for row in result.clients
    )
    joint = box_plots([result, replace(result, method="alone", clients=personal)])
    assert [axis.get_ylabel().split("\n")[0] for axis in joint.axes[::2]] == words
    assert [len(values) for values in dots(joint.axes[2])] == [6, 0]  # the second has no global model
    joint.canvas.draw()


def test_settings_of_one_method_have_boxes_of_their_own(classes: Maker) -> None:
    sparse = [classes("sfedbayes", seed, kept=kept, new=0) for kept in (0.25, 0.5) for seed in (1, 2)]
    (axis,) = box_plots([*sparse, classes("fedavg", new=0)], ["pm.accuracy"]).axes
    assert ticks(axis) == ["sfedbayes\nkept=0.25", "sfedbayes\nkept=0.5", "fedavg"]
    assert [len(values) for values in dots(axis)] == [12, 12, 6]


def asked(result: Result, **settings: object) -> Result:
    return replace(result, labels={**result.labels, "settings": settings})


def test_runs_that_differ_in_an_option_have_boxes_of_their_own_and_one_given_twice_is_one(made: Maker) -> None:
    results = [asked(made(seed=seed, new=0), tau=tau) for seed, tau in ((1, 1.0), (2, 5.0), (3, 5.0))]
    (axis,) = box_plots(results, ["rsmse"]).axes
    assert ticks(axis) == ["pac_pfl\ntau=1", "pac_pfl\ntau=5"]
    assert [len(values) for values in dots(axis)] == [12, 24]
    assert axis.get_title() == "existing clients (12), 1 to 2 seeds"
    with pytest.warns(UserWarning, match="there twice, and counted once: pac_pfl on polynomial, seed 1"):
        (axis,) = box_plots([results[0], results[0]], ["rsmse"]).axes
    assert [len(values) for values in dots(axis)] == [12] and axis.get_title() == "existing clients (12), 1 seed"


def test_clients_are_counted_box_by_box_where_runs_have_different_numbers(made: Maker) -> None:
    figure = box_plots([made(existing=24, new=2), made("fedavg", existing=1, new=2)], ["rsmse"])
    assert [axis.get_title() for axis in figure.axes] == ["existing clients, 1 seed", "new clients (2), 1 seed"]
    assert ticks(figure.axes[0]) == ["pac_pfl\n(24 clients)", "fedavg\n(1 client)"]
    assert ticks(figure.axes[1]) == ["pac_pfl", "fedavg"]
    (axis, *_) = client_boxes(made(existing=1, new=0)).axes
    assert ticks(axis) == ["existing\n(1 client)"]


def test_runs_that_are_not_drawn_are_in_no_heading_and_are_named(made: Maker, classes: Maker) -> None:
    figure = box_plots([made(), classes()], ["rsmse", "ce"])
    assert figure.get_suptitle() == "polynomial, seed 1, round 120" and ticks(figure.axes[0]) == ["pac_pfl"]
    (text,) = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert " ".join(text.split()) == "not drawn: pfedbayes, mnist-small (no rsmse, ce)"


def test_a_group_without_scores_does_not_stretch_the_axis(made: Maker) -> None:
    one = made(level=5.0)
    blank = tuple(row if row.group == "existing" else replace(row, metrics={}) for row in one.clients)
    figure = box_plots([replace(one, clients=blank)], ["rsmse", "mine"])  # nobody has the second
    assert all(axis.get_ylim()[0] > 4 for axis in figure.axes[:2])


def test_runs_of_other_particles_or_epsilons_have_boxes_of_their_own(made: Maker) -> None:
    ablated = [made(seed=seed, particles=count, new=0) for count in (1, 4) for seed in (1, 2)]
    (axis,) = box_plots(ablated, ["rsmse"]).axes
    assert ticks(axis) == ["pac_pfl\nparticles=1", "pac_pfl\nparticles=4"]
    spent = [("gaussian", 1.0), ("gaussian", 3.0), ("laplace", 3.0)]
    private = [
        replace(made(new=0), labels={"privacy": {"epsilon": epsilon, "mechanism": mechanism}})
        for mechanism, epsilon in spent
    ]
    (axis,) = box_plots([replace(made(new=0), labels={}), *private], ["rsmse"]).axes
    about = [f"pac_pfl\nepsilon={epsilon:.3g}\nmechanism={mechanism}" for mechanism, epsilon in spent]
    assert ticks(axis) == ["pac_pfl", *about]


def test_particles_show_mean_and_spread_over_seeds(made: Maker) -> None:
    counts, seeds = (1, 2, 4), (1, 2, 3)
    results = [made(seed=seed, particles=count, level=0.4 + 0.2 / count) for seed in seeds for count in counts]
    results.append(made(study="pv-ew-150", particles=4))
    figure = particle_ablation(results)
    (axis,) = figure.axes
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("particles", "RSMSE")
    expected = np.array(
        [[np.mean(r.column("existing", "rsmse")) for r in results[:9] if r.labels["particles"] == c] for c in counts]
    )
    line, point = axis.containers
    np.testing.assert_array_equal(line[0].get_xdata(), counts)
    np.testing.assert_allclose(np.asarray(line[0].get_ydata(), dtype=np.float64), expected.mean(1), rtol=1e-14)
    bars = line[2][0]
    assert isinstance(bars, LineCollection)
    ends = np.array([segment[:, 1] for segment in bars.get_segments()])
    np.testing.assert_allclose(ends[:, 1] - ends[:, 0], 2 * expected.std(1, ddof=1), rtol=1e-12)
    assert point[0].get_ydata() == [np.mean(results[-1].column("existing", "rsmse"))]
    legend = axis.get_legend()
    assert legend is not None and [text.get_text() for text in legend.get_texts()] == ["polynomial", "pv-ew-150"]
    assert axis.get_title() == "mean ± standard deviation over 1 to 3 seeds"
    figure.canvas.draw()


def test_particles_of_several_methods_are_lines_of_their_own(made: Maker) -> None:
    (axis,) = particle_ablation([made(method, particles=p) for method in ("pac_pfl", "other") for p in (1, 2)]).axes
    legend = axis.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["pac_pfl, polynomial", "other, polynomial"]


def test_an_ablation_says_in_what_else_its_runs_differ(made: Maker) -> None:
    runs = [
        asked(made(particles=count), **{"method.particles": count, "method.tau": tau})
        for count, tau in ((1, 1.0), (2, 1.0), (4, 5.0))
    ]
    (axis,) = particle_ablation(runs).axes
    legend = axis.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["polynomial, tau=1", "polynomial, tau=5"]


def test_one_seed_has_no_spread(made: Maker) -> None:
    (axis,) = particle_ablation([made("pac_pfl", particles=count) for count in (1, 2)]).axes
    bars = axis.containers[0][2][0]
    assert isinstance(bars, LineCollection)
    assert axis.get_title() == "one seed"
    assert not any(np.size(segment) and np.isfinite(segment).all() for segment in bars.get_segments())


def test_what_is_missing_is_named(result: Result) -> None:
    with pytest.raises(NothingToDrawError, match="mine"):
        box_plots([result], ["mine"])
    with pytest.raises(NothingToDrawError, match="rsmse"):
        box_plots([replace(result, clients=())])
    with pytest.raises(NothingToDrawError, match="no result"):
        box_plots([])
    with pytest.raises(NothingToDrawError, match="no existing client"):
        particle_ablation([replace(result, clients=())])
    with pytest.raises(StudyError, match=r'polynomial, seed 1, has no labels\["particles"\]'):
        particle_ablation([replace(result, labels={})])
    with pytest.raises(NothingToDrawError, match="no metrics"):
        client_boxes(replace(result, clients=()))
    assert isinstance(box_plots([result], ["rsmse"]), Figure)
