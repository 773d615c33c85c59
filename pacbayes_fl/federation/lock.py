"""One run at a time in a folder: the lock, and the leftovers of a killed run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import warnings
from itertools import takewhile
from pathlib import Path
from types import TracebackType
from typing import IO, Final

from pacbayes_fl.errors import CheckpointError, caller_stacklevel
from pacbayes_fl.federation.checkpoint import clean
from pacbayes_fl.files import close_folder, make_folder, opened
from pacbayes_fl.results.folder import refuse_links

_LOCK: Final = "run.lock"


class RunLock:
    """Hold a run folder for one run: `with RunLock(folder): ...`.

    The lock is the kernel's, on `run.lock`: it is gone the moment its process is, so a killed run leaves none behind.
    On entering, leftovers of a killed run are removed. A run that fails before it has written anything leaves what it
    found: the lock that it made goes, and every folder that it made for it.

    Args:
        folder: the run folder, made if it does not exist.
    """

    def __init__(self, folder: Path | str) -> None:
        """Store the folder; nothing is locked yet."""
        self.folder = Path(folder)
        self._file: IO[str] | None = None
        self._found = frozenset({_LOCK})  # and what else was in the folder before
        self._made: tuple[Path, ...] = ()  # the lock and folders that were not there before, innermost first

    def __enter__(self) -> RunLock:
        """Take the lock, or raise CheckpointError naming the process that holds it."""
        path = self.folder / _LOCK
        self._made = tuple(takewhile(lambda each: not each.exists(), (path, *path.parents)))
        refuse_links(self.folder)
        make_folder(self.folder)
        self._found = frozenset({_LOCK, *(each.name for each in self.folder.iterdir())})
        file = opened(path, "a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            owner = file.read().strip() or "another process"
            file.close()
            if not isinstance(error, BlockingIOError):
                raise CheckpointError(f"cannot lock {self.folder}: {error.strerror}", cause=error.strerror) from error
            hint = "wait for it to end, or choose another output folder"
            raise CheckpointError(f"folder {self.folder} in use by {owner}", cause="in use", hint=hint) from error
        if not (path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())):
            file.close()  # its maker has failed and taken it away in this moment: two runs would lock two files
            return self.__enter__()
        file.truncate(0)  # the text is for the message above only
        file.write(f"pid {os.getpid()}, host {socket.gethostname()}\n")
        file.flush()
        self._file = file
        if warning := close_folder(self.folder, frozenset({_LOCK}), "study.toml"):
            warnings.warn(warning, stacklevel=caller_stacklevel())
        clean(self.folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock; after a failure that left nothing but it, take it away."""
        if self._file is not None:
            if kind is not None and self._made and {each.name for each in self.folder.iterdir()} <= self._found:
                self._made[0].unlink()
                with contextlib.suppress(OSError):  # somebody has put something there
                    for each in self._made[1:]:
                        each.rmdir()
            self._file.truncate(0)
            self._file.close()
            self._file = None
