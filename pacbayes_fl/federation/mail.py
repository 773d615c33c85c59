"""Requests to the clients of a node in one message, and their answers: a network carries bytes to nodes and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, Protocol

from pacbayes_fl.errors import DeployError, PacBayesFLError
from pacbayes_fl.federation import frames
from pacbayes_fl.federation.arrays import shown
from pacbayes_fl.federation.messages import Refused, Reply, Request, in_bytes
from pacbayes_fl.files import JsonTable

TRAIN: Final = "train"
_COMMON: Final = ("method",)  # of all requests of a round: thousands of characters, more than all else of a request


class Mail(Protocol):
    """A network that knows its nodes by number."""

    def nodes(self) -> Sequence[int]:
        """The nodes that are there now."""

    def ask(self, letters: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes]]:
        """Send each node its message, and yield their answers until all came or the time is over."""


class InMemory:
    """Nodes in this process.

    Args:
        nodes: answers of each, by number.
    """

    def __init__(self, nodes: Mapping[int, Callable[[bytes], bytes]]) -> None:
        """Take the nodes."""
        self._nodes = nodes

    def nodes(self) -> Sequence[int]:
        """All nodes are there."""
        return [*self._nodes]

    def ask(self, letters: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes]]:
        """Ask one node after the other."""
        for node, letter in letters.items():
            yield node, self._nodes[node](letter)


class MailTransport:
    """Requests to clients as messages to the nodes that hold them.

    Args:
        mail: the network.
        owners: the node of every client, by name: who else answers for it is not heard.
        seconds: for which a round waits.
    """

    def __init__(self, mail: Mail, owners: Mapping[str, int], seconds: float) -> None:
        """Take the network."""
        self._mail, self._owners, self._seconds = mail, owners, seconds

    def exchange(self, requests: Mapping[str, Request]) -> Iterator[tuple[str, Reply | Refused]]:
        """Send one message to each node that is asked, and yield the answers of its clients."""
        of_node: dict[int, list[Request]] = {}
        for name, request in requests.items():
            of_node.setdefault(self._owners[name], []).append(request)
        letters = {node: pack_requests(own) for node, own in of_node.items()}
        for node, data in self._mail.ask(letters, self._seconds):
            own = [request.config["client"] for request in of_node.get(node, ())]
            try:
                answers = unpack_answers(data)
            except PacBayesFLError as error:
                answers = [(name, Refused(str(error))) for name in own]
            for name, answer in answers:
                yield name if self._owners.get(name) == node else f"node {node} for {shown(name)}", answer


def pack_requests(requests: Sequence[Request]) -> bytes:
    """Write the requests to the clients of a node; parameters and method, which all have in common, once.

    Args:
        requests: at least one.

    Returns:
        The message.

    Raises:
        DeployError: when there are too many for one message.
    """
    common = {key: requests[0].config[key] for key in _COMMON if key in requests[0].config}
    if any(one.config.get(key) != value for one in requests[1:] for key, value in common.items()):
        common = {}
    own: list[JsonTable] = [{key: one.config[key] for key in one.config if key not in common} for one in requests]
    return frames.encode({"kind": TRAIN, "requests": own, **common}, in_bytes(requests[0]))


def unpack_requests(frame: frames.Frame) -> list[Request]:
    """Read what `pack_requests` wrote.

    Args:
        frame: as decoded.

    Returns:
        The requests.

    Raises:
        DeployError: when there are none.
    """
    configs = frame.config.get("requests")
    if not isinstance(configs, list) or not all(isinstance(one, dict) for one in configs):
        raise DeployError("what came holds no requests", cause="frame")
    common = {key: frame.config[key] for key in _COMMON if key in frame.config}
    return [Request({**common, **config}, frame.arrays) for config in configs]


def pack_answers(answers: Sequence[tuple[str, Reply | Refused]]) -> bytes:
    """Write the answers of the clients of a node.

    Args:
        answers: with the client's name.

    Returns:
        The message.

    Raises:
        DeployError: when there are too many for one message.
    """
    said, arrays = list[JsonTable](), dict[str, frames.Serialised]()
    for k, (name, answer) in enumerate(answers):
        if isinstance(answer, Refused):
            said.append({"client": name, "refused": answer.reason})
        else:
            said.append({"client": name, "config": dict(answer.config)})
            arrays |= {f"{k}/{leaf}": one for leaf, one in in_bytes(answer).items()}
    return frames.encode({"answers": said}, arrays)


def unpack_answers(data: bytes) -> list[tuple[str, Reply | Refused]]:
    """Read what `pack_answers` wrote.

    Args:
        data: as received.

    Returns:
        Answers with the name of the client that the node gives.

    Raises:
        DeployError: when it is no such message.
    """
    config, arrays = frames.decode(data)
    if isinstance(config.get("refused"), str):
        raise DeployError(config["refused"])
    said, result = config.get("answers"), list[tuple[str, Reply | Refused]]()
    if not isinstance(said, list) or not all(isinstance(one, dict) for one in said):
        raise DeployError("what came holds no answers", cause="frame")
    own: dict[str, dict[str, frames.Array]] = {}
    for key, leaf in arrays.items():
        place, _, flat = key.partition("/")
        own.setdefault(place, {})[flat] = leaf
    for k, one in enumerate(said):
        name, refused = one.get("client"), one.get("refused", "")
        if not isinstance(name, str) or not isinstance(refused, str):
            raise DeployError("what came holds answers that are no text", cause="frame")
        if "refused" in one:
            result.append((name, Refused(refused)))
        else:
            result.append((name, Reply(one.get("config", {}), own.get(str(k), {}))))
    return result
