"""Bounds of a run's clients beside the risks on the rows of the bound and on test rows."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from pacbayes_fl.names import shortened
from pacbayes_fl.plots.style import BLUE, FAINT, GREEN, INK, RED, NothingToDrawError, panels
from pacbayes_fl.results.certificates import CertifiedClient, CertifiedRun, is_vacuous
from pacbayes_fl.results.client_rows import GROUPS

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Array = npt.NDArray[np.float64]

_WIDTH: Final = 4.4  # of a panel, in inches
_LETTERS: Final = 56  # that fit its width
_TALLEST: Final = 12.0  # all rows together, in inches
_ROW: Final = 0.2  # one of a few, in inches
_NAME: Final = 28  # letters of a client's name
_NAMED: Final = 120  # more names than this cannot be read


def figure(table: CertifiedRun) -> Figure:
    """Draw a row for every client, by its bound within its group: empirical risk, bound and test risk.

    A bound that says no more than the range of the loss, or than the bound of the trivial predictor, is hollow, and one
    that lies beyond the axis points there. A client whose test risk exceeds its bound is red. A group whose lines are
    no certificates is grey, and its title says why; of a group without lines the title of the figure does. NaN is left
    out.

    Args:
        table: certificates of a run.

    Returns:
        A matplotlib figure with a panel each for existing and for new clients.

    Raises:
        NothingToDrawError: when the table has no client.
        PacBayesFLError: when matplotlib is not installed.
    """
    groups = {group: [client for client in table.clients if client.group == group] for group in GROUPS}
    groups = {group: _sorted(clients) for group, clients in groups.items() if clients}
    absent = [
        f"no {name} clients: {'; '.join(why)}" for name, why in table.reasons.items() if why and name not in groups
    ]
    run = f"{table.method} on {shortened(table.study, _LETTERS)}, seed {table.seed}"
    if table.model:
        run = f"{run}, round {table.model['round']}"
    if not groups:
        raise NothingToDrawError("; ".join([f"the certificates by {table.bound} of {run} have no client", *absent]))
    height = min(_TALLEST, _ROW * max(map(len, groups.values())))
    whom = "all clients of a group at once" if table.labels.get("jointly") else "each client"
    lines = [f"{run}: {table.theorem or table.bound}, δ = {table.delta:g} for {whom}", *absent]
    title = "\n".join(fill(line, 48 * len(groups)) for line in lines)
    with panels(1, len(groups), title, _WIDTH, height + 2.0) as (drawn, axes):
        marks: dict[str, Artist] = {}
        for axis, (group, clients) in zip(axes[0], groups.items(), strict=True):
            reasons = table.reasons.get(group, [])
            above = _rows(axis, table, clients, bool(reasons))
            axis.set_title(_title(group, len(clients), above, reasons))
            axis.set(xlabel=fill((table.risk or "risk").replace("^2", "²"), _LETTERS), ylabel="client")
            _names(axis, clients, height / len(clients))
            own = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
            marks = own | marks if reasons else marks | own  # the legend has grey marks only where all are grey
        drawn.legend(marks.values(), marks.keys(), loc="outside lower center", ncols=3)
    return drawn


def _sorted(clients: Sequence[CertifiedClient]) -> list[CertifiedClient]:
    """Order clients by their bound; those without a number come last."""
    return sorted(clients, key=lambda client: (client.bound != client.bound, client.bound))


def _title(group: str, count: int, above: int, reasons: Sequence[str]) -> str:
    text = f"{group} clients ({count})" + (f", {above} with test risk above the bound" if above else "")
    return "\n".join([text, *([fill(f"no certificates (grey): {'; '.join(reasons)}", _LETTERS)] if reasons else [])])


def _rows(axis: Axes, table: CertifiedRun, clients: Sequence[CertifiedClient], grey: bool) -> int:
    """Draw the marks and return how many clients have a test risk above their bound."""
    risk, bound, test = np.array([(c.risk, c.bound, c.test_risk) for c in clients], dtype=np.float64).T
    place = np.arange(len(clients), dtype=np.float64)
    ranged = bool(np.isfinite(table.high))
    span = (table.high if ranged else float(np.nanmax(bound))) - table.low
    edge = table.low + 1.15 * span
    beyond = bound > edge
    hollow = np.array([is_vacuous(c.bound, table.high, c.trivial) for c in clients]) & ~beyond
    above = test > bound
    left, right = np.fmin(np.fmin(risk, test), bound), np.fmax(np.fmax(risk, test), np.minimum(bound, edge))
    axis.hlines(place, left, right, colors=[RED if red else FAINT for red in above], linewidth=1.0, zorder=1.5)
    if ranged:
        axis.axvline(table.high, linestyle="--", color=INK, linewidth=1.0, label="trivial level")
    size = float(np.clip(0.6 * 72 * _TALLEST / len(clients), 2.0, 4.0))

    for x, which, marker, colour, full, label in (
        (risk, ~np.isnan(risk), "o", BLUE, True, "empirical risk"),
        (test, ~above & ~np.isnan(test), "s", GREEN, True, "test risk"),
        (bound, ~hollow & ~beyond, "D", INK, True, "bound"),
        (bound, hollow & ~np.isnan(bound), "D", INK, False, "vacuous bound"),
        (np.full_like(bound, edge), beyond, ">", INK, False, "vacuous bound, beyond the axis"),
        (test, above, "X", RED, True, "test risk above the bound"),
    ):
        if which.any():
            own = FAINT if grey and colour != RED else colour
            (line,) = axis.plot(x[which], place[which], marker, color=own, markersize=size, label=label)
            line.set(markerfacecolor=own if full else "white", clip_on=False)
    axis.set_xlim(table.low - 0.03 * span, edge)
    axis.set_ylim(len(clients) - 0.4, -0.6)  # the smallest bound on top
    axis.grid(visible=False, axis="y")
    return int(above.sum())


def _names(axis: Axes, clients: Sequence[CertifiedClient], pitch: float) -> None:
    if len(clients) > _NAMED:
        axis.set_yticks([])
        rows = sorted(client.rows for client in clients)
        axis.set_ylabel(f"clients by their bound (n = {rows[0]} to {rows[-1]})")
        return
    names = [f"{shortened(client.name, _NAME)} (n = {client.rows})" for client in clients]
    axis.set_yticks(range(len(clients)), names, fontsize=min(8.0, 0.75 * 72 * pitch))
