"""Deltas from the server's message that private and robust rounds clip, sum and release."""

from __future__ import annotations

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.server.average import Weighting
from pacbayes_fl.tensors import Tree


def deltas(sent: Tree, message: Tree) -> Tree:
    """Differences of the clients' values from the server's message; clipping them bounds the server's step.

    Args:
        sent: leaves [K, *].
        message: leaves [*].

    Returns:
        Leaves [K, *].
    """
    return tensors.tree_map(lambda upload, start: upload - start, sent, message)


def alike(weighting: Weighting) -> None:
    """Check that all clients have equal weights.

    Args:
        weighting: of clients in the server's average.

    Raises:
        PrivacyError: when clients are weighted by their number of rows, which is private.
    """
    if weighting != "uniform":
        what = f"weighting = {weighting!r} needs every client's number of rows, which a private round withholds"
        raise PrivacyError(what, hint="method.weighting = 'uniform'")


def apply_delta(mean: Tree, message: Tree) -> Tree:
    """Add the released mean delta to the server's message.

    Args:
        mean: leaves [J, *].
        message: leaves [*] or [J, *].

    Returns:
        Leaves [J, *].
    """
    return tensors.tree_map(lambda step, start: start + step, mean, message)


def unit_weights(like: Tensor, rows: int = 1) -> Tensor:
    """Unit weights of a released update [J], float64.

    Args:
        like: gives the device [*].
        rows: J.
    """
    return torch.ones(rows, dtype=torch.float64, device=like.device)


def unknown(like: Tensor, rows: int = 1) -> Tensor:
    """Placeholder for numbers that a private round does not release: NaN [J], float64.

    Args:
        like: gives the device [*].
        rows: J.
    """
    return torch.full((rows,), torch.nan, dtype=torch.float64, device=like.device)


def no_release_error(name: str) -> PrivacyError:
    """The error of a method whose clients send nothing.

    Args:
        name: of the method.

    Returns:
        The error, to be raised.
    """
    return PrivacyError(f"{name} has no private release: its clients send nothing", hint="train it without [privacy]")
