"""How requests get to clients and replies to the server: what a network must offer, and one in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from pacbayes_fl.federation import frames
from pacbayes_fl.federation.messages import Refused, Reply, Request, answer_from_bytes, to_bytes
from pacbayes_fl.federation.node import Node


class Transport(Protocol):
    """A network between the server and its clients."""

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[tuple[str, Reply | Refused]]:
        """Send requests, and yield what comes back with its sender, until all of it came or a deadline has passed.

        Args:
            requests: by the client's name; their arrays are the same.
        """


class Loopback:
    """Nodes in this process, reached by messages in bytes.

    Args:
        nodes: whose clients have different names.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        """Look up who is where."""
        self.nodes = tuple(nodes)
        self._at = {name: node for node in self.nodes for name in node.clients}

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[tuple[str, Reply | Refused]]:
        """Ask one client after the other."""
        for name, request in requests.items():
            came = Request(*frames.decode(to_bytes(request)))
            yield name, answer_from_bytes(to_bytes(self._at[name].answer(came)))
