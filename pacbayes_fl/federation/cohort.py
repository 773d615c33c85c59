"""Which clients take part in a round."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def draw(seed: int, round: int, clients: int, size: int | None) -> Tensor:
    """Draw a cohort without replacement, the same for the same seed and round (Algorithm 1, line 4).

    Args:
        seed: of the experiment.
        round: number of the round.
        clients: clients in the federation.
        size: clients wanted, all when None or at least as many.

    Returns:
        Sorted positions [size], int64, on the CPU.
    """
    if size is None or size >= clients:
        return torch.arange(clients)
    digest = hashlib.sha256(f"cohort/{seed}/{round}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
    return torch.randperm(clients, generator=generator)[:size].sort().values
