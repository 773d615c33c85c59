"""The sparsity curve shows the clients' accuracy at each share of weights kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.container import ErrorbarContainer

from pacbayes_fl.plots import NothingToDrawError, kept_share, sparsity_curve
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord

pytestmark = pytest.mark.filterwarnings("error")
Maker = Callable[..., Result]


@pytest.mark.parametrize("group", ["existing", "new"])
def test_points_are_means_and_bars_reach_from_lowest_to_highest_seed(group: str, classes: Maker) -> None:
    shares, seeds = (0.1, 0.5, 0.9), (1, 2, 3)
    results = [classes(seed=seed, kept=kept, level=0.5 * kept + 0.3) for seed in seeds for kept in shares[::-1]]
    figure = sparsity_curve(results, group)
    (axis,) = figure.axes
    for container, model, style in zip(axis.containers, ("pm", "gm"), ("-", "--"), strict=True):
        assert isinstance(container, ErrorbarContainer)
        line, _, (bars,) = container.lines
        expected = np.array(
            [
                [np.mean(r.column(group, f"{model}.accuracy")) for r in results if kept_share(r) == kept]
                for kept in shares
            ]
        )
        assert expected.shape == (3, 3)
        assert list(np.asarray(line.get_xdata())) == list(shares) and line.get_linestyle() == style
        np.testing.assert_allclose(np.asarray(line.get_ydata(), dtype=np.float64), expected.mean(1), rtol=1e-14)
        assert isinstance(bars, LineCollection)
        ends = np.array([segment[:, 1] for segment in bars.get_segments()])
        np.testing.assert_allclose(ends, np.stack([expected.min(1), expected.max(1)], 1), rtol=1e-12)
    legend = axis.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["pfedbayes, personal model", "pfedbayes, global model"]
    assert (axis.get_xlabel(), axis.get_title()) == ("share of weights kept", f"{group} clients, 3 seeds")
    figure.canvas.draw()


def test_the_share_is_the_label_or_else_that_of_the_last_round(result: Result, classes: Maker) -> None:
    assert kept_share(classes(kept=0.125)) == 0.125
    assert kept_share(classes("sfedbayes")) == 0.4  # 0.401 in the rounds
    assert kept_share(result) is None
    assert kept_share(replace(result, rounds=(RoundRecord(1, 1, (), {"kept": math.nan}),))) is None
    assert kept_share(replace(result, rounds=())) is None


def test_runs_without_shares_or_accuracies_are_refused(result: Result, classes: Maker) -> None:
    for results in ([], [result], [replace(classes(kept=0.5), clients=())]):
        with pytest.raises(NothingToDrawError, match="share of weights kept"):
            sparsity_curve(results)
