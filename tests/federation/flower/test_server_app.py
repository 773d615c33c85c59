"""What the ServerApp passes on, over a double of Flower's grid."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pacbayes_fl.federation import frames
from pacbayes_fl.federation.flower.post import FlowerMail
from pacbayes_fl.federation.sockets import Line

pytestmark = pytest.mark.deploy
pytest.importorskip("flwr", reason="Flower is not installed; `make deploy-test` has an environment with it")


class Grid:
    """Nodes of which one echoes, one fails, one is silent, and one sends a number in place of a letter."""

    def __init__(self) -> None:
        self.sent = dict[str, Any]()

    def push_messages(self, messages: Any) -> list[str]:
        self.sent = {f"m{k}": one for k, one in enumerate(messages)}
        return [*self.sent]

    def pull_messages(self, ids: Any) -> list[Any]:
        return [reply for key in ids if (reply := self.reply(key)) is not None]

    def reply(self, key: str) -> Any:
        message = self.sent[key]
        node = message.metadata.dst_node_id
        metadata = SimpleNamespace(reply_to_message_id=key, src_node_id=node)
        if node == 1:
            return SimpleNamespace(metadata=metadata, has_content=lambda: True, content=message.content)
        if node == 2:
            error = SimpleNamespace(reason="it has failed")
            return SimpleNamespace(metadata=metadata, has_content=lambda: False, error=error)
        if node == 4:
            return SimpleNamespace(metadata=metadata, has_content=lambda: True, content={"letter": {"data": 10**12}})
        return None


def test_answers_failures_and_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    from pacbayes_fl.federation.flower import server_app

    def message(content: Any, dst_node_id: int, message_type: str) -> Any:  # a real one asks who sends it
        return SimpleNamespace(content=content, metadata=SimpleNamespace(dst_node_id=dst_node_id))

    monkeypatch.setattr(server_app, "Message", message)

    here, there = socket.socketpair()

    def app() -> None:
        with Line(there) as line:
            config, letters = frames.decode(line.receive())
            server_app._asked(Grid(), line, {int(k): one.data for k, one in letters.items()}, config["seconds"])  # type: ignore[arg-type]

    thread = threading.Thread(target=app)
    thread.start()
    result = dict(FlowerMail(Line(here)).ask({1: b"abc", 2: b"", 3: b"", 4: b""}, 0.2))
    thread.join()
    assert result.keys() == {1, 2, 4} and result[1] == b"abc"
    assert frames.decode(result[2]).config == {"refused": "Flower: it has failed"}
    assert frames.decode(result[4]).config == {"refused": "what came through Flower is no letter"}
