"""Memory for clients' states: rows of large blocks that are used again, and a temporary file for superseded ones."""

from __future__ import annotations

import contextlib
import mmap
import warnings
import weakref
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import ShapeError, caller_stacklevel
from pacbayes_fl.tensors import AnyTree

_SHELF = 2**26  # bytes
_LARGE = 2**22
_STAGE = 2**22
_LINE = 64
_MEMORY = 2**28  # bytes of states of one form, beyond which shelves are files that are mapped


class Place:
    """Where one client's state is: a row of a block, or a region of the file where the block is None.

    The memory is reused when there is no reference to the place any more.
    """

    __slots__ = ("_form", "_room")

    def __init__(self, form: _Form, block: AnyTree, row: int) -> None:
        """Hold a room."""
        self._form, self._room = form, (block, row)

    def __del__(self) -> None:
        """Let others have the room."""
        if self._room[0] is None:
            self._form.file.free.append(self._room[1])
        else:
            self._form.free.append(self._room)

    @property
    def bytes(self) -> int:
        """Memory that the state takes; none where it is in a file."""
        return 0 if self._room[0] is None or id(self._room[0]) in self._form.mapped else self._form.bytes

    def room(self, many: int) -> AnyTree:
        """Make room for states like this one.

        Args:
            many: n of them.

        Returns:
            Leaves [n, *] of any numbers.
        """
        return room(self._form.like, many)

    @property
    def block(self) -> int:
        """Tell which block the state is in; states of one block, or of one file, can be read together."""
        return id(self._form if self._room[0] is None else self._room[0])

    @staticmethod
    def to_file(places: Sequence[Place]) -> None:
        """Move states of one form to the file; they stay where that has no room for them, and on a GPU.

        Args:
            places: of states in memory.
        """
        form = places[0]._form
        step = max(1, _STAGE // max(1, form.bytes)) if form.on_cpu else len(places)
        for at in range(0, len(places) if form.on_cpu else 0, step):
            subset = places[at : at + step]
            into = room(form.like, len(subset))
            done = 0
            for _, group in groupby(subset, key=lambda place: place.block):
                of_block = list(group)
                Place.copy(of_block, rows(into, done, len(of_block)))
                done += len(of_block)
            for place, region in zip(subset, form.file.write(_by_client(into)), strict=False):
                before, place._room = place._room, (None, region)  # at once, whatever interrupts a run
                form.free.append(before)

    @staticmethod
    def copy(places: Sequence[Place], into: AnyTree) -> None:
        """Copy states out.

        Args:
            places: of k clients, all in one block or all in the file.
            into: leaves [k, *].
        """
        form, block, at = places[0]._form, places[0]._room[0], [place._room[1] for place in places]
        if block is None:
            step = max(1, _STAGE // max(1, form.bytes))
            for begin in range(0, len(at), step):
                subset = at[begin : begin + step]
                _from_bytes(form.file.read(subset), rows(into, begin, len(subset)))
        else:
            copy_rows(block, at, into)


class _Form:
    """Rooms of all states that have the same leaves."""

    def __init__(self, block: AnyTree) -> None:
        leaves = tensors.leaves(block).values()
        self.bytes = sum(leaf.nbytes // len(leaf) for leaf in leaves)
        self.on_cpu = all(leaf.device.type == "cpu" for leaf in leaves)
        self.like = room(block, 0)
        self.free, self.rows, self.file = list[tuple[AnyTree, int]](), 0, _File(self.bytes)
        self.mapped = set[int]()  # blocks that are files; a block lives as long as its form

    def take(self, wanted: int, block: AnyTree) -> list[tuple[AnyTree, int]]:
        """Give rows, in order of their addresses."""
        while len(self.free) < wanted:
            rows = max(wanted - len(self.free), min(max(self.rows, 16), _SHELF // max(1, self.bytes)))
            self.rows += rows
            shelf, mapped = _shelf(block, rows, self.rows * self.bytes > _MEMORY)
            if mapped:
                self.mapped.add(id(shelf))
            self.free += [(shelf, row) for row in reversed(range(rows))]
        return sorted((self.free.pop() for _ in range(wanted)), key=lambda room: (id(room[0]), room[1]))


class Shelves:
    """Rooms of a federation's states. Among the large temporaries of a round a heap would keep as much again."""

    def __init__(self) -> None:
        """Begin without any."""
        self._forms: dict[object, _Form] = {}

    @property
    def bytes(self) -> int:
        """Size of all rows, whether or not a state is in them, and whether they are in memory or in mapped files."""
        return sum(form.bytes * form.rows for form in self._forms.values())

    @property
    def in_file(self) -> int:
        """Size of the file, in bytes."""
        return sum(form.file.size for form in self._forms.values())

    def put(self, block: AnyTree, good: Tensor | None = None, before: AnyTree = None) -> list[Place]:
        """Copy states into rows.

        Args:
            block: leaves [k, *].
            good: bool [k], False for a client whose state stays as it was; True for all when None.
            before: states as they were, leaves [k, *].

        Returns:
            The k places.
        """
        leaves = tensors.leaves(block)
        key = tuple((name, leaf.shape[1:], leaf.dtype, leaf.device) for name, leaf in leaves.items())
        if key not in self._forms:
            self._forms[key] = _Form(block)
        form = self._forms[key]
        taken = form.take(len(next(iter(leaves.values()))), block)
        at = 0
        for _, group in groupby(taken, key=lambda room: id(room[0])):
            rooms = list(group)
            part = slice(at, at + len(rooms))
            _write(rooms[0][0], [row for _, row in rooms], part, block, good, before)
            at = part.stop
        return [Place(form, *room) for room in taken]


def rows(block: AnyTree, first: int, count: int) -> AnyTree:
    """Give a part of a block, without a copy.

    Args:
        block: leaves [K, *].
        first: of the rows wanted.
        count: k of them.

    Returns:
        Leaves [k, *].
    """
    return tensors.tree_map(lambda leaf: leaf.narrow(0, first, count), block)


def room(block: AnyTree, many: int) -> AnyTree:
    """Make a block for states like those of another.

    Args:
        block: leaves [k, *].
        many: n of them.

    Returns:
        Leaves [n, *] of any numbers.
    """
    return tensors.tree_map(lambda leaf: leaf.new_empty(many, *leaf.shape[1:]), block)


def copy_rows(block: AnyTree, at: Sequence[int], into: AnyTree) -> None:
    """Copy rows of a block.

    Args:
        block: leaves [n, *].
        at: the rows wanted [k].
        into: leaves [k, *].

    Raises:
        ShapeError: when the blocks hold states of different forms.
    """
    consecutive = _consecutive(at)
    index = torch.tensor(at)

    def copy(leaf: Tensor, own: Tensor) -> Tensor:
        if leaf.shape[1:] != own.shape[1:] or leaf.dtype != own.dtype:
            raise ShapeError(f"states of {list(own.shape)} {own.dtype} beside {list(leaf.shape)} {leaf.dtype}")
        if consecutive:
            return leaf.copy_(own.narrow(0, at[0], len(at)))
        return torch.index_select(own, 0, index.to(own.device), out=leaf)

    tensors.tree_map(copy, into, block)


class _File:
    """Regions of one size in a temporary file that only its owner can read and that no folder lists."""

    def __init__(self, region: int) -> None:
        self._region, self._regions, self._full = region, 0, False
        self._file: Any = None
        self.free = list[int]()

    @property
    def size(self) -> int:
        return self._region * self._regions

    def write(self, states: Tensor) -> list[int]:
        """Copy states into regions.

        Args:
            states: uint8 [k, region].

        Returns:
            The regions of the first of them: fewer than k where the disk has no more room, of which there is a warning.
        """
        if self._full:
            return []
        more = max(0, len(states) - len(self.free))
        used = len(states) - more
        taken = [*sorted(self.free[len(self.free) - used :]), *range(self._regions, self._regions + more)]
        try:
            file = self._opened()
            for region, subset in _runs(taken, states):
                file.seek(region * self._region)
                left = subset.numpy().reshape(-1).data
                while left:
                    left = left[file.write(left) :]
        except OSError as error:
            self._full = True
            what = f"no room on the disk for clients' states of the round before ({error}): they stay in memory"
            warnings.warn(f"{what}; TMPDIR names another folder", stacklevel=caller_stacklevel())
            return []
        del self.free[len(self.free) - used :]
        self._regions += more
        return taken

    def read(self, regions: Sequence[int]) -> Tensor:
        """Read states, uint8 [k, region]."""
        states = torch.empty(len(regions), self._region, dtype=torch.uint8)
        for region, subset in _runs(regions, states):
            self._opened().seek(region * self._region)
            left = subset.numpy().reshape(-1).data
            while left:
                count = self._opened().readinto(left)
                if not count:
                    raise OSError("the temporary file of clients' states was cut short")
                left = left[count:]
        return states

    def _opened(self) -> Any:
        if self._file is None:
            self._file = tensors.temporary_file()
            weakref.finalize(self, self._file.close)
        return self._file


def _runs(regions: Sequence[int], states: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Cut states [k, region] where their regions in the file are not consecutive."""
    begin = 0
    for end in range(1, len(regions) + 1):
        if end == len(regions) or regions[end] != regions[end - 1] + 1:
            yield regions[begin], states[begin:end]
            begin = end


def _by_client(block: AnyTree) -> Tensor:
    """Give the bytes of leaves [k, *] as uint8 [k, bytes], client by client."""
    leaves = tensors.leaves(block).values()
    return torch.cat([leaf.reshape(len(leaf), -1).view(torch.uint8) for leaf in leaves if leaf.numel()], 1)


def _from_bytes(states: Tensor, into: AnyTree) -> None:
    """Write the result of `_by_client` into leaves [k, *]."""
    leaves = [leaf for leaf in tensors.leaves(into).values() if leaf.numel()]
    sizes = [leaf.nbytes // len(leaf) for leaf in leaves]
    for leaf, part in zip(leaves, states.split(sizes, 1), strict=True):
        leaf.view(len(leaf), -1).view(torch.uint8).copy_(part)


def _shelf(block: AnyTree, many: int, in_file: bool) -> tuple[AnyTree, bool]:
    """Make room for so many rows like those of a block, leaves [k, *]; on the CPU in large pages where there are some.

    A page of 4 KB that is touched for the first time costs microseconds, and a state of a network has hundreds.

    Returns:
        The room, and whether it is a file, of which only the rows that are being looked at take memory.
    """
    leaves = tensors.leaves(block).values()
    sizes = [-(-(leaf.nbytes // len(leaf) * many) // _LINE) * _LINE for leaf in leaves]
    if sum(sizes) < _LARGE or any(leaf.device.type != "cpu" for leaf in leaves):
        return tensors.tree_map(lambda leaf: leaf.new_empty(many, *leaf.shape[1:]), block), False
    pages = tensors.mapped_file(sum(sizes)) if in_file else None
    mapped = pages is not None
    if pages is None:
        pages = mmap.mmap(-1, sum(sizes))
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without them
                pages.madvise(mmap.MADV_HUGEPAGE)
    parts = iter(torch.frombuffer(pages, dtype=torch.uint8).split(sizes))

    def room(leaf: Tensor) -> Tensor:
        part: Tensor = next(parts)[: leaf.nbytes // len(leaf) * many]
        return part.view(leaf.dtype).view(many, *leaf.shape[1:])

    return tensors.tree_map(room, block), mapped


def _write(shelf: AnyTree, at: list[int], part: slice, block: AnyTree, good: Tensor | None, before: AnyTree) -> None:
    """Write a part of a block, leaf by leaf: a choice between whole trees would be one more copy of all states."""
    consecutive, index = _consecutive(at), torch.tensor(at)

    def write(leaf: Tensor, new: Tensor, old: Tensor) -> Tensor:
        own = new[part] if good is None else tensors.where(good[part], new[part], old[part])
        if consecutive:
            return leaf.narrow(0, at[0], len(at)).copy_(own)
        return leaf.index_copy_(0, index.to(leaf.device), own)

    tensors.tree_map(write, shelf, block, block if before is None else before)


def _consecutive(at: Sequence[int]) -> bool:
    return list(at) == list(range(at[0], at[0] + len(at)))
