"""Convergence curves show the accuracies of the rounds, seeds averaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from pacbayes_fl.plots import NothingToDrawError, convergence_curves
from pacbayes_fl.results.records import Result

pytestmark = pytest.mark.filterwarnings("error")
Maker = Callable[..., Result]


def lines(axis: Axes) -> dict[str, Any]:
    return {str(line.get_label()): np.asarray(line.get_data(), dtype=np.float64) for line in axis.lines}


def test_seeds_are_averaged_and_the_band_reaches_from_lowest_to_highest(classes: Maker) -> None:
    results = [classes(method, seed) for method in ("pfedbayes", "fedavg") for seed in (1, 2, 4)]
    figure = convergence_curves(results)
    (axis,) = figure.axes
    drawn = lines(axis)
    assert list(drawn) == [
        f"{method}, {model}" for method in ("pfedbayes", "fedavg") for model in ("personal model", "global model")
    ]
    assert [line.get_linestyle() for line in axis.lines] == ["-", "--"] * 2
    assert len({line.get_color() for line in axis.lines}) == 2
    bands = [patch for patch in axis.collections if isinstance(patch, PolyCollection)]
    keys = [(name, model) for name in ("pfedbayes", "fedavg") for model in ("pm", "gm")]
    for (x, y), band, (name, model) in zip(drawn.values(), bands, keys, strict=True):
        values = np.array(
            [[r.rounds[t].values[f"{model}.accuracy"] for t in range(0, 31, 5)] for r in results if r.method == name]
        )
        np.testing.assert_array_equal(x, np.arange(0, 31, 5))
        np.testing.assert_allclose(y, values.mean(0), rtol=1e-14)
        corners = np.asarray(band.get_paths()[0].vertices)
        for place, number in enumerate(x):
            edge = corners[corners[:, 0] == number, 1]
            assert edge.min() == values[:, place].min() and edge.max() == values[:, place].max()
    assert figure.get_suptitle() == "mnist-small, seeds 1, 2, 4, round 30"
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("round", "test accuracy")
    figure.canvas.draw()


def test_seeds_that_stopped_early_are_compared_where_all_were_scored(classes: Maker) -> None:
    one, two = classes(seed=1), classes(seed=2)
    (axis,) = convergence_curves([one, replace(two, rounds=two.rounds[:12])]).axes
    assert [x.tolist() for x, _ in lines(axis).values()] == [[0, 5, 10]] * 2


def test_one_run_and_runs_without_a_global_model(classes: Maker) -> None:
    result = classes()
    values = tuple(
        replace(r, values={k: v for k, v in r.values.items() if not k.startswith("gm.")}) for r in result.rounds
    )
    (axis,) = convergence_curves([replace(result, rounds=values)]).axes
    assert list(lines(axis)) == ["pfedbayes, personal model"] and not axis.collections


def test_studies_and_shares_kept_are_runs_of_their_own(classes: Maker) -> None:
    studies = [classes(), classes(study="mnist-large")]
    assert list(lines(convergence_curves(studies).axes[0]))[::2] == [
        "pfedbayes, mnist-small, personal model",
        "pfedbayes, mnist-large, personal model",
    ]
    sparse = [classes(kept=kept, seed=seed) for kept in (0.25, 0.5) for seed in (1, 2)]
    assert list(lines(convergence_curves(sparse).axes[0]))[::2] == [
        "pfedbayes, kept=0.25, personal model",
        "pfedbayes, kept=0.5, personal model",
    ]


def test_regressions_among_the_runs_are_in_no_heading_and_are_named(classes: Maker, made: Maker) -> None:
    figure = convergence_curves([classes(seed=2), made(seed=1)])
    assert figure.get_suptitle() == "mnist-small, seed 2, round 30" and figure.axes[0].get_title() == "1 seed"
    *_, last = (text.get_text() for legend in figure.legends for text in legend.get_texts())
    assert " ".join(last.split()) == "not drawn: pac_pfl, polynomial (no accuracy of rounds)"


def test_a_single_round_has_a_whole_number(classes: Maker) -> None:
    one = classes()
    (axis,) = convergence_curves([replace(one, rounds=one.rounds[5:6])]).axes
    low, high = axis.get_xlim()
    assert [tick for tick in axis.get_xticks() if low <= tick <= high] == [5]


def test_runs_without_accuracies_are_refused(result: Result) -> None:
    for results in ([], [result]):
        with pytest.raises(NothingToDrawError, match=r"pm\.accuracy"):
            convergence_curves(results)
