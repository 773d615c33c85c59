"""Processes that end with the one that has started them, also where that is killed. Nothing heavy is imported here."""

from __future__ import annotations

import contextlib
import ctypes
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Ask the kernel, where it can (Linux), to send this process a signal when its parent ends.

    Args:
        number: the signal.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
