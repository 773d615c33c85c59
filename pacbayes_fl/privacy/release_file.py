"""The file of one release: what left, what it cost, and whose it is, with a checksum."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from pacbayes_fl.privacy.charges import Charge, charge_of

FORMAT_VERSION: Final = 1


class Release(NamedTuple):
    """The newest release of a run, as its folder keeps it for a round that a crash has cut short.

    Args:
        serial: its number, counted from 0.
        round: that it is of.
        charge: what it costs.
        cohort: ids of the clients who took part.
        mean: what was released, flat names with tensors [1, *].
        halved: how often the learning rates had been halved when it was made.
        undone: why earlier releases of the round were undone.
        about: what else it is a function of, of a release outside of rounds: it stands for no other message.
        uncounted: ids of the clients that were asked and whose answers are not in it; None where clients keep no states
            of their own, as then nobody has to be told.
    """

    serial: int
    round: int
    charge: Charge
    cohort: tuple[int, ...]
    mean: Mapping[str, Tensor]
    halved: int = 0
    undone: tuple[str, ...] = ()
    about: str = ""
    uncounted: tuple[int, ...] | None = None


def to_bytes(release: Release) -> bytes:
    """Give the file of a release.

    Args:
        release: any.

    Returns:
        Its bytes, with a checksum of all that it says.
    """
    head = {
        "format_version": FORMAT_VERSION,
        "serial": release.serial,
        "round": release.round,
        "cohort": list(release.cohort),
        "halved": release.halved,
        "undone": list(release.undone),
        "about": release.about,
        "uncounted": release.uncounted,
        "charge": asdict(release.charge),
    }
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in release.mean.items()}
    text = json.dumps(head, sort_keys=True)
    about = json.dumps({"sha256": _sum(text, flat), "text": text})
    data: bytes = safetensors.torch.save(flat, {"release": about})  # one entry: several have no order
    return data


def _sum(text: str, flat: Mapping[str, Tensor]) -> str:
    """Hash what a release says of itself and its numbers."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(flat):
        tensor = flat[name]
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def read(path: Path) -> Release:
    """Read a release.

    Args:
        path: of the file.

    Returns:
        The release.

    Raises:
        OSError, ValueError, KeyError, TypeError: when the file is damaged or of another version.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["release"])
            flat = {name: file.get_tensor(name) for name in file.keys()}
    except safetensors.SafetensorError as error:
        raise ValueError(str(error)) from error
    if about["sha256"] != _sum(about["text"], flat):
        raise ValueError("its checksum is of other bytes")
    head = json.loads(about["text"])
    if head["format_version"] != FORMAT_VERSION:
        raise ValueError("it is of another version")
    halved = int(head.get("halved", 0))  # the first releases did not say so
    undone = tuple(map(str, head.get("undone", ())))
    missed = head.get("uncounted")
    uncounted = None if missed is None else tuple(map(int, missed))
    drawn = int(head["serial"]), int(head["round"]), charge_of(head["charge"]), tuple(head["cohort"]), flat
    return Release(*drawn, halved, undone, str(head.get("about", "")), uncounted)
