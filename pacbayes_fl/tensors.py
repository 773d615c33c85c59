"""Trees of tensors: the states, messages and updates of every method.

A tree is a tensor, a NamedTuple of trees or a mapping of trees. Trees of client state begin every leaf with the client
dimension `K`; their flat names ("q.loc.w0") are what checkpoints and the wire carry.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Final, TypeAlias, TypeVar, cast
from weakref import WeakSet

import torch
from torch import Tensor

from pacbayes_fl.errors import ShapeError

Tree = TypeVar("Tree")
AnyTree: TypeAlias = Any
"""A tree of tensors of which only its method knows the structure."""


def _children(tree: object) -> list[tuple[str, object]] | None:
    """Return named children of an inner node, None for a leaf, and refuse anything else."""
    if isinstance(tree, Tensor):
        return None
    if isinstance(tree, Mapping):
        return [(str(key), tree[key]) for key in tree]
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return list(zip(tree._fields, tree, strict=True))
    raise ShapeError(f"a tree holds tensors, NamedTuples and mappings, got {type(tree).__name__}")


def tree_map(function: Callable[..., Tensor], tree: Tree, *others: Tree) -> Tree:
    """Apply a function to corresponding leaves of trees of one structure.

    Args:
        function: takes one leaf [*] of each tree and returns a tensor.
        tree: the first tree; its structure is the result's.
        *others: further trees of the same structure.

    Returns:
        A tree of the same structure.

    Raises:
        ShapeError: when something in a tree is neither a tensor nor a container, or the structures differ.

    Example:
        >>> import torch
        >>> from pacbayes_fl import tensors
        >>> tensors.tree_map(torch.neg, {'a': torch.ones(1), 'b': torch.zeros(2)})
        {'a': tensor([-1.]), 'b': tensor([-0., -0.])}
    """
    if isinstance(tree, tuple) and hasattr(tree, "_fields") and all(type(other) is type(tree) for other in others):
        return type(tree)(*[tree_map(function, *each) for each in zip(tree, *others, strict=True)])
    children = _children(tree)
    if children is None:
        if not all([isinstance(other, Tensor) for other in others]):
            raise ShapeError("trees must have one structure, got a tensor beside a container")
        return cast(Tree, function(tree, *others))
    names = [name for name, _ in children]
    rest = [dict(_children(other) or []) for other in others]
    for other in rest:
        if other.keys() != set(names):
            raise ShapeError(f"trees must have one structure, got {sorted(names)} beside {sorted(other)}")
    mapped = [tree_map(function, child, *(other[name] for other in rest)) for name, child in children]
    if isinstance(tree, Mapping):
        return cast(Tree, dict(zip(names, mapped, strict=True)))
    return type(tree)(*mapped)


def _walk(tree: Any, prefix: str) -> Iterator[tuple[str, Tensor]]:
    children = _children(tree)
    if children is None:
        yield prefix, tree
        return
    for name, child in children:
        yield from _walk(child, f"{prefix}.{name}" if prefix else name)


def leaves(tree: object) -> dict[str, Tensor]:
    """Flatten a tree into names and tensors, in a fixed order.

    Args:
        tree: any tree of tensors [*].

    Returns:
        Flat names such as "q.loc.w0" with their tensors [*].

    Raises:
        ShapeError: when two leaves would bear one name, or something is neither a tensor nor a container.

    Example:
        >>> import torch
        >>> from pacbayes_fl import tensors
        >>> list(tensors.leaves({'layer': {'a': torch.ones(1), 'b': torch.zeros(2)}}))
        ['layer.a', 'layer.b']
    """
    flat: dict[str, Tensor] = {}
    for name, leaf in _walk(tree, ""):
        if name in flat:
            raise ShapeError(f"two leaves are called {name!r}")
        flat[name] = leaf
    return flat


def unleaves(like: Tree, flat: Mapping[str, Tensor], exact: bool = True) -> Tree:
    """Rebuild a tree from flat names, refusing missing, foreign or misshapen leaves.

    Args:
        like: a tree of the wanted structure, with leaves [*].
        flat: what `leaves` returned.
        exact: ask for the very shapes of `like` too, not only for its names and dtypes.

    Returns:
        A tree of `like`'s structure that holds the tensors of `flat`.

    Raises:
        ShapeError: naming the leaf, what was expected and what came.
    """
    expected = leaves(like)
    if expected.keys() != flat.keys():
        missing, unknown = sorted(expected.keys() - flat.keys()), sorted(flat.keys() - expected.keys())
        raise ShapeError(f"leaves missing: {missing}, not known: {unknown}")
    for name, leaf in expected.items():
        got = flat[name]
        if (exact and got.shape != leaf.shape) or got.dtype != leaf.dtype:
            wanted, came = (f"{list(tensor.shape)} {tensor.dtype}" for tensor in (leaf, got))
            raise ShapeError(f"leaf {name!r} must be {wanted}, got {came}")
    names = iter(expected)
    return tree_map(lambda _: flat[next(names)], like)


def on_host(leaf: Tensor) -> bool:
    """Whether a value can be read without a host synchronisation.

    Args:
        leaf: [*].

    Returns:
        True on the CPU.
    """
    return leaf.device.type == "cpu"


def known_false(flags: Tensor) -> bool:
    """Whether no flag is set, as far as that can be told without waiting for a device: work for the others is spared.

    Args:
        flags: bool [*].

    Returns:
        True where none is; False where one is, and on every device.
    """
    return on_host(flags) and not bool(flags.any())


def select(tree: Tree, index: Tensor) -> Tree:
    """Take clients out of a tree.

    Args:
        tree: leaves [K, *].
        index: positions [k] of the wanted clients, int64.

    Returns:
        A tree with leaves [k, *].

    Example:
        >>> import torch
        >>> from pacbayes_fl import tensors
        >>> tensors.select(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([2, 0])).tolist()
        [[3.0], [1.0]]
    """
    return tree_map(lambda leaf: leaf.index_select(0, index), tree)


def cat(trees: Sequence[Tree]) -> Tree:
    """Join trees along the client dimension.

    Args:
        trees: at least one tree; leaves [k_i, *].

    Returns:
        A tree with leaves [sum of k_i, *].

    Raises:
        ShapeError: when there is no tree.
    """
    if not trees:
        raise ShapeError("cat needs at least one tree, got none")
    return tree_map(lambda *parts: torch.cat(parts), trees[0], *trees[1:])


def expand(tree: Tree, clients: int) -> Tree:
    """Give every client its own view of a server tree.

    Args:
        tree: leaves [*], without a client dimension.
        clients: K.

    Returns:
        A tree with leaves [K, *] that share memory.
    """
    return tree_map(lambda leaf: leaf.expand(clients, *leaf.shape), tree)


def total(tree: Tree) -> Tree:
    """Sum a tree over clients, keeping a client dimension of one.

    Args:
        tree: leaves [K, *].

    Returns:
        A tree with leaves [1, *].

    Example:
        >>> import torch
        >>> from pacbayes_fl import tensors
        >>> tensors.total({"a": torch.tensor([[1.0], [2.0]])})["a"].tolist()
        [[3.0]]
    """
    return tree_map(lambda leaf: leaf.sum(0, keepdim=True), tree)


def weighted_mean(tree: Tree, weight: Tensor) -> Tree:
    """Average a tree over clients, in a form by which values that are all alike have just this value as their mean.

    mean = leaf_j + sum_k w_k (leaf_k - leaf_j) / sum_k w_k, with j of the largest weight

    Rounding alone moves nothing then: an optimiser such as Adam makes a step of its whole rate of a difference of any
    size, and which one rounding leaves depends on the order of the clients.

    Args:
        tree: floating leaves [K, *]; one that is not finite spoils the mean even at weight 0 (see `where`).
        weight: non-negative weights [K], or [K, *] as each leaf is shaped; where all are 0 the mean is 0.

    Returns:
        A tree with leaves [*].

    Raises:
        ShapeError: when a leaf holds integers, whose shares would be rounded to 0.

    Example:
        >>> import torch
        >>> from pacbayes_fl import tensors
        >>> tensors.weighted_mean(torch.tensor([[1.0], [5.0]]), torch.tensor([3.0, 1.0])).tolist()
        [2.0]
    """
    total = weight.sum(0)
    share = weight / total.clamp_min(torch.finfo(weight.dtype).tiny)
    heaviest = weight.argmax(0, keepdim=True) if len(weight) else None

    def mean(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            raise ShapeError(f"only floating leaves have a mean, got {leaf.dtype}")
        if heaviest is None:
            return leaf.new_zeros(leaf.shape[1:])
        each, parts = weight.dim() > 1, share.to(leaf.dtype)
        origin = leaf.gather(0, heaviest) if each else leaf.index_select(0, heaviest)
        apart = leaf - origin
        average: Tensor = (parts * apart).sum(0) if each else torch.tensordot(parts, apart, dims=1)
        return average.add_(origin[0] * (total > 0))

    return tree_map(mean, tree)


def finite(tree: object) -> Tensor:
    """Which clients have only finite numbers, bool [K].

    Args:
        tree: leaves [K, *].

    Returns:
        bool [K], on the leaves' device; nothing is read by the host.

    Raises:
        ShapeError: when the tree has no leaf.
    """
    flags = [_finite_rows(leaf) for leaf in leaves(tree).values()]
    if not flags:
        raise ShapeError("finite needs a tree with at least one leaf, got none")
    return torch.stack(flags).all(0)


def _finite_rows(leaf: Tensor) -> Tensor:
    """Whether a client's numbers are finite, bool [K]: the extremes say so, for NaN is both; no flags are written."""
    rows = leaf.unsqueeze(-1).flatten(1)
    if rows.shape[1] < 2:
        return rows.isfinite().all(1)
    return rows.amax(1).isfinite() & rows.amin(1).isfinite()


def norm(tree: object) -> Tensor | None:
    """Measure how long each client's leaves are together.

    |leaf_k| = sqrt(sum over all leaves of their squares)

    Args:
        tree: floating leaves [K, *].

    Returns:
        Euclidean norms [K], float64, the largest number where the squares of finite leaves are too large for it; None
        for a tree without leaves.

    Example:
        >>> import torch
        >>> from pacbayes_fl import tensors
        >>> tensors.norm({'a': torch.tensor([[3.0]]), 'b': torch.tensor([[4.0]])}).tolist()
        [5.0]
    """
    parts = [
        torch.linalg.vector_norm(leaf.unsqueeze(-1).flatten(1), dim=1, dtype=torch.float64)
        for leaf in leaves(tree).values()
    ]
    if not parts:
        return None
    result: Tensor = torch.linalg.vector_norm(torch.stack(parts), dim=0)
    return result.clamp_max(torch.finfo(result.dtype).max)


def same(tree: object, other: object) -> Tensor:
    """Which clients have equal numbers in two trees, bool [K].

    Args:
        tree: leaves [K, *].
        other: a tree of the same structure, leaves [K, *].

    Returns:
        bool [K], on the leaves' device.

    Raises:
        ShapeError: when the trees have no leaf.
    """
    left, right = leaves(tree), leaves(other)
    if not left:
        raise ShapeError("same needs trees with at least one leaf, got none")
    flags = [
        leaf.new_ones(len(leaf), dtype=torch.bool)
        if leaf is right[name]  # shared memory: nothing to compare
        else (leaf == right[name]).unsqueeze(-1).flatten(1).all(1)
        for name, leaf in left.items()
    ]
    return torch.stack(flags).all(0)


def where(keep: Tensor, tree: Tree, other: Tree) -> Tree:
    """Choose client by client between two trees.

    Args:
        keep: bool [K].
        tree: leaves [K, *], taken where `keep` holds.
        other: leaves [K, *], taken elsewhere; NaN that is not taken leaves no trace.

    Returns:
        A tree with leaves [K, *].
    """

    def choose(left: Tensor, right: Tensor) -> Tensor:
        return torch.where(keep.view(-1, *[1] * (left.dim() - 1)), left, right)

    return tree_map(choose, tree, other)


MAPPED: Final = 2**22
"""Bytes from which a tensor of all clients is in a file."""

BLOCK: Final = 1024
"""Clients whose rows are looked at together, where those of all would take memory."""

_FOLDER: Final = "/var/tmp"  # noqa: S108 - on a disk, where /tmp often is memory


KNOWN: Final = WeakSet[mmap.mmap]()
"""What `release_mapped` gives back the memory of."""


def mapped_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """Make a tensor of zeros: in a file where it is large, on the CPU, and the disk has room; else in memory.

    Args:
        shape: of the tensor.
        dtype: of the tensor.
        device: of the tensor.

    Returns:
        Zeros [*shape].
    """
    size = math.prod(shape) * dtype.itemsize
    if size < MAPPED or torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    mapped = mapped_file(size)
    return torch.zeros(shape, dtype=dtype) if mapped is None else torch.frombuffer(mapped, dtype=dtype).view(shape)


def mapped_file(size: int) -> mmap.mmap | None:
    """Map a temporary file whose memory `release_mapped` gives back.

    Args:
        size: in bytes, at least 1.

    Returns:
        Its bytes, 0 each; None where the disk has no room.
    """
    try:
        with temporary_file() as file:
            os.posix_fallocate(file.fileno(), 0, size)  # else a full disk would end the process at a write
            mapped = mmap.mmap(file.fileno(), size)
    except OSError:
        return None
    KNOWN.add(mapped)
    return mapped


def release_mapped() -> None:
    """Give back the memory of all tensors in files; what was written stays in them."""
    for mapped in list(KNOWN):
        mapped.madvise(mmap.MADV_DONTNEED)


def client_blocks(clients: int) -> Iterator[slice]:
    """Cut clients into blocks, and release tensors in files after each.

    Args:
        clients: K.

    Yields:
        Positions of some clients, in their order; all at once where they are few.
    """
    for at in range(0, clients, BLOCK):
        yield slice(at, min(at + BLOCK, clients))
        if clients > BLOCK:
            release_mapped()


def temporary_file() -> IO[bytes]:
    """Open a file that no folder lists, on a disk rather than in memory, and gone when it is closed."""
    if not any(os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")):
        with contextlib.suppress(OSError):
            return tempfile.TemporaryFile(dir=_FOLDER, buffering=0)
    return tempfile.TemporaryFile(buffering=0)
