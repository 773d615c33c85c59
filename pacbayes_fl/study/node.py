"""The node's half of a study: it scales the rows of its clients, says what leaves it, and answers the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from pacbayes_fl.data import tables
from pacbayes_fl.errors import DataError, DeployError, PacBayesFLError
from pacbayes_fl.federation import arrays, federation_state, frames, mail
from pacbayes_fl.federation.node import Memories, Node
from pacbayes_fl.federation.wire import expected_update
from pacbayes_fl.study import apart, held_rows
from pacbayes_fl.study.apart import Hello
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare


class StudyNode:
    """A node that takes part in a study with the clients whose rows it holds.

    Args:
        study: of the deployment; its [data] says where this node's rows are.
        dataset: rows, also of other clients, in their own units.
        memories: of its clients.
        clients: names of those that take part from here; all that are no new ones when None.

    Raises:
        StudyError: when the study takes more of clients than updates.
        DataError: naming a client that is not in the data.
    """

    def __init__(
        self, study: Study, dataset: tables.Dataset, memories: Memories, clients: Sequence[str] | None = None
    ) -> None:
        """Scale the rows, and build the method."""
        apart.check(study)
        own = _of(dataset, clients)
        known = held_rows.divide(study, own).dataset
        self._method, groups = prepare(study, known, {}, apart.settle(study, known))
        self._batch = groups["existing"].train
        self.study, self.hello = study, Hello.of(study, own, groups["existing"])
        self._node, self._memories = Node(self._method, self._batch, memories), memories

    @property
    def leaves(self) -> list[str]:
        """What leaves the node, a line each, for whoever decides whether it joins."""
        start = federation_state.start(self._method, self._batch, self.study.plan)
        update = expected_update(self._method, start.server, self._batch)
        size = arrays.size(arrays.pack(update))
        private = self.study.privacy.epsilon is not None
        rows = "withheld" if private else ", ".join(f"{name} {rows}" for name, rows in self.hello.clients.items())
        columns = ", ".join(name for name, _ in (*self.hello.features, self.hello.target))
        noise = ", clipped and hidden by noise at the server" if private else ""
        return [
            f"names of clients: {', '.join(self.hello.clients)}",
            f"numbers of training rows: {rows}",
            f"names and units of columns: {columns}",
            f"in each round an update of {size} bytes a client{noise}: {', '.join(arrays.pack(update))}",
        ]

    def answer(self, data: bytes) -> bytes:
        """Answer a message of the server; whatever is wrong with it is an answer too.

        Args:
            data: as received.

        Returns:
            The answer.
        """
        try:
            frame = frames.decode(data)
            kind = frame.config.get("kind")
            if kind == "hello":
                return frames.encode({"hello": self.hello.to_json()}, {})
            if kind == "join":
                run, finished = frame.config.get("run"), frame.config.get("round")
                if not isinstance(run, str) or type(finished) is not int:
                    raise DeployError("the server names no run to join")
                return frames.encode({"new": self._node.join(run, finished)}, {})
            if kind == mail.TRAIN:
                requests = mail.unpack_requests(frame)
                return mail.pack_answers([(str(one.config.get("client")), self._node.answer(one)) for one in requests])
            raise DeployError("the server asks for something that this version does not know")
        except DeployError as error:
            return frames.encode({"refused": str(error)}, {})
        except PacBayesFLError as error:
            return frames.encode({"refused": f"it failed ({type(error).__name__}); the node's log tells more"}, {})


def _of(dataset: tables.Dataset, clients: Sequence[str] | None) -> tables.Dataset:
    """Leave aside clients of other nodes, and those that never train."""
    group = dataset.groups["existing"]
    names = group.train.names if clients is None else tuple(clients)
    if strange := [name for name in names if name not in group.train.names]:
        raise DataError(f"it is not in the data, which hold {', '.join(group.train.names[:5])}", client=strange[0])
    index = torch.tensor([group.train.names.index(name) for name in names], dtype=torch.int64)
    chosen = group.select(index)
    return replace(dataset, groups={"existing": replace(chosen, train=chosen.train.trim())})
