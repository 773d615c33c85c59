"""Folders that leave a run: some files, and one that says what they are and has the checksums of all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pacbayes_fl.errors import UNREADABLE, CheckpointError, StudyError
from pacbayes_fl.files import JsonMapping, JsonTable, checksum, make_folder
from pacbayes_fl.results.folder import write_atomic


class Kind(NamedTuple):
    """A kind of folder.

    Args:
        name: in words, such as "release".
        sign: the file by which it is known.
        version: of its format.
        hint: how a damaged one is made again.
    """

    name: str
    sign: str
    version: int
    hint: str


def check_new(out: Path, run: Path | None, kind: Kind, option: str = "--out") -> None:
    """Refuse a folder that something is in, or that lies in the run's.

    Args:
        out: folder to be written, which is empty or does not exist.
        run: folder of the run, if it has one.
        kind: of the folder to be written.
        option: by which a command takes it.

    Raises:
        StudyError: naming it.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        what = f"{out} is not empty, and a {kind.name} is written into a folder of its own"
        left = "" if (out / kind.sign).exists() else "; what is left of one that was stopped can be removed"
        raise StudyError(what, hint=f"another {option}{left}")
    if run is not None and out.resolve().is_relative_to(run.resolve()):
        what = f"{out} is inside of the run {run}, of which nothing else may leave it"
        raise StudyError(what, hint=f"choose another {option}")


def write(folder: Path, kind: Kind, about: JsonMapping, files: Mapping[str, bytes]) -> None:
    """Write a folder, the file that is its sign last: without it nothing takes the folder for one of this kind.

    Args:
        folder: to be made.
        kind: of it.
        about: what the sign says, as JSON.
        files: all others, by name.

    Raises:
        CheckpointError: when a file cannot be written.
    """
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    body = {"format_version": kind.version, **about, "sha256": digests}
    make_folder(folder)
    for name, data in {**files, kind.sign: to_bytes(body | {"checksum": checksum(body)})}.items():
        write_atomic(folder / name, data)


def to_bytes(value: JsonMapping) -> bytes:
    """Write JSON as these folders have it.

    Args:
        value: to write.

    Returns:
        The file.
    """
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read(folder: Path, kind: Kind) -> tuple[JsonTable, dict[str, bytes]]:
    """Read a folder, and compare all of its files with what its sign says.

    Args:
        folder: as `write` made it.
        kind: of it.

    Returns:
        What it says of itself, and its other files by name.

    Raises:
        CheckpointError: when a byte was changed, a file is missing, or the format is another.
        StudyError: when the folder is none of this kind.
    """
    try:
        data = (folder / kind.sign).read_bytes()
        about: JsonTable = json.loads(data)
        same = data == to_bytes(about)
        intact = about.pop("checksum") == checksum(about) and same
        digests, version = dict(about["sha256"]), about["format_version"]
    except FileNotFoundError:
        raise StudyError(f"{folder} is not a {kind.name}: {kind.sign} is missing") from None
    except UNREADABLE as error:
        raise CheckpointError(f"{folder / kind.sign} is damaged: {error}", hint=kind.hint) from error
    if not intact:
        raise CheckpointError(f"{folder / kind.sign} is damaged", hint=kind.hint)
    if version != kind.version:
        what = f"{folder} has {kind.name} format {version}, this pacbayes_fl reads {kind.version}"
        raise CheckpointError(what, hint="update pacbayes_fl")
    files = {}
    for name, digest in digests.items():
        try:
            files[name] = (folder / name).read_bytes()
        except OSError as error:
            raise CheckpointError(f"{folder / name} is missing or cannot be read", hint=kind.hint) from error
        if hashlib.sha256(files[name]).hexdigest() != digest:
            raise CheckpointError(f"{folder / name} is damaged", hint=kind.hint)
    return about, files
