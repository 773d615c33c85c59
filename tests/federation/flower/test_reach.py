"""Why a server cannot be reached, one reason at a time, against servers of one connection on the loopback address."""

from __future__ import annotations

import datetime
import email.utils
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation.flower import keys, reach

HOST = "127.0.0.1"


@contextmanager
def server(play: Callable[[socket.socket], object]) -> Iterator[str]:
    """Serve one caller."""
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        listening.listen()
        listening.settimeout(10.0)

        def work() -> None:
            caller, _ = listening.accept()
            with caller:
                try:
                    play(caller)
                except OSError:  # the other side has hung up
                    pass

        thread = threading.Thread(target=work)
        thread.start()
        yield f"{HOST}:{listening.getsockname()[1]}"
        thread.join()


def secure(folder: Path, ahead: float = 0.0) -> Callable[[socket.socket], None]:
    """Speak TLS by the keys of a folder, with a clock that is ahead of this machine's by some seconds."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")

    def play(caller: socket.socket) -> None:
        with context.wrap_socket(caller, server_side=True) as line:
            line.recv(4096)
            date = email.utils.format_datetime(
                datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=ahead), usegmt=True
            )
            line.sendall(f"HTTP/1.1 404 Not Found\r\ndate: {date}\r\n\r\n".encode())

    return play


def made(folder: Path, hosts: tuple[str, ...] = keys.LOOPBACK, days: float = 1.0) -> Path:
    pytest.importorskip("cryptography", reason="comes with Flower; `make deploy-test` has it")
    keys.write_authority(folder)
    keys.write_server(folder, hosts, days)
    return folder


def cause(address: str, ca: Path) -> str:
    with pytest.raises(DeployError, match=address) as caught:
        reach.check_server(address, ca, 5.0)
    return str(caught.value.cause)


@pytest.mark.deploy
def test_each_reason_is_named_and_a_good_server_passes(tmp_path: Path) -> None:
    good, other = made(tmp_path / "good"), made(tmp_path / "other")
    expired, elsewhere = made(tmp_path / "expired", days=-1.0), made(tmp_path / "host", ("fl.example.org",))
    with server(secure(good)) as address:
        reach.check_server(address, good / "ca.pem")
    with server(secure(good)) as address:
        assert cause(address, other / "ca.pem") == "authority"
    with server(secure(expired)) as address:
        assert cause(address, expired / "ca.pem") == "expired"
    with server(secure(elsewhere)) as address:
        assert cause(address, elsewhere / "ca.pem") == "host"
    with server(lambda caller: caller.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as address:
        assert cause(address, good / "ca.pem") == "plain"
    assert cause(address, good / "ca.pem") == "absent"
    for ahead, fine in ((-3.0, True), (-60.0, False), (290.0, True), (330.0, False)):  # of the server
        with server(secure(good, ahead)) as address:
            if fine:
                reach.check_server(address, good / "ca.pem")
            else:
                assert cause(address, good / "ca.pem") == "clock"


def test_what_is_no_certificate_or_no_address_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("x")
    for path in (tmp_path / "ca.pem", tmp_path / "none.pem"):
        with pytest.raises(DeployError, match="is no certificate of an authority"):
            reach.check_server("a:1", path)
    assert reach.split("[::1]:80") == ("::1", 80) and reach.split("a.b:443") == ("a.b", 443)
    with pytest.raises(DeployError, match="HOST:PORT"):
        reach.split("a.b")


@pytest.mark.parametrize(("ahead", "text"), [(9.5, r"\d+ s ahead of"), (-400.0, "(400|399) s behind")])
def test_a_clock_that_flower_refuses_is_named(ahead: float, text: str) -> None:
    there = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=ahead)
    with pytest.raises(DeployError, match=f"this machine's clock is {text} that of a:1 .*set the clock"):
        reach.check_clock("a:1", f"HTTP/1.1 404\r\nDate: {email.utils.format_datetime(there, usegmt=True)}\r\n")
    reach.check_clock("a:1", "HTTP/1.1 404\r\n")
