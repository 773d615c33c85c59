"""Available memory, and checks of requested sizes before allocation."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import Final

from pacbayes_fl.errors import PacBayesFLError, StudyError

SHARE: Final = 0.5
"""Of the memory that there is, what one thing may take: computing with it needs as much again."""

_GROUP: Final = Path("/sys/fs/cgroup/memory.max")  # what a container may take


def available() -> int:
    """Memory that this process may still allocate, in bytes.

    Returns:
        Bytes: the machine's memory, or less where a container or `ulimit -v` leaves less.
    """
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
        sizes.append(int(_GROUP.read_text()))
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        with contextlib.suppress(OSError, ValueError):  # elsewhere than on Linux
            limit -= int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        sizes.append(max(0, limit))
    return min(sizes)


def require(
    wanted: int, what: str, hint: str | None = None, kind: type[PacBayesFLError] = StudyError, limit: int | None = None
) -> None:
    """Raise when a size exceeds the available memory.

    Args:
        wanted: bytes.
        what: takes them, such as "array 'x' [3, 1000000000]".
        hint: what to change.
        kind: of the error.
        limit: bytes that it may take; `SHARE` of what is available when None.

    Raises:
        PacBayesFLError: of that kind, with both sizes.
    """
    most = int(SHARE * available()) if limit is None else limit
    if wanted > most:
        text = f"half of the {shown(available())} of memory that there is" if limit is None else "for such a file"
        raise kind(f"{what} takes {shown(wanted)}, and the limit is {shown(most)}, {text}", hint=hint)


def shown(size: int) -> str:
    """Write a number of bytes.

    Args:
        size: bytes.

    Returns:
        Such as "3.2 GB", powers of 1000.
    """
    power = next((power for power in range(1, 4) if size < 1000 ** (power + 1)), 4)
    return f"{size} bytes" if size < 1000 else f"{size / 1000**power:.3g} {('kB', 'MB', 'GB', 'TB')[power - 1]}"
