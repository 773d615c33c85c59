"""Which clients take part in a round."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pacbayes_fl.noise import philox

_DRAW = 0xFFFFFFFF  # counted down to by no client's own draws


def draw(seed: int, round: int, ids: Sequence[int], size: int | None) -> Tensor:
    """Draw a cohort without replacement (PAC-PFL Algorithm 1, line 4).

    Every client gets a random key from (seed, round, id), and those with the smallest take part: the cohort is the same
    in whatever order the clients stand.

    Args:
        seed: of the experiment.
        round: number of the round.
        ids: of all clients of the federation.
        size: clients wanted, all when None or at least as many.

    Returns:
        Sorted positions [size], int64, on the CPU.
    """
    if size is None or size >= len(ids):
        return torch.arange(len(ids))
    client = torch.tensor(ids, dtype=torch.int64)
    zero = torch.zeros_like(client)
    words = philox((zero, client & 0xFFFFFFFF, client >> 32, zero + _DRAW), (seed, round))
    key = (words[0] << 31) | (words[1] >> 1)
    return torch.argsort(key, stable=True)[:size].sort().values
