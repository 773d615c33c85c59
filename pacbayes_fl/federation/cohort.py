"""Which clients take part in a round."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from pacbayes_fl.noise import keys

_BITS = 53  # of a key that decides by itself: what a double holds exactly


def draw(seed: int | None, round: int, ids: Sequence[int], size: int | None) -> Tensor:
    """Draw a cohort without replacement (PAC-PFL Algorithm 1, line 4).

    Every client gets a random key from (seed, round, id), and those with the smallest take part: the cohort is the same
    in whatever order the clients stand.

    Args:
        seed: of the experiment; None for keys from the operating system, which are unpredictable and not reproducible.
        round: number of the round.
        ids: of all clients of the federation.
        size: clients wanted, all when None or at least as many.

    Returns:
        Sorted positions [size], int64, on the CPU.

    Example:
        >>> from pacbayes_fl.federation import cohort
        >>> cohort.draw(seed=1, round=1, ids=[11, 12, 13, 14], size=2).tolist()
        [1, 3]
    """
    if size is None or size >= len(ids):
        return torch.arange(len(ids))
    return torch.argsort(_keys(seed, round, ids), stable=True)[:size].sort().values


def in_order(seed: int, position: int, ids: Sequence[int], size: int) -> Tensor:
    """Take the next clients of an order of all, which begins anew where it ends.

    The order is that of random keys from (seed, id), which need not be secret. Cohort p has its places from p c to
    p c + c - 1, counted on from the beginning after the last.

    Args:
        seed: of the order.
        position: p, how many cohorts came before.
        ids: of all clients of the federation.
        size: c.

    Returns:
        Sorted positions [size], int64, on the CPU.

    Example:
        >>> from pacbayes_fl.federation import cohort
        >>> [cohort.in_order(1, p, [11, 12, 13, 14], 2).tolist() for p in range(3)]
        [[0, 2], [1, 3], [0, 2]]
    """
    order = torch.argsort(_keys(seed, 0, ids), stable=True)
    return order[(position * size + torch.arange(size)) % len(ids)].sort().values


def order_name(seed: int, ids: Sequence[int]) -> str:
    """Tell the order of `in_order` from that of other clients or of another seed.

    Args:
        seed: of the order.
        ids: of all clients of the federation.

    Returns:
        A fingerprint, the same however the clients stand.
    """
    return hashlib.sha256(repr((seed, sorted(ids))).encode()).hexdigest()[:16]


def draw_poisson(seed: int | None, round: int, ids: Sequence[int], share: float) -> Tensor:
    """Draw a cohort of any size: every client takes part with the same probability, whatever the others do.

    It depends on (seed, round, id) alone whether a client does, and so not on who else there is.

    Args:
        seed: of the experiment; None for keys from the operating system, which are unpredictable and not reproducible.
        round: number of the round.
        ids: of all clients of the federation.
        share: probability of a client.

    Returns:
        Sorted positions [*], int64, on the CPU; possibly none.
    """
    return ((_keys(seed, round, ids) >> (63 - _BITS)).double() < share * 2.0**_BITS).nonzero().squeeze(1)


def _keys(seed: int | None, round: int, ids: Sequence[int]) -> Tensor:
    """Random whole numbers [K] of 63 bits, one a client."""
    if seed is None:
        return torch.frombuffer(bytearray(os.urandom(8 * len(ids))), dtype=torch.int64) & (2**63 - 1)
    return keys(seed, round, ids)
