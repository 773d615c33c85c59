"""Figures as a journal wants them: a given width, letters of one size, no heading that a caption repeats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pacbayes_fl.errors import StudyError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LETTERS: Final = 7.0  # points, of all texts
_NARROW: Final = 1.0  # inches, below which nothing can be read
_SMALL: Final = (0.8, 0.6)  # of lines and of markers, beside those of a screen
_SQUEEZE: Final = 0.6  # power of the width by which heights shrink: narrow panels stay tall enough to be read
_PANEL, _KEY = 2.0, 1.6  # inches that a panel and an entry of a legend need


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
        if self.style == "screen":
            return
        figure.suptitle("")
        for text in figure.findobj(Text):
            text.set_fontsize(_LETTERS)
        for line in figure.findobj(Line2D):
            line.set(linewidth=_SMALL[0] * line.get_linewidth(), markersize=_SMALL[1] * line.get_markersize())


def _fit(figure: Figure, width: float) -> None:
    """Make a figure as wide as that, its columns of panels in blocks below one another where they find no room."""
    from matplotlib.gridspec import GridSpec

    wide, high = figure.get_size_inches()
    placed = [(axis, spec) for axis in figure.axes if (spec := axis.get_subplotspec()) is not None]
    rows, columns = placed[0][1].get_gridspec().get_geometry()
    fit = min(columns, max(1, int(width / _PANEL)))
    places = {}
    for axis, spec in placed:
        block, column = divmod(spec.colspan.start, fit)
        places[axis] = (block * rows + spec.rowspan.start, column)
    deep = 1 + max(row for row, _ in places.values())
    if fit < columns:
        grid = GridSpec(deep, fit, figure=figure)
        for axis, (row, column) in places.items():
            axis.set_subplotspec(grid[row, column])
    panel = min(1.0, width / fit * columns / wide) ** _SQUEEZE * high / rows
    figure.set_size_inches(width, panel * (deep if fit < columns else rows))
    for legend in list(figure.legends):
        texts = [text.get_text() for text in legend.get_texts()]
        handles = [one for one in legend.legend_handles if one is not None]
        legend.remove()
        columns = min(len(texts), max(1, int(width / _KEY)))
        figure.legend(handles, texts, loc="outside lower center", ncols=columns)


SCREEN: Final = Look()
"""Figures as they are drawn."""
