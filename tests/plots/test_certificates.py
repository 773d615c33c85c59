"""The figure of certificates shows each client's risks and bound, and what its bound is worth."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pacbayes_fl.errors import PacBayesFLError, StudyError
from pacbayes_fl.plots import NothingToDrawError, save_certificates
from pacbayes_fl.plots.certificates import figure
from pacbayes_fl.plots.style import BLUE, FAINT, GREEN, INK, RED
from pacbayes_fl.results.certificates import CertifiedClient, CertifiedRun

pytestmark = pytest.mark.filterwarnings("error")


def client(name: str, risk: float, bound: float, test: float, group: str = "existing") -> CertifiedClient:
    return CertifiedClient(name, group, 40, risk, 2.0, bound, test, 100)


CLIENTS = (
    client("b", 0.2, 0.5, 0.3),
    client("a", 0.1, 0.4, 0.15),
    client("c", 0.3, 0.6, 0.25),
    client("e", 0.25, 0.7, 0.2, "new"),
    client("d", 0.05, 0.45, 0.1, "new"),
)


def table(clients: Sequence[CertifiedClient] = CLIENTS, high: float = 1.0, **reasons: list[str]) -> CertifiedRun:
    return CertifiedRun(
        "polynomial",
        "pac-pfl",
        3,
        "seeger",
        "Maurer/Seeger, kl inverse",
        "0-1 loss of the Gibbs predictor, each client on its own",
        0.0,
        high,
        0.05,
        tuple(clients),
        reasons,
    )


def mark(axis: Axes, label: str) -> Line2D:
    (result,) = [line for line in axis.lines if line.get_label() == label]
    return result


def shown(axis: Axes, label: str) -> list[tuple[float, float]]:
    """Return row and value of each mark."""
    x, y = np.asarray(mark(axis, label).get_data(), dtype=np.float64).tolist()
    return list(zip(y, x, strict=True))


def joins(axis: Axes) -> LineCollection:
    (result,) = axis.collections
    assert isinstance(result, LineCollection)
    return result


def names(axis: Axes) -> list[str]:
    """Return the clients' names, each of which has its number of rows beside it."""
    texts = [text.get_text() for text in axis.get_yticklabels()]
    assert all(text.endswith(" (n = 40)") for text in texts)
    return [text.removesuffix(" (n = 40)") for text in texts]


def labels(axis: Axes) -> set[str]:
    return {str(line.get_label()) for line in axis.lines}


def legend_of(drawn: Figure) -> dict[str, Line2D]:
    (legend,) = drawn.legends
    return {t.get_text(): line for t, line in zip(legend.get_texts(), legend.get_lines(), strict=True)}


def test_each_client_has_its_numbers_in_the_order_of_the_bounds() -> None:
    drawn = figure(table())
    assert [axis.get_title() for axis in drawn.axes] == ["existing clients (3)", "new clients (2)"]
    for axis, order in zip(drawn.axes, ("abc", "de"), strict=True):
        assert names(axis) == list(order)
        given = {one.name: one for one in CLIENTS}
        for label, field in (("empirical risk", "risk"), ("bound", "bound"), ("test risk", "test_risk")):
            assert shown(axis, label) == [(row, getattr(given[name], field)) for row, name in enumerate(order)]
        ends = [(given[n].risk, given[n].test_risk, given[n].bound) for n in order]
        expected = [[[min(three), row], [max(three), row]] for row, three in enumerate(ends)]
        np.testing.assert_array_equal(joins(axis).get_segments(), expected)
        assert [x for _, x in shown(axis, "trivial level")] == [1.0, 1.0]
        assert mark(axis, "trivial level").get_linestyle() == "--"
        assert labels(axis) == {"empirical risk", "bound", "test risk", "trivial level"}
        assert axis.get_xlabel().replace("\n", " ") == "0-1 loss of the Gibbs predictor, each client on its own"
        bottom, top = axis.get_ylim()
        assert bottom > len(order) - 1 > 0 > top  # the smallest bound stands on top
    title = "pac-pfl on polynomial, seed 3: Maurer/Seeger, kl inverse, δ = 0.05 for each client"
    assert drawn.get_suptitle().replace("\n", " ") == title
    jointly = figure(replace(table(), labels={"jointly": True})).get_suptitle().replace("\n", " ")
    assert jointly.endswith("δ = 0.05 for all clients of a group at once")
    assert set(legend_of(drawn)) == {"empirical risk", "bound", "test risk", "trivial level"}
    drawn.canvas.draw()


def test_a_test_risk_above_the_bound_stands_out() -> None:
    drawn = figure(table([*CLIENTS, client("liar", 0.1, 0.3, 0.35), client("even", 0.1, 0.45, 0.45)]))
    first, second = drawn.axes
    assert first.get_title() == "existing clients (5), 1 with test risk above the bound"
    assert second.get_title() == "new clients (2)"
    assert names(first) == ["liar", "a", "even", "b", "c"]
    assert shown(first, "test risk above the bound") == [(0.0, 0.35)]
    assert [row for row, _ in shown(first, "test risk")] == [1, 2, 3, 4]
    colours = [to_hex(tuple(colour)) for colour in np.asarray(joins(first).get_edgecolor())]
    assert colours == [RED.lower()] + [FAINT.lower()] * 4
    assert mark(first, "test risk above the bound").get_color() == RED
    assert "test risk above the bound" not in labels(second)
    assert "test risk above the bound" in legend_of(drawn)


def test_vacuous_bounds_are_hollow_and_those_beyond_the_axis_point_there() -> None:
    odd = [client("one", 0.5, 4.0, 0.6), client("far", 0.5, 1e9, 0.6), client("never", 0.5, math.inf, 0.6)]
    (axis,) = figure(table([client("good", 0.5, 3.9, 0.6), *odd], high=4.0)).axes
    assert names(axis) == ["good", "one", "far", "never"]
    assert shown(axis, "bound") == [(0.0, 3.9)] and shown(axis, "vacuous bound") == [(1.0, 4.0)]
    edge = axis.get_xlim()[1]
    assert 4.0 < edge < 5.0
    assert shown(axis, "vacuous bound, beyond the axis") == [(2.0, edge), (3.0, edge)]
    faces = {label: mark(axis, label).get_markerfacecolor() for label in labels(axis) if "bound" in label}
    assert faces == {"bound": INK, "vacuous bound": "white", "vacuous bound, beyond the axis": "white"}
    assert [segment[1, 0] for segment in joins(axis).get_segments()] == [3.9, 4.0, edge, edge]


def test_nan_is_left_out_and_no_client_is() -> None:
    odd = [client("untested", 0.2, 0.5, math.nan), client("unbound", 0.3, math.nan, 0.4), client("a", 0.1, 0.6, 0.7)]
    (axis,) = figure(table(odd)).axes
    assert names(axis) == ["untested", "a", "unbound"]
    assert shown(axis, "empirical risk") == [(0, 0.2), (1, 0.1), (2, 0.3)]
    assert shown(axis, "bound") == [(0, 0.5), (1, 0.6)]
    assert shown(axis, "test risk") == [(2, 0.4)] and shown(axis, "test risk above the bound") == [(1, 0.7)]
    assert [segment[:, 0].tolist() for segment in joins(axis).get_segments()] == [[0.2, 0.5], [0.1, 0.7], [0.3, 0.4]]


def test_lines_that_are_no_certificates_are_grey_with_the_reason() -> None:
    reasons = ["the prior saw the rows of the bound", "beta was chosen on them"]
    drawn = figure(table([*CLIENTS, client("f", 0.1, 0.2, 0.3)], existing=reasons, new=[]))
    first, second = drawn.axes
    assert first.get_title().replace("\n", " ") == (
        "existing clients (4), 1 with test risk above the bound no certificates (grey): the prior saw the rows of the "
        "bound; beta was chosen on them"
    )
    assert second.get_title() == "new clients (2)"
    marks = ("empirical risk", "test risk", "bound")
    assert {mark(first, label).get_color() for label in marks} == {FAINT}
    assert [mark(second, label).get_color() for label in marks] == [BLUE, GREEN, INK]
    assert mark(first, "test risk above the bound").get_color() == RED
    assert [legend_of(drawn)[label].get_color() for label in marks] == [BLUE, GREEN, INK]
    alone = figure(table(CLIENTS[:3], existing=reasons))
    assert {legend_of(alone)[label].get_color() for label in marks} == {FAINT}
    both = figure(table(existing=[], new=reasons))
    assert [mark(both.axes[0], label).get_color() for label in marks] == [BLUE, GREEN, INK]
    assert [legend_of(both)[label].get_color() for label in marks] == [BLUE, GREEN, INK]


@pytest.mark.parametrize("count", [1, 100, 121])
def test_any_number_of_clients_is_readable(count: int) -> None:
    drawn = figure(table([client(f"client_{k:03d}", 0.1, 0.2 + 0.001 * k, 0.15) for k in range(count)]))
    drawn.canvas.draw()
    (axis,) = drawn.axes
    assert axis.get_ylabel() and axis.get_xlabel()
    assert drawn.get_size_inches()[1] < 16
    boxes = [text.get_window_extent() for text in axis.get_yticklabels()]
    assert len(boxes) == (count if count <= 120 else 0)
    assert all(upper.y0 > lower.y1 - 1 for upper, lower in pairwise(boxes))  # at most a pixel
    if count == 100:
        assert min(float(text.get_fontsize()) for text in axis.get_yticklabels()) > 5


def test_a_group_without_lines_has_its_reason_in_the_title() -> None:
    drawn = figure(replace(table(CLIENTS[3:], existing=["the prior saw them"], new=[]), theorem="", risk=""))
    (axis,) = drawn.axes
    assert axis.get_title() == "new clients (2)" and axis.get_xlabel() == "risk"
    assert drawn.get_suptitle().replace("\n", " ") == (
        "pac-pfl on polynomial, seed 3: seeger, δ = 0.05 for each client no existing clients: the prior saw them"
    )


def test_a_table_without_clients_is_refused(tmp_path: Path) -> None:
    words = "by seeger of pac-pfl on polynomial, seed 3 have no client; no new clients: nobody said"
    with pytest.raises(NothingToDrawError, match=words):
        figure(table((), existing=[], new=["nobody said"]))
    assert save_certificates([table(())], tmp_path) == save_certificates([], tmp_path) == []


@pytest.mark.slow
def test_every_table_has_its_files_and_they_are_the_same_each_time(tmp_path: Path) -> None:
    tables = [table(), replace(table(), bound="theorem-4.2")]
    written = save_certificates(tables, tmp_path / "figures")
    assert [path.name for path in written] == [
        f"certificates-{bound}.{ending}" for bound in ("seeger", "theorem-4.2") for ending in ("png", "svg")
    ]
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30}):
        settings = dict(matplotlib.rcParams)
        again = save_certificates(tables, tmp_path / "again", ["svg"])
        assert dict(matplotlib.rcParams) == settings
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in written if path.suffix == ".svg"]
    with pytest.raises(StudyError, match="got bmpx"):
        save_certificates(tables, tmp_path, ["bmpx"])


def test_missing_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PacBayesFLError, match=r"pip install 'pacbayes_fl\[plots\]'"):
        figure(table())
