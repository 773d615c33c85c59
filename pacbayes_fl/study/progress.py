"""Progress of a run in a notebook or on a terminal, for programs; the command line has its own bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from html import escape
from typing import Final, Protocol

from pacbayes_fl.errors import StudyError
from pacbayes_fl.names import printable
from pacbayes_fl.results.metrics import headlines
from pacbayes_fl.results.recorded import in_progress
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study.callbacks import Callback

_PAUSE: Final = 0.1  # seconds between two drawings


class _Handle(Protocol):
    """What IPython gives for an output that changes."""

    def update(self, shown: object) -> None:
        """Show something else in its place."""


class ProgressBar(Callback):
    """Shows how far a run has come: a bar below the cell of a notebook, a line of a terminal that is written over.

    Nothing beside the notebook itself is needed. Where there is neither, such as in a log, nothing is shown.

    Args:
        rounds: how many there will be, `study.plan.rounds`.

    Raises:
        StudyError: when rounds is no positive number.

    Example:
        >>> import pacbayes_fl as fl
        >>> study = fl.Study.from_toml("polynomial", ["federation.rounds=2", "method.particles=2"])
        >>> result = fl.run(study, callbacks=[fl.ProgressBar(study.plan.rounds)])
    """

    def __init__(self, rounds: int) -> None:
        """Show nothing before a run starts."""
        if rounds < 1:
            raise StudyError(f"rounds must be at least 1, got {rounds}", hint="study.plan.rounds")
        self.rounds = rounds
        self._handle: _Handle | None = None
        self._news, self._begun, self._first, self._drawn = "", 0.0, 0, 0.0

    def on_start(self, past: Sequence[RoundRecord]) -> None:
        """Begin at the rounds that are finished."""
        self._begun, self._first, self._drawn, self._news = time.monotonic(), len(past), 0.0, ""
        self._handle = _notebook_output(self._as_html(len(past)))

    def on_round(self, record: RoundRecord) -> None:
        """Show a round, not more often than ten times a second, and the last one always."""
        names = (*headlines().values(), *in_progress())
        if scored := [f"{name} {record.values[name]:.4g}" for name in names if name in record.values]:
            self._news = " ".join(scored[:2])
        now, last = time.monotonic(), record.round >= self.rounds
        if now - self._drawn < _PAUSE and not last:
            return
        self._drawn = now
        if self._handle is not None:
            self._handle.update(_html(self._as_html(record.round)))
        elif sys.stderr.isatty():
            sys.stderr.write(f"\r\x1b[K{printable(self._text(record.round))}" + "\n" * last)
            sys.stderr.flush()

    def _text(self, round: int) -> str:
        done, took = round - self._first, time.monotonic() - self._begun
        left = (
            f"about {took / done * max(0, self.rounds - round):.0f} s left" if 0 < done and round < self.rounds else ""
        )
        return ", ".join(filter(None, [f"round {round} of {self.rounds}", left, self._news]))

    def _as_html(self, round: int) -> str:
        bar = f'<progress max="{self.rounds}" value="{min(round, self.rounds)}" aria-label="rounds"></progress>'
        return f"{bar} {escape(self._text(round))}"


def _html(text: str) -> object:
    from IPython.display import HTML

    return HTML(text)


def _notebook_output(text: str) -> _Handle | None:
    """Open an output of the cell that runs; None outside of a notebook."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython
    from IPython.display import display

    shell = get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    handle: _Handle | None = display(_html(text), display_id=True)
    return handle
