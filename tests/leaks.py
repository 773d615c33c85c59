"""What a client could be recognised by, and where it stands in files."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
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


def leaks(out: Path, dataset: Any) -> list[tuple[str, str]]:
    """Return what of the clients stands in the files of a folder."""
    contents = {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert contents
    return [(kind, name) for kind, wanted in sequences(dataset) for name, data in contents.items() if wanted in data]
