"""Files and folders that only their owner can read, never reached through a link.

Run folders hold clients' rows, their personal models and what was measured on both, so that what is made there gets
fixed modes, 0600 and 0700, and not those of a umask. Whoever can write into such a folder could put a link there, and
have a run overwrite or empty what it leads to; the folder itself may be reached by any path.
"""

from __future__ import annotations

import contextlib
import csv
import errno
import hashlib
import io
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice, takewhile
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

from pacbayes_fl.errors import CheckpointError

JsonTable: TypeAlias = dict[str, Any]
"""An object of JSON."""

JsonMapping: TypeAlias = Mapping[str, Any]
"""The same where nobody changes it."""

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
_LINES: Final = 1024  # of CSV, that are written together
_PIECES: Final = 2**14  # of JSON, that are written together
_OTHERS: Final = 0o077
_LINK: Final = "remove it: what is in a run folder is never reached through a link"


class Entries(dict[str, Any]):
    """An object of JSON whose entries are made when they are written: those of all clients would take memory.

    Args:
        entries: gives names and values, in their order.
        count: how many there are.
    """

    def __init__(self, entries: Callable[[], Iterable[tuple[str, object]]], count: int) -> None:
        """Make none yet."""
        super().__init__()
        self._entries, self._count = entries, count

    def __len__(self) -> int:
        """How many there are."""
        return self._count

    def items(self) -> Any:
        """Make them."""
        return self._entries()


def moved(was: Path, now: Path) -> bool:
    """Whether a file may have been moved, with the folder that it is in.

    Args:
        was: where it was.
        now: where one is now.

    Returns:
        True where both paths are absolute and have the same name, and nothing is left at the first.
    """
    return was.is_absolute() and now.is_absolute() and was.name == now.name and not was.exists()


def expanded(name: str) -> Path:
    """Give the path that a study names.

    Args:
        name: with variables of the environment and "~", or without.

    Returns:
        The path.
    """
    return Path(os.path.expandvars(name)).expanduser()


def write_csv(file: IO[bytes], lines: Iterable[Iterable[object]]) -> None:
    """Write lines of CSV, some at a time.

    Args:
        file: to write to.
        lines: cells of each, the names of the columns first.
    """
    text, rest = io.StringIO(), iter(lines)
    table = csv.writer(text, lineterminator="\n")
    while some := [*islice(rest, _LINES)]:
        table.writerows(some)
        file.write(text.getvalue().encode())
        text.seek(0)
        text.truncate()


def write_json(file: IO[bytes], value: object) -> None:
    """Write JSON as `json.dumps` with an indent of 1 has it, piece by piece.

    Args:
        file: to write to.
        value: to write; objects of many entries as `Entries`.
    """
    pieces = json.JSONEncoder(indent=1).iterencode(value)
    while some := "".join(islice(pieces, _PIECES)):
        file.write(some.encode())
    file.write(b"\n")


def opened(path: Path, mode: str, **named: Any) -> IO[Any]:
    """Open a file for writing; links are refused.

    From its first byte on only the owner may read it, also where it existed before.

    Args:
        path: the file.
        mode: as of `open`, one that writes.
        named: further arguments of `open`, such as the encoding.

    Returns:
        The open file.

    Raises:
        CheckpointError: when a link is in its place.
        OSError: when it cannot be opened.
    """

    def private(name: str, flags: int) -> int:
        try:
            handle = os.open(name, flags | os.O_NOFOLLOW, FILE_MODE)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK):  # the second is what some BSDs say
                raise CheckpointError(f"{path} is a symbolic link", cause="a link", hint=_LINK) from error
            raise
        with contextlib.suppress(OSError):  # somebody else's file, or a file system without modes
            if stat.S_IMODE(os.fstat(handle).st_mode) != FILE_MODE:
                os.fchmod(handle, FILE_MODE)
        return handle

    return open(path, mode, opener=private, **named)


def refuse_link(path: Path) -> None:
    """Refuse a link, a pipe or a device in place of a file or folder.

    Args:
        path: of a file or folder; a missing one passes.

    Raises:
        CheckpointError: naming it.
    """
    try:
        kind = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if not stat.S_ISREG(kind) and not stat.S_ISDIR(kind):
        what = "a symbolic link" if stat.S_ISLNK(kind) else "neither a file nor a folder"
        raise CheckpointError(f"{path} is {what}", cause="a link", hint=_LINK)


def make_folder(path: Path) -> None:
    """Make a folder for the owner only; an existing one does not change.

    Args:
        path: the folder; those above it that are missing are made with the usual modes.

    Raises:
        OSError: when it cannot be made.
    """
    there = next((each for each in (path, *path.parents) if each.exists()), path)
    if there.exists() and not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is a file, where a folder is to be", str(there))
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(FOLDER_MODE)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        with contextlib.suppress(OSError):
            path.chmod(FOLDER_MODE)  # a umask may have taken rights from its owner


@contextlib.contextmanager
def fresh_folder(path: Path) -> Iterator[None]:
    """Make a folder as `make_folder` does; a failure that has written nothing removes it.

    Args:
        path: the folder.

    Yields:
        Nothing; the folder is there.

    Raises:
        OSError: when it cannot be made.
    """
    made = tuple(takewhile(lambda each: not each.exists(), (path, *path.parents)))
    make_folder(path)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # something is there
            for each in made:
                each.rmdir()
        raise


def close_folder(path: Path, own: frozenset[str], sign: str) -> str:
    """Close a folder to all but its owner, with all that it holds, where it is known to hold nothing else.

    Args:
        path: the folder.
        own: names that an otherwise empty folder of ours may hold.
        sign: name of a file by which a folder is known as ours.

    Returns:
        What to tell people: that a folder was open, or still is; nothing where it was not.
    """
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        names = {each.name for each in path.iterdir()}
    except OSError:
        return ""
    if not mode & _OTHERS:
        return ""
    if sign not in names and not names <= own:
        what = f"{path} is open to others (mode {mode:04o}) and holds other files"
        return f"{what}: it stays so, while files of the run are readable by their owner alone (chmod 700 closes it)"
    try:
        path.chmod(FOLDER_MODE)
        for each in path.rglob("*"):
            if not each.is_symlink():
                each.chmod(FOLDER_MODE if each.is_dir() else FILE_MODE)
    except OSError as error:
        return f"{path} is open to others (mode {mode:04o}), and cannot be closed: {error.strerror}"
    return f"{path} was open to others (mode {mode:04o}): it is its owner's alone now (mode {FOLDER_MODE:04o})"


def sha256(path: Path) -> str:
    """Hash a file without holding it in memory.

    Args:
        path: of the file.

    Returns:
        SHA-256 in hexadecimal digits.

    Raises:
        OSError: when it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def checksum(body: Mapping[str, object]) -> str:
    """Hash the content of a JSON file, to detect changes.

    Args:
        body: all that the file holds but the checksum itself.

    Returns:
        SHA-256 in hexadecimal digits, whatever the order of keys.
    """
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def with_checksum(body: JsonMapping) -> JsonTable:
    """Add a checksum to the content of a JSON file.

    Args:
        body: all that the file holds but the checksum itself.

    Returns:
        What the file is to hold, for `verified` to read.
    """
    return {**body, "sha256": checksum(body)}


def verified(text: str) -> JsonTable:
    """Read a JSON file whose content `with_checksum` has made.

    Args:
        text: what the file holds.

    Returns:
        Its content without the checksum.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, RecursionError: when it is damaged; among `errors.UNREADABLE`.
    """
    body: JsonTable = json.loads(text)
    if body.pop("sha256") != checksum(body):
        raise ValueError("its checksum is of other content")
    return body
