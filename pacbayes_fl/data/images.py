"""Published image data sets, and federations of clients made from them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl import memory, settings
from pacbayes_fl.data import partition, tables, torchvision_ops
from pacbayes_fl.data.archives import read_npz
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.partition import LabelGroups, Parts
from pacbayes_fl.errors import DataError, StudyError, shown

Array = np.ndarray[Any, Any]

# Class of torchvision.datasets, and where it looks for its files.
_TORCHVISION = MappingProxyType(
    {
        "mnist": ("MNIST", "MNIST/raw"),
        "fashion-mnist": ("FashionMNIST", "FashionMNIST/raw"),
        "cifar10": ("CIFAR10", "cifar-10-batches-py"),
    }
)
NAMES = (*_TORCHVISION, "femnist")
KINDS = ("inverted", "rotated")
_ROOT = "PACBAYES_FL_DATA"
_DIGITS = 10  # classes 0..9 of FEMNIST
_SIDE = 28  # of LEAF's images
_PER_BYTE = 10  # bytes that numbers take for each byte of JSON
_PARTS = ("train", "test", "validation")  # numbered 0, 1, 2 in `Dataset.rows`


@dataclass(frozen=True, eq=False)
class Images:
    """A data set of R images: training and test part together.

    Args:
        x: pixels [R, channels, H, W], uint8.
        y: labels [R] in 0..classes-1, int64.
        official_test: bool [R], True on rows of the official test part.
        owner: number of each row's writer [R], int64; None where nobody owns rows.
        owner_names: names of the writers by number.
        classes: number of classes.
        name: such as "mnist" or "mnist-inverted".
        sha256: fingerprint of the arrays.
    """

    x: Tensor
    y: Tensor
    official_test: Tensor
    owner: Tensor | None
    owner_names: tuple[str, ...]
    classes: int
    name: str
    sha256: str


def _images(
    name: str, x: Tensor, y: Tensor, official_test: Tensor, classes: int, owner: Tensor | None, names: Sequence[str]
) -> Images:
    """Check that the arrays fit each other and take their fingerprint."""
    sizes = {len(x), len(y), len(official_test), *([] if owner is None else [len(owner)])}
    if x.dim() != 4 or x.dtype != torch.uint8 or len(sizes) > 1 or not len(x):
        raise DataError(
            f"{name}: expected uint8 images [R, channels, H, W] with R labels, got {list(x.shape)} {x.dtype}"
        )
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise DataError(f"{name}: labels must be in 0..{classes - 1}, got {int(y.min())}..{int(y.max())}")
    digest = hashlib.sha256()
    for array in (x, y, official_test, *([] if owner is None else [owner])):
        digest.update(f"{array.dtype} {list(array.shape)}\n".encode())
        digest.update(array.contiguous().numpy().data)
    return Images(x, y, official_test, owner, tuple(names), classes, name, digest.hexdigest())


def find_root(root: str | None) -> Path:
    """Find the folder that holds the data sets.

    Args:
        root: the folder; None for the one that the environment variable PACBAYES_FL_DATA names.

    Returns:
        The folder, which need not exist.

    Raises:
        DataError: when neither names one.
    """
    chosen = root or os.environ.get(_ROOT)
    if not chosen:
        raise DataError(
            f"no folder of data sets is given and the environment variable {_ROOT} is not set",
            hint=f"give `root`, or export {_ROOT}=/path/to/data",
        )
    return Path(chosen).expanduser()


def read(name: str, root: str | None = None, download: bool = False) -> Images:
    """Read a data set.

    "mnist", "fashion-mnist" and "cifar10" lie as torchvision expects them (`MNIST/raw`, `FashionMNIST/raw`,
    `cifar-10-batches-py`); rows are the training part, then the test part, each in the official order. "femnist" is
    `femnist.npz` (arrays x, y, writer, is_test, dup, writer_name), rows as they stand there, or what LEAF writes:
    `train/*.json` and `test/*.json` in `femnist/` or in the root itself, rows ordered by part and writer.

    Args:
        name: one of `NAMES`.
        root: see `find_root`.
        download: let torchvision download what is missing.

    Returns:
        The images.

    Raises:
        DataError: naming what was looked for, or what is wrong with it.
    """
    if name not in NAMES:
        raise DataError(f"there is no image data set {name!r}", hint=settings.nearest(name, NAMES))
    folder = find_root(root)
    return _read_femnist(folder) if name == "femnist" else _read_torchvision(name, folder, download)


def _read_torchvision(name: str, folder: Path, download: bool) -> Images:
    if torchvision_ops.ensure_importable() == "absent":
        raise DataError(f"reading {name} needs torchvision", hint="pip install torchvision")
    from torchvision import datasets

    class_name, below = _TORCHVISION[name]
    if not download and not (folder / below).is_dir():
        raise DataError(f"{name} is not there: there is no folder {folder / below}", hint=_advice(name, folder))
    try:
        both = [getattr(datasets, class_name)(str(folder), train=train, download=download) for train in (True, False)]
    except Exception as error:  # whatever it meets in a damaged file
        first = str(error).strip().splitlines()[:1]
        what = first[0] if first else type(error).__name__
        raise DataError(f"{name} in {folder / below} cannot be read: {what}", hint=_advice(name, folder)) from error
    parts = [torch.as_tensor(one.data) for one in both]
    if parts[0].dim() not in (3, 4) or parts[0].shape[1:] != parts[1].shape[1:]:
        got = " and ".join(str(list(part.shape)) for part in parts)
        raise DataError(f"{name} in {folder / below}: the parts hold images {got}", hint=_advice(name, folder))
    pixels = torch.cat(parts)
    x = pixels.unsqueeze(1) if pixels.dim() == 3 else pixels.permute(0, 3, 1, 2).contiguous()
    y = torch.cat([torch.as_tensor(one.targets) for one in both]).long()
    official_test = torch.arange(len(y)) >= len(both[0].targets)
    return _images(name, x, y, official_test, 10, None, ())


def _advice(name: str, folder: Path) -> str:
    script = folder / "cifar10" / "unpack.py"
    if name == "cifar10" and script.is_file():
        return f"unpack it: python {script} OUT_DIR, and make OUT_DIR the root"
    return f"set download, or make {_ROOT} the folder that holds {_TORCHVISION[name][1]}"


def _read_femnist(folder: Path) -> Images:
    if (folder / "femnist.npz").is_file():
        return _read_femnist_npz(folder / "femnist.npz")
    for place in (folder / "femnist", folder):
        if any(place.glob("train/*.json")) and any(place.glob("test/*.json")):
            return _read_leaf(place)
    raise DataError(
        f"femnist is not there: looked for {folder / 'femnist.npz'} and for train/*.json and test/*.json in "
        f"{folder / 'femnist'} and {folder}",
        hint="make it with LEAF's preprocess.sh (-s niid -t sample); torchvision cannot download it",
    )


def _read_femnist_npz(path: Path) -> Images:
    arrays = read_npz(path)
    try:
        first = ~arrays["dup"]
        x, y, writer, test = (torch.from_numpy(arrays[name][first]) for name in ("x", "y", "writer", "is_test"))
        names = [str(name) for name in arrays["writer_name"]]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if any(t.dim() != 1 or t.is_floating_point() or t.is_complex() for t in (y, writer, test)) or x.dim() < 2:
        raise DataError(f"{path}: y, writer and is_test must be whole numbers [R], one for each image")
    if len(writer) and not 0 <= int(writer.min()) <= int(writer.max()) < len(names):
        raise DataError(f"{path}: writers must be in 0..{len(names) - 1}, as there are names")
    used = names[: int(writer.max()) + 1] if len(writer) else []
    return _images("femnist", x.unsqueeze(1), y.long(), test.bool(), 62, writer.long(), used)


def _read_leaf(folder: Path) -> Images:
    rows = {part: _leaf_part(folder / part) for part in ("train", "test")}
    names = sorted({writer for part in rows.values() for writer in part})
    x, y, owner, test = [], [], [], []
    for part in ("train", "test"):
        for i, writer in enumerate(names):
            for pixels, label in rows[part].get(writer, ()):
                x.append(pixels)
                y.append(label)
                owner.append(i)
                test.append(part == "test")
    if not x:
        raise DataError(f"{folder} holds no images")
    images = torch.from_numpy(np.stack(x).reshape(-1, 1, _SIDE, _SIDE))
    return _images("femnist", images, torch.tensor(y), torch.tensor(test), 62, torch.tensor(owner), names)


def _leaf_part(folder: Path) -> dict[str, list[tuple[Array, int]]]:
    """Return the rows of every writer in the JSON files of one folder."""
    rows: dict[str, list[tuple[Array, int]]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            memory.require(_PER_BYTE * path.stat().st_size, f"{path}, read,", "split it", DataError)
            for writer, data in json.loads(path.read_text("utf-8"))["user_data"].items():
                mine = rows.setdefault(writer, [])
                mine += [(_leaf_pixels(image), _leaf_label(y)) for image, y in zip(data["x"], data["y"], strict=True)]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataError(f"{path} is not one of LEAF's files: {error}") from error
    return rows


def _leaf_label(y: object) -> int:
    if not isinstance(y, int | float) or not abs(y) < 2**31 or y != int(y):
        raise ValueError(f"a label must be a whole number, got {shown(y)}")
    return int(y)


def _leaf_pixels(image: Sequence[float]) -> Array:
    values = np.asarray(image, dtype=np.float64)
    if values.shape != (_SIDE**2,) or not ((values >= 0) & (values <= 1)).all():
        raise ValueError(f"an image must be {_SIDE**2} values in 0..1")
    return np.rint(values * 255).astype(np.uint8)


def transform(images: Images, kind: str) -> Images:
    """Change all images of a data set, to make a second domain of it.

    Args:
        images: the data set.
        kind: "inverted" (255 - x) or "rotated" (by 180 degrees).

    Returns:
        A new data set, named after the change.

    Raises:
        DataError: when the kind is neither.
    """
    x, name = _turn(images.x, kind), f"{images.name}-{kind}"
    return _images(name, x, images.y, images.official_test, images.classes, images.owner, images.owner_names)


def _turn(x: Tensor, kind: str | None) -> Tensor:
    if kind is None:
        return x
    if kind not in KINDS:
        raise DataError(f"there is no change {kind!r} of images", hint=settings.nearest(kind, KINDS))
    return 255 - x if kind == "inverted" else x.flip(-2, -1)


def split_name(name: str) -> tuple[str, str | None]:
    """Take the name of a domain apart.

    Args:
        name: a name of `NAMES`, with or without "-inverted" or "-rotated".

    Returns:
        The data set's name and the kind of change, if any.

    Raises:
        DataError: when there is no such domain.
    """
    for kind in KINDS:
        if name.removesuffix(f"-{kind}") in NAMES and name not in NAMES:
            return name.removesuffix(f"-{kind}"), kind
    if name not in NAMES:
        valid = [*NAMES, *(f"{base}-{kind}" for base in NAMES for kind in KINDS)]
        raise DataError(f"there is no image data set {name!r}", hint=settings.nearest(name, valid))
    return name, None


@dataclass(frozen=True)
class ImageOptions:
    """How a federation is made from images.

    Args:
        root: folder of the data sets; see `find_root`.
        download: let torchvision download what is missing.
        partition: "labels": each client has the same number of rows of a few classes; "dirichlet": shares of each class
            are drawn; "natural": each client is a writer.
        clients: clients that take part in the training.
        new_clients: clients that never do, with rows of their own.
        labels_per_client: classes per client ("labels").
        groups: which classes ("labels"); see `partition.label_set`.
        train: training rows per class and client ("labels").
        test: test rows per class and client ("labels").
        validation: validation rows per class and client ("labels").
        alpha: concentration ("dirichlet").
        minimum: rows that each client has at least ("dirichlet", "natural").
        test_share: share of each client's rows ("dirichlet", "natural", in the merged pool).
        validation_share: share of each client's rows ("dirichlet", "natural").
        limit: training rows that each client keeps at most, drawn from those that are left without its test and
            validation rows; all when None ("dirichlet", "natural").
        digits_only: only the ten digits ("natural").
        pool: "merged": rows of the official training and test parts alike, as public code takes them; "official":
            training and validation rows of the first, test rows of the second. By default "official" for "natural",
            where that split is within each writer, and "merged" otherwise.
        domains: data sets, with "-inverted" or "-rotated" after the name or not; the clients are split evenly among
            them, in blocks. By default the source alone.
        seed: of the draws.
    """

    root: str | None = None
    download: bool = False
    partition: Literal["labels", "dirichlet", "natural"] = "labels"
    clients: int = 10
    new_clients: int = 0
    labels_per_client: int = 5
    groups: LabelGroups = "two"
    train: int = 50
    test: int = 950
    validation: int = 10
    alpha: float = 0.4
    minimum: int = 10
    test_share: float = 0.2
    validation_share: float = 0.0
    limit: int | None = None
    digits_only: bool = False
    pool: Literal["merged", "official"] | None = None
    domains: tuple[str, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        """Check ranges."""
        for name, least in (("clients", 1), ("train", 1), ("test", 1), ("minimum", 2), ("labels_per_client", 1)):
            if getattr(self, name) < least:
                raise StudyError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("new_clients", "validation", "seed"):
            if getattr(self, name) < 0:
                raise StudyError(f"{name} must not be negative, got {getattr(self, name)}")
        if not self.alpha > 0:
            raise StudyError(f"alpha must be positive, got {self.alpha:g}")
        if not 0 < self.test_share < 1 or not 0 <= self.validation_share < 1:
            raise StudyError(
                f"test_share must be in (0, 1) and validation_share in [0, 1), "
                f"got {self.test_share:g} and {self.validation_share:g}"
            )
        if self.limit is not None and (self.limit < 1 or self.partition == "labels"):
            raise StudyError(
                f"limit must be at least 1 and is for dirichlet and natural partitions, got {self.limit} for "
                f"{self.partition!r}",
                hint="with labels, train is the number of training rows per class",
            )
        if self.digits_only and self.partition != "natural":
            raise StudyError("digits_only is for the natural partition", hint="labels are chosen by labels_per_client")

    @property
    def official(self) -> bool:
        """Whether the official split into training and test rows is kept."""
        return (self.pool or ("official" if self.partition == "natural" else "merged")) == "official"


@dataclass(frozen=True)
class _Client:
    """What a client is made of."""

    name: str
    domain: str
    new: bool
    parts: Parts


def federation(source: str, options: Mapping[str, Any]) -> tables.Dataset:
    """Make a federation of image classification.

    Pixels become (x / 255 - 0.5) / 0.5 in float32, as in the public code of pFedBayes.

    Args:
        source: a data set, with "-inverted" or "-rotated" after its name or not.
        options: fields of `ImageOptions`.

    Returns:
        The data set, with positions of all rows and a group "new" where there are new clients.

    Raises:
        StudyError: when an option is not known or out of range.
        DataError: when files are missing or hold too few rows.
    """
    chosen = settings.parse(ImageOptions, options, f"[data] {source}")
    domains = chosen.domains or (source,)
    if source not in domains:
        raise StudyError(f"[data] source {source!r} must be one of the domains {', '.join(domains)}")
    bases = {split_name(domain)[0]: None for domain in domains}  # in order, each once
    if chosen.partition == "natural" and list(bases) != ["femnist"]:
        raise StudyError(f"[data] only femnist has writers for the natural partition, got {', '.join(bases)}")
    images = {base: read(base, chosen.root, chosen.download) for base in bases}
    shapes = {base: tuple(one.x.shape[1:]) for base, one in images.items()}
    if len(set(shapes.values())) > 1:
        raise DataError(f"domains must have images of one size, got {shapes}")
    clients = _clients(images, domains, chosen)
    classes = _DIGITS if chosen.digits_only else max(one.classes for one in images.values())
    groups = {}
    for label in ("existing", "new"):
        members = [client for client in clients if client.new == (label == "new")]
        if members:
            groups[label] = _group(images, members, classes)
    return tables.Dataset(
        groups,
        (tables.Column("image"),),
        tables.Column("class"),
        {"source": source, "options": _resolved(chosen, domains)}
        | {"sha256": {base: one.sha256 for base, one in images.items()}},
        classes=classes,
        feature_shape=next(iter(shapes.values())),
        rows=_rows([client for label in groups for client in clients if client.new == (label == "new")]),
    )


def _resolved(chosen: ImageOptions, domains: tuple[str, ...]) -> dict[str, Any]:
    """Say what the rows depend on; where the files lay is not part of it."""
    pool: Literal["merged", "official"] = "official" if chosen.official else "merged"
    table = settings.as_table(replace(chosen, domains=domains, pool=pool))
    return {name: value for name, value in table.items() if name not in ("root", "download")}


def _clients(images: Mapping[str, Images], domains: tuple[str, ...], chosen: ImageOptions) -> list[_Client]:
    """Share out the rows; clients of one base never share a row, whatever their domains."""
    total, rows = chosen.clients + chosen.new_clients, sum(len(one.y) for one in images.values())
    if total > rows:
        hint = "take fewer clients or new_clients"
        raise DataError(
            f"{total} clients need a row each at least, and the limit is {rows}, as many as there are", hint=hint
        )
    domain = [domains[u * len(domains) // chosen.clients] for u in range(chosen.clients)]
    domain += [domains[u * len(domains) // chosen.new_clients] for u in range(chosen.new_clients)]
    made: dict[int, _Client] = {}
    for base, one in images.items():
        members = [u for u in range(total) if split_name(domain[u])[0] == base]
        if not members:
            continue
        # Its own generator: a base is cut alike whatever other bases there are.
        key = [chosen.seed, *base.encode()]
        names, parts = _cut(one, members, chosen, np.random.default_rng(key))
        if chosen.limit is not None:  # and another: clients and test rows are the same with and without a limit
            parts = partition.limited(parts, chosen.limit, np.random.default_rng([*key, *b"limit"]))
        partition.check_disjoint(parts, names)
        for u, name, mine in zip(members, names, parts, strict=True):
            made[u] = _Client(name, domain[u], u >= chosen.clients, mine)
    return [made[u] for u in range(total)]


def _cut(
    images: Images, members: Sequence[int], chosen: ImageOptions, generator: np.random.Generator
) -> tuple[list[str], Sequence[Parts]]:
    """Partition one data set among some clients."""
    y = images.y.numpy()
    official_test = images.official_test.numpy() if chosen.official else None
    names = [f"client_{u:02d}" for u in members]
    if chosen.partition == "labels":
        counts = partition.Counts(chosen.train, chosen.validation, chosen.test)
        held, groups, classes = chosen.labels_per_client, chosen.groups, images.classes
        return names, partition.by_labels(y, members, held, groups, counts, classes, generator, official_test)
    shares = {"test_share": chosen.test_share, "validation_share": chosen.validation_share}
    if chosen.partition == "dirichlet":
        return names, partition.dirichlet(
            y,
            len(members),
            chosen.alpha,
            images.classes,
            generator,
            minimum=chosen.minimum,
            official_test=official_test,
            **shares,
        )
    if images.owner is None:
        raise DataError(f"{images.name} has no writers", hint="use the partition 'labels' or 'dirichlet'")
    drawn = partition.natural(
        y,
        images.owner.numpy(),
        len(members),
        generator,
        minimum=chosen.minimum,
        labels=range(_DIGITS) if chosen.digits_only else None,
        official_test=official_test,
        **shares,
    )
    return [images.owner_names[i] for i in drawn], list(drawn.values())


def _group(images: Mapping[str, Images], members: Sequence[_Client], classes: int) -> tables.Group:
    names = [client.name for client in members]
    batches = [
        ClientBatch.pad(
            [_take(images, client, getattr(client.parts, part)) for client in members],
            names,
            dtype=torch.float32,
            classes=classes,
            allow_empty=part == "validation",
        )
        for part in _PARTS
    ]
    train, test, validation = batches
    return tables.Group(train, test, validation if validation.mask.any() else None)


def _take(images: Mapping[str, Images], client: _Client, positions: Array) -> tuple[Tensor, Tensor]:
    """Return the images of a client as floats, and their labels."""
    base, kind = split_name(client.domain)
    at = torch.from_numpy(positions)
    return to_floats(_turn(images[base].x[at], kind)), images[base].y[at]


def to_floats(x: Tensor) -> Tensor:
    """Scale pixels to [-1, 1]: (x / 255 - 0.5) / 0.5.

    Args:
        x: pixels [R, channels, H, W], uint8.

    Returns:
        The scaled pixels [R, channels, H, W], float32.
    """
    return (x.float() / 255 - 0.5) / 0.5


def _rows(clients: Sequence[_Client]) -> dict[str, Array]:
    """Write down which rows went where, in the form of `tables.to_positions`."""
    parts = [(k, i, getattr(client.parts, part)) for k, client in enumerate(clients) for i, part in enumerate(_PARTS)]
    return {
        "client_name": np.array([client.name for client in clients]),
        "client_new": np.array([client.new for client in clients]),
        "client_domain": np.array([client.domain for client in clients]),
        "position": np.concatenate([rows for _, _, rows in parts]),
        "owner": np.concatenate([np.full(len(rows), k) for k, _, rows in parts]),
        "part": np.concatenate([np.full(len(rows), i) for _, i, rows in parts]),
    }
