"""The part of a server's state that clients are sent: what may leave it, and what personalisation needs."""

from __future__ import annotations

import safetensors.torch
import torch
from safetensors import SafetensorError

from pacbayes_fl import tensors
from pacbayes_fl.errors import CheckpointError, ShapeError
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.tensors import AnyTree


def to_bytes(method: AnyMethod, server: AnyTree, seed: int) -> bytes:
    """Write a server's state; of what no client is ever sent, such as moments of its optimiser, that of the start.

    Args:
        method: the algorithm.
        server: its state.
        seed: with which the federation began.

    Returns:
        A safetensors file.
    """
    start = method.init_server(torch.Generator().manual_seed(seed))
    sent = tensors.leaves(method.broadcast(server))
    flat, first = tensors.leaves(server), tensors.leaves(start)
    for name, leaf in first.items():
        without = {**flat, name: leaf.to(flat[name].device)}
        again = tensors.leaves(method.broadcast(tensors.unleaves(server, without, exact=False)))
        if all(torch.equal(again[key], sent[key]) for key in sent):
            flat = without
    return safetensors.torch.save({name: leaf.detach().cpu().clone().contiguous() for name, leaf in flat.items()})


def from_bytes(method: AnyMethod, data: bytes, seed: int) -> AnyTree:
    """Read the result of `to_bytes`.

    Args:
        method: the algorithm.
        data: a safetensors file.
        seed: with which the federation began.

    Returns:
        The server's state, on the CPU.

    Raises:
        CheckpointError: when it is no state of the method, or a number in it is not finite.
    """
    try:
        start = method.init_server(torch.Generator().manual_seed(seed))
        server = tensors.unleaves(start, safetensors.torch.load(data), exact=False)
    except (SafetensorError, ShapeError, ValueError, KeyError) as error:
        raise CheckpointError(f"it is no state of {type(method).__name__}: {error}") from error
    if not all(bool(leaf.isfinite().all()) for leaf in tensors.leaves(server).values() if leaf.is_floating_point()):
        raise CheckpointError("it holds numbers that are not finite")
    return server
