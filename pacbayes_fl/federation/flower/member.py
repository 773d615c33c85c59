"""A node's membership in a federation: its SuperNode, started again while the server does not know its key."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pacbayes_fl.federation.flower import commands, processes
from pacbayes_fl.federation.flower.processes import Processes

_AGAIN: Final = 3.0  # seconds after which a SuperNode that was not known is started again


@dataclass(frozen=True)
class Server:
    """The server that a node joins.

    Args:
        address: HOST:PORT of its SuperLink.
        keys: folder of the node's keys and the authority's certificate.
    """

    address: str
    keys: Path


class Member:
    """The SuperNode of a node.

    Args:
        running: in which it runs.
        server: that it joins.
        settings: for its ClientApp.
        say: told of what its owner can do something about.
    """

    def __init__(
        self, running: Processes, server: Server, settings: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        """Start it."""
        self._running, self._server, self._settings, self._say = running, server, settings, say
        self._began, self._waiting = 0.0, False
        self._start()
        say(f"joining {server.address}; Ctrl-C leaves")

    def look(self) -> None:
        """Start it again where the server did not know its key, which its owner may register at any time.

        Raises:
            DeployError: when it has ended for another reason.
        """
        log = self._running.ended("supernode")
        if log is None:
            return
        if processes.UNKNOWN not in log:
            self._running.check()
        if not self._waiting:
            key = self._server.keys / "node.pub"
            text = f"{self._server.address} knows no node of the key {key}, or has one connected by it"
            self._say(f"{text}; trying again until the server's owner has registered it")
            self._waiting = True
        if time.monotonic() > self._began + _AGAIN:
            self._start()

    def _start(self) -> None:
        self._began = time.monotonic()
        command = commands.of_node(self._server.keys, self._server.address, processes.free_port(), self._settings)
        self._running.start("supernode", command)
