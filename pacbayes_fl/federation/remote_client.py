"""A client's half of a round over a network: it answers a request for training, or says why not."""

from __future__ import annotations

import json
from typing import get_args

import torch

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import DeployError, NumericalError, ShapeError
from pacbayes_fl.federation import arrays
from pacbayes_fl.federation.arrays import shown
from pacbayes_fl.federation.messages import (
    REQUEST,
    Kept,
    Reply,
    Request,
    first_difference,
    flatten,
    is_astray,
    read_arrays,
    read_config,
    signature,
)
from pacbayes_fl.files import JsonMapping
from pacbayes_fl.methods.base import AnyMethod, slowed
from pacbayes_fl.noise import Engine, Noise
from pacbayes_fl.tensors import AnyTree


def handle_train(
    method: AnyMethod,
    request: Request,
    kept: Kept | None,
    batch: ClientBatch,
    run: str | None = None,
    from_start: bool = False,
    compress: arrays.Compress = "none",
    tells_rows: bool = True,
) -> tuple[Reply, Kept]:
    """Answer a training request: the remote half of `engine.rounds`, for one client.

    Args:
        method: the same value as on the server.
        request: as received.
        kept: as returned by the last call; None for a new client.
        batch: the client's rows, K = 1.
        run: the run that it has joined; that of `kept`, or of its first request, when None.
        from_start: whether a new client begins with the parameters with which the federation began, as one does that
            was there from the start, and not with those of the request.
        compress: how floating-point numbers travel, both ways.
        tells_rows: whether the update says on how many rows it rests; else it weighs what an update of one row does.

    Returns:
        The reply, and the new state.

    Raises:
        DeployError: naming the mismatch of the request: a key, another client, run or method, a round that was
            answered before, parameters that are not those that their hash says, that are not finite, or that do not
            fit the method. Nothing is changed then.
        ShapeError: when the kept state does not fit the method.
        NumericalError: when the new state is not finite: the client has failed, and keeps the old one.
    """
    config = read_config(request, REQUEST, f"client {batch.names[0]!r}")
    name, number = batch.names[0], config["round"]
    if wrong := _unwanted(config, method, kept, batch, run):
        raise DeployError(wrong, client=name, round=number, cause="request")
    device = batch.x.device
    like = method.broadcast(method.init_server(torch.Generator()))
    try:
        message = read_arrays(like, request.arrays, compress)
    except ShapeError as error:
        raise DeployError(f"the parameters do not fit: {error}", client=name, round=number, cause="message") from error
    if arrays.digest(message) != config["parameters"]:
        what = "the parameters that came are not those that the request names by their hash"
        raise DeployError(what, client=name, round=number, cause="message", hint="send the request again")
    down = tensors.tree_map(lambda leaf: leaf.to(device), message)
    state = state_of(method, down, kept, batch, config["seed"] if from_start and number > 1 else None)
    noise = Noise(config["seed"], number, batch.ids, device, config["noise"])
    slower = method if config["rates"] == 1 else slowed(method, config["rates"])
    update, new = slower.client(down, state, batch, noise)
    kept_next = flatten(new)
    if not all(bool(leaf.isfinite().all()) for leaf in kept_next.values()):
        raise NumericalError("its state is not finite after the round", client=name, round=number)
    if not tells_rows:
        update = method.registered(update, torch.ones_like(batch.size), batch.ids)
    header = {"run": config["run"], "round": number, "client": name, "parameters": config["parameters"]}
    return Reply(header, arrays.pack(update, compress)), Kept(config["run"], number, kept_next)


def state_of(method: AnyMethod, message: AnyTree, kept: Kept | None, batch: ClientBatch, seed: int | None) -> AnyTree:
    """Give the state of a client between rounds.

    Args:
        method: the algorithm.
        message: of the server, on the client's device.
        kept: what it kept; None for a client that has not trained.
        batch: the client's rows, K = 1.
        seed: with which the federation began, where a client that has not trained begins with its first parameters and
            not with the message.

    Returns:
        Leaves [1, *].

    Raises:
        DeployError: when what it kept is not finite.
        ShapeError: when that does not fit the method.
    """
    device = batch.x.device
    if seed is not None:
        first = method.broadcast(method.init_server(torch.Generator().manual_seed(seed)))
        message = tensors.tree_map(lambda leaf: leaf.to(device), first)
    fresh = method.init_clients(message, batch)
    if kept is None:
        return fresh
    if any(is_astray(leaf) for leaf in kept.state.values()):
        raise DeployError("what it kept is not finite", client=batch.names[0], round=kept.round, cause="state")
    return tensors.tree_map(lambda leaf: leaf.to(device), tensors.unleaves(fresh, kept.state))


def _unwanted(config: JsonMapping, method: AnyMethod, kept: Kept | None, batch: ClientBatch, run: str | None) -> str:
    """The reason to reject a request; "" for none."""
    run = kept.run if run is None and kept is not None else run
    if batch.clients != 1 or config["client"] != batch.names[0]:
        return (
            f"the request is for client {shown(config['client'])}, and here is {', '.join(map(shown, batch.names[:3]))}"
        )
    if run is not None and config["run"] != run:
        return f"the request is of run {shown(config['run'])}, and the client takes part in {shown(run)}"
    if kept is not None and config["round"] <= kept.round:
        return f"the request is of round {config['round']}, and the client has answered round {kept.round}"
    if not (1 <= config["round"] < 2**32 and 0 <= config["seed"] < 2**32 and config["noise"] in get_args(Engine)):
        return f"no round has number {config['round']}, seed {config['seed']} and noise {shown(config['noise'])}"
    if not 0 < config["rates"] <= 1:
        return f"learning rates can come to a part of them, not to {config['rates']:g} of them"
    if (own := signature(method)) != config["method"]:
        try:
            other = json.loads(config["method"])
        except (ValueError, RecursionError):
            other = None
        return f"the server runs another method: {first_difference(json.loads(own), other)}"
    return ""
