"""Long arrays that are files: made, taken over from others, and looked at a block of rows at a time."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch

from pacbayes_fl import tensors

ROWS: Final = 2**17
"""Rows that are looked at together."""


def mapped_array(size: int, dtype: np.dtype[Any] | type) -> npt.NDArray[Any]:
    """Make an array of zeros as `mapped_zeros` makes a tensor.

    Args:
        size: how many.
        dtype: of NumPy.

    Returns:
        Zeros [size].
    """
    kind = torch.from_numpy(np.empty(0, dtype)).dtype
    return tensors.mapped_zeros((size,), kind).numpy()


def adopt(array: npt.NDArray[Any]) -> None:
    """Release an array in a file of somebody else's with those of `mapped_zeros`; one in memory stays there.

    Args:
        array: any.
    """
    base: Any = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    if isinstance(base, mmap.mmap):
        tensors.KNOWN.add(base)


def row_blocks(rows: int) -> Iterator[slice]:
    """Cut rows in the long form into blocks, and release tensors in files after each.

    Args:
        rows: R.

    Yields:
        Positions of some rows, in their order.
    """
    for at in range(0, rows, ROWS):
        yield slice(at, min(at + ROWS, rows))
        if rows > ROWS:
            tensors.release_mapped()
