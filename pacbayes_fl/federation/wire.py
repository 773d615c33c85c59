"""A round as a network sees it: requests and replies that are checked on arrival. No transport is imported here.

The server opens a round, sends every client that is asked its request, collects what comes back and closes the round; a
client answers by `handle_train`. Requests and replies are plain values beside arrays in bytes (`federation.arrays`), as
Flower's `ConfigRecord` and `ArrayRecord` carry them. The transport says who has sent a reply: what the reply says of
itself is compared with it, and counts for nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ClientError, DataError, DeployError, NumericalError, PacBayesFLError, ShapeError
from pacbayes_fl.federation import arrays
from pacbayes_fl.federation.arrays import Array, Serialised, shown
from pacbayes_fl.federation.engine import AnyMethod
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.federation.reduction import RobustAccumulator
from pacbayes_fl.federation.watch import summary
from pacbayes_fl.methods.base import slowed
from pacbayes_fl.noise import Engine, Noise
from pacbayes_fl.results_rounds import RoundRecord

Flat = dict[str, Tensor]

SLACK = 1.1
"""A request or reply may take so many times the bytes of one that is as expected."""

_REPLY = (("run", str), ("round", int), ("client", str), ("parameters", str))
_REQUEST = (*_REPLY, ("method", str), ("rates", float), ("seed", int), ("noise", str))
_STRANGERS = 16


class Request(NamedTuple):
    """What a client is asked.

    Args:
        config: run, round, client, parameters (hash of `arrays`), method (see `signature`), rates (what is left of its
            learning rates after rounds that were undone), seed and noise; other keys are not looked at.
        arrays: what the server broadcasts, by flat name.
    """

    config: Mapping[str, Any]
    arrays: Mapping[str, Serialised | Tensor]


class Reply(NamedTuple):
    """What a client answers.

    Args:
        config: run, round, client, and parameters: hash of those that it started from, as it received them.
        arrays: its update, leaves [1, *], by flat name.
    """

    config: Mapping[str, Any]
    arrays: Mapping[str, Serialised | Tensor]


class Kept(NamedTuple):
    """What a client keeps between rounds.

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


def members(batch: ClientBatch) -> dict[str, Member]:
    """Register the clients of a batch.

    Args:
        batch: their rows.

    Returns:
        Members by name.
    """
    rows = map(int, batch.size.tolist())
    return {name: Member(i, m) for name, i, m in zip(batch.names, batch.ids, rows, strict=True)}


def flatten(tree: Any) -> Flat:
    """Lay a tree out by name.

    Args:
        tree: message, state or update.

    Returns:
        Contiguous tensors [*] on the CPU, by name.
    """
    return {name: leaf.detach().cpu().contiguous() for name, leaf in tensors.leaves(tree).items()}


def signature(method: AnyMethod) -> str:
    """Write down what server and clients must agree on: a method's class and hyper-parameters, and those of its parts.

    Args:
        method: the algorithm.

    Returns:
        JSON.
    """
    return json.dumps(_described(method), sort_keys=True)


def _described(value: Any) -> Any:
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


def _difference(mine: Any, theirs: Any, name: str = "") -> str:
    """Name the first thing in which two descriptions differ."""
    if isinstance(mine, dict) and isinstance(theirs, dict) and mine.get("") == theirs.get(""):
        for key in sorted(mine.keys() | theirs.keys()):
            if mine.get(key) != theirs.get(key):
                return _difference(mine.get(key), theirs.get(key), f"{name}.{key}" if name else key)
    here, there = (one.get("") if isinstance(one, dict) else one for one in (mine, theirs))
    return f"{name or 'method'} is {shown(here)} here and {shown(there)} on the server"


@dataclass(frozen=True)
class Round:
    """A round that the server has opened; see `open_round`.

    Args:
        run: what sets this run apart from all others, a random text.
        number: of the round, from 1.
        method: the algorithm.
        plan: how the federation runs.
        server: state before the round.
        members: all clients of the federation, by name.
        asked: names of those that are asked.
        expected: an update of the right structure for one client, leaves [1, *].
        message: what all are sent, in bytes.
        parameters: its hash.
        signature: of the method as it was before any round was undone.
        rates: what is left of its learning rates.
        aggregator: makes the round private, if it is: the mean is over a number that does not depend on who replied,
            and the record tells nothing of who did.
    """

    run: str
    number: int
    method: AnyMethod
    plan: FederationPlan
    server: Any
    members: Mapping[str, Member]
    asked: tuple[str, ...]
    expected: Any
    message: Mapping[str, Array]
    parameters: str
    signature: str
    rates: float = 1.0
    aggregator: PrivateAggregator | None = None

    def request(self, client: str) -> Request:
        """Write a client's request.

        Args:
            client: one of `asked`.

        Returns:
            What the transport has to carry.

        Raises:
            DeployError: when the client is not asked in this round.
        """
        if client not in self.asked:
            raise DeployError("it is not asked in this round", client=client, round=self.number)
        config = {"run": self.run, "round": self.number, "client": client, "parameters": self.parameters}
        config |= {"method": self.signature, "rates": self.rates, "seed": self.plan.seed, "noise": self.plan.noise}
        return Request(config, self.message)

    @property
    def budget(self) -> int:
        """Bytes that the arrays of a reply may take: what a transport can be told, too."""
        return _budget(self.expected)


def open_round(
    method: AnyMethod,
    server: Any,
    plan: FederationPlan,
    run: str,
    number: int,
    clients: Mapping[str, Member],
    expected: Any,
    asked: Iterable[str] | None = None,
    aggregator: PrivateAggregator | None = None,
    rates: float = 1.0,
) -> Round:
    """Open a round: hash and lay out once what every client is sent.

    Args:
        method: the algorithm.
        server: its state after the last round.
        plan: how the federation runs.
        run: what sets this run apart from all others, a random text.
        number: of the round, from 1.
        clients: all clients of the federation, by name, in the order in which updates are joined.
        expected: an update of the right structure for one client, leaves [1, *]; see `expected_update`.
        asked: names of the cohort; all when None.
        aggregator: makes the round private; who is asked is who it draws (`PrivateAggregator.draw`).
        rates: what is left of the method's learning rates, 1 until a round is undone.

    Returns:
        The round.

    Raises:
        DeployError: when somebody is asked who is not registered.
    """
    names = tuple(clients) if asked is None else tuple(asked)
    if strange := [name for name in names if name not in clients]:
        raise DeployError("it is asked and not registered", client=strange[0], round=number)
    message = method.broadcast(server)
    told = arrays.pack(message), arrays.digest(message), signature(method)
    slower = method if rates == 1 else slowed(method, rates)
    return Round(run, number, slower, plan, server, clients, names, expected, *told, rates, aggregator)


def expected_update(method: AnyMethod, server: Any, like: ClientBatch) -> Any:
    """Find the structure of one client's update by playing the client once.

    Args:
        method: the algorithm.
        server: its state, any round's.
        like: a client with columns as the federation's; the numbers are not used.

    Returns:
        An update, leaves [1, *].
    """
    message, one = method.broadcast(server), like.select(torch.zeros(1, dtype=torch.int64)).trim()
    update, _ = method.client(message, method.init_clients(message, one), one, Noise(0, 0, one.ids, one.x.device))
    return tensors.tree_map(torch.zeros_like, update)


def handle_train(
    method: AnyMethod, request: Request, kept: Kept | None, batch: ClientBatch, run: str | None = None
) -> tuple[Reply, Kept]:
    """Answer a training request: the remote half of `engine.rounds`, for one client.

    Args:
        method: the same value as on the server.
        request: what came.
        kept: what the last call returned; None for a client that never took part.
        batch: the client's rows, K = 1.
        run: the run that it has joined; that of `kept`, or of its first request, when None.

    Returns:
        The reply, and what to keep.

    Raises:
        DeployError: naming what of the request does not fit: a key, another client, run or method, a round that was
            answered before, parameters that are not those that their hash says, that are not finite, or that do not
            fit the method. Nothing is changed then.
        ShapeError: when what was kept does not fit the method.
    """
    config = _config(request, _REQUEST, f"client {batch.names[0]!r}")
    name, number = batch.names[0], config["round"]
    if wrong := _unwanted(config, method, kept, batch, run):
        raise DeployError(wrong, client=name, round=number, cause="request")
    device = batch.x.device
    like = method.broadcast(method.init_server(torch.Generator()))
    try:
        message = _received(like, request.arrays)
    except ShapeError as error:
        raise DeployError(f"the parameters do not fit: {error}", client=name, round=number, cause="message") from error
    if arrays.digest(message) != config["parameters"]:
        what = "the parameters that came are not those that the request names by their hash"
        raise DeployError(what, client=name, round=number, cause="message", hint="send the request again")
    down = tensors.tree_map(lambda leaf: leaf.to(device), message)
    state = fresh = method.init_clients(down, batch)
    if kept is not None:
        state = tensors.tree_map(lambda leaf: leaf.to(device), tensors.unleaves(fresh, kept.state))
        if any(_astray(leaf) for leaf in kept.state.values()):
            raise DeployError("what it kept is not finite", client=name, round=number, cause="state")
    noise = Noise(config["seed"], number, batch.ids, device, config["noise"])
    slower = method if config["rates"] == 1 else slowed(method, config["rates"])
    update, new = slower.client(down, state, batch, noise)
    told = {"run": config["run"], "round": number, "client": name, "parameters": config["parameters"]}
    return Reply(told, arrays.pack(update)), Kept(config["run"], number, flatten(new))


def _unwanted(
    config: Mapping[str, Any], method: AnyMethod, kept: Kept | None, batch: ClientBatch, run: str | None
) -> str:
    """Say why a request is not to be answered; "" when it is."""
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
    if (mine := signature(method)) != config["method"]:
        try:
            theirs = json.loads(config["method"])
        except (ValueError, RecursionError):
            theirs = None
        return f"the server runs another method: {_difference(json.loads(mine), theirs)}"
    return ""


def _config(message: Request | Reply, wanted: Iterable[tuple[str, type]], whose: str) -> Mapping[str, Any]:
    """Check that the plain values are there and of their types."""
    config, sent = (getattr(message, name, None) for name in ("config", "arrays"))
    if not isinstance(config, Mapping) or not isinstance(sent, Mapping):
        raise DeployError(f"{whose}: what came has no config or no arrays, but is {type(message).__name__}")
    for key, kind in wanted:
        if type(config.get(key)) is not kind:
            got = shown(config[key]) if key in config else "nothing"
            raise DeployError(f"{whose}: {key!r} must be {kind.__name__}, got {got}", cause="config")
    return config


def _budget(like: Any) -> int:
    return int(SLACK * arrays.size(arrays.pack(like)))


def _received(like: Any, got: Mapping[str, Any]) -> Any:
    """Read arrays whose size is judged first; floating leaves are finite, and so is the square of their norm."""
    if (came := arrays.size(got)) > (most := _budget(like)):
        raise ShapeError(f"{came} bytes, and at most {most} are expected")
    tree = arrays.unpack(like, got)
    if astray := [name for name, leaf in tensors.leaves(tree).items() if _astray(leaf)]:
        raise ShapeError(f"leaf {astray[0]!r} is not finite, or too large to be squared")
    return tree


def _astray(leaf: Tensor) -> bool:
    return leaf.is_floating_point() and not bool(leaf.double().square().sum().isfinite())


class Collected(NamedTuple):
    """What came of a round.

    Args:
        update: of the clients that count, leaves [K, *], in the order of the federation; K = 0 when there is none.
        present: their names.
        reasons: why something did not count, by the name of who sent it, or was asked and sent nothing.
    """

    update: Any
    present: tuple[str, ...]
    reasons: Mapping[str, str]


def collect(opened: Round, replies: Iterable[tuple[str, Reply]]) -> Collected:
    """Check replies one by one; those that do not fit are left out by name and touch nobody else.

    A client counts once, by its first reply that fits, and by the rows with which it was registered.

    Args:
        opened: the round.
        replies: name of the sender, as the transport knows it, and what it has sent; in any order.

    Returns:
        What counts, and why the rest does not.

    Raises:
        ClientError: when fewer than `plan.min_clients` count; not in a private round, whose release is due.
        NumericalError: when one of those that were asked does not count and `plan.on_bad_client` is "stop".
    """
    good: dict[str, tuple[str, Any]] = {}
    reasons: dict[str, list[str]] = {}
    strangers = 0
    for sender, reply in replies:
        if not isinstance(sender, str) or sender not in opened.members:
            if (strangers := strangers + 1) <= _STRANGERS:
                reasons.setdefault(shown(sender), []).append("not registered")
            continue
        try:
            update = _judged(opened, sender, reply)
        except PacBayesFLError as error:
            reasons.setdefault(sender, []).append(str(error))
            continue
        except Exception as error:  # what somebody else has made may fail in any way where it is read
            text = f"what came cannot be read: {type(error).__name__}: {shown(str(error))}"
            reasons.setdefault(sender, []).append(text)
            continue
        code = arrays.digest(update)
        if good.setdefault(sender, (code, update))[0] != code:
            reasons.setdefault(sender, []).append("a second reply that differs from the first, which counts")
    if strangers > _STRANGERS:
        reasons["..."] = [f"{strangers - _STRANGERS} more replies of clients that are not registered"]
    for name in opened.asked:
        if name not in good:
            reasons.setdefault(name, ["no reply"])
    told = {name: "; ".join(dict.fromkeys(texts)) for name, texts in reasons.items()}
    present = tuple(name for name in opened.members if name in good)
    if opened.aggregator is None:
        _enough(opened, present, told)
    nobody = tensors.tree_map(lambda leaf: leaf[:0], opened.expected)
    update = tensors.cat([nobody, *(good[name][1] for name in present)])
    known = [opened.members[name] for name in present]
    rows = torch.tensor([member.rows for member in known], dtype=torch.float64)
    return Collected(opened.method.registered(update, rows, [member.id for member in known]), present, told)


def _judged(opened: Round, sender: str, reply: Reply) -> Any:
    """Check a reply: first what it says of itself, then its size, then its numbers."""
    config = _config(reply, _REPLY, "the reply")
    if config["client"] != sender:
        raise DeployError(f"a reply of client {shown(config['client'])} under another name")
    if config["run"] != opened.run:
        raise DeployError(f"a reply of run {shown(config['run'])} arrived in run {shown(opened.run)}")
    if config["round"] != opened.number:
        raise DeployError(f"round {shown(config['round'])} arrived in round {opened.number}")
    if sender not in opened.asked:
        raise DeployError("not asked in this round")
    if config["parameters"] != opened.parameters:
        raise DeployError("it started from other parameters than those that were sent")
    update = _received(opened.expected, reply.arrays)
    if not bool(opened.method.possible(update).all()):
        raise DataError("its update holds values that the method cannot give, such as a negative variance")
    return update


def _enough(opened: Round, present: tuple[str, ...], reasons: Mapping[str, str]) -> None:
    missing = [name for name in opened.asked if name not in present]
    if missing and opened.plan.on_bad_client == "stop":
        raise NumericalError(reasons[missing[0]], client=missing[0], round=opened.number)
    if len(present) < opened.plan.min_clients:
        why = "; ".join(f"{name}: {reasons[name]}" for name in missing[:3])
        raise ClientError(
            f"{len(present)} of {len(opened.asked)} clients gave an update that counts, {opened.plan.min_clients} are "
            f"needed ({why})",
            client=missing[0] if missing else None,
            round=opened.number,
            hint="nothing was changed; the last round's state holds",
        )


def close_round(opened: Round, found: Collected, medians: Sequence[float] = ()) -> tuple[Any, RoundRecord]:
    """Make the server's step of what has come.

    Args:
        opened: the round.
        found: what `collect` returned.
        medians: `steps.median` of the records before, oldest first, by which the plan's "clipped" bounds steps.

    Returns:
        The server's new state, and the record of the round.

    Raises:
        NumericalError: when the new state is not finite.
        PrivacyError: when the budget does not allow the round.
    """
    method, t, aggregator = opened.method, opened.number, opened.aggregator
    message, everybody = method.broadcast(opened.server), torch.ones(len(found.present), dtype=torch.bool)
    numbers: Mapping[str, Tensor] = {}
    if aggregator is not None:
        noisy_sum = aggregator.noisy_sum(method, message, t)
        noisy_sum.add(found.update, everybody)
        joined = noisy_sum.release()
    elif opened.plan.aggregate != "mean":
        steps = RobustAccumulator(method, message, opened.plan, medians)
        steps.add(found.update, everybody)
        joined, numbers = steps.release(), steps.numbers
    else:
        joined = found.update
    server = method.server(opened.server, joined, len(opened.members))
    if not all(bool(leaf.isfinite().all()) for leaf in tensors.leaves(server).values()):
        raise NumericalError("the server's state is not finite", round=t, hint="lower the learning rate")
    values = {name: float(value) for name, value in {**method.report(server, joined), **numbers}.items()}
    if aggregator is not None:
        return server, aggregator.record(t, values)
    norms = tensors.norm(method.client_steps(message, found.update))
    lengths = {} if norms is None else dict(zip(found.present, norms.tolist(), strict=True))
    dropped = tuple(name for name in opened.asked if name not in found.present)
    record = RoundRecord(t, len(found.present), dropped, values, steps=summary(lengths), reasons=found.reasons)
    return server, replace(record, rates=opened.rates)
