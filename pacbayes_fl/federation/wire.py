"""The server's half of a round over a network. No transport is imported here.

The server opens a round, sends every client that is asked its request and collects what comes back (`remote_player`
does); a client answers by `remote_client.handle_train`. Requests and replies are plain values beside arrays in bytes
(`federation.arrays`), as Flower's `ConfigRecord` and `ArrayRecord` carry them. The transport says who has sent a reply:
what the reply says of itself is compared with it, and counts for nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import DataError, DeployError, PacBayesFLError
from pacbayes_fl.federation import arrays
from pacbayes_fl.federation.arrays import shown
from pacbayes_fl.federation.frames import Array
from pacbayes_fl.federation.messages import (
    REPLY,
    Member,
    Refused,
    Reply,
    Request,
    byte_budget,
    read_arrays,
    read_config,
    signature,
)
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods.base import AnyMethod, slowed
from pacbayes_fl.noise import Noise
from pacbayes_fl.tensors import AnyTree

_STRANGERS = 16
_WORDS = 200  # characters of a reason that a client gives


@dataclass(frozen=True)
class Round:
    """A round that the server has opened; see `open_round`.

    Args:
        run: random identifier of the run.
        number: of the round, from 1.
        method: the algorithm.
        plan: how the federation runs.
        members: all clients of the federation, by name.
        asked: names of the clients in the round.
        expected: an update of the right structure for one client, leaves [1, *].
        message: for all clients, in bytes.
        parameters: its hash.
        signature: of the method as it was before any round was undone.
        rates: factor of the learning rates.
        keep: False where the round is only tried: clients go on from the states that they have.
        compress: how floating-point numbers travel, both ways.
        uncounted: of clients whose last answer did not count, the round from which on none has, by name.
    """

    run: str
    number: int
    method: AnyMethod
    plan: FederationPlan
    members: Mapping[str, Member]
    asked: tuple[str, ...]
    expected: AnyTree
    message: Mapping[str, Array]
    parameters: str
    signature: str
    rates: float = 1.0
    keep: bool = True
    compress: arrays.Compress = "none"
    uncounted: Mapping[str, int] = field(default_factory=dict)

    def request(self, client: str) -> Request:
        """Write a client's request.

        Args:
            client: one of `asked`.

        Returns:
            The request for the transport.

        Raises:
            DeployError: when the client is not asked in this round.
        """
        if client not in self.asked:
            raise DeployError("it is not asked in this round", client=client, round=self.number)
        config = {"run": self.run, "round": self.number, "client": client, "parameters": self.parameters}
        config |= {"method": self.signature, "rates": self.rates, "seed": self.plan.seed, "noise": self.plan.noise}
        config |= {"keep": self.keep, "uncounted": self.uncounted.get(client, 0)}
        return Request(config, self.message)

    @property
    def budget(self) -> int:
        """Largest number of bytes of a reply's arrays, also as a limit for the transport."""
        return byte_budget(self.expected, self.compress)


def open_round(
    method: AnyMethod,
    server: AnyTree,
    plan: FederationPlan,
    run: str,
    number: int,
    clients: Mapping[str, Member],
    expected: AnyTree,
    asked: Iterable[str] | None = None,
    rates: float = 1.0,
    keep: bool = True,
    compress: arrays.Compress = "none",
) -> Round:
    """Open a round: serialise and hash the message once for all clients.

    Args:
        method: the algorithm.
        server: its state after the last round.
        plan: how the federation runs.
        run: random identifier of the run.
        number: of the round, from 1.
        clients: all clients of the federation, by name, in the order in which updates are joined.
        expected: an update of the right structure for one client, leaves [1, *]; see `expected_update`.
        asked: names of the cohort; all when None.
        rates: factor of the method's learning rates, 1 until a round is undone.
        keep: False where the round is only tried.
        compress: how floating-point numbers travel, both ways.

    Returns:
        The round.

    Raises:
        DeployError: when a client of the round is not registered.
    """
    names = tuple(clients) if asked is None else tuple(asked)
    if strange := [name for name in names if name not in clients]:
        raise DeployError("it is asked and not registered", client=strange[0], round=number)
    message = method.broadcast(server)
    header = arrays.pack(message, compress), arrays.digest(arrays.rounded(message, compress)), signature(method)
    slower = method if rates == 1 else slowed(method, rates)
    return Round(run, number, slower, plan, clients, names, expected, *header, rates, keep, compress)


def expected_update(method: AnyMethod, server: AnyTree, like: ClientBatch) -> AnyTree:
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


class Collected(NamedTuple):
    """Collected updates of a round.

    Args:
        update: of the clients that count, leaves [K, *], in the order of the federation; K = 0 when there is none.
        present: their names.
        reasons: why a reply was rejected or is missing, by client.
        came: whether a client that was asked has sent a reply of any kind.
    """

    update: AnyTree
    present: tuple[str, ...]
    reasons: Mapping[str, str]
    came: bool


def collect(opened: Round, replies: Iterable[tuple[str, Reply | Refused]]) -> Collected:
    """Check replies one by one; invalid ones are rejected by name and do not affect the others.

    A client counts once, by its first reply that fits, and by the rows with which it was registered.

    Args:
        opened: the round.
        replies: name of the sender, as the transport knows it, and its reply; in any order.

    Returns:
        The valid updates, and the reasons of rejection of the others.
    """
    good: dict[str, tuple[str, AnyTree]] = {}
    reasons: dict[str, list[str]] = {}
    strangers, came = 0, False
    for sender, reply in replies:
        if not isinstance(sender, str) or sender not in opened.members:
            if (strangers := strangers + 1) <= _STRANGERS:
                reasons.setdefault(shown(sender), []).append("not registered")
            continue
        came = came or (sender in opened.asked and isinstance(reply, Reply))
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
    rejected = {name: "; ".join(dict.fromkeys(texts)) for name, texts in reasons.items()}
    present = tuple(name for name in opened.members if name in good)
    nobody = tensors.tree_map(lambda leaf: leaf[:0], opened.expected)
    update = tensors.cat([nobody, *(good[name][1] for name in present)])
    known = [opened.members[name] for name in present]
    rows = torch.tensor([member.rows for member in known], dtype=torch.float64)
    update = opened.method.registered(update, rows, [member.id for member in known])
    return Collected(update, present, rejected, came)


def _judged(opened: Round, sender: str, reply: Reply | Refused) -> AnyTree:
    """Check a reply: first its header, then its size, then its numbers."""
    if isinstance(reply, Refused):
        raise DeployError(f"it gives no update: {ascii(reply.reason[:_WORDS])[1:-1]}")
    config = read_config(reply, REPLY, "the reply")
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
    update = read_arrays(opened.expected, reply.arrays, opened.compress)
    if not bool(opened.method.possible(update).all()):
        raise DataError("its update holds values that the method cannot give, such as a negative variance")
    return update
