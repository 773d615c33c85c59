"""Least and largest values of targets: numbers, or columns of the rows, such as the capacity of a PV system."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.client_blocks import by_size
from pacbayes_fl.errors import DataError

Place = Callable[[str, int], str]
"""Says of a client's name and the position of one of its rows where that stands, such as "line 4"."""

_HINT = "data.lower_bound and data.upper_bound are those of all rows"


def row_number(_: str, row: int) -> str:
    """Name a row that stands in no table by its number among its client's, from 0."""
    return f"row {row}"


class Bounds(NamedTuple):
    """Where targets end.

    Args:
        low: least value, in units of y; minus infinity for none, or where a column has it.
        high: largest value, likewise.
        low_at: position of the column among the features that has each row's least value; None for none.
        high_at: that of the largest.

    Example:
        >>> import torch
        >>> from pacbayes_fl.data.target_bounds import Bounds
        >>> low, high = Bounds(low=0.0, high_at=1).ends(torch.tensor([[[0.3, 5.0], [0.9, 7.0]]]))
        >>> low.tolist(), high.tolist()
        ([[0.0, 0.0]], [[5.0, 7.0]])
    """

    low: float = -math.inf
    high: float = math.inf
    low_at: int | None = None
    high_at: int | None = None

    def ends(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Give the bounds of rows.

        Args:
            x: rows in the data's own units [K, N, d].

        Returns:
            Lower and upper bounds, both [K, 1] where they are numbers and [K, N] where one is a column.
        """
        columns = ((self.low, self.low_at), (self.high, self.high_at))
        ends = [x.new_full((len(x), 1), end) if at is None else x[..., at] for end, at in columns]
        low, high = torch.broadcast_tensors(*ends)
        return low, high

    def check(self, batch: ClientBatch, place: Place = row_number) -> None:
        """Refuse targets beyond the bounds, which predictions say are impossible.

        Args:
            batch: rows in the data's own units.
            place: what to call a client's row.

        Raises:
            DataError: naming the first client that has one, and the range of its targets or, of bounds by row, the row.
        """
        for name, x, mask in zip(batch.names, batch.x, batch.mask, strict=True):
            self.check_rows(name, x[mask], place)
        (found,) = by_size(batch, lambda part: [self._beyond(part).any(1)])
        if not bool(found.any()):
            return
        k = int(found.nonzero()[0])
        one = batch.select(torch.tensor([k]))
        row = int(self._beyond(one)[0].nonzero()[0])
        if self.low_at is None and self.high_at is None:
            y = batch.y[k][batch.mask[k]]
            what = f"has targets from {float(y.min()):g} to {float(y.max()):g}"
            raise DataError(
                f"{what}, beyond the bounds [{self.low:g}, {self.high:g}]", client=batch.names[k], hint=_HINT
            )
        own, least, most = (float(values[0, row]) for values in (one.y, *self.ends(one.x)))
        what = f"has a target of {own:g}, beyond its row's bounds [{least:g}, {most:g}] ({place(batch.names[k], row)})"
        raise DataError(what, client=batch.names[k], hint=_HINT)

    def _beyond(self, batch: ClientBatch) -> Tensor:
        """Which targets are beyond the bounds [K, N]."""
        low, high = self.ends(batch.x)
        return batch.mask & ((batch.y < low) | (batch.y > high))

    def check_rows(self, client: str, x: Tensor, place: Place = row_number) -> None:
        """Refuse rows whose bounds are not in order; what is missing is not looked at.

        Args:
            client: whose rows they are.
            x: in the data's own units [m, d].
            place: what to call a client's row.

        Raises:
            DataError: naming the client and the first such row.
        """
        if self.low_at is None and self.high_at is None:
            return
        low, high = (end[0] for end in self.ends(x.unsqueeze(0)))
        bad = (low >= high).nonzero()
        if len(bad):
            row = int(bad[0])
            what = f"its bounds are {float(low[row]):g} and {float(high[row]):g} in {place(client, row)}"
            raise DataError(
                f"{what}, the lower not below the upper", client=client, hint="drop such rows, whose target is known"
            )

    def words(self, columns: Sequence[str]) -> str:
        """Say where targets end.

        Args:
            columns: names of the features.

        Returns:
            Such as "0 and column capacity".
        """
        ends = ((self.low, self.low_at), (self.high, self.high_at))
        said = [
            f"column {columns[at]}" if at is not None else f"{end:g}"
            for end, at in ends
            if at is not None or math.isfinite(end)
        ]
        return " and ".join(said)
