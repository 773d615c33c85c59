"""Messages between processes of one machine, and who is not listened to."""

from __future__ import annotations

import socket
import stat
import threading
from pathlib import Path

import pytest

from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation.sockets import Line, Listener, connect


def test_messages_of_any_length_go_both_ways(tmp_path: Path) -> None:
    with Listener(tmp_path / "s") as listener:

        def answer() -> None:
            line = listener.accept(5.0)
            assert line is not None
            with line:
                line.send(line.receive(5.0)[::-1])

        thread = threading.Thread(target=answer)
        thread.start()
        with connect(tmp_path / "s") as line:
            line.send(bytes(range(256)) * 10_000)
            assert line.receive(5.0) == (bytes(range(256)) * 10_000)[::-1]
        thread.join()
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        assert modes == {"s": 0o600, "s.token": 0o600}
    assert not any(tmp_path.iterdir())


def test_who_has_no_token_is_not_heard(tmp_path: Path) -> None:
    with Listener(tmp_path / "s") as listener, socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(tmp_path / "s"))
        Line(caller).send(b"0" * 32)
        assert listener.accept(5.0) is None
        with pytest.raises(DeployError, match="the other process is gone"):
            Line(caller).receive(5.0)
        assert listener.accept(0.01) is None
    with pytest.raises(DeployError, match="nobody listens at") as caught:
        connect(tmp_path / "s")
    assert caught.value.cause == "absent"


def test_what_is_cut_late_or_too_long_is_an_error_by_name() -> None:
    for data, text in ((b"\0" * 7, "is gone"), (b"\xff" * 8, "at most 2147483648"), (b"\0" * 7 + b"\5abc", "is gone")):
        here, there = socket.socketpair()
        there.sendall(data)
        there.close()
        with Line(here) as line, pytest.raises(DeployError, match=text):
            line.receive(5.0)
    here, there = socket.socketpair()
    with Line(here) as line, there, pytest.raises(DeployError, match="nothing came"):
        line.receive(0.01)


def test_a_path_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match=r"cannot listen at .*a folder with a shorter path"):
        Listener(tmp_path / ("x" * 120))
