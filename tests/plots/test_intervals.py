"""The figure of a comparison: what it draws is what the table says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from pacbayes_fl.plots import NothingToDrawError, interval_plot, save_joint
from pacbayes_fl.results.comparison import table
from pacbayes_fl.results.records import Result

pytestmark = pytest.mark.filterwarnings("error")


def test_means_and_intervals_are_those_of_the_table(made: Callable[..., Result]) -> None:
    result = [made(method=name, seed=seed, level=level) for name, level in (("a", 0.4), ("b", 0.9)) for seed in (1, 2)]
    cells = {(cell.metric, cell.group, cell.method): cell for cell in table(result)}
    figure = interval_plot(result)
    figure.draw_without_rendering()
    assert len(figure.axes) == 4  # rsmse and ce, of existing and of new clients
    for axis, (metric, group) in zip(
        figure.axes, [(m, g) for m in ("rsmse", "ce") for g in ("existing", "new")], strict=True
    ):
        assert [text.get_text() for text in axis.get_yticklabels()] == ["a", "b"]
        assert axis.get_xlabel().endswith("; lower is better")
        bars = [one for one in axis.containers if isinstance(one, ErrorbarContainer)]
        for place, (method, bar) in enumerate(zip(("a", "b"), bars, strict=True)):
            cell = cells[metric, group, method]
            (line, _, (segments,)) = bar.lines
            assert (line.get_xdata()[0], line.get_ydata()[0]) == (cell.mean, place)
            ((low, _), (high, _)) = segments.get_segments()[0]
            assert (low, high) == pytest.approx((cell.low, cell.high))


def test_classifiers_say_that_more_is_better(classes: Callable[..., Result]) -> None:
    figure = interval_plot([classes(method=name) for name in ("a", "b")], ["pm.accuracy"])
    assert figure.axes[0].get_xlabel() == "accuracy, personal model; higher is better"


def texts(figure: Figure) -> list[str]:
    return [" ".join(text.get_text().split()) for legend in figure.legends for text in legend.get_texts()]


def test_the_legend_says_what_the_marks_are(made: Callable[..., Result]) -> None:
    figure = interval_plot([made(method="a"), made(method="b")])
    assert texts(figure) == ["mean", "95 % interval of the mean", "median over clients and seeds"]


def test_runs_of_another_task_are_in_no_heading_and_are_named(
    made: Callable[..., Result], classes: Callable[..., Result]
) -> None:
    figure = interval_plot([made(method="a", seed=3), made(method="b", seed=3), classes(seed=1)])
    assert figure.get_suptitle() == "polynomial, seed 3, round 120"
    assert texts(figure)[-1].startswith("not drawn: pfedbayes, mnist-small (no rsmse, ce")
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["a, polynomial", "b, polynomial"]


def test_runs_of_other_settings_have_lines_of_their_own(made: Callable[..., Result]) -> None:
    runs = [replace(made(seed=s), labels={"settings": {"method.tau": tau}}) for s, tau in ((1, 1.0), (2, 5.0))]
    assert [label.get_text() for label in interval_plot(runs).axes[0].get_yticklabels()] == [
        "pac_pfl, tau=1",
        "pac_pfl, tau=5",
    ]


@pytest.mark.usefixtures("names_only")
def test_what_is_not_there_is_not_drawn(made: Callable[..., Result], tmp_path: Path) -> None:
    with pytest.raises(NothingToDrawError):
        interval_plot([])
    with pytest.raises(NothingToDrawError, match=r"has any of the metrics pm\.accuracy"):
        interval_plot([made()], ["pm.accuracy"])
    alone = {path.name for path in save_joint([made(seed=1), made(seed=2)], tmp_path / "one", ("svg",))}
    both = {path.name for path in save_joint([made(method="a"), made(method="b")], tmp_path / "two", ("svg",))}
    assert both - alone == {"intervals.svg"}  # one method has nothing beside it
