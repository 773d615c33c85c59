"""The files of a run folder and their content; each is written atomically, and none is reached through a link."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Final, NamedTuple

from pacbayes_fl.errors import CheckpointError
from pacbayes_fl.files import JsonTable, opened, refuse_link


class Content(NamedTuple):
    """Purpose of a file of a run folder.

    Args:
        holds: in words.
        again: a run that is resumed writes it again, from what the other files hold.
        released: it says nothing but what the releases of a private run have cost, and is covered by their guarantee.
    """

    holds: str
    again: bool = False
    released: bool = False


FILES: Mapping[str, Content] = MappingProxyType(
    {
        "study.toml": Content("every value of the study", again=True),
        "environment.json": Content("versions, seed and the fingerprint of the data", again=True),
        "data.npz": Content("the clients' rows, or which images they have"),
        "scaling.json": Content("what the clients' units have in common, and where learning started"),
        "residuals.json": Content("the federation's leave-one-out residuals, binned"),
        "rows.json": Content("fingerprints of the clients' rows, which are not kept"),
        "nodes.json": Content("the clients of a deployment, how many rows each has, and their columns"),
        "held_out.npz": Content("which rows the training never saw"),
        "trained.json": Content("which clients ever trained and on which rows, on which certificates rest"),
        "choice.json": Content("what was chosen by held-out rows"),
        "privacy.json": Content("what releases have spent", released=True),
        "release.safetensors": Content("the newest release, for a round that a crash cuts short, and who took part"),
        "noise.safetensors": Content("the secret noise of the last releases, from which that of the next one follows"),
        "release_scaling.safetensors": Content("the noisy moments by which columns are scaled"),
        "release_residuals.safetensors": Content("the noisy shape of errors"),
        "rounds.jsonl": Content("the record of every round"),
        "ended.json": Content("the error that ended the run before its last round", again=True),
        "certified.jsonl": Content("which certificates of these rows were asked for"),
        "clients.csv": Content("every client's metrics", again=True),
        "predictions.safetensors": Content("the predictions of test rows", again=True),
        "calibration.csv": Content("where test rows fall in their predictions, how often intervals hold", again=True),
        "labels.json": Content("what the numbers of the run are", again=True),
        "metrics.json": Content("the run's metrics", again=True),
        "warnings.json": Content("what the run warned of", again=True),
        "report.html": Content("a page of all results, with the clients' rows, for people", again=True),
        "comparison.json": Content("what a comparison is of"),
        "compare.csv": Content("a comparison's table", again=True),
        "compare.json": Content("a comparison's table", again=True),
    }
)
"""The files of a run folder and what they hold; its state is in `checkpoints`, tables of bounds in `certificates`."""

NODES: Final = "nodes.json"
"""The file by which the server's side of a deployment is known."""

COMPARISON: Final = "comparison.json"
"""What a comparison was asked for: methods, seeds, what varies, and every value of each study."""
RELEASED: Final = "released.json"
"""The file of a release, which is no run folder, that says what it is."""

RELEASED_MODEL: Final = "server.safetensors"
"""The file of a release that holds the model, and of no run folder."""

FOLDERS: Mapping[str, str] = MappingProxyType(
    {
        "checkpoints": "the state, of every client too",
        "certificates": "bounds and risks of every client",
        "updates": "rows that clients have learned from since the training",
        "figures": "drawings of the clients' rows and scores",
    }
)
"""The folders below a run folder and what they hold."""

OTHERS: Final = MappingProxyType({"run.lock": "which process runs", "manifest.json": "checksums of all files"})
"""What else is in a run folder."""

_FOLDERS: Final = tuple(FOLDERS)
_OWN: Final = frozenset((*FILES, *_FOLDERS, *OTHERS))


def leaving(private: bool) -> JsonTable:
    """Describe which files of a run folder may be shared, and the content of the others.

    Args:
        private: whether the run has given a guarantee, of noise that nobody knows.

    Returns:
        "may_leave", the files that the guarantee covers; "stay", by name what others hold; and "to_publish".
    """
    may_leave = [name for name, content in FILES.items() if content.released and private]
    every = {**{name: content.holds for name, content in FILES.items()}, **FOLDERS, **OTHERS}
    stay = {name: holds for name, holds in every.items() if name not in may_leave}
    return {"may_leave": may_leave, "stay": stay, "to_publish": "pacbayes-fl release RUN --out DIR"}


def refuse_links(folder: Path | str) -> None:
    """Refuse a folder with links, pipes or devices in place of its files.

    Args:
        folder: of a run; a missing one passes, and so does a link that leads to the folder.

    Raises:
        CheckpointError: naming the first that is neither a file nor a folder.
    """
    folder = Path(folder)
    for name in sorted(_OWN):
        refuse_link(folder / name)
        if name in _FOLDERS:
            for place, folders, files in os.walk(folder / name):  # which follows no link
                for inner in sorted((*folders, *files)):
                    refuse_link(Path(place, inner))


def write_synced(path: Path, data: bytes) -> None:
    """Replace a file, and wait until its bytes are on disk.

    Args:
        path: the file; a link of that name is removed, and what it leads to stays as it is.
        data: its bytes.

    Raises:
        OSError: when it cannot be written.
    """
    stream_synced(path, lambda file: file.write(data))


def stream_synced(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Replace a file that is too large to be held in memory, as `write_synced`.

    Args:
        path: the file; a link of that name is removed, and what it leads to stays as it is.
        write: writes its bytes, one after the other.

    Raises:
        OSError: when it cannot be written.
    """
    path.unlink(missing_ok=True)
    with opened(path, "xb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file as a whole: after a crash or on a full disk it holds the old bytes or the new ones.

    Args:
        path: the file.
        data: its new bytes.

    Raises:
        CheckpointError: when it cannot be written; the old file stays and nothing else is left.
    """
    with half_of(path) as half:
        write_synced(half, data)
        os.replace(half, path)
        sync_folder(path.parent)


@contextlib.contextmanager
def half_of(path: Path) -> Iterator[Path]:
    """Give the name under which a file is written before it takes the place of the old one; nothing of it is left.

    Args:
        path: the file.

    Raises:
        CheckpointError: when it cannot be written; the old file stays.
    """
    half = path.with_name(path.name + ".tmp")
    try:
        yield half
    except OSError as error:
        with contextlib.suppress(OSError):
            half.unlink(missing_ok=True)
        raise CheckpointError(f"cannot write {path}: {error.strerror}", cause=error.strerror) from error
