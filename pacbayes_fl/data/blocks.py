"""Contiguous blocks of clients' rows, of which one at a time is left out: neighbours in time stay on one side."""

from __future__ import annotations

import torch
from torch import Tensor


def blocks(mask: Tensor, count: int) -> Tensor:
    """Number the rows of every client by contiguous blocks that differ by at most one row.

    Args:
        mask: [K, N] bool, True on real rows, which come first.
        count: blocks of a client; one with fewer rows has as many blocks as rows, and their numbers are not the first.

    Returns:
        Block of every row [K, N], int64; of padding -1.

    Example:
        >>> import torch
        >>> from pacbayes_fl.data.blocks import blocks
        >>> blocks(torch.tensor([[True, True, True, True, True, False]]), 2).tolist()
        [[0, 0, 0, 1, 1, -1]]
    """
    position = mask.cumsum(1) - 1
    number = (position * count).div(mask.sum(1, keepdim=True).clamp_min(1), rounding_mode="floor")
    return torch.where(mask, number, -1)
