"""Bytes between processes of one machine: a socket in the file system that its owner alone can reach, and a token."""

from __future__ import annotations

import contextlib
import hmac
import secrets
import socket
from pathlib import Path
from types import TracebackType
from typing import Final

from pacbayes_fl.errors import DeployError
from pacbayes_fl.files import make_folder, opened

_TOKEN: Final = 32
_LENGTH: Final = 8
_LARGEST: Final = 2**31  # bytes of a message, as Flower's


class Line:
    """A connection that carries messages of any length.

    Args:
        connected: the socket.
    """

    def __init__(self, connected: socket.socket) -> None:
        """Take the socket."""
        self._socket = connected

    def __enter__(self) -> Line:
        """Give the line, which the end of the block closes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send a message.

        Args:
            data: its bytes.

        Raises:
            DeployError: when the other end is gone.
        """
        try:
            self._socket.sendall(len(data).to_bytes(_LENGTH, "big") + data)
        except OSError as error:
            raise DeployError(f"the other process is gone: {error}", cause="line") from error

    def receive(self, seconds: float | None = None) -> bytes:
        """Wait for a message.

        Args:
            seconds: for which to wait; without end when None.

        Returns:
            Its bytes.

        Raises:
            DeployError: when the other end is gone, nothing comes in time, or the message is too long.
        """
        self._socket.settimeout(seconds)
        size = int.from_bytes(self._exactly(_LENGTH), "big")
        if size > _LARGEST:
            raise DeployError(f"a message of {size} bytes, and at most {_LARGEST} are read", cause="line")
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        try:
            while len(data) < count:
                more = self._socket.recv(min(count - len(data), 2**20))
                if not more:
                    raise DeployError("the other process is gone", cause="line")
                data += more
        except OSError as error:
            raise DeployError(f"nothing came from the other process: {error}", cause="line") from error
        return bytes(data)


class Listener:
    """A socket at which other processes of the same user call, with the token that lies beside it.

    Args:
        path: of the socket, in a folder of the user's own; at most some 100 characters.
    """

    def __init__(self, path: Path) -> None:
        """Write a new token and listen."""
        self.path, self._token = path, secrets.token_bytes(_TOKEN)
        make_folder(path.parent)
        path.unlink(missing_ok=True)
        with opened(_token_file(path), "wb") as file:
            file.write(self._token)
        begun = path.with_name(f"{path.name}.new")
        begun.unlink(missing_ok=True)
        with contextlib.ExitStack() as undo:
            self._socket = undo.enter_context(socket.socket(socket.AF_UNIX))
            try:
                self._socket.bind(str(begun))
            except OSError as error:
                raise DeployError(f"cannot listen at {path}: {error}", hint="a folder with a shorter path") from error
            begun.chmod(0o600)
            self._socket.listen()
            begun.rename(path)  # only now: who sees it can call
            undo.pop_all()

    def __enter__(self) -> Listener:
        """Give the listener, which the end of the block closes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it, and leave no file."""
        self._socket.close()
        for path in (self.path, _token_file(self.path)):
            with contextlib.suppress(OSError):
                path.unlink()

    def accept(self, seconds: float | None = None) -> Line | None:
        """Wait for a caller.

        Args:
            seconds: for which to wait; without end when None.

        Returns:
            The line to it; None where nobody called, or somebody without the token.
        """
        self._socket.settimeout(seconds)
        try:
            caller, _ = self._socket.accept()
        except TimeoutError:
            return None
        line = Line(caller)
        with contextlib.suppress(DeployError):
            if hmac.compare_digest(line.receive(5.0), self._token):
                return line
        caller.close()
        return None


def connect(path: Path) -> Line:
    """Call a listener.

    Args:
        path: of its socket.

    Returns:
        The line.

    Raises:
        DeployError: when nobody listens there.
    """
    with contextlib.ExitStack() as undo:
        caller = undo.enter_context(socket.socket(socket.AF_UNIX))
        try:
            token = _token_file(path).read_bytes()
            caller.connect(str(path))
        except OSError as error:
            raise DeployError(f"nobody listens at {path}: {error.strerror or error}", cause="absent") from error
        line = Line(caller)
        line.send(token)
        undo.pop_all()
    return line


def _token_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.token")
