"""Folders of images: a folder for every class, by client or not, as torchvision's `ImageFolder` has them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pacbayes_fl.data.image_files import SUFFIXES
from pacbayes_fl.errors import DataError, caller_stacklevel

_LAYOUTS: Final = (
    "CLIENT/CLASS/*.png or CLASS/*.png, either of them below train/ and test/ or not, or CLIENT/train/CLASS/*.png and "
    "CLIENT/test/CLASS/*.png"
)
_PARTS: Final = frozenset({"train", "test"})


class Place(NamedTuple):
    """A file, and what its folders say of it.

    Args:
        path: of the file.
        client: its owner; empty where the folders are of classes alone.
        label: its class; empty where no folder says it.
        test: whether it lies below test/; None where nothing is split.
    """

    path: Path
    client: str
    label: str
    test: bool | None


def labelled(root: Path) -> list[Place]:
    """List the files of a folder to learn from, in the order of parts, clients, classes and names.

    Args:
        root: the folder.

    Returns:
        The files, all with a class; either all with a client or none.

    Raises:
        DataError: naming a folder without images, a file outside of a folder of a class, or two files of which one lies
            in a folder of a client and the other does not.

    Warns:
        UserWarning: of files that are no images.
    """
    if not root.is_dir():
        raise DataError(f"there is no folder {root}")
    parts: list[tuple[bool | None, Path]] = [(None, root)]
    if _is_split(root):
        parts = [(part == "test", root / part) for part in ("train", "test")]
    if parts[1:] or not any(map(_is_split, _folders(root))):
        found = [place for test, folder in parts for place in _of_part(folder, test)]
    else:
        found = [place for part in ("train", "test") for place in _of_split_clients(root, part)]
    if not found:
        raise DataError(f"{root} has no images", hint=f"it needs {_LAYOUTS}")
    owned = [place for place in found if place.client]
    if owned and len(owned) < len(found):
        other = next(place for place in found if not place.client)
        what = f"{owned[0].path} lies in a folder of a client, and {other.path} in a folder of a class alone"
        raise DataError(what, hint=f"it needs {_LAYOUTS}")
    _warn_of_others(root)
    return found


def to_predict(root: Path, client: str | None = None) -> list[Place]:
    """List the files of a folder to predict, in the order of their names.

    Args:
        root: the folder.
        client: owner of all files; None where the folders in `root` are of clients.

    Returns:
        The files, however deep they lie; those right in the folder of a client have no class, of others it is the
        folder that they lie in. Below train/ and test/ of a client they say which these are.

    Raises:
        DataError: when there are no images, or one belongs to nobody.
    """
    if not root.is_dir():
        raise DataError(f"there is no folder {root}")
    paths = sorted(path for path in root.rglob("*") if _is_image(path))
    if not paths:
        raise DataError(f"{root} has no images", hint=f"file names end in {', '.join(SUFFIXES)}")
    found, split = [], {folder.name for folder in ([] if client is not None else _folders(root)) if _is_split(folder)}
    for path in paths:
        *folders, _ = path.relative_to(root).parts
        if client is None and not folders:
            raise DataError(f"{path} lies in no folder of a client", hint="name the client, or make CLIENT/*.png of it")
        below = folders if client is not None else folders[1:]
        test = below[0] == "test" if folders and folders[0] in split else None
        found.append(Place(path, folders[0] if client is None else client, below[-1] if below else "", test))
    return found


def _is_split(folder: Path) -> bool:
    """Whether a folder holds train/ and test/ and nothing else, with folders in them: classes may be called so too."""
    if {one.name for one in _folders(folder)} != _PARTS or _files(folder):
        return False
    return not any(_files(folder / part) for part in _PARTS)


def _of_split_clients(root: Path, part: str) -> Iterator[Place]:
    """List one part of clients that hold train/ and test/, of which a new one may lack the former."""
    if loose := _files(root):
        raise DataError(f"{loose[0]} lies in no folder of a class", hint=f"it needs {_LAYOUTS}")
    for client in _folders(root):
        if not {one.name for one in _folders(client)} <= _PARTS or _files(client):
            what = f"{client} holds other things than train/ and test/, which other clients hold"
            raise DataError(what, client=client.name, hint=f"it needs {_LAYOUTS}")
        for place in _of_part(client / part, part == "test") if (client / part).is_dir() else ():
            if place.client:
                what = f"class {place.client}: {client / part / place.client} holds a folder, {place.label}"
                raise DataError(what, client=client.name, hint=f"it needs {_LAYOUTS}")
            yield place._replace(client=client.name)


def _of_part(root: Path, test: bool | None) -> Iterator[Place]:
    if loose := _files(root):
        raise DataError(f"{loose[0]} lies in no folder of a class", hint=f"it needs {_LAYOUTS}")
    for first in _folders(root):
        here, below = _files(first), _folders(first)
        if here and below:
            what = f"{first} holds images, as a class does, and the folder {below[0].name}, as a client does"
            raise DataError(what, hint=f"it needs {_LAYOUTS}")
        if not here and not below:
            raise DataError(f"{first} has no images", hint="delete it, or put its images there")
        yield from (Place(path, "", first.name, test) for path in here)
        for second in below:
            files = _files(second)
            if not files or _folders(second):
                what = "has no images" if not files else f"holds a folder, {_folders(second)[0].name}"
                raise DataError(f"class {second.name}: {second} {what}", client=first.name, hint=f"it needs {_LAYOUTS}")
            yield from (Place(path, first.name, second.name, test) for path in files)


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _is_image(path))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and not path.name.startswith(".") and path.is_file()


def _warn_of_others(root: Path) -> None:
    """Say which files are left out, but for those that begin with a dot, as systems leave them."""
    others: Sequence[Path] = sorted(
        path for path in root.rglob("*") if path.is_file() and not _is_image(path) and not path.name.startswith(".")
    )
    if others:
        what = f"{len(others)} files in {root} are no images and are left out, {others[0].relative_to(root)} the first"
        warnings.warn(f"{what}: names of images end in {', '.join(SUFFIXES)}", stacklevel=caller_stacklevel())
