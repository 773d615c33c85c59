"""Arrays in .npz archives that may come from anywhere: judged by their declared sizes, then read without surprises."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import IO, Final, TypeAlias

import numpy as np
from numpy.lib import format as npy

from pacbayes_fl.data import memory
from pacbayes_fl.errors import DataError

Array: TypeAlias = np.ndarray
"""Of any shape and dtype."""

_HEADERS: Final = MappingProxyType({(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0})
_RATIO: Final = 500  # unpacked to packed bytes; zeros alone reach 1032
_CHUNK: Final = 2**20  # bytes that are unpacked at once
_HARMLESS: Final = 1 << 26  # bytes that any archive may unpack to


def read_npz(path: Path) -> dict[str, Array]:
    """Read all arrays of an .npz archive.

    What the archive says that it unpacks to is compared with the memory that there is, and with its own size, before a
    byte is unpacked; what an array says of its shape, with the bytes that are there. Numbers come back in the byte
    order of this machine.

    Args:
        path: the file.

    Returns:
        Arrays by name.

    Raises:
        DataError: when there is no such file, it cannot be read, or it would take too much memory.
    """
    try:
        size = path.stat().st_size
        if not zipfile.is_zipfile(path):
            raise DataError(f"{path} is not an .npz archive")
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            unpacked = sum(entry.file_size for entry in entries)
            memory.require(unpacked, f"{path}, unpacked,", "is it what it should be?", DataError)
            if unpacked > _RATIO * size:
                what = f"{path}, {memory.shown(size)} and unpacked"
                memory.require(unpacked, what, "data do not repeat so much", DataError, limit=_HARMLESS)
            return {entry.filename.removesuffix(".npy"): _array(archive, entry) for entry in entries}
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except DataError as error:
        raise error if str(path) in str(error) else DataError(f"{path} cannot be read: {error}") from error
    except Exception as error:  # whatever zipfile, zlib and numpy meet in a damaged file
        text = str(error) or type(error).__name__
        raise DataError(f"{path} cannot be read as .npz: {text}") from error


def _array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Array:
    """Read one array [*], in the machine's byte order."""
    from pacbayes_fl import tensors  # which import torch; names of data sets are listed without it
    from pacbayes_fl.data import long_arrays

    name = entry.filename
    if not name.endswith(".npy"):
        raise DataError(f"its entry {name!r} is no array", hint="an archive in an archive is not looked into")
    with archive.open(entry) as stream:
        version = npy.read_magic(stream)
        if version not in _HEADERS:
            raise DataError(f"array {name!r} has a format of its own, {version}")
        shape, columns_first, dtype = _HEADERS[version](stream)
        if dtype.hasobject:
            raise DataError(f"array {name!r} holds Python objects, which could run code")
        left = entry.file_size - stream.tell()
        if min(shape, default=1) < 0 or dtype.itemsize * math.prod(shape) != left:
            raise DataError(f"array {name!r} is said to be {list(shape)} {dtype}, and holds {left} bytes")
        data = long_arrays.mapped_array(left, np.uint8)
        done = 0
        while part := stream.read(_CHUNK):  # to its end, where its checksum is compared
            data[done : done + len(part)] = np.frombuffer(part, np.uint8)
            done += len(part)
            tensors.release_mapped()
    flat = data.view(dtype) if left else np.empty(0, dtype)
    return flat.reshape(shape, order="F" if columns_first else "C").astype(dtype.newbyteorder("="), copy=False)


def write_npz(file: IO[bytes], arrays: Mapping[str, Array]) -> None:
    """Write arrays as `numpy.savez_compressed` does, a block of rows at a time.

    Args:
        file: to write to.
        arrays: by name [*], without Python objects.
    """
    from pacbayes_fl.data import long_arrays

    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            head = npy.header_data_from_array_1_0(np.empty(0, array.dtype)) | {"shape": array.shape}
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                npy.write_array_header_1_0(entry, head)
                for own in long_arrays.row_blocks(len(array)) if array.ndim else ((),):
                    entry.write(array[own].tobytes())
