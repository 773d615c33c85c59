"""Requests and replies in bytes, for sockets and folders. Nothing heavy is imported here: a relay takes no longer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from pacbayes_fl.errors import DeployError
from pacbayes_fl.files import JsonMapping

STYPE: Final = "numpy.ndarray"
"""Name of the form of `Array.data`: a file of NumPy's format 1.0, in C order."""

_LENGTH: Final = 8  # bytes of the length of the header, which comes first
_HEADER: Final = 2**24  # bytes of the longest header that is read
_LARGEST: Final = 2**63  # beyond any size of a tensor


class Serialised(Protocol):
    """A tensor in bytes. Flower's `Array`, the value type of its `ArrayRecord`, is one."""

    @property
    def dtype(self) -> str:
        """Name of a dtype in `arrays.DTYPES`."""

    @property
    def shape(self) -> Sequence[int]:
        """Sizes of the dimensions."""

    @property
    def stype(self) -> str:
        """How `data` is to be read; see `STYPE`."""

    @property
    def data(self) -> bytes:
        """The content."""


class Array(NamedTuple):
    """A tensor in bytes: the fields of Flower's `Array` in its order, so that `flwr.app.Array(*array)` is one.

    Args:
        dtype: name of a dtype in `arrays.DTYPES`.
        shape: sizes of the dimensions.
        stype: `STYPE`.
        data: header and numbers.
    """

    dtype: str
    shape: tuple[int, ...]
    stype: str
    data: bytes


class Frame(NamedTuple):
    """Plain values beside arrays in bytes.

    Args:
        config: JSON.
        arrays: by flat name.
    """

    config: JsonMapping
    arrays: Mapping[str, Array]


def encode(config: JsonMapping, arrays: Mapping[str, Serialised]) -> bytes:
    """Write plain values and arrays in one piece.

    Args:
        config: JSON.
        arrays: by flat name.

    Returns:
        Length of a header, the header in JSON, and the arrays' data one after the other.

    Raises:
        DeployError: when the header is longer than `decode` reads.
    """
    listed = [[name, one.dtype, list(one.shape), one.stype, len(one.data)] for name, one in arrays.items()]
    header = json.dumps({"config": dict(config), "arrays": listed}).encode()
    if len(header) > _HEADER:
        what = f"a message of {len(config)} plain values and {len(listed)} arrays has a header of {len(header)} bytes"
        hint = "spread the clients over more nodes"
        raise DeployError(f"{what}, and at most {_HEADER} are read", cause="frame", hint=hint)
    return b"".join([len(header).to_bytes(_LENGTH, "big"), header, *(one.data for one in arrays.values())])


def decode(data: bytes) -> Frame:
    """Read what `encode` wrote; the content of arrays is judged by `arrays.unpack` and not here.

    Args:
        data: as received.

    Returns:
        Values and arrays.

    Raises:
        DeployError: when it is nothing that `encode` writes.
    """
    size = int.from_bytes(data[:_LENGTH], "big")
    try:
        if not 0 < size <= min(_HEADER, len(data) - _LENGTH):
            raise ValueError("its header is cut short")
        header = json.loads(data[_LENGTH : _LENGTH + size])
        config, listed, at = header["config"], header["arrays"], _LENGTH + size
        if not isinstance(config, dict):
            raise TypeError("its values have no names")
        arrays = {}
        for name, dtype, shape, stype, length in listed:
            if not isinstance(shape, list) or not all(type(one) is int and 0 <= one < _LARGEST for one in shape):
                raise ValueError("the shape of an array must be whole numbers")
            if type(length) is not int or not 0 <= length <= len(data) - at:
                raise ValueError("its arrays are cut short")
            if not all(isinstance(text, str) for text in (name, dtype, stype)):
                raise TypeError("an array's name and form must be text")
            arrays[name] = Array(dtype, tuple(shape), stype, data[at : at + length])
            at += length
        if at != len(data):
            raise ValueError("there is more than its header tells of")
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise DeployError(f"what came is no message: {error}", cause="frame") from error
    return Frame(config, arrays)
