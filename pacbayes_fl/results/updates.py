"""The files of rows that a run's clients have learned from since its training: which there are, and what they say."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from pacbayes_fl.errors import UNREADABLE, DataError
from pacbayes_fl.results import manifest

FOLDER: Final = "updates"
"""What a run folder calls the folder of its updates, `000001.safetensors` and so on."""

KEY: Final = "update"
"""Under which the head of a file says what it holds."""

COPY: Final = "restore it from a copy"
_LONGEST: Final = 2**26  # bytes of a head


def name_of(number: int) -> str:
    """Name of an update's file, relative to the run folder."""
    return f"{FOLDER}/{number:06d}.safetensors"


def paths(folder: Path) -> list[Path]:
    """List the updates of a run in their order.

    Args:
        folder: of the run.

    Returns:
        Paths, each of a file as it was written.

    Raises:
        DataError: when one was altered or lost.
    """
    known = manifest.read(folder)
    listed = {} if known is None else known.files
    names = {f"{FOLDER}/{path.name}" for path in (folder / FOLDER).glob("*.safetensors")}
    names |= {name for name in listed if name.startswith(f"{FOLDER}/")}
    expected = [name_of(at + 1) for at in range(len(names))]
    for name in sorted({*names, *expected}):
        path = folder / name
        if not path.is_file():
            raise DataError(f"{path} is missing: it holds rows that clients have learned from", hint=COPY)
        if name not in expected or not manifest.intact(folder, name):
            what = f"{path} is damaged or was edited: it holds rows that clients have learned from"
            raise DataError(what, hint=COPY)
    return [folder / name for name in expected]


def fingerprints(folder: Path | None) -> list[str]:
    """Tell the updates of a run from others.

    Args:
        folder: of the run; None of one that is kept nowhere.

    Returns:
        The SHA-256 of each, in their order.

    Raises:
        DataError: when an update was altered or lost.
    """
    return [] if folder is None else [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths(folder)]


class About(NamedTuple):
    """What the head of an update says.

    Args:
        round: of the models that learned.
        clients: that had new rows.
        rows: how many each.
        stateful: those whose states follow.
        past: how many rows each client has, of which lags of later rows are made.
    """

    round: int
    clients: Sequence[str]
    rows: Sequence[int]
    stateful: Sequence[str]
    past: Mapping[str, int] = MappingProxyType({})


def about(path: Path) -> About:
    """Read the head of an update, which in the format of safetensors is JSON behind its length.

    Args:
        path: of the file.

    Returns:
        The head.

    Raises:
        DataError: when it cannot be read.
    """
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > _LONGEST:
                raise ValueError(f"a head of {length} bytes")
            return About(**json.loads(json.loads(file.read(length))["__metadata__"][KEY]))
    except UNREADABLE as error:
        raise DataError(f"{path} cannot be read: {error}", hint=COPY) from error


class Since(NamedTuple):
    """How many rows clients have learned from since the training.

    Args:
        updates: number of updates.
        rows: in all of them.
        clients: that have some.
    """

    updates: int
    rows: int
    clients: int

    def __str__(self) -> str:
        """Say it in words."""
        times = "" if self.updates == 1 else f" in {self.updates} updates"
        return f"{self.rows} later rows of {self.clients} client{'s' if self.clients > 1 else ''}{times}"


def since(folder: Path | str | None) -> Since | None:
    """Count the later rows of a run.

    Args:
        folder: of the run; None of one that is kept nowhere.

    Returns:
        The count; None where there are none.

    Raises:
        DataError: when an update was altered or lost.
    """
    each = [about(path) for path in paths(Path(folder))] if folder is not None else []
    if not each:
        return None
    clients = {name for one in each for name in one.clients}
    return Since(len(each), sum(sum(one.rows) for one in each), len(clients))
