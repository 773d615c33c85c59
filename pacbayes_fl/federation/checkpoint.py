"""The saved state of a run: written so that no crash, kill or full disk can take the last good round away.

`RUN/checkpoints/round_000040/` holds `state.safetensors`, `state.json` and `manifest.json` with their SHA-256; of a
run in several processes also `clients_0000.safetensors` and so on, the states of the clients of each. A round is
written as `round_000040.tmp`, synced, and then renamed: what bears the final name is complete, and what was altered
since shows in its checksum.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl import names
from pacbayes_fl.errors import UNREADABLE, CheckpointError, PacBayesFLError
from pacbayes_fl.files import JsonMapping, JsonTable, checksum, make_folder, refuse_link, sha256
from pacbayes_fl.results import tensor_file
from pacbayes_fl.results.folder import sync_folder, write_atomic, write_synced
from pacbayes_fl.results.manifest import Print, announced, intact, streamed
from pacbayes_fl.tensors import client_blocks

FORMAT_VERSION: Final = 2
_WHOLE: Final = 1  # the version in which one file has all states, which older readers know
MAY_CHANGE: Final = ("rounds", "out", "device", "threads", "checkpoint_every", "deadline")

_STATE: Final = "state.safetensors"
PART: Final = "clients_"
"""How the files begin that hold the states of the clients of one process."""

Migration = Callable[[dict[str, Tensor], JsonTable], tuple[dict[str, Tensor], JsonTable]]
# from a version to the next: tensors and meta in, tensors and meta out
_MIGRATIONS: Final[Mapping[int, Migration]] = MappingProxyType({_WHOLE: lambda tensors, meta: (tensors, meta)})
_NO_SPACE: Final = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


@dataclass(frozen=True)
class Checkpoint:
    """A round as it was saved.

    Args:
        round: rounds finished.
        tensors: flat names with tensors [*], on the CPU.
        meta: the values saved beside them; JSON, so tuples are lists and keys are strings.
        warnings: defects of newer rounds, as text.
    """

    round: int
    tensors: Mapping[str, Tensor]
    meta: JsonMapping
    warnings: tuple[str, ...] = ()


class _DamagedError(Exception):
    """A round on disk that must not be used; the text says which file of it."""


def save(
    folder: Path | str,
    round: int,
    tensors: Mapping[str, Tensor],
    meta: JsonMapping,
    keep: int = 2,
    parts: Mapping[str, Print] = MappingProxyType({}),
) -> Path:
    """Save a round, then delete superseded ones.

    Until the new round is on disk with its final name, nothing older is touched. Afterwards the `keep` newest up to
    this one stay; rounds with a higher number belong to a history that was left (they were damaged, or the run was
    resumed from before them) and go as well.

    Args:
        folder: the run folder.
        round: rounds finished.
        tensors: flat names with tensors [*] of any dtype and device.
        meta: anything JSON: the resolved study, client ids, the privacy ledger.
        keep: how many rounds stay on disk, at least 1.
        parts: prints, by name, of files of states that stand in `begin`'s folder already.

    Returns:
        The folder of the saved round.

    Raises:
        CheckpointError: when it cannot be written, naming the round that is still intact on disk; no half folder stays.
    """
    if keep < 1:
        raise CheckpointError(f"keep must be at least 1, got {keep}", round=round)
    try:
        state_json = names.in_json(json.dumps({"round": round, "meta": meta}, ensure_ascii=False)).encode()
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"meta must be JSON: {error}", round=round) from error
    root = Path(folder) / "checkpoints"
    final = root / f"round_{round:06d}"
    pointer = f"{final.name}\n".encode()
    refuse_link(root)
    try:
        half = final.with_suffix(".tmp") if parts else begin(folder, round)
        every = {_STATE: write_tensors(half / _STATE, tensors), "state.json": Print.of(state_json), **parts}
        manifest: JsonTable = {
            "format_version": FORMAT_VERSION if parts else _WHOLE,
            "round": round,
            "sha256": {name: one.sha256 for name, one in every.items()},
        }
        about = json.dumps(manifest | {"manifest_sha256": checksum(manifest)}, indent=2).encode()
        listed = {f"{root.name}/{final.name}/{name}": one for name, one in every.items()}
        listed[f"{root.name}/{final.name}/manifest.json"] = Print.of(about)
        with announced(folder, {**listed, f"{root.name}/latest": pointer}):
            _put(final, {"state.json": state_json, "manifest.json": about})
            write_atomic(root / "latest", pointer)
            _drop(root, round, keep)
    except (OSError, CheckpointError) as error:
        with contextlib.suppress(OSError):
            clean(folder)
        raise _not_written(final, round, error) from error
    return final


def begin(folder: Path | str, round: int) -> Path:
    """Make the folder into which several processes write a round, before it is complete.

    Args:
        folder: the run folder.
        round: rounds finished.

    Returns:
        A folder without files.

    Raises:
        OSError: when it cannot be made.
    """
    root = Path(folder) / "checkpoints"
    half = root / f"round_{round:06d}.tmp"
    if not root.is_dir():
        make_folder(root)
        sync_folder(root.parent)
    _discard(half)
    make_folder(half)
    return half


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> Print:
    """Write a file of tensors, a block of rows at a time, and wait until it is on disk.

    Args:
        path: the file.
        tensors: flat names with tensors [*] of any dtype and device.

    Returns:
        Its print.

    Raises:
        OSError: when it cannot be written.
    """
    return streamed(path, lambda file: tensor_file.write(file, tensors))


def _put(final: Path, files: Mapping[str, bytes]) -> None:
    """Finish a round: until it is on disk under its final name, nothing else is touched."""
    root, half, replaced = final.parent, final.with_suffix(".tmp"), final.with_suffix(".old")
    for name, data in files.items():
        write_synced(half / name, data)
    sync_folder(half)
    if final.exists():  # one of the two names always holds a whole round, and `load` knows both
        _discard(replaced)
        final.rename(replaced)
    half.rename(final)
    sync_folder(root)


def _drop(root: Path, round: int, keep: int) -> None:
    """Delete superseded rounds; files that cannot be deleted now are deleted next time."""
    stay = list(dict.fromkeys(number for number, _ in _rounds(root) if number <= round))[:keep]
    with contextlib.suppress(OSError):
        _discard((root / f"round_{round:06d}").with_suffix(".old"))
        for number, path in _rounds(root):
            if number not in stay:
                _discard(path)


def load(folder: Path | str) -> Checkpoint | None:
    """Read the newest round that is intact.

    Reading changes nothing on disk, so that a run may be looked at while it lives.

    Args:
        folder: the run folder.

    Returns:
        The round, with a warning for each newer one that is damaged; None where nothing was ever saved.

    Raises:
        CheckpointError: when rounds were saved and none is intact, naming each; when the newest was written by a later
            version of this library, or by one that cannot be migrated.
    """
    root = Path(folder) / "checkpoints"
    rounds = _rounds(root)
    damaged = []
    with contextlib.suppress(OSError, ValueError):  # the pointer only tells of a folder that somebody took away
        latest = int((root / "latest").read_text("utf-8").strip().removeprefix("round_"))
        if latest > max((number for number, _ in rounds), default=-1) and intact(folder, f"{root.name}/latest"):
            damaged.append(f"round {latest} is missing")
    for number, path in rounds:
        try:
            tensors, meta = _read(path, number)
        except _DamagedError as error:
            damaged.append(str(error))
            continue
        return Checkpoint(number, tensors, meta, tuple(f"{what}; using round {number}" for what in damaged))
    if damaged:
        raise CheckpointError(f"no round in {root} is intact: {'; '.join(damaged)}", hint="start the run anew")
    return None


def clean(folder: Path | str) -> None:
    """Remove half-written files of a killed run; called by the holder of the `RunLock` only.

    Args:
        folder: the run folder.
    """
    root = Path(folder) / "checkpoints"
    for path in sorted(root.glob("round_*.old")):  # killed between the two renames of a round that is saved again
        if path.with_suffix("").exists():
            _discard(path)
        else:
            path.rename(path.with_suffix(""))
    for path in root.glob("round_*.tmp"):
        _discard(path)
    (root / "latest.tmp").unlink(missing_ok=True)


def check_study(
    saved: JsonMapping, current: JsonMapping, may_change: Sequence[str] = MAY_CHANGE, what: str = "run"
) -> None:
    """Refuse to go on with a run, a comparison or a search under another study than it was started with.

    Args:
        saved: the resolved study of the checkpoint, nested mappings.
        current: the resolved study of now.
        may_change: keys that may differ: a last name ("rounds"), a dotted key ("federation.rounds"), or a whole part
            ("report").
        what: was started with the study.

    Raises:
        CheckpointError: listing every key that differs with both values.
    """

    def flat(part: object, prefix: str = "") -> dict[str, str]:
        if isinstance(part, Mapping) and (part or not prefix):
            pairs = [flat(part[name], f"{prefix}.{name}" if prefix else str(name)).items() for name in part]
            return {key: value for each in pairs for key, value in each}
        return {prefix: json.dumps(part, ensure_ascii=False, default=str)}

    def free(key: str) -> bool:
        return any(key == name or key.startswith(f"{name}.") or key.endswith(f".{name}") for name in may_change)

    def same(a: str | None, b: str | None) -> bool:  # as JSON, where tuples are lists; text for NaN, value for 1 = 1.0
        return a == b or (a is not None and b is not None and bool(json.loads(a) == json.loads(b)))

    old, new = flat(saved), flat(current)
    keys = [key for key in dict.fromkeys([*old, *new]) if not same(old.get(key), new.get(key)) and not free(key)]
    if keys:
        lines = [f"{key}: saved {old.get(key, 'nothing')}, now {new.get(key, 'nothing')}" for key in keys]
        raise CheckpointError(
            f"the study is not the one that this {what} was started with: {'; '.join(lines)}",
            cause="another study",
            hint="set the values back, or choose another output folder",
        )


@contextlib.contextmanager
def meant(saved: Checkpoint | None) -> Iterator[None]:
    """Turn any failure with a round's contents into an error that names it: checksums do not prove the writer.

    Args:
        saved: the round that is taken apart; nothing is expected of None.

    Raises:
        CheckpointError: when anything but an error of ours was raised.
    """
    try:
        yield
    except PacBayesFLError:
        raise
    except Exception as error:
        if saved is None:
            raise
        what = f"round {saved.round} holds what no run has saved ({type(error).__name__}: {error})"
        raise CheckpointError(what, hint="start the run anew in another folder") from error


class ClientMatch(NamedTuple):
    """The clients that a checkpoint and a federation have in common, in the order of the federation.

    Args:
        source: positions among the saved clients [k], int64.
        target: positions of the same clients in the federation, k of them.
    """

    source: Tensor
    target: list[int]


def match_clients(saved_ids: Sequence[int], ids: Sequence[int]) -> ClientMatch:
    """Match the clients of a checkpoint with those of a federation by id, never by position.

    Args:
        saved_ids: ids in the order of the saved states.
        ids: ids in the order of the federation.

    Returns:
        Positions to take states from and to put them to.

    Raises:
        CheckpointError: when an id occurs twice on one side.
    """
    for what, numbers in (("saved", saved_ids), ("present", ids)):
        if twice := [number for number, count in Counter(numbers).items() if count > 1]:
            raise CheckpointError(f"{what} clients must have different ids, got {', '.join(map(str, twice))} twice")
    position = {number: place for place, number in enumerate(saved_ids)}
    target = [place for place, number in enumerate(ids) if number in position]
    return ClientMatch(torch.tensor([position[ids[place]] for place in target], dtype=torch.int64), target)


def _rounds(root: Path) -> list[tuple[int, Path]]:
    """List the rounds on disk, newest first; a round that is being replaced comes after its replacement."""
    result = []
    for path in root.iterdir() if root.is_dir() else ():
        if match := re.fullmatch(r"round_(\d+)(\.old)?", path.name):
            result.append((int(match[1]), match[2] is None, path))
    return [(number, path) for number, _, path in sorted(result, reverse=True)]


def _read(path: Path, round: int) -> tuple[dict[str, Tensor], JsonTable]:
    """Read one round whole, or raise `_DamagedError`; nothing is returned of which a byte is in doubt."""

    def content(name: str, tensors: bool = False) -> Any:
        try:
            with (path / name).open("rb") as file:
                return tensor_file.read(file) if tensors else file.read()
        except FileNotFoundError as error:
            raise _DamagedError(f"{name} of round {round} is missing") from error
        except OSError as error:
            raise _DamagedError(f"{name} of round {round} cannot be read ({error.strerror})") from error

    def digest(name: str) -> str:
        try:
            return sha256(path / name)
        except OSError:
            return str(content(name))  # which says what is wrong with it

    def need(intact: bool, name: str) -> None:
        if not intact:
            raise _DamagedError(f"{name} of round {round} is damaged")

    try:
        manifest = json.loads(content("manifest.json"))
        # its own checksum, which every version keeps: else a flipped bit in the version would pass for another version
        need(manifest.pop("manifest_sha256") == checksum(manifest), "manifest.json")
        version, checksums = manifest["format_version"], manifest["sha256"]
        found = {name: digest(name) for name in checksums}
        newer = version > FORMAT_VERSION
    except UNREADABLE as error:
        raise _DamagedError(f"manifest.json of round {round} is damaged") from error
    if newer:
        raise CheckpointError(
            f"{path} has checkpoint format {version}, this pacbayes_fl reads formats up to {FORMAT_VERSION}",
            cause="written by a later version",
            hint="update pacbayes_fl, or start anew in another folder",
        )
    need(manifest.get("round") == round, "manifest.json")
    for name, one in found.items():
        need(one == checksums[name], name)
    try:
        tensors, meta = content(_STATE, tensors=True), json.loads(content("state.json"))["meta"]
        parts = [content(name, tensors=True) for name in sorted(found) if name.startswith(PART)]
        tensors |= {name: torch.cat([part[name] for part in parts]) for name in (parts[0] if parts else ())}
        need(isinstance(meta, dict), "state.json")
    except UNREADABLE as error:
        raise _DamagedError(f"round {round} is damaged") from error
    while version < FORMAT_VERSION:
        if version not in _MIGRATIONS:
            raise CheckpointError(f"{path} has checkpoint format {version}, which {FORMAT_VERSION} cannot read")
        tensors, meta = _MIGRATIONS[version](tensors, meta)
        version += 1
    return tensors, meta


def all_finite(tensor: Tensor) -> bool:
    """Whether all numbers are finite, by their extremes.

    Args:
        tensor: [*], not empty.
    """
    rows = tensor.reshape(1) if tensor.dim() == 0 else tensor
    return all(bool(rows[at].amax().isfinite() & rows[at].amin().isfinite()) for at in client_blocks(len(rows)))


def _discard(path: Path) -> None:
    """Remove a round's folder, which is there whole or not at all: it is renamed before its files go."""
    trash = path if path.suffix == ".tmp" else path.with_name(f"{path.name}.tmp")
    if path.exists():
        if trash != path:
            _discard(trash)
            path.rename(trash)
        shutil.rmtree(trash)


def _not_written(path: Path, round: int, error: OSError | CheckpointError) -> CheckpointError:
    """The error of a failed write, naming the newest saved round."""
    reason = error if isinstance(error, OSError) else error.__cause__
    number, text = (reason.errno, reason.strerror) if isinstance(reason, OSError) else (None, str(error))
    intact = None
    for saved, place in _rounds(path.parent):
        with contextlib.suppress(_DamagedError, CheckpointError, OSError):
            _read(place, saved)
            intact = saved
            break
    left = "nothing is on disk" if intact is None else f"round {intact} on disk is intact"
    what = f"no space left writing {path}" if number in _NO_SPACE else f"cannot write {path}: {text}"
    return CheckpointError(
        f"{what}; round {round} is in memory, {left}", round=round, cause=text, hint="make room and save again"
    )
