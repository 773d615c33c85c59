"""Arrays of many rows: in temporary files where they are large, so that only what is being looked at takes memory."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from typing import IO, Any, Final

import numpy as np
import numpy.typing as npt

LARGE: Final = 2**22
"""Bytes from which an array is in a file."""

ROWS: Final = 2**17
"""Rows that are looked at together."""

_FOLDER: Final = "/var/tmp"  # noqa: S108 - on a disk, where /tmp often is memory


def zeros(size: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Make an array of zeros: in a temporary file where it is large and the disk has room; else in memory.

    Args:
        size: how many.
        dtype: of the array.

    Returns:
        Zeros, [size].
    """
    length = size * np.dtype(dtype).itemsize
    if length < LARGE:
        return np.zeros(size, dtype)
    try:
        with _file() as file:
            os.posix_fallocate(file.fileno(), 0, length)  # else a full disk would end the process at a write
            return np.frombuffer(mmap.mmap(file.fileno(), length), dtype)
    except OSError:
        return np.zeros(size, dtype)


def blocks(*arrays: npt.NDArray[Any]) -> Iterator[slice]:
    """Cut rows into blocks, and release the memory of arrays in files after each; what was written stays in them.

    Args:
        arrays: of as many rows, [R, ...].

    Yields:
        Positions of some rows, in their order.
    """
    for at in range(0, len(arrays[0]), ROWS):
        yield slice(at, min(at + ROWS, len(arrays[0])))
        for array in arrays:
            release(array)


def release(array: npt.NDArray[Any]) -> None:
    """Give back the memory of an array in a file; of another, nothing changes.

    Args:
        array: any.
    """
    base: Any = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if isinstance(base, mmap.mmap):
        base.madvise(mmap.MADV_DONTNEED)


def _file() -> IO[bytes]:
    if not any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")):
        with contextlib.suppress(OSError):
            return tempfile.TemporaryFile(dir=_FOLDER, buffering=0)
    return tempfile.TemporaryFile(buffering=0)
