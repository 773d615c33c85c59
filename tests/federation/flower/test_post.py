"""The server's end of Flower's network, against a ServerApp that is played by hand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation import frames
from pacbayes_fl.federation.flower.post import FlowerMail, letter_of
from pacbayes_fl.federation.frames import Array
from pacbayes_fl.federation.sockets import Line


def against(play: Callable[[Line], None]) -> tuple[FlowerMail, threading.Thread]:
    here, there = socket.socketpair()

    def app() -> None:
        with Line(there) as line:
            play(line)

    thread = threading.Thread(target=app)
    thread.start()
    return FlowerMail(Line(here)), thread


def test_nodes_are_asked_and_answers_come_until_it_is_over() -> None:
    large = 2**63 + 5  # more than JavaScript's numbers hold

    def play(line: Line) -> None:
        assert frames.decode(line.receive()).config == {"do": "nodes"}
        line.send(frames.encode({"nodes": [str(large), "7"]}, {}))
        config, letters = frames.decode(line.receive())
        assert config == {"do": "ask", "seconds": 3.0} and letters.keys() == {str(large), "7"}
        for node, one in reversed(letters.items()):
            line.send(frames.encode({"node": node}, {"": Array("", (), "", one.data[::-1])}))
        line.send(frames.encode({"over": True}, {}))
        assert frames.decode(line.receive()).config == {"do": "end"}

    mail, thread = against(play)
    assert mail.nodes() == [large, 7]
    assert list(mail.ask({large: b"abc", 7: b""}, 3.0)) == [(7, b""), (large, b"cba")]
    mail.end()
    thread.join()


def test_a_server_app_that_ends_is_an_error_and_no_silence() -> None:
    mail, thread = against(lambda line: None)
    thread.join()
    with pytest.raises(DeployError, match="other process"):
        mail.nodes()


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"letter": {}},
        {"letter": None},
        {"letter": [1]},
        None,
        *({"letter": {"data": odd}} for odd in ("abc", 1.5, 3, 10**12, -1, True, None, [1, 300])),
    ],
    ids=str,
)
def test_what_is_no_letter_is_a_refusal_of_its_node(content: Any) -> None:
    """A number, of which `bytes` would make so many zeros, is none either."""
    assert frames.decode(letter_of(content)).config == {"refused": "what came through Flower is no letter"}
    assert letter_of({"letter": {"data": b"abc"}}) == b"abc"
