"""Signals that ask a run to stop end it after its round."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopSignal:
    """Let SIGTERM, Ctrl-C and a closed terminal (SIGHUP) end a run after the current round.

    `with StopSignal() as stop:` run rounds, and after each `if stop.requested:` save and leave. The first signal is
    only noted. It also puts the default action back, so that a second one ends the process at once, even inside
    a long tensor operation; but a SIGHUP, which comes twice when both the terminal and the shell send it, never
    does that and never makes another signal do it. Of several processes that torchrun has started each hears
    twice, from the terminal and from torchrun, and has to end with the others: there no second signal counts.
    Where SIGHUP is ignored, as under nohup, it stays so. Leaving the block restores the previous handlers.
    Outside the main thread, where Python allows no handlers, it does nothing.

    Args:
        patient: a second signal does not end the process.
    """

    def __init__(self, patient: bool = False) -> None:
        """Prepare; nothing is caught yet."""
        self._patient = patient
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal came: finish the round, save, leave."""
        return self.received is not None

    def __enter__(self) -> StopSignal:
        """Start to listen."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Restore the previous handlers."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        if number != signal.SIGHUP and not self._patient:
            for each in (signal.SIGTERM, signal.SIGINT):
                signal.signal(each, signal.SIG_DFL)
