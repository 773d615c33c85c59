"""Figures as a journal wants them: a given width, letters of one size, no heading that a caption repeats."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from textwrap import fill
from typing import TYPE_CHECKING, Final, Literal

from pacbayes_fl.errors import StudyError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.text import Text

_LETTERS: Final = 7.0  # points, of all texts
_NARROW: Final = 1.0  # inches, below which nothing can be read
_SMALL: Final = (0.8, 0.6)  # of lines and of markers, beside those of a screen
_DOT: Final = 2.6  # points, of the smallest marker that is seen beside a box: one that is as small stays as it is
_SQUEEZE: Final = 0.6  # power of the width by which heights shrink: narrow panels stay tall enough to be read
_PANEL, _INNER = 2.0, 1.0  # inches that a panel needs, with a label of its own axis and without
_GAP: Final = 4.0  # pixels between the labels of two ticks
_WRAPPED: Final = 12  # letters that a line keeps
_BESIDE: Final = 1.15  # of the width of a panel, that a text above or below it may have
_BELOW, _SIDE = 0.1, 0.35  # of the figure: where a legend below it begins, and the width that one beside it may have
_ROW: Final = 0.3  # inches of a legend for which figures have room


@dataclass(frozen=True)
class Look:
    """How figures are written.

    Args:
        style: "screen", or "paper": no heading, letters of 7 points, thinner lines, and fonts that stay text in PDF.
        width: of the figure in inches, such as 3.25 of a column; as it is drawn when None. Panels that find no room
            beside one another stand below one another.
    """

    style: Literal["screen", "paper"] = "screen"
    width: float | None = None

    def __post_init__(self) -> None:
        """Check the style and the width."""
        if self.style not in ("screen", "paper"):
            raise StudyError(f"style must be 'screen' or 'paper', got {self.style!r}")
        if self.width is not None and not _NARROW <= self.width <= 100:
            raise StudyError(f"width must be between {_NARROW:g} and 100 inches, got {self.width:g}")

    def apply(self, figure: Figure) -> None:
        """Change a figure before it is drawn.

        Args:
            figure: with its own size and heading.
        """
        from matplotlib.lines import Line2D
        from matplotlib.text import Text

        if self.width is not None:
            _fit(figure, self.width)
        if self.style == "paper":
            figure.suptitle("")
            for text in figure.findobj(Text):
                text.set_fontsize(_LETTERS)
            for line in figure.findobj(Line2D):
                size = line.get_markersize()
                line.set(linewidth=_SMALL[0] * line.get_linewidth(), markersize=max(min(size, _DOT), _SMALL[1] * size))
        _make_room(figure)


def _fit(figure: Figure, width: float) -> None:
    """Make a figure as wide as that, its columns of panels in blocks below one another where they find no room."""
    from matplotlib.gridspec import GridSpec

    wide, high = figure.get_size_inches()
    placed = [(axis, spec) for axis in figure.axes if (spec := axis.get_subplotspec()) is not None]
    rows, columns = placed[0][1].get_gridspec().get_geometry()
    need = _PANEL if all(axis.get_ylabel() for axis, _ in placed) else _INNER
    fit = min(columns, max(1, int(width / need)))
    places = {}
    for axis, spec in placed:
        block, column = divmod(spec.colspan.start, fit)
        places[axis] = (block * rows + spec.rowspan.start, column)
    deep = 1 + max(row for row, _ in places.values())
    if fit < columns:
        grid = GridSpec(deep, fit, figure=figure)
        first = {spec.rowspan.start: axis for axis, spec in placed if spec.colspan.start == 0}
        for axis, spec in placed:
            row, column = places[axis]
            axis.set_subplotspec(grid[row, column])
            if column == 0 and not axis.get_ylabel():  # it stood inside, and the labels of its axis left of it
                axis.set_ylabel(first[spec.rowspan.start].get_ylabel())
                axis.tick_params(labelleft=True)
    panel = min(1.0, width / fit * columns / wide) ** _SQUEEZE * high / rows
    figure.set_size_inches(width, panel * (deep if fit < columns else rows))


def lay_out(figure: Figure) -> None:
    """Place all that a figure holds, as drawing it begins with.

    Args:
        figure: one that was made with a layout engine, which is asked alone: drawing it all takes twice as long.
    """
    engine = figure.get_layout_engine()
    if engine is None:
        figure.draw_without_rendering()
    else:
        engine.execute(figure)


def _make_room(figure: Figure) -> None:
    """Keep texts from one another and inside the figure, as far as lines can be broken and ticks left out."""
    lay_out(figure)
    # lists, not generators: each legend is placed and each label broken, also after the first that changes
    if any([_place(figure, legend) for legend in list(figure.legends)]):
        lay_out(figure)
    labels = [(axis.yaxis.label, axis.get_window_extent().height) for axis in figure.axes]
    if any([_break(label, label.get_window_extent().height, room) for label, room in labels]):
        lay_out(figure)
    for axis in figure.axes:
        box = axis.get_window_extent()
        middle = (box.x0 + box.x1) / 2
        room = min(_BESIDE * box.width, 2 * min(middle, figure.bbox.width - middle))
        for text in (axis.xaxis.label, axis.title):
            _break(text, text.get_window_extent().width, room)
        _thin(axis)


def _place(figure: Figure, legend: Legend) -> bool:
    """Put a legend that is wider than its figure below the panels, in fewer columns and on room of its own.

    Returns:
        Whether the figure has to be laid out again.
    """
    texts = [text.get_text() for text in legend.get_texts()]
    handles = [one for one in legend.legend_handles if one is not None]
    sizes = [text.get_fontsize() for text in legend.get_texts()]
    room, box = figure.bbox.width, legend.get_window_extent()
    moved = box.width > (room if box.y0 < _BELOW * figure.bbox.height else _SIDE * room)
    if moved:
        for columns in range(len(texts), 0, -1):
            legend.remove()
            legend = figure.legend(handles, texts, loc="outside lower center", ncols=columns, fontsize=sizes[0])
            if legend.get_window_extent().width <= room:
                break
    width, height = figure.get_size_inches()
    more = max(0.0, legend.get_window_extent().height / figure.dpi - _ROW)
    figure.set_size_inches(width, height + more)
    return moved or more > 0


def _break(text: Text, length: float, room: float) -> bool:
    """Break the lines of a text that is longer than its room; say whether that changed it."""
    lines = text.get_text().splitlines()
    if lines and length > room:
        columns = max(_WRAPPED, int(max(map(len, lines)) * room / length))
        broken = "\n".join(fill(line, columns) for line in lines)
        if broken != text.get_text():
            text.set_text(broken)
            return True
    return False


def _thin(axis: Axes) -> None:
    """Take away ticks of numbers, or turn those of names, where they lie over one another."""
    from matplotlib.ticker import MaxNLocator

    low, high = sorted(axis.get_xlim())
    ticks = [text for text in axis.get_xticklabels() if text.get_text() and low <= text.get_position()[0] <= high]
    boxes = [text.get_window_extent() for text in ticks]
    if not any(one.padded(_GAP).overlaps(other) for one, other in pairwise(boxes)):
        return
    if isinstance(axis.xaxis.get_major_locator(), MaxNLocator):
        axis.locator_params(axis="x", nbins=max(2, len(ticks) // 2))
    else:
        axis.tick_params(axis="x", labelrotation=90)


SCREEN: Final = Look()
"""Figures as they are drawn."""
