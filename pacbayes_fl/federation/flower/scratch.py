"""A temporary folder that outlives its process in no case for longer than until the next one is made."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pacbayes_fl.files import opened

_PREFIX: Final = "pacbayes-fl-"
_OWNER: Final = "owner.lock"


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Make a temporary folder, and remove it at last; first remove those whose processes were killed, with their keys.

    The kernel's lock on a file in the folder says whether its process lives.

    Yields:
        The folder, which only its owner can read.
    """
    remove_left()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with opened(folder / f"{_OWNER}.new", "w") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (folder / f"{_OWNER}.new").rename(folder / _OWNER)  # nobody finds it before it is locked
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_left() -> None:
    """Remove this user's temporary folders whose processes have ended without doing so."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it has no lock, or its process lives, or another one removes it now
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            with (folder / _OWNER).open() as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
