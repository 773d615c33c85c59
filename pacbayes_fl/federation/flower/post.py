"""The server's end of Flower's network: messages to nodes go through the ServerApp that has called."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from pacbayes_fl.errors import UNREADABLE, DeployError
from pacbayes_fl.federation import frames
from pacbayes_fl.federation.frames import Array
from pacbayes_fl.federation.sockets import Line

_GOODBYE: Final = 3.0  # seconds for a ServerApp to end; one that waits for nodes does not hear it
_SLACK: Final = 60.0  # seconds beyond a deadline after which the ServerApp itself must be gone


def letter_of(content: Mapping[str, Mapping[str, object]]) -> bytes:
    """Take the bytes out of what a node has sent, which is any of Flower's records.

    Args:
        content: by name; that of ours is "letter", and has "data".

    Returns:
        The bytes; a refusal where there are none.
    """
    try:
        data = content["letter"]["data"]
    except UNREADABLE:
        data = None
    return data if isinstance(data, bytes) else frames.encode({"refused": "what came through Flower is no letter"}, {})


class FlowerMail:
    """Nodes that a ServerApp reaches.

    Args:
        line: to the ServerApp.
    """

    def __init__(self, line: Line) -> None:
        """Take the line."""
        self._line = line

    def nodes(self) -> Sequence[int]:
        """The nodes that are connected now."""
        self._line.send(frames.encode({"do": "nodes"}, {}))
        return [int(node) for node in frames.decode(self._line.receive(_SLACK)).config["nodes"]]

    def ask(self, letters: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes]]:
        """Send each node its message, and yield their answers until all came or the time is over."""
        packed = {str(node): Array("", (), "", data) for node, data in letters.items()}
        self._line.send(frames.encode({"do": "ask", "seconds": seconds}, packed))
        while True:
            config, arrays = frames.decode(self._line.receive(seconds + _SLACK))
            if config.get("over"):
                return
            yield int(config["node"]), arrays[""].data

    def end(self) -> None:
        """Let the ServerApp end, and wait until it has hung up."""
        with contextlib.suppress(DeployError):
            self._line.send(frames.encode({"do": "end"}, {}))
            self._line.receive(_GOODBYE)
