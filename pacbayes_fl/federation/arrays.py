"""Tensors as a network carries them: bytes with a declared dtype and shape, judged before they are read."""

from __future__ import annotations

import hashlib
import io
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import DeployError, ShapeError
from pacbayes_fl.federation.frames import STYPE, Array
from pacbayes_fl.files import JsonMapping

DTYPES = MappingProxyType(
    {str(dtype).removeprefix("torch."): dtype for dtype in (torch.float32, torch.float64, torch.int64)}
)
"""What may travel; always little-endian."""

Compress = Literal["none", "float16", "bfloat16"]
"""How floating-point numbers travel: as they are, or rounded to 16 bits."""

_NARROW: Final = MappingProxyType({"float16": torch.float16, "bfloat16": torch.bfloat16})

_HEADER = 512
_SHOWN = 80


def shown(value: object, longest: int = _SHOWN) -> str:
    """Quote received text in one short line without control characters.

    Args:
        value: anything.
        longest: characters.

    Returns:
        Its `ascii`, cut after so many characters.
    """
    text = ascii(value[: 2 * longest]) if isinstance(value, str | bytes) else ascii(value)
    return text if len(text) <= longest else f"{text[:longest]}..."


def pack(tree: object, compress: Compress = "none") -> dict[str, Array]:
    """Lay a tree out in bytes.

    Args:
        tree: message or update, leaves [*].
        compress: how floating-point numbers travel.

    Returns:
        Arrays by flat name.

    Raises:
        ShapeError: naming a leaf whose dtype does not travel.
        DeployError: naming a leaf with a finite number that 16 bits do not hold.
    """
    packed = {}
    for name, leaf in tensors.leaves(tree).items():
        kind = str(leaf.dtype).removeprefix("torch.")
        if kind not in DTYPES:
            raise ShapeError(f"leaf {name!r} is {leaf.dtype}; what may travel is {', '.join(DTYPES)}")
        leaf = leaf.detach().cpu().contiguous()
        if compress != "none" and leaf.is_floating_point():
            kind, leaf = compress, _narrowed(name, leaf, compress)
        array = leaf.numpy()
        file = io.BytesIO()
        np.lib.format.write_array(file, array.astype(array.dtype.newbyteorder("<"), copy=False), (1, 0))
        packed[name] = Array(kind, tuple(leaf.shape), STYPE, file.getvalue())
    return packed


def _narrowed(name: str, leaf: Tensor, compress: Compress) -> Tensor:
    """Round to 16 bits; those of bfloat16, which NumPy does not know, as whole numbers."""
    narrow = leaf.to(_NARROW[compress])
    if bool((narrow.isinf() & leaf.isfinite()).any()):
        largest = torch.finfo(narrow.dtype).max
        what = f"leaf {name!r} has a number beyond {largest:g}, the largest of {compress}"
        raise DeployError(what, cause="compress", hint="deploy.compress = 'bfloat16', or 'none'")
    return narrow.view(torch.int16) if compress == "bfloat16" else narrow


def rounded(tree: tensors.Tree, compress: Compress) -> tensors.Tree:
    """Give a tree as it arrives.

    Args:
        tree: leaves [*].
        compress: how floating-point numbers travel.

    Returns:
        The tree with its dtypes and devices, floating-point numbers rounded; the very same with "none".

    Raises:
        DeployError: as `pack`.
    """
    if compress == "none":
        return tree
    came = tensors.leaves(unpack(tree, pack(tree, compress), compress))
    return tensors.unleaves(tree, {name: came[name].to(leaf.device) for name, leaf in tensors.leaves(tree).items()})


def size(arrays: JsonMapping) -> int:
    """Count bytes without reading a number.

    Args:
        arrays: `Serialised` or tensors [*] by name.

    Returns:
        Bytes of names and data; of a tensor the size of its numbers.

    Raises:
        ShapeError: naming something that is neither.
    """
    total = 0
    for name, value in arrays.items():
        if not isinstance(name, str):
            raise ShapeError(f"a leaf's name must be text, got {shown(name)}")
        if isinstance(value, Tensor):
            total += value.numel() * value.element_size()
        elif isinstance(data := getattr(value, "data", None), bytes):
            total += len(data)
        else:
            raise ShapeError(f"leaf {shown(name)} is no array in bytes and no tensor, but {type(value).__name__}")
        total += len(name)
    return total


def unpack(like: tensors.Tree, arrays: JsonMapping, compress: Compress = "none") -> tensors.Tree:
    """Read received arrays into a tree of known structure.

    Args:
        like: the wanted names, shapes and dtypes, leaves [*].
        arrays: `Serialised`, or dense tensors [*] on the CPU, by flat name.
        compress: how floating-point numbers have travelled.

    Returns:
        A tree of `like`'s structure on the CPU, in memory of its own.

    Raises:
        ShapeError: naming a leaf that is missing, foreign, of another shape or dtype, not dense, not on the CPU, or
            whose bytes are not what they are declared to be.
    """
    wanted = tensors.leaves(like)
    if wanted.keys() != arrays.keys():
        missing, strange = sorted(wanted.keys() - arrays.keys()), sorted(map(shown, arrays.keys() - wanted.keys()))
        raise ShapeError(f"leaves missing: {missing[:5]}, not known: {', '.join(strange[:5]) or 'none'}")
    read = {name: _read(name, arrays[name], leaf, compress) for name, leaf in wanted.items()}
    return tensors.unleaves(like, read)


def digest(tree: object) -> str:
    """Hash names, shapes, dtypes and bits of a tree.

    Args:
        tree: leaves [*].

    Returns:
        SHA-256 in hexadecimal digits; the same on every machine for the same numbers.
    """
    code = hashlib.sha256()
    for name, leaf in sorted(tensors.leaves(tree).items()):
        array = leaf.detach().cpu().contiguous().numpy()
        code.update(f"{len(name)} {name} {leaf.dtype} {list(leaf.shape)}\n".encode())
        code.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return code.hexdigest()


def _read(name: str, value: object, like: Tensor, compress: Compress) -> Tensor:
    narrow = compress != "none" and like.is_floating_point()
    form_of = compress if narrow else str(like.dtype).removeprefix("torch.")
    wanted = f"leaf {name!r} must be {list(like.shape)} {compress if narrow else like.dtype}"
    if isinstance(value, Tensor):
        odd = "quantised" if value.is_quantized else "nested" if value.is_nested else None
        if odd is not None or value.layout != torch.strided or value.device.type != "cpu":
            kind = odd or f"{value.layout} on {value.device}"
            raise ShapeError(f"{wanted}, dense on the CPU, got {kind.replace('torch.', '')}")
        if value.shape != like.shape or value.dtype != like.dtype:
            raise ShapeError(f"{wanted}, got {shown(list(value.shape))[:_SHOWN]} {value.dtype}")
        return value.detach().clone(memory_format=torch.contiguous_format)
    came: list[Any] = [getattr(value, part, None) for part in ("dtype", "shape", "stype", "data")]
    dtype, shape, form, data = came
    sizes = isinstance(shape, tuple | list) and all(type(size) is int for size in shape)
    if not (sizes and isinstance(dtype, str) and isinstance(form, str) and isinstance(data, bytes)):
        raise ShapeError(f"{wanted}, got {type(value).__name__} of {type(dtype).__name__}, {type(shape).__name__}")
    if form != STYPE:
        raise ShapeError(f"{wanted} as {STYPE}, got {shown(form)}")
    if dtype != form_of or tuple(shape) != tuple(like.shape):
        raise ShapeError(f"{wanted}, got {shown(list(shape))} {shown(dtype)}")
    if not narrow:
        return _numbers(wanted, data, like)
    if compress == "float16":
        return _numbers(wanted, data, like.to(torch.float16)).to(like.dtype)
    return _numbers(wanted, data, like.to(torch.int16)).view(torch.bfloat16).to(like.dtype)


def _numbers(wanted: str, data: bytes, like: Tensor) -> Tensor:
    """Read a file of NumPy's format 1.0 after comparing its header and length with the expected ones."""
    dtype = np.dtype(str(like.dtype).removeprefix("torch.")).newbyteorder("<")
    usual = io.BytesIO()
    in_rows = {"descr": dtype.str, "fortran_order": False, "shape": tuple(like.shape)}
    np.lib.format.write_array_header_1_0(usual, in_rows)
    if data.startswith(head := usual.getvalue()) and len(data) == len(head) + dtype.itemsize * like.numel():
        return _filled(data, len(head), dtype, like)  # reading a header as a literal takes longer than all the rest
    file = io.BytesIO(data)
    try:
        if np.lib.format.read_magic(file) != (1, 0):
            raise ValueError("not format 1.0")
        shape, columns_first, kind = np.lib.format.read_array_header_1_0(file, max_header_size=_HEADER)
    except Exception as error:  # the header is a Python literal, and what fails in reading one is many things
        raise ShapeError(f"{wanted}, and its bytes are no file of NumPy's format 1.0") from error
    if kind != dtype or shape != tuple(like.shape) or (columns_first and len(shape) > 1):
        order = " in columns" if columns_first else ""
        raise ShapeError(f"{wanted} of {dtype.str} in rows, and its bytes say {shown(list(shape))} {kind.str}{order}")
    if (got := len(data) - file.tell()) != dtype.itemsize * like.numel():
        raise ShapeError(f"{wanted}, {dtype.itemsize * like.numel()} bytes of numbers, got {got}")
    return _filled(data, file.tell(), dtype, like)


def _filled(data: bytes, offset: int, dtype: np.dtype[Any], like: Tensor) -> Tensor:
    numbers = np.frombuffer(data, dtype, offset=offset).reshape(tuple(like.shape))
    return torch.from_numpy(numbers.astype(dtype.newbyteorder("="), copy=True))
