"""What a client could be recognised by, and where it stands in files."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np


def sequences(dataset: Any) -> Iterator[tuple[str, bytes]]:
    """Yield all that a client's rows could be recognised by: bytes, decimal texts, hashes, names and ids."""
    for group in dataset.groups.values():
        for batch in (group.train, group.test, group.validation):
            for k, name in enumerate(batch.names if batch is not None else ()):
                yield "name", name.encode()
                yield "id", str(batch.ids[k]).encode()
                yield "id", struct.pack("<q", batch.ids[k])
                x, y = batch.x[k][batch.mask[k]].flatten(1).double().numpy(), batch.y[k][batch.mask[k]].double().numpy()
                yield "hash", hashlib.sha256(name.encode()).hexdigest().encode()
                for row, target in zip(x, y, strict=True):
                    for dtype in ("<f8", "<f4", ">f8", ">f4"):
                        yield "row", row.astype(dtype).tobytes()
                        yield "hash", hashlib.sha256(row.astype(dtype).tobytes()).hexdigest().encode()
                        for value in (*row[:4], target):
                            if value not in (0.0, 1.0) and float(value) != round(float(value)):  # no label, no pixel
                                yield "number", np.asarray(value).astype(dtype).tobytes()
                    for value in (*row[:4], target):
                        if len(text := repr(float(value))) > 8:
                            yield "text", text.encode()


def leaks(
    out: Path, dataset: Any, again: Callable[[], Path] | None = None, known: tuple[str, ...] = ()
) -> list[tuple[str, str]]:
    """Return what of the clients stands in the files of a folder.

    Args:
        out: the folder.
        dataset: whose rows are looked for.
        again: writes such a folder with other noise, where the files hold noise from the operating system: the four
            bytes of some number stand in it by chance, about once in two thousand folders, and never in both.
        known: kinds of sequences that may stand there, and are not looked for.
    """
    found = _found(out, dataset, known)
    if found and again is not None:
        found = [one for one in _found(again(), dataset, known) if one in found]
    return [(kind, name) for kind, name, _ in found]


def _found(out: Path, dataset: Any, known: tuple[str, ...]) -> list[tuple[str, str, bytes]]:
    contents = {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert contents
    whole = b"\n".join(contents.values())  # most sequences stand nowhere, which one look says
    every = dict.fromkeys((kind, one) for kind, one in sequences(dataset) if kind not in known)
    return [(kind, name, one) for kind, one in every if one in whole for name, data in contents.items() if one in data]
