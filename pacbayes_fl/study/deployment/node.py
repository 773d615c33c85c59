"""The node's half of a study: it scales the rows of its clients, says what leaves it, and answers the server."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import torch

from pacbayes_fl.data import tables
from pacbayes_fl.data.scaling import Shared
from pacbayes_fl.errors import DataError, DeployError, PacBayesFLError
from pacbayes_fl.federation import arrays, federation_state, frames, mail, public
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.messages import first_difference, signature
from pacbayes_fl.federation.node import Joined, Memories, Node
from pacbayes_fl.federation.watch import Watch
from pacbayes_fl.federation.wire import expected_update
from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.results.records import Result
from pacbayes_fl.study.deployment import agreement, node_run, roster
from pacbayes_fl.study.deployment.roster import Hello
from pacbayes_fl.study.evaluate import points
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.rows import held_rows, scaling
from pacbayes_fl.tensors import AnyTree

_LOG: Final = logging.getLogger(__name__)


class Released(NamedTuple):
    """A model that was released, as a node takes it.

    Args:
        method: the algorithm.
        server: its state.
        round: rounds finished.
        shared: how columns are scaled.
        spent: ledger of a private run; None of any other.
        released: its releases.
        units: of its study, see `agreement.units`.
    """

    method: AnyMethod
    server: AnyTree
    round: int
    shared: Shared
    spent: bytes | None
    released: int | None
    units: JsonMapping


class StudyNode:
    """A node that takes part in a study with the clients whose rows it holds.

    Args:
        study: of the deployment; its [data] says where this node's rows are.
        dataset: rows, also of other clients, in their own units.
        memories: of its clients.
        clients: names of those that take part from here, and of new ones, which get their models after the last round;
            all when None.
        results: says in which folder what the node makes of a run is kept; nothing is written when None.
        made: told of that folder once it is whole.

    Raises:
        StudyError: when the study takes more of clients than updates.
        DataError: naming a client that is not in the data.
    """

    def __init__(
        self,
        study: Study,
        dataset: tables.Dataset,
        memories: Memories,
        clients: Sequence[str] | None = None,
        results: Callable[[str], Path] | None = None,
        made: Callable[[Path], None] | None = None,
    ) -> None:
        """Scale the rows, and build the method."""
        roster.check(study)
        own = _of(dataset, clients)
        self.study, self._own, self._memories = study, own, memories
        self._results, self._told, self._remembered = results, made, ""
        self._division = held_rows.divide(study, own)
        known = self._division.dataset
        self._units = agreement.units(study, known)
        self._telling = roster.telling(study, known)
        self._settled = self._telling is None
        self._scale(roster.settle(study, known) if self._settled else roster.rehearsed(study, known))
        new = own.groups["new"].train.names if "new" in own.groups else ()
        self.hello = Hello.of(study, own, self._groups["existing"], new)
        joined = memories.joined()
        if joined is not None and joined.scaling and not self._settled:
            self._settle(joined.scaling)

    def _scale(self, shared: Shared) -> None:
        self._method, self._groups = prepare(self.study, self._division.dataset, {}, shared)
        how = self.study.deploy.compress, "rows" in roster.shares(self.study)
        self._batch = self._groups["existing"].train
        self._node = Node(self._method, self._batch, self._memories, *how)

    def _settle(self, text: str) -> None:
        self._scale(scaling.from_json(text.encode(), self._own))
        self._settled = True

    @property
    def leaves(self) -> list[str]:
        """What leaves the node, a line each, for whoever decides whether it joins."""
        start = federation_state.start(self._method, self._batch, self.study.plan)
        update = expected_update(self._method, start.server, self._batch)
        packed, shares = arrays.pack(update, self.study.deploy.compress), roster.shares(self.study)
        columns = ", ".join(name for name, _ in (*self.hello.features, self.hello.target))
        private = self.study.privacy.epsilon is not None
        noise = ", clipped and hidden by noise at the server" if private else ""
        rows = ", ".join(f"{name} {rows}" for name, rows in self.hello.clients.items())
        told = "not told"
        if self._telling is not None:
            told = f"{8 * self._telling.width} bytes a client before the first round{noise}"
        curve = "their mean over the node's clients, after some rounds, in some 100 bytes"
        table = "a line a client after the last round, in some 1000 bytes"
        hello = len(frames.encode({"hello": self.hello.to_json()}, {}))
        return [
            f"names of clients: {', '.join((*self.hello.clients, *self.hello.new))}",
            f"names and units of columns: {columns} ({hello} bytes with the names of clients)",
            f"numbers of training rows: {rows if 'rows' in shares else 'withheld'}",
            f"moments of columns: {told}",
            f"in each round an update of {arrays.size(packed)} bytes a client{noise}: {', '.join(packed)}",
            f"test scores: {curve if 'loss' in shares else 'not told'}",
            f"metrics: {table if 'metrics' in shares else 'not told'}",
        ]

    def answer(self, data: bytes) -> bytes:
        """Answer a message of the server; whatever is wrong with it is an answer too.

        Args:
            data: as received.

        Returns:
            The answer.
        """
        try:
            return self._answer(frames.decode(data))
        except DeployError as error:
            return frames.encode({"refused": str(error)}, {})
        except PacBayesFLError as error:
            _LOG.warning("%s: %s", type(error).__name__, error)
            return frames.encode({"refused": f"it failed ({type(error).__name__}); the node's log tells more"}, {})

    def _answer(self, frame: frames.Frame) -> bytes:
        config = frame.config
        kind = config.get("kind")
        if kind == "hello":
            return frames.encode({"hello": self.hello.to_json()}, {})
        if kind == "moments":
            if self._telling is None:
                raise DeployError("moments of columns are not told: deploy.share of the node's study has none")
            self._agree(config)
            told = roster.told(self.study, self._division.dataset, self._telling)
            return frames.encode({"clients": [*self.hello.clients]}, dict(arrays.pack({"moments": told})))
        if kind == "join":
            return frames.encode({"new": self._join(config)}, {})
        if kind in ("score", "finish"):
            state = self._state(frame)
            said: JsonTable = self._score(state) if kind == "score" else self._finish(frame, state)
            return frames.encode(said, {})
        if kind == mail.TRAIN:
            if not self._settled:
                raise DeployError("the node has not joined a run: it does not know how columns are scaled")
            self._remember()
            requests = mail.unpack_requests(frame)
            return mail.pack_answers([(str(one.config.get("client")), self._node.answer(one)) for one in requests])
        raise DeployError("the server asks for something that this version does not know")

    def _join(self, config: JsonMapping) -> dict[str, bool]:
        run, finished, text = config.get("run"), config.get("round"), config.get("scaling", "")
        if not isinstance(run, str) or type(finished) is not int or not isinstance(text, str):
            raise DeployError("the server names no run to join")
        self._agree(config)
        if self._telling is not None:
            if not text:
                raise DeployError("the server does not say how columns are scaled: its study shares no moments")
            self._settle(text)
        self._memories.join(Joined(run, text if self._telling is not None else ""))
        new = self._node.join(run, finished)
        if finished and (lost := [name for name, begins in new.items() if begins]):
            text = "nothing is remembered here of %s in this run: joining as new after round %d"
            _LOG.warning(text, ", ".join(lost[:5]), finished)
        return new

    def _agree(self, config: JsonMapping) -> None:
        """Refuse a server whose study differs in what a node cannot see in a round's requests."""
        own = {"seed": self.study.seed, "compress": self.study.deploy.compress}
        agreement.check(own, {key: config.get(key, value) for key, value in own.items()})
        agreement.check(self._units, config.get("units", self._units))

    def _remember(self) -> None:
        """Write down which rows the run sees, where it must not see all: of rows that change it would not be known.

        Raises:
            DataError: naming a client whose rows are not those that the run has seen.
            CheckpointError: when it cannot be written.
        """
        joined = self._memories.joined()
        if self._results is None or joined is None or self._division.bound_rows is None:
            return
        if joined.run != self._remembered:
            folder = self._results(joined.run)
            known = held_rows.TrainingHistory.read(folder).extended(self.study, self._own, self._division.dataset)
            known.save(folder)
            self._remembered = joined.run

    def _state(self, frame: frames.Frame) -> FederationState:
        """Read the server's model, and put the states of the clients beside it."""
        joined, run, number = self._memories.joined(), frame.config.get("run"), frame.config.get("round")
        halved, since = (frame.config.get(key) for key in ("halved", "uncounted"))
        if joined is None or run != joined.run or type(number) is not int or type(halved) is not int or halved < 0:
            raise DeployError("the message is of no run that the node has joined")
        if not isinstance(since, dict) or not all(type(first) is int for first in since.values()):
            raise DeployError("the server does not say whose last answers did not count")
        if "model" not in frame.arrays:
            raise DeployError("the message holds no model")
        server = public.from_bytes(self._method, frame.arrays["model"].data, self.study.seed)
        about = number, Watch(halved=halved, since=since), self.study.seed, self._batch
        return node_run.state_of(self._method, self._node, server, *about)

    def _score(self, state: FederationState) -> JsonTable:
        if "loss" not in roster.shares(self.study):
            raise DeployError("test scores are not told: deploy.share of the node's study has no 'loss'")
        method = federation_state.at_rates(self._method, state)
        totals = points.totals(method, state, self._groups["existing"], self.study.plan)
        return {"scores": {name: list(total) for name, total in totals.items()}}

    def _finish(self, frame: frames.Frame, state: FederationState) -> JsonTable:
        joined, ledger = self._memories.joined(), frame.arrays.get("ledger")
        folder = None if self._results is None or joined is None else self._results(joined.run)
        result = self._made(state, folder, None if ledger is None else ledger.data, frame.config.get("released"))
        if "metrics" not in roster.shares(self.study):
            if frame.config.get("metrics") is True:
                raise DeployError("metrics are not told: deploy.share of the node's study has no 'metrics'")
            return {"rows": []}
        rows = "rows" in roster.shares(self.study)
        told = [{"name": one.name, "group": one.group, "m": one.m if rows else 1} for one in result.clients]
        return {"rows": [one | {"metrics": dict(row.metrics)} for one, row in zip(told, result.clients, strict=True)]}

    def make(self, known: Released, folder: Path) -> None:
        """Make of a released model what the last message of a server would have the node make of its.

        Args:
            known: the release.
            folder: a run folder of the node's own clients.

        Raises:
            DeployError: when the release is of another method, or in other units.
            CheckpointError: as `node_run.finish`.
        """
        agreement.check(self._units, known.units, "the release's")
        if not self._settled:
            self._scale(known.shared)
            self._settled = True
        if (own := signature(self._method)) != (other := signature(known.method)):
            what = first_difference(json.loads(own), json.loads(other)).replace("on the server", "in the release")
            raise DeployError(f"the release is not of the node's study: {what}")
        about = known.round, Watch(), self.study.seed, self._batch
        state = node_run.state_of(self._method, self._node, known.server, *about)
        self._made(state, folder, known.spent, known.released)

    def _made(self, state: FederationState, folder: Path | None, spent: bytes | None, released: object) -> Result:
        made = node_run.Made(self.study, self._own, self._division, self._method, self._groups, state)
        result = node_run.finish(made, folder, spent, released)
        if folder is not None and self._told is not None:
            self._told(folder)
        return result


def _of(dataset: tables.Dataset, clients: Sequence[str] | None) -> tables.Dataset:
    """Leave aside clients of other nodes."""
    groups = dataset.groups
    known = {name: group for group in groups for name in groups[group].train.names}
    names = tuple(known) if clients is None else tuple(clients)
    if strange := [name for name in names if name not in known]:
        raise DataError(f"it is not in the data, which hold {', '.join([*known][:5])}", client=strange[0])
    own = {}
    for group, all_rows in groups.items():
        at = [all_rows.train.names.index(name) for name in names if known[name] == group]
        if at:
            own[group] = _trimmed(all_rows.select(torch.tensor(at, dtype=torch.int64)))
    if "existing" not in own:
        what = "it is a new one, and a node takes part with at least one client that trains"
        raise DataError(what, client=names[0], hint="a new client joins a release: pacbayes-fl join")
    return tables.restricted(dataset, own)


def _trimmed(group: tables.Group) -> tables.Group:
    """Leave out padding that other nodes' clients need."""
    train, times = group.train.trim(), group.times
    if times is not None:
        times = times._replace(train=times.train[:, : train.mask.shape[1]])
    return replace(group, train=train, times=times)
