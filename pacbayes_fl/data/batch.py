"""Rows of several clients as one padded tensor."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pacbayes_fl.data import padding
from pacbayes_fl.errors import DataError, caller_stacklevel, counted, kinds_checked
from pacbayes_fl.names import as_html, printable


def client_id(name: str) -> int:
    """Turn a client's name into the number that seeds its noise: 63 bits of SHA-256, so it depends on the name alone.

    Args:
        name: what tables and errors call the client.

    Returns:
        An integer in [0, 2**63).

    Example:
        >>> from pacbayes_fl.data.batch import client_id
        >>> client_id("north"), client_id("north") == client_id("south")
        (7933987107214622064, False)
    """
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


def _positions(what: str, flags: Tensor) -> str:
    count = int(flags.sum())
    shown = ", ".join(str(int(i)) for i in flags.nonzero().flatten()[:5])
    return f"{what}{'s' if count > 1 else ''} {shown}{', ...' if count > 5 else ''}"


def _finite(name: str, label: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Bring one client's x or y to a dtype in which every value is finite."""
    converted = tensor.to(dtype)
    bad = ~converted.isfinite()
    if bad.any():
        count, flat = int(bad.sum()), bad.unsqueeze(-1).flatten(1)
        places = _positions("row", flat.any(1)) + (f"; {_positions('column', flat.any(0))}" if tensor.dim() > 1 else "")
        values = f"{count} non-finite value{'s' if count > 1 else ''}"
        hint = f"{dtype} cannot hold it" if tensor.isfinite().all() else None
        raise DataError(f"{label} has {values} ({places})", client=name, hint=hint)
    return converted


def _checked(
    name: str, x: Tensor, y: Tensor, feature: torch.Size, dtype: torch.dtype, classes: int | None
) -> tuple[Tensor, Tensor]:
    """Check one client's rows and bring them to the dtypes of a batch."""
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        raise DataError(f"x and y must be tensors, got {type(x).__name__} and {type(y).__name__}", client=name)
    if x.dim() < 2 or y.dim() != 1 or len(x) != len(y):
        raise DataError(f"x must be [m, d] and y [m], got {list(x.shape)} and {list(y.shape)}", client=name)
    if x.is_complex() or y.is_complex():
        raise DataError(f"x and y must be real, got {x.dtype} and {y.dtype}", client=name)
    if x.shape[1:] != feature:
        got, wanted = (str(size[0] if len(size) == 1 else list(size)) for size in (x.shape[1:], feature))
        raise DataError(f"x has {got} features, expected {wanted}", client=name, hint="compare the columns")
    x, labels = _finite(name, "x", x, dtype), _finite(name, "y", y, dtype if classes is None else torch.float64)
    if classes is None:
        return x, labels
    for outside, why in ((labels != labels.round(), "is not whole"), ((labels < 0) | (labels >= classes), "outside")):
        if outside.any():
            row = int(outside.nonzero()[0])
            where = f" 0..{classes - 1}" if why == "outside" else ""
            raise DataError(f"label {labels[row].item():g} {why}{where} (row {row})", client=name)
    return x, labels.long()


def _checked_together(
    clients: Sequence[tuple[Tensor, Tensor]],
    names: Sequence[str],
    ids: Sequence[int],
    feature: torch.Size,
    dtype: torch.dtype,
    classes: int | None,
    allow_empty: bool,
) -> ClientBatch | None:
    """Do for all clients what `_checked` does for one, with as many operations; None where one is at fault."""
    for x, y in clients:
        known = isinstance(x, Tensor) and isinstance(y, Tensor) and not (x.is_complex() or y.is_complex())
        if not known or x.shape[1:] != feature or y.dim() != 1 or len(x) != len(y) or not (len(y) or allow_empty):
            return None
    if not feature or not all(0 <= i < 2**63 for i in ids):
        return None
    rows = [(x.to(dtype), y.to(dtype if classes is None else torch.float64)) for x, y in clients]
    batch = ClientBatch.stack(rows, names, ids)
    groups = batch.groups()
    parts = [batch] if groups is None else [batch.select(at, rows) for at, rows in groups]
    if not all(_all_finite(part.x) and _all_finite(part.y) for part in parts):
        return None
    if classes is None:
        return batch
    right = (batch.y == batch.y.round()) & (batch.y >= 0) & (batch.y < classes)
    return replace(batch, y=batch.y.long()) if right.all() else None


def _all_finite(numbers: Tensor) -> bool:
    """Ask the extremes, which NaN takes: an array of flags would be as long as that of numbers."""
    return not numbers.numel() or bool(numbers.amax().isfinite() & numbers.amin().isfinite())


def _padded(rows: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Pad rows [m_k, *] of every client to one tensor [K, N, *], in room of its own where most would be padding."""
    first, shape = rows[0], (len(rows), max(sizes), *rows[0].shape[1:])
    uneven = first.device.type == "cpu" and padding.groups(torch.tensor(sizes), shape, first.dtype) is not None
    if not uneven:
        return pad_sequence(list(rows), batch_first=True)
    result = padding.room(shape, first.dtype, sum(sizes))
    for k, own in enumerate(rows):
        result[k, : len(own)] = own
    return result


@dataclass(frozen=True, eq=False)
class ClientBatch:
    """Rows of K clients, padded with zeros to N: a NaN in padding would poison gradients even where it is masked.

    Args:
        x: inputs [K, N, *feature].
        y: targets [K, N].
        mask: [K, N] bool, True on real rows, which come first.
        ids: K stable client numbers; they seed the noise and therefore never depend on the batch.
        names: what errors and tables call the K clients.

    Example:
        >>> import torch
        >>> from pacbayes_fl import ClientBatch
        >>> batch = ClientBatch.pad([(torch.ones(3, 2), torch.ones(3)), (torch.ones(1, 2), torch.ones(1))], ["a", "b"])
        >>> batch
        ClientBatch(2 clients (a, b), 4 rows, x [2, 3, 2] float64, y [2, 3] float64)
        >>> batch.mask.tolist()
        [[True, True, True], [True, False, False]]
        >>> batch.select(torch.tensor([1])).trim().x.shape
        torch.Size([1, 1, 2])
    """

    x: Tensor
    y: Tensor
    mask: Tensor
    ids: tuple[int, ...]
    names: tuple[str, ...]

    def __repr__(self) -> str:
        """Shapes and names in one line."""
        names = ", ".join(self.names[:3]) + (", ..." if self.clients > 3 else "")
        own = counted(self.clients, "client")
        x, y = (f"{list(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in (self.x, self.y))
        return f"ClientBatch({own} ({printable(names)}), {counted(int(self.mask.sum()), 'row')}, x {x}, y {y})"

    def _repr_html_(self) -> str:
        """Clients and how many rows they have, for notebooks."""
        rows = [*zip(self.names, self.mask.sum(1).tolist(), strict=True)]
        return as_html(f"{counted(self.clients, 'client')}, inputs {list(self.x.shape[2:])}", ("client", "rows"), rows)

    @property
    def clients(self) -> int:
        """Number of clients, K."""
        return len(self.ids)

    @property
    def size(self) -> Tensor:
        """Real rows per client [K], float64."""
        return padding.sizes(self.mask).double()

    @classmethod
    @kinds_checked
    def pad(
        cls,
        clients: Sequence[tuple[Tensor, Tensor]],
        names: Sequence[str] | None = None,
        ids: Sequence[int] | None = None,
        *,
        dtype: torch.dtype = torch.float64,
        classes: int | None = None,
        allow_empty: bool = False,
    ) -> ClientBatch:
        """Check the rows of every client and pad them to one tensor.

        Args:
            clients: (x [m_k, *feature], y [m_k]) of each client.
            names: K names; "client_00", ... by default.
            ids: K numbers in [0, 2**63); hashes of the names by default.
            dtype: floating dtype of x and, without `classes`, of y.
            classes: number of classes C when y holds labels 0..C-1.
            allow_empty: accept clients without rows (a new client whose prediction is the prior's).

        Returns:
            The batch.

        Raises:
            DataError: naming the client and the fault: no rows, values that are not finite (rows and columns), labels
                out of range, another number of features than the first client's, complex numbers, an id out of range,
                a name or id given twice.

        Example:
            >>> import torch
            >>> from pacbayes_fl import ClientBatch
            >>> rows = torch.ones(3, 2), torch.zeros(3)
            >>> batch = ClientBatch.pad([rows, (rows[0][:1], rows[1][:1])], ['long', 'short'])
            >>> batch.x.shape, batch.mask.tolist()
            (torch.Size([2, 3, 2]), [[True, True, True], [True, False, False]])
        """
        names = tuple(names) if names is not None else tuple(f"client_{k:02d}" for k in range(len(clients)))
        ids = tuple(ids) if ids is not None else tuple(client_id(name) for name in names)
        if not clients or not len(clients) == len(names) == len(ids):
            counts = f"{len(clients)} clients, {len(names)} names and {len(ids)} ids"
            raise DataError(f"need as many names and ids as clients and at least one, got {counts}")
        if len(set(ids)) < len(ids) or len(set(names)) < len(names):
            double = next(name for k, name in enumerate(names) if name in names[:k] or ids[k] in ids[:k])
            raise DataError("its name or id is used twice", client=double, hint="clients are told apart by name")
        feature = torch.Size(getattr(clients[0][0], "shape", ())[1:])
        batch = _checked_together(clients, names, ids, feature, dtype, classes, allow_empty)
        if batch is None:  # one after another: the first client at fault is named
            checked = []
            for name, i, (x, y) in zip(names, ids, clients, strict=True):
                checked.append(_checked(name, x, y, feature, dtype, classes))
                if len(y) == 0 and not allow_empty:
                    raise DataError("has no samples", client=name, hint="drop it, or let it join as a new client")
                if not 0 <= i < 2**63:
                    raise DataError(f"its id must be in 0..2**63 - 1, got {i}", client=name)
            batch = cls.stack(checked, names, ids)
        came = {x.dtype for x, _ in clients} | ({y.dtype for _, y in clients} if classes is None else set())
        odd = sorted(str(kind) for kind in came - {torch.float32, torch.float64})
        if odd:
            warnings.warn(f"inputs of {', '.join(odd)} were converted to {dtype}", stacklevel=caller_stacklevel())
        return batch

    @classmethod
    @kinds_checked
    def stack(cls, clients: Sequence[tuple[Tensor, Tensor]], names: Sequence[str], ids: Sequence[int]) -> ClientBatch:
        """Pad rows that were checked before; dtypes and device stay those of the first client.

        Args:
            clients: (x [m_k, *feature], y [m_k]) of each client, at least one.
            names: K names.
            ids: K numbers.

        Returns:
            The batch.
        """
        sizes = [len(y) for _, y in clients]
        first_x, first_y = clients[0]
        if not max(sizes):
            x_all, y_all = first_x.new_zeros(len(clients), 1, *first_x.shape[1:]), first_y.new_zeros(len(clients), 1)
        else:
            x_all, y_all = (_padded(rows, sizes) for rows in zip(*clients, strict=True))
        device = first_x.device
        mask = torch.arange(y_all.shape[1], device=device) < torch.tensor(sizes, device=device).unsqueeze(1)
        return cls(x_all, y_all, mask, tuple(ids), tuple(names))

    def select(self, index: Tensor, rows: int | None = None) -> ClientBatch:
        """Take clients.

        Args:
            index: positions [k], int64.
            rows: columns to keep, known to hold every real row of these clients; all N when not given.

        Returns:
            The batch of those k clients, [k, N] or [k, rows].
        """
        positions = index.tolist()
        at = index.to(self.x.device)
        ids, names = tuple(self.ids[i] for i in positions), tuple(self.names[i] for i in positions)
        mask = self.mask[:, :rows][at]
        wide = rows is None and self.x.device.type == "cpu"
        groups = padding.groups(mask, (len(at), *self.x.shape[1:]), self.x.dtype) if wide else None
        if groups is None:
            return ClientBatch(self.x[:, :rows][at], self.y[:, :rows][at], mask, ids, names)
        held = int(padding.sizes(mask).sum())
        x, y = (padding.room((len(at), *leaf.shape[1:]), leaf.dtype, held) for leaf in (self.x, self.y))
        for part, width in groups:
            x[part, :width], y[part, :width] = self.x[at[part], :width], self.y[at[part], :width]
        return ClientBatch(x, y, mask, ids, names)

    def groups(self) -> list[tuple[Tensor, int]] | None:
        """Group clients of very different sizes, so that work of each alone need not be done on padding.

        Returns:
            Positions, and rows that hold all of theirs; see `padding.groups`. None where it is all one, and off the
            CPU.
        """
        return padding.groups(self.mask, self.x.shape, self.x.dtype) if self.x.device.type == "cpu" else None

    def rows(self, index: Tensor) -> ClientBatch:
        """Take rows of every client: a minibatch.

        Args:
            index: row positions per client [K, n], int64; positions of padding stay padding.

        Returns:
            The batch [K, n] with real rows as masked before.
        """
        at = index.view(*index.shape, *[1] * (self.x.dim() - 2)).expand(*index.shape, *self.x.shape[2:])
        return replace(self, x=self.x.gather(1, at), y=self.y.gather(1, index), mask=self.mask.gather(1, index))

    def trim(self, rows: int | None = None) -> ClientBatch:
        """Drop columns that are padding for all.

        Args:
            rows: columns to keep, known to hold every real row; found by a look at the mask when not given.

        Returns:
            The batch [K, rows].
        """
        rows = max(1, int(padding.sizes(self.mask).max())) if rows is None else rows
        return replace(self, x=self.x[:, :rows], y=self.y[:, :rows], mask=self.mask[:, :rows])

    def extend(self, later: ClientBatch) -> ClientBatch:
        """Add later rows (the paper's S~_i) to clients, matched by id.

        Args:
            later: rows of some of this batch's clients, in any order.

        Returns:
            The batch in this one's order, with both sets of rows.

        Raises:
            DataError: when `later` holds a client that is not here, or other columns.
        """
        same_schema(self, later)
        known = set(self.ids)
        unknown = [name for name, i in zip(later.names, later.ids, strict=True) if i not in known]
        if unknown:
            raise DataError("has later rows but is not in the batch", client=unknown[0])
        if self.ids == later.ids and not bool(self.mask.any()):
            return replace(later, names=self.names)
        at = {i: k for k, i in enumerate(later.ids)}
        clients = []
        for k, i in enumerate(self.ids):
            x, y = self.x[k][self.mask[k]], self.y[k][self.mask[k]]
            if i in at:
                more = later.mask[at[i]]
                x, y = torch.cat((x, later.x[at[i]][more])), torch.cat((y, later.y[at[i]][more]))
            clients.append((x, y))
        return ClientBatch.stack(clients, self.names, self.ids)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> ClientBatch:
        """Move to a device and a floating dtype.

        Args:
            device: where to.
            dtype: of x, and of y when y is floating.

        Returns:
            The batch there.
        """
        y = self.y.to(device, dtype if self.y.is_floating_point() else None)
        return replace(self, x=self.x.to(device, dtype), y=y, mask=self.mask.to(device))


def group_by_size(sizes: Sequence[int], waste: float = 1.1, slack: int = 8) -> list[list[int]]:
    """Group clients so that padding to the largest of a group costs little: a GP's work grows with N^3.

    Args:
        sizes: real rows per client.
        waste: a group's largest size is at most this factor times its smallest, or `slack` rows more.
        slack: see `waste`.

    Returns:
        Groups of positions, smallest clients first; together they hold every position once.

    Example:
        >>> from pacbayes_fl.data.batch import group_by_size
        >>> group_by_size([100, 10, 105, 12, 900])
        [[1, 3], [0, 2], [4]]
    """
    groups: list[list[int]] = []
    limit = -1.0
    for k in sorted(range(len(sizes)), key=lambda k: (sizes[k], k)):
        if not groups or sizes[k] > limit:
            groups.append([])
            limit = max(waste * sizes[k], sizes[k] + slack)
        groups[-1].append(k)
    return groups


def same_schema(expected: ClientBatch, got: ClientBatch) -> None:
    """Check that clients fit a federation: same input shape and dtypes.

    Args:
        expected: a batch of the federation.
        got: clients that want to take part.

    Raises:
        DataError: naming the first of them and the difference.
    """
    if got.x.shape[2:] != expected.x.shape[2:]:
        raise DataError(
            f"x has {list(got.x.shape[2:])} features, the model was trained on {list(expected.x.shape[2:])}",
            client=got.names[0],
            hint="compare the columns with the run's labels.json",
        )
    for label, actual, wanted in (("x", got.x, expected.x), ("y", got.y, expected.y)):
        if actual.dtype != wanted.dtype:
            raise DataError(f"{label} must be {wanted.dtype}, got {actual.dtype}", client=got.names[0])
