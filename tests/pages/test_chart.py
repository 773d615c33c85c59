"""Figures: coordinates of marks, gaps in lines, legends, and words for who cannot see them."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np

from pacbayes_fl.errors import listed
from pacbayes_fl.pages import axis
from pacbayes_fl.pages.chart import Chart
from pacbayes_fl.pages.markup import to_html


def chart(**named: int) -> Chart:
    return Chart("Title <b>", axis.fixed("x (h)", 0, 10), axis.fixed("y (kW)", 0, 1), "It rises.", **named)


def test_a_figure_says_what_it_shows_and_has_a_title() -> None:
    made = chart()
    made.line(np.array([0.0, 10.0]), np.array([0.0, 1.0]), "s1", "a line")
    made.note("beware")
    text = to_html(made.figure())
    assert 'role="img"' in text and 'aria-label="Title <b&gt;. It rises."' in text
    assert "<figcaption><strong>Title &lt;b&gt;</strong></figcaption>" in text
    assert "x (h)" in text and "y (kW)" in text and "a line" in text and "beware" in text


def test_marks_stand_where_the_axes_say() -> None:
    made = chart()
    made.line(np.array([0.0, 10.0]), np.array([0.0, 1.0]), "s1")
    d = made.svg[-1].get("d")
    assert d == f"M{made.left:.1f},{made.bottom:.1f}L{made.right:.1f},{made.top:.1f}"
    made.dots(np.array([5.0, np.nan]), np.array([0.5, 0.5]), "s1")
    middle = (made.left + made.right) / 2, (made.top + made.bottom) / 2
    assert made.svg[-1].get("d") == f"M{middle[0]:.1f},{middle[1]:.1f}h0"
    made.bars(np.array([0.0, 5.0]), np.array([5.0, 10.0]), np.array([1.0, 0.0]), "s1")
    assert (made.svg[-1].get("d") or "").count("M") == 1  # nothing of an empty bar


def test_a_line_is_broken_where_a_value_is_missing() -> None:
    made = chart()
    x, y = np.arange(5.0), np.array([0.1, 0.2, np.nan, 0.3, 0.4])
    made.line(x, y, "s1")
    assert (made.svg[-1].get("d") or "").count("M") == 2
    made.band(x, y - 0.05, y + 0.05, "s1")
    assert (made.svg[-1].get("d") or "").count("Z") == 2


def test_a_value_without_neighbours_is_seen() -> None:
    """A path of one point has neither length nor area: an interval of one row is an error bar, its mean a dash."""
    made = chart()
    x, y = np.array([0.0, 1.0, 5.0]), np.array([0.5, np.nan, 0.5])
    made.line(x, y, "s1", "mean")
    assert re.fullmatch(r"(M[-\d.]+,[\d.]+h[1-9][\d.]*){2}", made.svg[-1].get("d") or "")
    made.band(x, y - 0.1, y + 0.1, "s1", "interval")
    (bars,) = [one for one in made.svg[-2:] if "V" in (one.get("d") or "")]
    assert bars.get("class") == "line s1" and (bars.get("d") or "").count("V") == 2
    text = to_html(made.figure())
    assert 'class="band' not in text and text.count("interval") == 1 and "key bar s1" in text
    alone = chart()
    alone.band(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.1, 0.1, np.nan, 0.1]), np.full(4, 0.2), "s1", "interval")
    assert [one.get("class") for one in alone.svg[-2:]] == ["band s1", "line s1"]
    assert to_html(alone.figure()).count("interval") == 1


def test_a_band_stays_on_the_axis() -> None:
    made = chart()
    made.band(np.array([0.0, 1.0]), np.array([-5.0, -5.0]), np.array([5.0, 5.0]), "s1")
    heights = [float(one) for one in re.findall(r",(-?[\d.]+)", made.svg[-1].get("d") or "")]
    assert min(heights) >= made.top - 0.1 and max(heights) <= made.bottom + 0.1


def test_texts_of_ticks_do_not_meet() -> None:
    ticks = tuple((float(at), f"a long text {at}") for at in range(11))
    made = Chart("t", axis.Axis("x", 0, 10, ticks), axis.fixed("y", 0, 1), "")
    texts = [one for one in made.svg.iter("text") if (one.text or "").startswith("a long")]
    places = [(float(one.get("x") or 0), len(one.text or "") * 6.2 / 2) for one in texts]
    assert len(places) > 1
    assert all(a + half <= b - other for (a, half), (b, other) in pairwise(places))


def test_names_are_shortened_and_listed() -> None:
    made = Chart("t", axis.fixed("x", 0, 1), axis.named("who", ["n" * 200]), "", names=True)
    assert max(len(one.text or "") for one in made.svg.iter("text")) <= 22
    assert listed(["a", "b", "c"], 2) == "a, b and 1 more" and listed(["a"], 2) == "a"
