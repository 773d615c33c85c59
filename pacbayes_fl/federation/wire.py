"""A round as a network sees it: flat names and tensors, checked on arrival. No transport is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ClientError, ShapeError
from pacbayes_fl.methods.base import Method
from pacbayes_fl.noise import Engine, Noise

Flat = dict[str, Tensor]


class RoundConfig(TypedDict):
    """Numbers of a round that a client needs beside the message."""

    seed: int
    round: int
    noise: NotRequired[Engine]  # of the federation's plan; "philox" when not given


def flatten(tree: Any) -> Flat:
    """Lay a tree out for the wire.

    Args:
        tree: message, state or update.

    Returns:
        Contiguous tensors [*] on the CPU, by name.
    """
    return {name: leaf.detach().cpu().contiguous() for name, leaf in tensors.leaves(tree).items()}


def handle_train(
    method: Method[Any, Any, Any, Any],
    message: Mapping[str, Tensor],
    config: RoundConfig,
    state: Mapping[str, Tensor] | None,
    batch: ClientBatch,
) -> tuple[Flat, Flat]:
    """Answer a training request: the remote half of `engine.rounds`, for the clients of one device.

    Args:
        method: the same value as on the server.
        message: what `flatten(method.broadcast(server))` gave, leaves [*].
        config: seed, round and engine of noise of the federation's plan.
        state: what the last call returned, leaves [K, *]; None for a client that never took part.
        batch: the clients' rows, usually K = 1.

    Returns:
        Update and new state, flat.

    Raises:
        ShapeError: when message or state do not fit the method.
    """
    device = batch.x.device
    like = method.broadcast(method.init_server(torch.Generator()))
    down = tensors.tree_map(lambda leaf: leaf.to(device), tensors.unleaves(like, message))
    fresh = method.init_clients(down, batch)
    kept = fresh if state is None else tensors.unleaves(fresh, state)
    kept = tensors.tree_map(lambda leaf: leaf.to(device), kept)
    noise = Noise(config["seed"], config["round"], batch.ids, device, config.get("noise", "philox"))
    update, new = method.client(down, kept, batch, noise)
    return flatten(update), flatten(new)


def collect(expected: Any, replies: Mapping[str, Mapping[str, Tensor]]) -> Any:
    """Join the updates of remote clients after checking names, shapes and dtypes exactly.

    Args:
        expected: an update of the right structure for one client, leaves [1, *].
        replies: flat update by client name, in the order in which they are to be joined.

    Returns:
        The update with leaves [K, *].

    Raises:
        ClientError: naming the client whose reply does not fit, before anything is used; or when nobody replied.
    """
    if not replies:
        raise ClientError("no client replied", cause="no replies")
    updates = []
    for name, flat in replies.items():
        if strange := [leaf for leaf, value in flat.items() if not isinstance(value, Tensor)]:
            raise ClientError(
                f"its update does not fit: {strange[0]!r} is not a tensor", client=name, cause="no tensor"
            )
        try:
            updates.append(tensors.unleaves(expected, flat))
        except ShapeError as error:
            raise ClientError(f"its update does not fit: {error}", client=name, cause="shape or dtype") from error
    return tensors.cat(updates)
