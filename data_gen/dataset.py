"""The container that all generators return: rows of many clients in long form."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from data_gen import rooms
from data_gen.errors import DataGenError
from data_gen.manifest import MANIFEST_FORMAT, content_hash, to_json, write_atomic

_OPTIONAL = ("time", "latent")
_REQUIRED = (
    "x",
    "y",
    "client",
    "test",
    "client_name",
    "client_new",
    "feature_name",
    "feature_unit",
    "target_name",
    "target_unit",
)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Rows of many clients in long form, so that clients may have different numbers of rows.

    R rows, d features, C clients. The rows of one client lie together: its training rows,
    then its test rows, each in the order drawn (series: in the order of time, so that
    contiguous folds are blocks in time). Values are raw; nothing is standardised.

    Attributes:
        x: features, [R, d] float64, in ``feature_unit``.
        y: targets, [R] float64, in ``target_unit``.
        client: client number of each row, [R] int64 in 0..C-1.
        test: whether the row is a test row, [R] bool.
        client_name: [C] unicode.
        client_new: whether the client takes no part in training the shared model, [C] bool.
        feature_name: [d] unicode.
        feature_unit: [d] unicode.
        target_name: name of the target.
        target_unit: unit of the target.
        manifest: how the data were made; plain values only.
        time: UTC seconds since 1970 of each row, [R] int64, or None.
        latent: noise-free value of the function at each row, [R] float64, or None.

    Raises:
        DataGenError: shapes or dtypes do not fit, or a value is not finite.
    """

    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    client: npt.NDArray[np.int64]
    test: npt.NDArray[np.bool_]
    client_name: npt.NDArray[np.str_]
    client_new: npt.NDArray[np.bool_]
    feature_name: npt.NDArray[np.str_]
    feature_unit: npt.NDArray[np.str_]
    target_name: str
    target_unit: str
    manifest: dict[str, Any] = field(default_factory=dict)
    time: npt.NDArray[np.int64] | None = None
    latent: npt.NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        """Check shapes, dtypes and values."""
        if self.x.ndim != 2:
            raise DataGenError(f"x must have two dimensions, has {self.x.ndim}")
        rows, features = self.x.shape
        clients = self.client_name.shape[0] if self.client_name.ndim == 1 else -1
        wanted: dict[str, tuple[tuple[int, ...], str]] = {
            "x": ((rows, features), "f8"),
            "y": ((rows,), "f8"),
            "client": ((rows,), "i8"),
            "test": ((rows,), "b1"),
            "client_name": ((clients,), "U"),
            "client_new": ((clients,), "b1"),
            "feature_name": ((features,), "U"),
            "feature_unit": ((features,), "U"),
            "time": ((rows,), "i8"),
            "latent": ((rows,), "f8"),
        }
        for name, (shape, kind) in wanted.items():
            array = getattr(self, name)
            if array is None:
                continue
            right_kind = array.dtype.kind == "U" if kind == "U" else array.dtype == np.dtype(kind)
            if array.shape != shape or not right_kind:
                raise DataGenError(f"{name} is {array.dtype}{list(array.shape)}, must be {kind}{list(shape)}")
            if array.dtype.kind == "f" and not all(np.isfinite(array[own]).all() for own in rooms.blocks(array)):
                raise DataGenError(f"{name} holds values that are not finite")
        if any(self.client[own].min() < 0 or self.client[own].max() >= clients for own in rooms.blocks(self.client)):
            raise DataGenError(f"client numbers must lie in 0..{clients - 1}")

    @property
    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """The arrays by name, as they are written."""
        result: dict[str, np.ndarray[Any, Any]] = {name: np.asarray(getattr(self, name)) for name in _REQUIRED}
        result.update({name: getattr(self, name) for name in _OPTIONAL if getattr(self, name) is not None})
        return result

    @property
    def sha256(self) -> str:
        """Content hash of the arrays, see ``data_gen.manifest.content_hash``."""
        return content_hash(self.arrays)

    def rows(self, client: int | str, *, test: bool) -> npt.NDArray[np.intp]:
        """Give the positions of one client's training or test rows.

        Args:
            client: number or name of the client.
            test: whether to give the test rows instead of the training rows.

        Returns:
            Positions in the order stored, [rows of the client].

        Raises:
            DataGenError: there is no such client.
        """
        names = self.client_name.tolist()
        if isinstance(client, str):
            if client not in names:
                raise DataGenError(f"no client {client!r}; there are {names[0]!r} to {names[-1]!r}")
        position = names.index(client) if isinstance(client, str) else client
        if not 0 <= position < len(names):
            raise DataGenError(f"no client {position}; there are 0 to {len(names) - 1}")
        return np.flatnonzero((self.client == position) & (self.test == test))

    def save(self, folder: str | Path) -> Path:
        """Write ``STEM.npz`` and beside it ``STEM.json``, each in one step.

        The manifest is written last, and carries the content hash of the npz.

        Args:
            folder: made if missing; STEM is ``manifest["stem"]``.

        Returns:
            Path of the npz file.

        Raises:
            DataGenError: the folder cannot be written, or the manifest has no stem.
        """
        stem = str(self.manifest.get("stem", ""))
        if not stem or Path(stem).name != stem:
            raise DataGenError(f"manifest['stem'] must be a plain file name, is {stem!r}")
        place = Path(folder) / f"{stem}.npz"
        arrays = self.arrays
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(place, lambda stream: write_npz(stream, arrays))
            write_atomic(place.with_name(f"{stem}.json"), lambda stream: stream.write(to_json(self.manifest)))
        except OSError as error:
            raise DataGenError(f"cannot write {place}: {error}") from error
        return place


def write_npz(stream: BinaryIO, arrays: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Write arrays as a compressed npz archive without Python objects.

    Args:
        stream: open for binary writing.
        arrays: the arrays by name.

    Raises:
        ValueError: an array holds Python objects.
    """
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            # A fixed time stamp: equal data then make equal files.
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as part:
                np.lib.format.write_array(part, np.asanyarray(array), allow_pickle=False)


def load(path: str | Path) -> Dataset:
    """Read a data set written by ``Dataset.save`` and check its content hash.

    Args:
        path: the npz file; its manifest must lie beside it.

    Returns:
        The data set.

    Raises:
        DataGenError: a file is missing or damaged, or the hash differs from the manifest's.
    """
    place = Path(path)
    try:
        with np.load(place, allow_pickle=False) as archive:
            arrays: dict[str, Any] = {name: archive[name] for name in archive.files}
        manifest = json.loads(place.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise DataGenError(f"cannot read {place}: {error}") from error
    unknown = sorted(set(arrays) - set(_REQUIRED) - set(_OPTIONAL))
    missing = sorted(set(_REQUIRED) - set(arrays))
    if unknown or missing:
        raise DataGenError(f"{place}: missing arrays {missing}, unknown arrays {unknown}")
    arrays["target_name"] = str(arrays["target_name"])
    arrays["target_unit"] = str(arrays["target_unit"])
    dataset = Dataset(**arrays, manifest=manifest)
    if manifest.get("sha256") != dataset.sha256:
        raise DataGenError(f"{place} does not match the content hash in its manifest")
    return dataset


def finish(dataset: Dataset, manifest: Mapping[str, Any]) -> Dataset:
    """Give the data set with its whole manifest: the given one, sizes, features and hash.

    Args:
        dataset: the arrays.
        manifest: what the generator knows: name, stem, arguments, seeds, versions.

    Returns:
        The same arrays with the whole manifest.
    """
    each = np.zeros(len(dataset.client_name), dtype=np.int64)
    for own in rooms.blocks(dataset.client, dataset.test):
        each += np.bincount(dataset.client[own][~dataset.test[own]], minlength=each.size)
    counts = each.tolist()
    whole = {
        **manifest,
        "format": MANIFEST_FORMAT,
        "sha256": dataset.sha256,
        "sizes": {
            "rows": int(dataset.x.shape[0]),
            "features": int(dataset.x.shape[1]),
            "clients": int(np.count_nonzero(~dataset.client_new)),
            "new_clients": int(np.count_nonzero(dataset.client_new)),
            "train_rows": int(each.sum()),
            "test_rows": int(np.count_nonzero(dataset.test)),
            "train_rows_per_client": {"least": min(counts, default=0), "most": max(counts, default=0)},
        },
        "features": [
            {"name": str(name), "unit": str(unit)}
            for name, unit in zip(dataset.feature_name, dataset.feature_unit, strict=True)
        ],
        "target": {"name": dataset.target_name, "unit": dataset.target_unit},
        "standardised": False,
    }
    return Dataset(**{**dataset.__dict__, "manifest": whole})


def client_names(stem: str, clients: int, new_clients: int) -> npt.NDArray[np.str_]:
    """Give the names of existing and new clients, such as ``poly_00`` and ``new_poly_00``.

    Args:
        stem: ``"poly"`` or ``"house"``.
        clients: number of existing clients.
        new_clients: number of new clients.

    Returns:
        [clients + new_clients] unicode.
    """
    names = [f"{stem}_{i:02d}" for i in range(clients)] + [f"new_{stem}_{i:02d}" for i in range(new_clients)]
    return np.array(names, dtype=np.str_)
