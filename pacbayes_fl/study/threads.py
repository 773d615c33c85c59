"""Threads of torch for as long as something runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Compute with a number of threads, and with the caller's again afterwards.

    Args:
        count: threads of an operation of torch; as it is when None.

    Yields:
        Nothing.
    """
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)


def shared(processes: int) -> int:
    """Give the threads of each of several processes of this machine that compute at the same time.

    Threads that wait for one another on the same processor spin: four nodes of two threads each on two processors
    worked .4 s of a round where nodes of one thread worked .05 s.

    Args:
        processes: their number.

    Returns:
        An equal share of the processors that this process may use, one at least.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # not on every system
    return max(1, (len(affinity(0)) if affinity else os.cpu_count() or 1) // processes)
