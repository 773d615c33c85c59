"""Messages between server and clients: plain values beside arrays in bytes, checked on arrival."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import DeployError, ShapeError
from pacbayes_fl.federation import arrays, frames
from pacbayes_fl.federation.arrays import shown
from pacbayes_fl.federation.frames import Serialised
from pacbayes_fl.files import JsonMapping
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.tensors import AnyTree

Flat = dict[str, Tensor]

SLACK = 1.1
"""A request or reply may take so many times the bytes of one that is as expected."""

REPLY = (("run", str), ("round", int), ("client", str), ("parameters", str))
REQUEST = (*REPLY, ("method", str), ("rates", float), ("seed", int), ("noise", str), ("keep", bool), ("uncounted", int))


class Request(NamedTuple):
    """Request of the server to a client.

    Args:
        config: run, round, client, parameters (hash of `arrays`), method (see `signature`), rates (what is left of its
            learning rates after rounds that were undone), seed, noise, keep (False where the server only tries a
            round, and the client goes on from the state that it has) and uncounted (the round from which on none of
            the client's answers has counted; 0 where the last one did); other keys are not looked at.
        arrays: the broadcast message, by flat name.
    """

    config: JsonMapping
    arrays: Mapping[str, Serialised | Tensor]


class Reply(NamedTuple):
    """Reply of a client.

    Args:
        config: run, round, client, and parameters: hash of the parameters that it received.
        arrays: its update, leaves [1, *], by flat name.
    """

    config: JsonMapping
    arrays: Mapping[str, Serialised | Tensor]


class Refused(NamedTuple):
    """Instead of a reply: why a client gives none.

    Args:
        reason: in words.
    """

    reason: str


class Kept(NamedTuple):
    """State of a client between rounds.

    Args:
        run: that it takes part in.
        round: that it answered last.
        state: of the method, leaves [1, *], by flat name.
    """

    run: str
    round: int
    state: Flat


class Member(NamedTuple):
    """A client as it was registered.

    Args:
        id: its number, which seeds its noise.
        rows: that it trains on.
    """

    id: int
    rows: int


def members(batch: ClientBatch, sizes: Sequence[int] | None = None) -> dict[str, Member]:
    """Register the clients of a batch.

    Args:
        batch: their rows.
        sizes: how many each has, where the rows are elsewhere.

    Returns:
        Members by name.
    """
    rows = map(int, batch.size.tolist()) if sizes is None else sizes
    return {name: Member(i, m) for name, i, m in zip(batch.names, batch.ids, rows, strict=True)}


def to_bytes(message: Request | Reply | Refused) -> bytes:
    """Write a message in one piece; `frames.decode` reads it.

    Args:
        message: whose arrays are in bytes.

    Returns:
        Its frame.

    Raises:
        DeployError: when they are tensors.
    """
    if isinstance(message, Refused):
        return frames.encode({"refused": message.reason}, {})
    return frames.encode(message.config, in_bytes(message))


def in_bytes(message: Request | Reply) -> dict[str, Serialised]:
    """Give the arrays of a message that is to travel.

    Args:
        message: whose arrays are in bytes.

    Returns:
        The arrays by name.

    Raises:
        DeployError: when they are tensors.
    """
    read = {name: one for name, one in message.arrays.items() if not isinstance(one, Tensor)}
    if len(read) < len(message.arrays):
        raise DeployError("a message's arrays must be in bytes, got tensors", hint="arrays.pack")
    return read


def answer_from_bytes(data: bytes) -> Reply | Refused:
    """Read what a client has answered.

    Args:
        data: as received.

    Returns:
        The reply, or why there is none.

    Raises:
        DeployError: when it is no message.
    """
    config, sent = frames.decode(data)
    return Refused(str(config["refused"])) if "refused" in config else Reply(config, sent)


def flatten(tree: AnyTree) -> Flat:
    """Lay a tree out by name.

    Args:
        tree: message, state or update.

    Returns:
        Contiguous tensors [*] on the CPU, by name.
    """
    return {name: leaf.detach().cpu().contiguous() for name, leaf in tensors.leaves(tree).items()}


def signature(method: AnyMethod) -> str:
    """Serialise the configuration that server and clients must share: a method's class and hyper-parameters, nested.

    Args:
        method: the algorithm.

    Returns:
        JSON.
    """
    return json.dumps(_described(method), sort_keys=True)


def _described(value: object) -> Any:
    if is_dataclass(value):
        own = {field.name: _described(getattr(value, field.name)) for field in fields(value)}
        return {"": type(value).__name__} | own
    if isinstance(value, Mapping):
        return {str(key): _described(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_described(one) for one in value]
    if isinstance(value, Tensor):
        return arrays.digest({"": value})
    return value if isinstance(value, str | int | float | None) else type(value).__name__


def first_difference(own: Any, other: Any, name: str = "") -> str:
    """Name the first thing in which the methods of two `signature`s differ.

    Args:
        own: as read from JSON, of the client's method.
        other: of the server's, or whatever came instead.
        name: of the part that is compared.

    Returns:
        Its value on both sides.
    """
    if isinstance(own, dict) and isinstance(other, dict) and own.get("") == other.get(""):
        for key in sorted(own.keys() | other.keys()):
            if own.get(key) != other.get(key):
                return first_difference(own.get(key), other.get(key), f"{name}.{key}" if name else key)
    here, there = (one.get("") if isinstance(one, dict) else one for one in (own, other))
    return f"{name or 'method'} is {shown(here)} here and {shown(there)} on the server"


def read_config(message: Request | Reply, wanted: Iterable[tuple[str, type]], whose: str) -> JsonMapping:
    """Check that the plain values are there and of their types.

    Args:
        message: as received.
        wanted: `REPLY` or `REQUEST`.
        whose: name for the error.

    Returns:
        The values.

    Raises:
        DeployError: naming the key.
    """
    config, sent = (getattr(message, name, None) for name in ("config", "arrays"))
    if not isinstance(config, Mapping) or not isinstance(sent, Mapping):
        raise DeployError(f"{whose}: what came has no config or no arrays, but is {type(message).__name__}")
    for key, kind in wanted:
        if type(config.get(key)) is not kind:
            got = shown(config[key]) if key in config else "nothing"
            raise DeployError(f"{whose}: {key!r} must be {kind.__name__}, got {got}", cause="config")
    return config


def byte_budget(like: AnyTree, compress: arrays.Compress = "none") -> int:
    """Largest number of bytes of the arrays of a request or reply.

    Args:
        like: a tree of the structure that is expected, leaves [*].
        compress: how floating-point numbers travel.

    Returns:
        `SLACK` times what they take.
    """
    return int(SLACK * arrays.size(arrays.pack(like, compress)))


def read_arrays(like: AnyTree, got: JsonMapping, compress: arrays.Compress = "none") -> AnyTree:
    """Read arrays whose size is judged first; floating leaves are finite, and so is the square of their norm.

    Args:
        like: a tree of the structure that is expected, leaves [*].
        got: received arrays, by flat name.
        compress: how floating-point numbers have travelled.

    Returns:
        A tree of that structure.

    Raises:
        ShapeError: naming the leaf, or when it is too large.
    """
    if (came := arrays.size(got)) > (most := byte_budget(like, compress)):
        raise ShapeError(f"{came} bytes, and at most {most} are expected")
    tree = arrays.unpack(like, got, compress)
    if astray := [name for name, leaf in tensors.leaves(tree).items() if is_astray(leaf)]:
        raise ShapeError(f"leaf {astray[0]!r} is not finite, or too large to be squared")
    return tree


def is_astray(leaf: Tensor) -> bool:
    """Whether a tensor [*] is not finite, or too large to be squared.

    Args:
        leaf: [*], of any dtype; integers and flags never are.
    """
    return leaf.is_floating_point() and not bool(leaf.double().square().sum().isfinite())
