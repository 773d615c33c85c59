"""A node: the machine that holds the rows and the states of some clients, and answers requests for training."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

import torch

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import DeployError, PacBayesFLError
from pacbayes_fl.federation.arrays import Compress, shown
from pacbayes_fl.federation.client_calls import prepared
from pacbayes_fl.federation.messages import Kept, Refused, Reply, Request
from pacbayes_fl.federation.remote_client import handle_train, state_of
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.tensors import AnyTree

_LOG: Final = logging.getLogger(__name__)


class Memory(NamedTuple):
    """What a node remembers of a client in a run.

    Args:
        run: that the client takes part in.
        joined: rounds that were finished when it joined.
        last: its state after the round that it answered last; None before the first.
        before: its state before that round, with which it answers again where the round is repeated, and goes on where
            its answer did not count.
    """

    run: str
    joined: int
    last: Kept | None = None
    before: Kept | None = None

    def at(self, round: int, keep: bool, uncounted: int = 0) -> Kept | None:
        """Find the state in which a client begins a round.

        Args:
            round: its number.
            keep: False where the server only tries a round, which may then be the first again.
            uncounted: the round from which on no answer has counted; 0 where the last one did.

        Returns:
            The state; None for that of a client that has not trained. Of a round that is over it is the newest one,
            with which the request is refused.
        """
        if round == 1 and not keep:
            return None
        if self.last is not None and round == self.last.round:
            return self.before
        return self.counted(uncounted)

    def counted(self, uncounted: int) -> Kept | None:
        """Find the newest state whose answer counted; `before` is one always, as every round begins from one.

        Args:
            uncounted: the round from which on no answer has counted; 0 where the last one did.

        Returns:
            The state; None for that of a client of which no answer has counted.
        """
        return self.before if self.last is not None and 0 < uncounted <= self.last.round else self.last


class Joined(NamedTuple):
    """What a node remembers of the run that it takes part in.

    Args:
        run: its random identifier.
        scaling: how the columns of all clients are scaled, as JSON; "" where the node settles that itself.
    """

    run: str
    scaling: str = ""


class Memories(Protocol):
    """Where a node keeps what it remembers of its clients."""

    def load(self, client: str) -> Memory | None:
        """What is remembered of a client; None where nothing is."""

    def save(self, client: str, memory: Memory) -> None:
        """Remember it in place of what was; it is safe when this returns."""

    def joined(self) -> Joined | None:
        """The run that the node has joined; None where there is none."""

    def join(self, joined: Joined) -> None:
        """Remember the run that the node has joined; it is safe when this returns."""


class InMemory:
    """Memories that end with the process."""

    def __init__(self) -> None:
        """Remember nothing."""
        self.memories = dict[str, Memory]()
        self._joined: Joined | None = None

    def load(self, client: str) -> Memory | None:
        """What is remembered of a client."""
        return self.memories.get(client)

    def save(self, client: str, memory: Memory) -> None:
        """Remember it."""
        self.memories[client] = memory

    def joined(self) -> Joined | None:
        """The run that the node has joined."""
        return self._joined

    def join(self, joined: Joined) -> None:
        """Remember the run that the node has joined."""
        self._joined = joined


class Node:
    """Answers requests to the clients of one machine; an answer leaves only once the new state is safe.

    A server that was interrupted asks for its last round again, and one that undoes a round repeats it at smaller
    learning rates: a client answers the round that it answered last from the state that it had before. One whose answer
    did not count, as it came too late, goes on from there too: its state is that of a run that never asked it.

    Args:
        method: the same value as on the server.
        batch: training rows of its clients [K, N, *], in the method's units.
        memories: of its clients.
        compress: how floating-point numbers travel, both ways.
        tells_rows: whether updates say on how many rows they rest.
    """

    def __init__(
        self,
        method: AnyMethod,
        batch: ClientBatch,
        memories: Memories,
        compress: Compress = "none",
        tells_rows: bool = True,
    ) -> None:
        """Check a user's program on the rows."""
        self._method, self.memories, self._how = method, memories, (compress, tells_rows)
        rows = prepared(method, batch)
        self._rows: Mapping[str, ClientBatch] = {
            name: rows.select(torch.tensor([k])).trim() for k, name in enumerate(rows.names)
        }

    @property
    def clients(self) -> dict[str, int]:
        """Number of training rows of its clients, by name."""
        return {name: int(one.size) for name, one in self._rows.items()}

    def join(self, run: str, round: int) -> dict[str, bool]:
        """Let all clients take part in a run.

        Args:
            run: its random identifier.
            round: rounds that are finished.

        Returns:
            By name, whether the client begins anew: nothing is remembered of it in this run.
        """
        new = {}
        for name in self._rows:
            memory = self.memories.load(name)
            new[name] = memory is None or memory.run != run
            if new[name]:
                self.memories.save(name, Memory(run, round))
        return new

    def answer(self, request: Request) -> Reply | Refused:
        """Train a client, and remember its new state.

        Args:
            request: as received.

        Returns:
            The reply; or why there is none, where the request is at fault in words, and else by the kind of error
            alone, as its text can hold numbers of rows.
        """
        try:
            return self._answer(request)
        except DeployError as error:
            return Refused(str(error))
        except PacBayesFLError as error:
            _LOG.warning("%s: %s", type(error).__name__, error)
            return Refused(f"its training failed ({type(error).__name__}); the node's log tells more")

    def _answer(self, request: Request) -> Reply:
        name, number = request.config.get("client"), request.config.get("round")
        run, keep, uncounted = (request.config.get(key) for key in ("run", "keep", "uncounted"))
        if not isinstance(name, str) or name not in self._rows:
            raise DeployError(
                f"the request is for client {shown(name)}, and here is {', '.join(map(shown, self._rows))}"
            )
        memory = self.memories.load(name)
        if not (isinstance(run, str) and type(number) is type(uncounted) is int and isinstance(keep, bool)):
            raise DeployError("the request names no run or no round", client=name, cause="config")
        memory = Memory(run, number - 1) if memory is None else memory
        before, joined = memory.at(number, keep, uncounted), (memory.run, memory.joined == 0)
        reply, after = handle_train(self._method, request, before, self._rows[name], *joined, *self._how)
        if keep:
            self.memories.save(name, memory._replace(last=after, before=before))
        return reply

    def state(self, message: AnyTree, seed: int, uncounted: Mapping[str, int] = MappingProxyType({})) -> AnyTree:
        """Give the states of all clients between two rounds.

        Args:
            message: of the server.
            seed: with which the federation began.
            uncounted: of clients whose last answer did not count, the round from which on none has, by name.

        Returns:
            Leaves [K, *], in the order of `clients`.

        Raises:
            DeployError: when what a client kept is not finite.
            ShapeError: when it does not fit the method.
        """
        states = []
        for name, one in self._rows.items():
            memory = self.memories.load(name)
            last = None if memory is None else memory.counted(uncounted.get(name, 0))
            there = memory is not None and memory.joined == 0
            states.append(state_of(self._method, message, last, one, seed if there else None))
        return tensors.cat(states)
