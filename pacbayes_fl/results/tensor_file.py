"""Tensors written as safetensors, a block of rows at a time: whole files are read by the library of that name.

The layout is that of the format's description (https://huggingface.co/docs/safetensors): the length of the header as
eight bytes, little-endian; the header, JSON with dtype, shape and place of every tensor; their bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import IO, Final

import torch
from torch import Tensor

from pacbayes_fl.errors import ShapeError
from pacbayes_fl.tensors import client_blocks

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
                file.write(part.view(-1).view(torch.uint8).numpy().data)
