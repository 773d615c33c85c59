"""How long a client trains in a round: as many minibatches for all, or as many as its rows need for some epochs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError


class Training(Protocol):
    """Hyper-parameters of a local optimiser that determine the length of a client's training."""

    @property
    def steps(self) -> int | None:
        """Minibatches per round, the same for all."""

    @property
    def epochs(self) -> int | None:
        """Passes over a client's rows per round."""

    @property
    def minibatch(self) -> int:
        """Rows b of a minibatch."""


def check(local: Training) -> None:
    """Check that one of two lengths of training is given.

    Args:
        local: hyper-parameters.

    Raises:
        StudyError: when not exactly one of steps and epochs is given.
    """
    if local.steps is not None and local.epochs is not None:
        what = f"steps = {local.steps} and epochs = {local.epochs} exclude each other, and both are given"
        raise StudyError(what, hint="None ('none' in a study) for one of them")
    if local.steps is None and local.epochs is None:
        raise StudyError("one of steps and epochs must be given, and both are None", hint="steps = 20, or epochs = 10")


def counts(local: Training, batch: ClientBatch, passes: int = 1) -> Tensor:
    """Count the minibatches of every client.

    R_k = steps, or epochs ceil(m_k / b)

    Args:
        local: hyper-parameters.
        batch: the clients' rows.
        passes: as many times.

    Returns:
        [K], int64; with epochs 0 for a client without rows.
    """
    if local.epochs is None:
        return torch.full_like(batch.size, passes * (local.steps or 0), dtype=torch.int64)
    return passes * local.epochs * torch.ceil(batch.size / local.minibatch).long()


def turns(local: Training, batch: ClientBatch, passes: int = 1) -> Iterator[Tensor | None]:
    """Go through the minibatches of a call; clients that are through stay where they are.

    Args:
        local: hyper-parameters.
        batch: the clients' rows.
        passes: as many times.

    Yields:
        Per minibatch the clients that still take it, bool [K], or None where all do.
    """
    if local.epochs is None:  # known without a look at the device
        yield from [None] * (passes * (local.steps or 0))
        return
    number = counts(local, batch, passes)
    shortest, longest = _ends(local, batch, number, passes)
    for turn in range(longest):
        yield None if turn < shortest else number > turn


def _ends(local: Training, batch: ClientBatch, number: Tensor, passes: int) -> tuple[int, int]:
    """Fewest and most minibatches of a client; of those on a device only what padded rows allow is known."""
    if tensors.on_host(number):
        shortest, longest = number.aminmax()
        return int(shortest), int(longest)
    return 0, passes * (local.epochs or 0) * math.ceil(batch.mask.shape[1] / local.minibatch)


def mean_over(local: Training, batch: ClientBatch, total: Tensor, passes: int = 1) -> Tensor:
    """Divide a sum over minibatches by their number.

    Args:
        local: hyper-parameters.
        batch: the clients' rows.
        total: [K].
        passes: as many times.

    Returns:
        [K]; 0 for a client that took none.
    """
    return total / counts(local, batch, passes).clamp_min(1).to(total)
