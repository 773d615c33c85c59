"""Checksums of every file of a run folder, in one manifest: altered files are detected and named.

`RUN/manifest.json` says how long each file is and its SHA-256. It is written before a file, with what that is to be:
whenever a run is killed, every file is what the manifest says it was or was to be. Which of the two is found out before
the next change, or written down at once where nothing follows. Of a file to which
lines are added it vouches for those up to the last round that was saved; what follows is judged by its form.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Final, NamedTuple

from pacbayes_fl.errors import DamageWarning, DataError, caller_stacklevel
from pacbayes_fl.files import make_folder, sha256, verified, with_checksum
from pacbayes_fl.results import run_failures
from pacbayes_fl.results.folder import FILES, half_of, refuse_links, stream_synced, sync_folder, write_atomic

NAME: Final = "manifest.json"
FORMAT_VERSION: Final = 1
_GROWING: Final = ("rounds.jsonl", "certified.jsonl")
_ROUND: Final = re.compile(r"checkpoints/round_(\d+)/")
_CHUNK: Final = 1 << 20
_COPY: Final = "restore it from a copy, or run the study anew with another --out"
_MEANT: Final = f"{_COPY}; if the change is meant, remove {NAME} and resume: every file is then taken as it is"
_PLACES: Final = MappingProxyType(
    {
        "certificates/": "certify again",
        "checkpoints/": "predict, join, certify and --resume use the newest round that is intact, and say which",
    }
)
_AGAIN: Final = "run the study with --resume: it is written again"


class Print(NamedTuple):
    """Fingerprint of a file.

    Args:
        length: in bytes.
        sha256: of its bytes.
        grows: whether more may follow these bytes.
    """

    length: int
    sha256: str
    grows: bool = False

    @classmethod
    def of(cls, data: bytes, grows: bool = False) -> Print:
        """Take the print of some bytes."""
        return cls(len(data), hashlib.sha256(data).hexdigest(), grows)


@dataclass(frozen=True)
class Manifest:
    """Fingerprints of the files of a folder.

    Args:
        files: by name, relative to the folder.
        coming: what some of them are about to become; None of those that are about to go.
    """

    files: Mapping[str, Print] = field(default_factory=dict)
    coming: Mapping[str, Print | None] = field(default_factory=dict)


def read(folder: Path | str) -> Manifest | None:
    """Read the manifest of a run folder.

    Args:
        folder: of a run.

    Returns:
        The manifest; None where there is none.

    Raises:
        DataError: when it is damaged, or of a later version.
    """
    path = Path(folder) / NAME
    try:
        body = verified(path.read_text("utf-8"))
        if body["format_version"] > FORMAT_VERSION:
            what = f"{path} has format {body['format_version']}, this pacbayes_fl reads formats up to {FORMAT_VERSION}"
            raise DataError(what, cause="written by a later version", hint="update pacbayes_fl")
        files = {name: Print(*one) for name, one in body["files"].items()}
        return Manifest(files, {name: one and Print(*one) for name, one in body["coming"].items()})
    except DataError:
        raise
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        hint = "restore it from a copy, or remove it and resume the run: its files are then taken as they are"
        raise DataError(f"{path} is damaged: it holds the checksums of all other files", hint=hint) from None


def put(folder: Path | str, files: Mapping[str, bytes | None], grows: bool = False, last: bool = False) -> None:
    """Replace files of a run folder, each as a whole, in their order.

    Args:
        folder: of a run, made if it does not exist.
        files: bytes by name relative to the folder; None removes a file.
        grows: lines will be added to them.
        last: nothing follows for now.

    Raises:
        CheckpointError: when one cannot be written.
        DataError: when the manifest is damaged.
    """
    folder = Path(folder)
    with announced(folder, files, grows, last):
        for name, data in files.items():
            path = folder / name
            if data is not None:
                make_folder(path.parent)
                write_atomic(path, data)
            elif path.exists():
                path.unlink()
                sync_folder(path.parent)


def streamed(path: Path, write: Callable[[IO[bytes]], None]) -> Print:
    """Replace a file that is too large to be held in memory, and take its print; see `folder.stream_synced`.

    Args:
        path: the file.
        write: writes its bytes, in any order.

    Returns:
        Its print.

    Raises:
        OSError: when it cannot be written.
    """
    stream_synced(path, write)
    return Print(path.stat().st_size, sha256(path))


def put_written(folder: Path | str, name: str, write: Callable[[IO[bytes]], None]) -> None:
    """Replace a file of a run folder that is too large to be held in memory.

    Args:
        folder: of a run, made if it does not exist.
        name: of the file, relative to the folder.
        write: writes its bytes, one after the other.

    Raises:
        CheckpointError: when it cannot be written; the old file stays and nothing else is left.
        DataError: when the manifest is damaged.
    """
    path = Path(folder) / name
    make_folder(path.parent)
    with half_of(path) as half:
        print = streamed(half, write)
        with announced(folder, {name: print}):
            os.replace(half, path)
            sync_folder(path.parent)


@contextlib.contextmanager
def announced(
    folder: Path | str, files: Mapping[str, bytes | Print | None], grows: bool = False, last: bool = False
) -> Iterator[None]:
    """Enter the new fingerprints of files into the manifest, then write the files.

    Args:
        folder: of a run, made if it does not exist.
        files: bytes, or their print, by name relative to the folder; None of one that goes.
        grows: lines will be added to them.
        last: nothing follows for now: say that they are written, too.

    Raises:
        CheckpointError: when the manifest cannot be written.
        DataError: when it is damaged.
    """
    folder = Path(folder)
    make_folder(folder)
    with _locked(folder):
        known = _settled(folder, read(folder) or Manifest())
        known = {name: _grown(folder / name, one) for name, one in known.items()}
        coming = {name: Print.of(data, grows) if isinstance(data, bytes) else data for name, data in files.items()}
        _write(folder, Manifest(known, coming))
        yield
        if last:
            _write(folder, Manifest(_settled(folder, Manifest(known, coming))))


def extend(folder: Path | str, name: str) -> None:
    """Vouch for all lines that a growing file has by now.

    Args:
        folder: of a run.
        name: of the file, which is there.

    Raises:
        CheckpointError: when the manifest cannot be written.
        DataError: when it is damaged.
    """
    folder = Path(folder)
    with _locked(folder):
        manifest = read(folder) or Manifest()
        known = _settled(folder, manifest)
        now = _grown(folder / name, known.get(name, Print.of(b"", grows=True)))
        _write(folder, Manifest({**known, name: now}))


def adopt(folder: Path | str) -> None:
    """Take the files of a run folder as they are: list them in a new manifest.

    Args:
        folder: of a run.

    Raises:
        CheckpointError: when the manifest cannot be written.
    """
    folder = Path(folder)
    paths = [folder / name for name in FILES]
    for below in ("checkpoints", "certificates", "updates"):
        paths += sorted(path for path in (folder / below).rglob("*") if path.suffix != ".tmp")
    with _locked(folder):
        files = {
            path.relative_to(folder).as_posix(): Print.of(path.read_bytes(), path.name in _GROWING)
            for path in paths
            if path.is_file()
        }
        _write(folder, Manifest(files))


def regain(folder: Path | str) -> None:
    """Take the files of a folder that goes on as they are, where its manifest is lost.

    Args:
        folder: of a run or a comparison.

    Raises:
        CheckpointError: when the manifest cannot be written.
        DataError: when it is there and damaged.

    Warns:
        DamageWarning: where it is lost.
    """
    if read(folder) is None:
        text = f"{Path(folder) / NAME} is missing: the files of the run are taken as they are"
        warnings.warn(text, DamageWarning, stacklevel=caller_stacklevel())
        adopt(folder)


def problems(folder: Path | str, without: Collection[str] = ()) -> dict[str, str]:
    """Compare the files of a run folder with its manifest.

    A run that is alive may write meanwhile: what is found then is looked at again.

    Args:
        folder: of a run.
        without: names, or starts of names, of files that are not looked at.

    Returns:
        What is wrong, by name of the file: "is damaged or was edited", "is missing", or "was not written by this run".

    Raises:
        DataError: when the manifest is damaged or missing, or a file cannot be read.
    """
    folder = Path(folder)
    while True:
        manifest = read(folder)
        if manifest is None:
            hint = "restore it from a copy, or resume the run: its files are then taken as they are"
            raise DataError(f"{folder / NAME} is missing: it holds the checksums of all other files", hint=hint)
        result = _compared(folder, manifest, tuple(without))
        if not result or read(folder) == manifest:
            return result


def intact(folder: Path | str, name: str) -> bool:
    """Whether a file agrees with the manifest, before or after an interrupted write; true without a manifest.

    Args:
        folder: of a run.
        name: of the file, relative to the folder.

    Raises:
        DataError: when the manifest is damaged, or the file cannot be read.
    """
    manifest = read(folder)
    if manifest is None:
        return True
    may_be = (manifest.files.get(name), manifest.coming.get(name))
    return any(_fits(Path(folder) / name, one) for one in may_be if one is not None)


def verify(folder: Path | str, needed: Collection[str], without: Collection[str] = ()) -> None:
    """Refuse a run folder of which a file that is needed was altered or lost; of others say so in a warning.

    Args:
        folder: of a run.
        needed: names of the files that a wrong result may come of.
        without: names, or starts of names, of files that others look after.

    Raises:
        DataError: naming the file, what it holds, and what to do.
        CheckpointError: when a link stands in place of a file.
    """
    refuse_links(folder)
    ended = run_failures.ended_run(Path(folder)) is not None
    for name, what in sorted(problems(folder, without).items(), key=lambda one: one[0] not in needed):
        content = FILES.get(name)
        holds = f": it holds {content.holds}" if content else ""
        again = content is not None and content.again and not ended
        hint = _AGAIN if again else _COPY if ended or what == "is missing" else _MEANT
        hint = next((own for place, own in _PLACES.items() if name.startswith(place)), hint)
        if name in needed:
            raise DataError(f"{Path(folder) / name} {what}{holds}", hint=hint)
        warnings.warn(f"{Path(folder) / name} {what}{holds} ({hint})", DamageWarning, stacklevel=caller_stacklevel())


def _compared(folder: Path, manifest: Manifest, without: tuple[str, ...]) -> dict[str, str]:
    result = {}
    newest = max((int(match[1]) for match in map(_ROUND.match, manifest.files) if match), default=None)
    for name in dict.fromkeys((*FILES, *manifest.files, *manifest.coming)):
        if name.startswith(without):
            continue
        path = folder / name
        may_be = [one for one in (manifest.files.get(name), manifest.coming.get(name)) if one is not None]
        if not path.is_file():
            may_go = name not in manifest.files or (name in manifest.coming and manifest.coming[name] is None)
            match = _ROUND.match(name)
            superfluous = match is not None and not path.parent.exists() and int(match[1]) != newest
            superfluous |= path.parent.with_suffix(".old").exists()  # or just being replaced
            if not may_go and not superfluous:
                result[name] = "is missing"
        elif not may_be and path.stat().st_size:
            result[name] = "was not written by this run"
        elif may_be and not any(_fits(path, one) for one in may_be):
            result[name] = "is damaged or was edited"
    return result


def _settled(folder: Path, manifest: Manifest) -> dict[str, Print]:
    """Find out which of the changes that a killed run had announced were made."""
    files = dict(manifest.files)
    for name, one in manifest.coming.items():
        if one is None and not (folder / name).exists():
            files.pop(name, None)
        elif one is not None and _fits(folder / name, one):
            files[name] = one
    rounds = {int(match[1]): match[0] for match in map(_ROUND.match, files) if match}
    gone = tuple(place for number, place in rounds.items() if number != max(rounds) and not (folder / place).exists())
    return {name: one for name, one in files.items() if not name.startswith(gone)}  # without superfluous rounds


def _fits(path: Path, one: Print) -> bool:
    """Whether a file is what was written; of one that grows, its beginning."""
    try:
        with path.open("rb") as file:
            result, left = _hashed(file, one.length)
            return not left and result == one.sha256 and (one.grows or not file.read(1))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", cause=error.strerror) from error


def _grown(path: Path, one: Print) -> Print:
    """Fingerprint of all whole lines of a growing file; the previous one where the file does not begin with those."""
    if not one.grows or not _fits(path, one):
        return one
    data = path.read_bytes()
    return Print.of(data[: data.rfind(b"\n") + 1], grows=True) if len(data) > one.length else one


def _hashed(file: Any, count: int) -> tuple[str, int]:
    """Hash the next bytes of a file, and say how many were not there."""
    digest = hashlib.sha256()
    while count and (data := file.read(min(count, _CHUNK))):
        digest.update(data)
        count -= len(data)
    return digest.hexdigest(), count


def _write(folder: Path, manifest: Manifest) -> None:
    body = {"format_version": FORMAT_VERSION, "files": dict(manifest.files), "coming": dict(manifest.coming)}
    write_atomic(folder / NAME, (json.dumps(with_checksum(body), indent=1) + "\n").encode())


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep out whoever else would change the manifest, such as a certificate that is made while the run goes on."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system that does not lock folders
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
