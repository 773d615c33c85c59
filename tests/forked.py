"""Work in a process of its own, which may be killed."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest


def child(work: Callable[[], int | None]) -> int:
    """Do work in a forked process; return its wait status."""
    if (number := os.fork()) == 0:
        code = 99
        try:
            code = work() or 0
        finally:
            os._exit(code)
    return os.waitpid(number, 0)[1]


fork = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
