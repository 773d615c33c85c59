"""The folder of a node: what it remembers of its clients, in files that a crash leaves whole and a fault gives away."""

from __future__ import annotations

import hashlib
import json
import warnings
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import safetensors
import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from pacbayes_fl.errors import UNREADABLE, CheckpointError, DamageWarning, caller_stacklevel
from pacbayes_fl.federation import arrays, lock
from pacbayes_fl.federation.messages import Kept
from pacbayes_fl.federation.node import Joined, Memory
from pacbayes_fl.files import JsonTable, checksum, make_folder, refuse_link
from pacbayes_fl.results.folder import write_atomic

FORMAT_VERSION: Final = 1
_STATES: Final = "clients"
_JOINED: Final = "joined.json"
_RESULTS: Final = "results"
_KEY: Final = "memory"


class NodeFolder:
    """Memories of a node on disk, one file a client; a damaged one is said to be lost, and its client begins anew.

    Args:
        path: of the folder, made where it does not exist.
    """

    def __init__(self, path: Path) -> None:
        """Take a path; nothing is read yet."""
        self.path = path

    def lock(self) -> AbstractContextManager[object]:
        """Keep other nodes out of the folder.

        Raises:
            CheckpointError: when another node uses it.
        """
        return lock.RunLock(self.path)

    def load(self, client: str) -> Memory | None:
        """Read what is remembered of a client.

        Args:
            client: its name.

        Returns:
            The memory; None where there is none, and where it is damaged.

        Raises:
            CheckpointError: when it was written by a later version.

        Warns:
            DamageWarning: when it is damaged.
        """
        path = self._place(client)
        refuse_link(path)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            with safetensors.safe_open(path, "pt") as file:
                about = json.loads(file.metadata()[_KEY])
            flat = safetensors.torch.load(data)
            digest, version = about.pop("checksum"), about["format_version"]
            if version > FORMAT_VERSION:
                what = f"{path} has format {version}, this pacbayes_fl reads {FORMAT_VERSION}"
                raise CheckpointError(what, client=client, hint="update pacbayes_fl")
            if digest != _digest(about, flat) or about["client"] != client:
                raise ValueError("its checksum is another")
            return _memory(about, flat)
        except (*UNREADABLE, SafetensorError) as error:
            what = f"what the node remembers of client {client!r} is damaged ({path}: {error}): it joins as new"
            warnings.warn(what, DamageWarning, stacklevel=caller_stacklevel())
            return None

    def save(self, client: str, memory: Memory) -> None:
        """Write what is remembered of a client; it is on disk when this returns.

        Args:
            client: its name.
            memory: in place of what was.

        Raises:
            CheckpointError: when it cannot be written; the old one is intact then.
        """
        kept = {"last": memory.last, "before": memory.before}
        rounds = {name: None if one is None else one.round for name, one in kept.items()}
        about: JsonTable = {"format_version": FORMAT_VERSION, "client": client, "rounds": rounds}
        about |= {"run": memory.run, "joined": memory.joined}
        flat = {f"{part}/{name}": leaf for part, one in kept.items() if one for name, leaf in one.state.items()}
        about["checksum"] = _digest(about, flat)
        copies = {name: leaf.detach().cpu().clone().contiguous() for name, leaf in flat.items()}
        path = self._place(client)
        try:
            make_folder(path.parent)
            write_atomic(path, safetensors.torch.save(copies, {_KEY: json.dumps(about)}))
        except OSError as error:
            what = f"cannot write {path}: {error.strerror}"
            raise CheckpointError(what, client=client, cause=error.strerror, hint="make room") from error

    def joined(self) -> Joined | None:
        """Read the run that the node has joined; None where there is none, or the file is damaged.

        Warns:
            DamageWarning: when it is damaged.
        """
        path = self.path / _JOINED
        refuse_link(path)
        try:
            about = json.loads(path.read_bytes())
            if about.pop("checksum") != checksum(about):
                raise ValueError("its checksum is another")
            return Joined(str(about["run"]), str(about["scaling"]))
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            what = f"what the node remembers of its run is damaged ({path}: {error}): the server has to join it again"
            warnings.warn(what, DamageWarning, stacklevel=caller_stacklevel())
            return None

    def join(self, joined: Joined) -> None:
        """Write the run that the node has joined; it is on disk when this returns.

        Args:
            joined: in place of what was.

        Raises:
            CheckpointError: when it cannot be written; the old one is intact then.
        """
        about: JsonTable = {"format_version": FORMAT_VERSION} | joined._asdict()
        about["checksum"] = checksum(about)
        make_folder(self.path)
        write_atomic(self.path / _JOINED, (json.dumps(about, indent=1) + "\n").encode())

    def results(self, run: str) -> Path:
        """Say where what the node made of a run is kept.

        Args:
            run: its identifier.

        Returns:
            A run folder of the node's own clients, which may not exist yet.
        """
        plain = run.isalnum() and run.isascii() and len(run) <= 32  # a server has chosen it
        name = run if plain else hashlib.sha256(run.encode()).hexdigest()[:16]
        return self.path / _RESULTS / name

    def _place(self, client: str) -> Path:
        return self.path / _STATES / f"{hashlib.sha256(client.encode()).hexdigest()[:32]}.safetensors"


def _digest(about: JsonTable, flat: dict[str, Tensor]) -> str:
    return checksum({**about, "tensors": arrays.digest(flat)})


def _memory(about: JsonTable, flat: dict[str, Tensor]) -> Memory:
    run = str(about["run"])

    def part(name: str) -> Kept | None:
        at = about["rounds"][name]
        own = {key.removeprefix(f"{name}/"): leaf for key, leaf in flat.items() if key.startswith(f"{name}/")}
        return None if at is None else Kept(run, int(at), own)

    return Memory(run, int(about["joined"]), part("last"), part("before"))
