"""Figures as inline SVG: colours are those of the page, light or dark, and every figure says in words what it shows."""

from __future__ import annotations

from typing import Final

import numpy as np

from pacbayes_fl.names import shortened, width
from pacbayes_fl.pages.axis import Array, Axis
from pacbayes_fl.pages.markup import Content, Element, add, tag

_LETTER: Final = 6.2  # width of a letter of ticks, in px
_LINE: Final = 14  # height of a line of text
_NAME: Final = 22  # letters of a name beside its row
_DASH: Final = 6.0  # half of the dash that is a line of one value, in px


class Chart:
    """A figure with two axes, to which marks are added.

    Args:
        title: above it.
        x: the horizontal axis.
        y: the vertical axis, upwards; of names downwards.
        says: what it shows, in words, for who cannot see it.
        wide: px.
        high: px.
        names: whether y has names in place of numbers.
    """

    def __init__(
        self, title: str, x: Axis, y: Axis, says: str, wide: int = 360, high: int = 250, names: bool = False
    ) -> None:
        """Draw the frame."""
        self.title, self.x, self.y, self.says, self.wide, self.high = title, x, y, says, wide, high
        texts = [shortened(one, _NAME) for _, one in y.ticks]
        room = max(map(width, texts), default=1) * _LETTER
        self.left = 12 + room + (0 if names else _LINE)
        self.right, self.top, self.bottom = wide - 12.0, 10.0, high - 2 * _LINE - 10.0
        self._up = (self.top, self.bottom) if names else (self.bottom, self.top)
        self._texts, self._keys, self._notes = texts, list[tuple[str, str, str]](), list[Content]()
        self.svg = tag("svg", viewBox=f"0 0 {wide} {high}", role="img", aria_label=f"{title}. {says}")
        self._frame(names)

    def _frame(self, names: bool) -> None:
        grid, ticks = [], []
        for (value, _), text in zip(self.y.ticks, self._texts, strict=True):
            at = float(self.py(value))
            if not names:
                grid.append(f"M{self.left:.1f},{at:.1f}H{self.right:.1f}")
            ticks.append(tag("text", text, x=round(self.left - 6, 1), y=round(at + 4, 1), class_="end"))
        shown, last = list[tuple[float, str]](), -1e9
        for value, text in self.x.ticks:  # ticks whose texts would meet are left out
            at, half = float(self.px(value)), width(text) * _LETTER / 2
            grid.append(f"M{at:.1f},{self.top:.1f}V{self.bottom:.1f}")
            if at - half > last + 6:
                shown.append((at, text))
                last = at + half
        for at, text in shown:
            half = width(text) * _LETTER / 2
            inside = min(max(at, half + 2), self.wide - half - 2)
            ticks.append(tag("text", text, x=round(inside, 1), y=self.bottom + _LINE + 2, class_="middle"))
        add(self.svg, tag("path", d="".join(grid), class_="grid") if grid else None, ticks)
        middle = (self.left + self.right) / 2
        label = shortened(self.x.label, int((self.right - 8) / _LETTER))
        half = width(label) * _LETTER / 2
        middle = min(max(middle, half + 2), self.wide - half - 2)
        add(self.svg, tag("text", label, x=round(middle, 1), y=self.high - 6, class_="middle label"))
        if not names:
            at, label = (self.top + self.bottom) / 2, shortened(self.y.label, int((self.high - 8) / _LETTER))
            at = min(max(at, width(label) * _LETTER / 2 + 2), self.high - 2)
            turned = f"translate(12,{at:.1f}) rotate(-90)"
            add(self.svg, tag("text", label, transform=turned, class_="middle label"))

    def px(self, values: Array | float) -> Array:
        """Give horizontal coordinates of values [n]."""
        return self.x.place(values, self.left, self.right)

    def py(self, values: Array | float) -> Array:
        """Give vertical coordinates of values [n]."""
        return self.y.place(values, *self._up)

    def line(self, x: Array, y: Array, kind: str, key: str = "") -> None:
        """Draw a line, broken where a value is not finite; a value without neighbours is a dash.

        Args:
            x: values [n].
            y: values [n].
            kind: class of the line, such as "s1".
            key: what the legend calls it; nothing when empty.
        """
        half, d = self._room(x), ""
        for px, py in self._pieces(x, y):
            d += _path(px, py) if px.size > 1 else f"M{px[0] - half:.1f},{py[0]:.1f}h{2 * half:.1f}"
        self._path(d, f"line {kind}", key, "line")

    def steps(self, edges: Array, y: Array, kind: str, key: str = "") -> None:
        """Draw a histogram's outline.

        Args:
            edges: of the bins [n + 1].
            y: heights [n].
            kind: class of the line.
            key: as of `line`.
        """
        self.line(np.repeat(edges, 2)[1:-1], np.repeat(y, 2), kind, key)

    def band(self, x: Array, low: Array, high: Array, kind: str, key: str = "") -> None:
        """Fill what lies between two lines, broken where one is not finite; without neighbours it is an error bar.

        Args:
            x: values [n].
            low: lower ends [n].
            high: upper ends [n].
            kind: class of the area.
            key: as of `line`.
        """
        low, high = (np.clip(one, self.y.low, self.y.high) for one in (low, high))
        cap, area, bars = self._room(x) / 2, "", ""
        for (px, bottom), (_, top) in zip(
            self._pieces(x, low + 0 * high), self._pieces(x, high + 0 * low), strict=True
        ):
            if px.size > 1:
                area += _path(np.concatenate([px, px[::-1]]), np.concatenate([top, bottom[::-1]])) + "Z"
                continue
            bars += f"M{px[0]:.1f},{bottom[0]:.1f}V{top[0]:.1f}"
            bars += "".join(f"M{px[0] - cap:.1f},{end[0]:.1f}h{2 * cap:.1f}" for end in (bottom, top))
        self._path(area, f"band {kind}", key, "band")
        self._path(bars, f"line {kind}", "" if area else key, "bar")

    def bars(self, low: Array, high: Array, y: Array, kind: str, key: str = "") -> None:
        """Draw bars from the foot of the figure.

        Args:
            low: where they begin [n].
            high: where they end [n].
            y: heights [n].
            kind: class of the area.
            key: as of `line`.
        """
        known = np.isfinite(y) & (y > 0)
        left, right, top = self.px(low[known]), self.px(high[known]), self.py(y[known])
        d = "".join(
            f"M{a:.1f},{self.bottom:.1f}V{c:.1f}H{b:.1f}V{self.bottom:.1f}Z"
            for a, b, c in zip(left, right, top, strict=True)
        )
        self._path(d, f"bars {kind}", key, "band")

    def dots(self, x: Array, y: Array, kind: str, key: str = "") -> None:
        """Draw points; those that are not finite are left out.

        Args:
            x: values [n].
            y: values [n].
            kind: class of the points.
            key: as of `line`.
        """
        known = np.isfinite(x) & np.isfinite(y)
        px, py = self.px(x[known]), self.py(y[known])
        d = "".join(f"M{a:.1f},{b:.1f}h0" for a, b in zip(px, py, strict=True))
        self._path(d, f"dots {kind}", key, "dots")

    def spans(self, x: Array, low: Array, high: Array, kind: str, key: str = "", upright: bool = True) -> None:
        """Draw intervals as straight lines.

        Args:
            x: where they stand [n], on y where they lie.
            low: where they begin [n].
            high: where they end [n].
            kind: class of the lines.
            key: as of `line`.
            upright: whether they are of y; of x otherwise.
        """
        known = np.isfinite(x) & np.isfinite(low) & np.isfinite(high)
        ends = zip(x[known], low[known], high[known], strict=True)
        if upright:
            d = "".join(f"M{self.px(a):.1f},{self.py(b):.1f}V{self.py(c):.1f}" for a, b, c in ends)
        else:
            d = "".join(f"M{self.px(b):.1f},{self.py(a):.1f}H{self.px(c):.1f}" for a, b, c in ends)
        self._path(d, f"line {kind}", key, "line")

    def rule(self, value: float, kind: str, key: str = "", upright: bool = False) -> None:
        """Draw a line across the figure.

        Args:
            value: where.
            kind: class of the line.
            key: as of `line`.
            upright: at a value of x; of y otherwise.
        """
        if upright:
            d = f"M{self.px(value):.1f},{self.top:.1f}V{self.bottom:.1f}"
        else:
            d = f"M{self.left:.1f},{self.py(value):.1f}H{self.right:.1f}"
        self._path(d, f"line {kind}", key, "line")

    def mark(self, *content: Content) -> None:
        """Add elements of SVG."""
        add(self.svg, *content)

    def note(self, *content: Content) -> None:
        """Add a line below the figure."""
        self._notes.append(tag("p", *content, class_="note"))

    def figure(self) -> Element:
        """Finish.

        Returns:
            A <figure> with its title, the drawing, the legend and the notes.
        """
        legend = [
            tag("li", tag("span", class_=f"key {shape} {kind}", aria_hidden="true"), text)
            for text, kind, shape in self._keys
        ]
        caption = tag("figcaption", tag("strong", self.title))
        return tag(
            "figure",
            caption,
            tag("div", self.svg, class_="drawing"),
            tag("ul", *legend, class_="legend") if legend else None,
            *self._notes,
            class_="wide" if self.wide > 480 else None,
        )

    def _pieces(self, x: Array, y: Array) -> list[tuple[Array, Array]]:
        """Cut a line where it has no value, and give the coordinates of its pieces."""
        known = np.isfinite(x) & np.isfinite(y)
        cuts = np.flatnonzero(np.diff(known.astype(np.int8))) + 1
        parts = zip(np.split(x, cuts), np.split(y, cuts), np.split(known, cuts), strict=True)
        return [(self.px(one), self.py(other)) for one, other, here in parts if here.size and here[0]]

    def _room(self, x: Array) -> float:
        """Half the width of a mark on a value of x, so that it does not touch the next one's."""
        places = np.unique(self.px(x[np.isfinite(x)]))
        return float(np.clip(np.diff(places).min(initial=3 * _DASH) / 3, 0.5, _DASH))

    def _path(self, d: str, kind: str, key: str, shape: str) -> None:
        if d:
            self.svg.append(tag("path", d=d, class_=kind))
            if key:
                self._keys.append((key, kind.split()[-1], shape))


def _path(x: Array, y: Array) -> str:
    return "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))
