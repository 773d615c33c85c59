"""Tensors written as safetensors, a block of rows at a time: whole files are read by the library of that name.

The layout is that of the format's description (https://huggingface.co/docs/safetensors): the length of the header as
eight bytes, little-endian; the header, JSON with dtype, shape and place of every tensor; their bytes.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import IO, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pacbayes_fl.errors import ShapeError
from pacbayes_fl.tensors import MAPPED, client_blocks, mapped_zeros, release_mapped

_CHUNK: Final = 2**20  # bytes that are read together

_HOLE: Final = 2**16  # zeros that are not written

_DTYPES: Final[Mapping[torch.dtype, str]] = MappingProxyType(
    {
        torch.float64: "F64",
        torch.float32: "F32",
        torch.float16: "F16",
        torch.bfloat16: "BF16",
        torch.int64: "I64",
        torch.int32: "I32",
        torch.int16: "I16",
        torch.int8: "I8",
        torch.uint8: "U8",
        torch.bool: "BOOL",
    }
)

_BY_NAME: Final = MappingProxyType({name: dtype for dtype, name in _DTYPES.items()})


def read(file: IO[bytes]) -> dict[str, Tensor]:
    """Read tensors, into files where they are large.

    Args:
        file: to read from, on the disk.

    Returns:
        By name [*].

    Raises:
        ValueError: when it does not hold what its header says.
        OSError: when it cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if length > size - 8:
        raise ValueError("the header is longer than the file")
    header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    places, at = sorted(header.items(), key=lambda one: one[1]["data_offsets"]), 0
    result = dict[str, Tensor]()
    for name, one in places:
        dtype, shape = _BY_NAME[one["dtype"]], tuple(int(length) for length in one["shape"])
        begin, end = one["data_offsets"]
        fits = min(shape, default=0) >= 0 and end - begin == math.prod(shape) * dtype.itemsize
        if begin != at or not fits or end > size - 8 - length:
            raise ValueError(f"{name!r} is not where the header says")
        result[name], at = mapped_zeros(shape, dtype), end
        if at > begin:
            _fill(file, result[name].view(-1).view(torch.uint8).numpy())
    if at != size - 8 - length:
        raise ValueError("the file is longer than its tensors")
    return result


def _fill(file: IO[bytes], into: npt.NDArray[np.uint8]) -> None:
    """Read the next bytes of a file into zeros."""
    left = memoryview(into)  # type: ignore[arg-type]
    while left:
        some = file.read(min(_CHUNK, len(left)))
        if not some:
            raise ValueError("the file was cut short")
        for begin in range(0, len(some), _HOLE):
            piece = np.frombuffer(some[begin : begin + _HOLE], dtype=np.bool_)
            if piece.any():  # a page of a file that is not written takes no memory
                left[begin : begin + len(piece)] = some[begin : begin + _HOLE]
        left = left[len(some) :]
        release_mapped()


def write(file: IO[bytes], tensors: Mapping[str, Tensor]) -> None:
    """Write tensors.

    Args:
        file: to write to.
        tensors: by name [*]; wide dtypes first, so that all are aligned, then by name.

    Raises:
        ShapeError: of a dtype that the format has not.
    """
    header, at = dict[str, object](), 0
    every = sorted(tensors.items(), key=lambda one: (-one[1].element_size(), one[0]))
    for name, tensor in every:
        if tensor.dtype not in _DTYPES:
            raise ShapeError(f"{name!r} is {tensor.dtype}, which safetensors has not")
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for _, tensor in every:
        rows = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()
        for own in client_blocks(len(rows)):
            part = rows[own].cpu().contiguous()
            if part.numel():
                _put(file, part.view(-1).view(torch.uint8).numpy())


def _put(file: IO[bytes], data: npt.NDArray[np.uint8]) -> None:
    """Write bytes, but for long stretches of zeros, such as padding, which a file reads as without taking the disk."""
    if len(data) < MAPPED or not file.seekable():
        file.write(data.data)
        return
    at = range(0, len(data), _HOLE)
    for begin in at:
        piece = data[begin : begin + _HOLE]
        if begin == at[-1] or piece.view(np.bool_).any():
            file.write(piece.data)
        else:
            file.seek(len(piece), os.SEEK_CUR)
