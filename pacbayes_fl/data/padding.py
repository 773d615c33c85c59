"""Padding of clients with very different numbers of rows, which is neither written nor looked at.

One client of 20,000 rows beside a thousand of 8 makes 20 million rows of 28,000, all of them zeros but these.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl import tensors

LEAST: Final = 2**22
"""Bytes of padded rows from which padding is worth a look."""

HELD: Final = 2**26
"""Bytes of real rows from which these are in a file too."""

WIDTH: Final = 64
"""Rows of the smallest clients' group: sums in multiples of vector registers round as those of the whole batch do."""


def room(shape: Sequence[int], dtype: torch.dtype, held: int) -> Tensor:
    """Make room for rows on the CPU, of which nothing takes memory but what is written.

    Args:
        shape: of the padded tensor [K, N, *].
        dtype: of the tensor.
        held: real rows that will be written there.

    Returns:
        Zeros [K, N, *].
    """
    size = math.prod(shape) * dtype.itemsize
    if size < tensors.MAPPED:
        return torch.zeros(*shape, dtype=dtype)
    if held * math.prod(shape[2:]) * dtype.itemsize < HELD:
        with contextlib.suppress(OSError):  # no such address space
            pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_NOHUGEPAGE"):
                with contextlib.suppress(OSError):  # a kernel without them
                    pages.madvise(mmap.MADV_NOHUGEPAGE)  # one would hold 2 MB for eight rows
            return torch.frombuffer(pages, dtype=dtype).view(*shape)
    return tensors.mapped_zeros(tuple(shape), dtype)


def sizes(mask: Tensor) -> Tensor:
    """Count real rows.

    Args:
        mask: [K, N] bool.

    Returns:
        [K], int64.
    """
    if mask.device.type != "cpu" or mask.numel() < LEAST:
        return mask.sum(1)
    return torch.from_numpy(np.count_nonzero(mask.numpy(), axis=1))  # a tenth of the time


def groups(mask: Tensor, shape: Sequence[int], dtype: torch.dtype) -> list[tuple[Tensor, int]] | None:
    """Group clients by how many rows they have, where padding all to the longest would cost much more.

    Args:
        mask: real rows [K, N] bool, or how many there are of every client [K].
        shape: of the padded tensor [K, N, *].
        dtype: of that tensor.

    Returns:
        Positions of clients, rising, and rows that hold all of theirs; together every position once. None where the
        padded tensor is small, or at most twice as large as its groups, or real rows do not come first.
    """
    clients, longest = shape[:2]
    if math.prod(shape) * dtype.itemsize < LEAST or longest <= WIDTH:
        return None
    counts = (sizes(mask) if mask.dim() > 1 else mask).cpu()
    doublings = (counts.double().clamp_min(1.0) / WIDTH).log2().ceil().clamp_min(0.0).long()
    made = [
        ((doublings == level).nonzero().flatten(), min(longest, WIDTH << level))
        for level in doublings.unique().tolist()
    ]
    if 2 * sum(len(at) * rows for at, rows in made) > clients * longest:
        return None
    apart = mask.dim() > 1 and any(int(mask[:, :rows][at].sum()) < int(counts[at].sum()) for at, rows in made)
    return None if apart else made  # of rows that do not come first, as in minibatches
