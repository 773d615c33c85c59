"""What the methods share that clip, sum and release what clients send: steps away from the server's message."""

from __future__ import annotations

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.server.average import Weighting
from pacbayes_fl.tensors import Tree


def deltas(sent: Tree, message: Tree) -> Tree:
    """Say how far clients went from what they were sent: a clip of it bounds the server's step.

    Args:
        sent: leaves [K, *].
        message: leaves [*].

    Returns:
        Leaves [K, *].
    """
    return tensors.tree_map(lambda upload, start: upload - start, sent, message)


def alike(weighting: Weighting) -> None:
    """Ask that all clients weigh alike.

    Args:
        weighting: of clients in the server's average.

    Raises:
        PrivacyError: when clients weigh by their rows: nobody is to know how many they have.
    """
    if weighting != "uniform":
        what = f"weighting = {weighting!r} needs every client's number of rows, which a private round withholds"
        raise PrivacyError(what, hint="method.weighting = 'uniform'")


def apply_delta(mean: Tree, message: Tree) -> Tree:
    """Put the clients' mean step on top of what they were sent.

    Args:
        mean: leaves [J, *].
        message: leaves [*] or [J, *].

    Returns:
        Leaves [J, *].
    """
    return tensors.tree_map(lambda step, start: start + step, mean, message)


def unit_weights(like: Tensor, rows: int = 1) -> Tensor:
    """Weights of what was released [J], float64.

    Args:
        like: gives the device [*].
        rows: J.
    """
    return torch.ones(rows, dtype=torch.float64, device=like.device)


def unknown(like: Tensor, rows: int = 1) -> Tensor:
    """Numbers that no private round tells: NaN [J], float64.

    Args:
        like: gives the device [*].
        rows: J.
    """
    return torch.full((rows,), torch.nan, dtype=torch.float64, device=like.device)


def no_release_error(name: str) -> PrivacyError:
    """Say why a method that learns from no client has nothing to release.

    Args:
        name: of the method.

    Returns:
        The error, to be raised.
    """
    return PrivacyError(f"{name} has no private release: its clients send nothing", hint="train it without [privacy]")
