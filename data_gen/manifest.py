"""The manifest beside a data set: content hash, versions, and JSON writing."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from data_gen import rooms

MANIFEST_FORMAT = 1
"""Version of the manifest's and the container's layout."""


def content_hash(arrays: Mapping[str, np.ndarray[Any, Any]]) -> str:
    r"""Give the SHA-256 of named arrays, free of file details such as zip timestamps.

    Formula: the hash runs over the names in sorted order, and for each over the line
    ``name|dtype|shape\n`` followed by the array's bytes (C order, little endian).

    Args:
        arrays: the arrays by name; of any shape, of a dtype without Python objects.

    Returns:
        64 hexadecimal digits.

    Raises:
        TypeError: an array holds Python objects.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        if array.dtype.hasobject:
            raise TypeError(f"array {name!r} holds Python objects and has no content hash")
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        shape = ",".join(str(size) for size in array.shape)
        digest.update(f"{name}|{array.dtype.str}|{shape}\n".encode())
        for own in rooms.blocks(array) if array.ndim else ((),):
            digest.update(array[own].tobytes(order="C"))
    return digest.hexdigest()


def versions(*packages: str) -> dict[str, str]:
    """Give the versions of Python and of the installed packages named.

    Args:
        packages: names of distributions, such as ``"numpy"``.

    Returns:
        Version by name; a package that is not installed is ``"not installed"``.
    """
    result = {"python": platform.python_version()}
    for package in packages:
        try:
            result[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            result[package] = "not installed"
    return result


def variant_tag(config: Any, shown: tuple[str, ...]) -> str:
    """Give a file-name ending that tells apart configurations whose shown options are equal.

    Args:
        config: instance of a configuration dataclass, all of whose fields have defaults.
        shown: fields that the file name already tells.

    Returns:
        Nothing where all other options have their defaults, else "_" and 8 hexadecimal digits
        of the SHA-256 of the options that have not.
    """
    values = asdict(config)
    changed = {f.name: values[f.name] for f in fields(config) if f.name not in shown and values[f.name] != f.default}
    if not changed:
        return ""
    return "_" + hashlib.sha256(json.dumps(changed, sort_keys=True).encode()).hexdigest()[:8]


def write_atomic(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file so that readers see either the old file or the whole new one.

    Args:
        path: the file; its folder must exist.
        write: called with the open temporary file, which then replaces ``path``.

    Raises:
        OSError: the folder cannot be written.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes the file private; give it the usual permissions of a new file.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def to_json(manifest: Mapping[str, Any]) -> bytes:
    """Give a manifest as indented JSON with sorted keys.

    Args:
        manifest: plain values only; NaN and infinity are refused.

    Returns:
        UTF-8 bytes that end with a newline.

    Raises:
        ValueError: a number is not finite.
        TypeError: a value has no JSON form.
    """
    text = json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()
