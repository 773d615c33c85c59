"""Figures for journals: the width that was asked for, letters of one size, no heading, fonts that are text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from pacbayes_fl.errors import StudyError
from pacbayes_fl.plots import (
    Look,
    box_plots,
    client_boxes,
    convergence_curves,
    interval_plot,
    predictive_bands,
    reliability_diagram,
    save_all,
    uncertainty_histograms,
)
from pacbayes_fl.results.records import Result


@pytest.mark.slow
def test_a_pdf_has_the_width_and_letters_that_are_text(made: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    paths = save_all(made(existing=2, new=1), tmp_path / "x", ("pdf",), look=Look("paper", 3.25))
    assert {path.suffix for path in paths} == {".pdf"} and len(paths) > 3
    for path in paths:
        data = path.read_bytes()
        (width,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) [\d.]+ \]", data)
        assert float(width) == pytest.approx(3.25 * 72, abs=0.01)
        assert b"/Type3" not in data and b"/CIDFontType2" in data


def test_letters_have_one_size_and_there_is_no_heading(result: Result) -> None:
    figure = client_boxes(result)
    Look("paper", 3.25).apply(figure)
    sizes = {text.get_fontsize() for text in figure.findobj(Text) if text.get_text()}
    assert sizes == {7.0} and figure.get_suptitle() == ""
    other = client_boxes(result)
    wide = other.get_size_inches()
    Look().apply(other)
    assert other.get_suptitle() and (other.get_size_inches() == wide).all()


def test_dots_of_single_clients_stay_large_enough_to_be_seen(result: Result) -> None:
    screen, paper = client_boxes(result), client_boxes(result)
    Look("paper", 3.25).apply(paper)
    sizes = [
        {line.get_markersize() for axis in one.axes for line in axis.lines if line.get_marker() == "o"}
        for one in (screen, paper)
    ]
    assert sizes == [{2.6}, {2.6}]
    lines = [min(line.get_linewidth() for line in one.axes[0].lines) for one in (screen, paper)]
    assert lines[1] == pytest.approx(0.8 * lines[0])


def test_panels_that_find_no_room_stand_below_one_another(result: Result) -> None:
    figure = predictive_bands(result)
    Look("paper", 3.25).apply(figure)
    cells = [axis.get_subplotspec() for axis in figure.axes]
    assert sorted((cell.rowspan.start, cell.colspan.start) for cell in cells if cell) == [(at, 0) for at in range(4)]
    assert figure.get_size_inches()[0] == 3.25 and len(figure.legends) == 1
    figure.draw_without_rendering()
    boxes = [axis.get_tightbbox() for axis in figure.axes] + [one.get_window_extent() for one in figure.legends]
    for at, box in enumerate(boxes):
        assert box is not None and box.x0 >= 0 and box.x1 <= figure.bbox.x1
        assert not any(box.overlaps(other) for other in boxes[at + 1 :] if other is not None)


@pytest.mark.parametrize("given", [{"style": "poster"}, {"width": 0.1}, {"width": float("nan")}])
def test_what_is_no_look_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(StudyError, match="must be"):
        Look(**given)  # type: ignore[arg-type]


def overlaps(figure: Figure) -> list[str]:
    """Name what leaves the figure, and texts that lie over one another."""
    figure.draw_without_rendering()
    texts = [text for axis in figure.axes for text in (axis.title, axis.xaxis.label, axis.yaxis.label)]
    texts += [text for legend in figure.legends for text in legend.get_texts()]
    for axis in figure.axes:
        for low, high, ticks in (
            (*axis.get_xlim(), axis.get_xticklabels()),
            (*axis.get_ylim(), axis.get_yticklabels()),
        ):
            which = 0 if ticks == axis.get_xticklabels() else 1
            texts += [one for one in ticks if min(low, high) <= one.get_position()[which] <= max(low, high)]
    placed = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text() and text.get_visible()]
    found = [text for text, box in placed if box.x0 < -1 or box.x1 > figure.bbox.x1 + 1 or box.y0 < -1]
    return found + [
        f"{one} | {other}"
        for at, (one, box) in enumerate(placed)
        for other, over in placed[at + 1 :]
        if box.padded(-1).overlaps(over.padded(-1))
    ]


@pytest.mark.slow
def test_nothing_lies_over_another_or_is_cut_in_a_column_of_a_journal(classes: Callable[..., Result]) -> None:
    methods = ("pfedbayes", "fedavg-ft", "fedsi", "pac-pfl-bnn")
    joint = [classes(method, seed) for method in methods for seed in (1, 2)]
    joint += [classes("sfedbayes", 1, kept=kept) for kept in (0.25, 0.5, 1.0)]
    figures = [draw(joint) for draw in (box_plots, convergence_curves, interval_plot)]
    figures += [draw(joint[0]) for draw in (client_boxes, reliability_diagram, uncertainty_histograms)]
    for figure in figures:
        Look("paper", 3.25).apply(figure)
        assert overlaps(figure) == [] and figure.get_size_inches()[0] == 3.25
    small = uncertainty_histograms(joint[0])
    Look("paper", 3.25).apply(small)
    assert {axis.get_subplotspec().colspan.start for axis in small.axes} == {0, 1, 2}  # type: ignore[union-attr]
