"""How sure each client becomes over the rounds: histograms of predictive entropy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from pacbayes_fl.errors import StudyError
from pacbayes_fl.plots.style import BLUE, NothingToDrawError, panels, run_title
from pacbayes_fl.results.recorded import ENTROPY
from pacbayes_fl.results.records import Result
from pacbayes_fl.results.rounds import RoundRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PREFIX: Final = f"{ENTROPY}."
_ROWS = 5  # rounds drawn at most


def uncertainty_histograms(result: Result, clients: int = 5) -> Figure:
    """Draw how the uncertainty of test rows is spread, round below round, client beside client (journal, Figure 5).

    A bar is the share of a client's test rows whose predictive entropy, divided by ln C, lies in its bin: 0 is certain,
    1 is a guess among all classes. The panel of a client that has no histogram in a round is left empty.

    Args:
        result: a run of a classifier.
        clients: number of clients drawn, the first of those that have histograms.

    Returns:
        A matplotlib figure with a row for each round that has histograms: at most five, first and last among them.

    Raises:
        StudyError: when not even one client is to be drawn.
        NothingToDrawError: when no round of the result has histograms of entropy.
        PacBayesFLError: when matplotlib is not installed.
    """
    if clients < 1:
        raise StudyError(f"clients must be at least 1, got {clients}")
    rounds = [record for record in result.rounds if any(name.startswith(_PREFIX) for name in record.histograms)]
    if not rounds:
        raise NothingToDrawError("no round of the result has histograms of predictive entropy")
    rounds = _spread(rounds)
    values = dict.fromkeys(name for record in rounds for name in record.histograms if name.startswith(_PREFIX))
    names = list(values)[:clients]
    title = run_title(result)
    shares = {(r.round, name): np.nan_to_num(r.histograms.get(name, ())) for r in rounds for name in names}
    highest = max(bars.max(initial=0.0) for bars in shares.values()) or 1.0
    with panels(len(rounds), len(names), title, 2.0, 1.8) as (figure, axes):
        for row, record in zip(axes, rounds, strict=True):
            for axis, name in zip(row, names, strict=True):
                bars = shares[record.round, name]
                if bars.size:
                    axis.bar(
                        np.arange(bars.size) / bars.size, bars, 1 / bars.size, align="edge", color=BLUE, alpha=0.75
                    )
                client = name.removeprefix(_PREFIX)
                axis.set(title=f"{client}, round {record.round}", xlim=(0, 1), ylim=(0, 1.05 * highest))
                axis.set(xlabel="entropy / ln C", ylabel="share of test rows")
                axis.label_outer()
    return figure


def _spread(rounds: Sequence[RoundRecord]) -> list[RoundRecord]:
    """Return at most as many rounds as the figure has rows, from the first to the last."""
    if len(rounds) <= _ROWS:
        return list(rounds)
    return [rounds[round(place)] for place in np.linspace(0, len(rounds) - 1, _ROWS)]
