"""Moments of clients' columns as messages: of every client the number of its rows, their sums and sums of squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.moments import Moments, client_moments, combined
from pacbayes_fl.data.row_counts import counted, different_rows
from pacbayes_fl.errors import ShapeError


@dataclass(frozen=True, eq=False)
class SentMoments:
    """What K clients have sent of their d features and, last, of the target.

    Mean and standard deviation stand for sum and sum of squares, which they are functions of with the number of rows,
    and lose no digits where a column is far from 0.

    Args:
        names: of the clients.
        size: their rows [K].
        different: how many of them differ from one another [K].
        inside: moments of every client [K, d + 1], float64, in units of each column.
        labels: whether targets are labels, of which nothing is sent.
    """

    names: Sequence[str]
    size: Tensor
    different: Tensor
    inside: Moments
    labels: bool = False

    @classmethod
    def of(cls, batch: ClientBatch) -> SentMoments:
        """Take the moments of clients.

        Args:
            batch: training rows, x [K, N, d], y [K, N].

        Returns:
            Their messages.
        """
        inside = client_moments(batch)
        size, different = batch.size.double(), different_rows(batch).double()
        return cls(batch.names, size, different, inside, not batch.y.is_floating_point())

    @property
    def counted(self) -> Tensor:
        """How many rows each client counts as [K]; see `data.row_counts`."""
        return counted(self.size, self.different)

    @cached_property
    def whole(self) -> Moments:
        """Moments of all rows together [1, d + 1]."""
        return combined(self.inside, self.counted)

    def select(self, index: Tensor) -> SentMoments:
        """Leave the other clients out.

        Args:
            index: positions [*].

        Returns:
            The messages of those clients.
        """
        names = [self.names[k] for k in index.tolist()]
        inside = Moments(*(leaf[index] for leaf in self.inside))
        return SentMoments(names, self.size[index], self.different[index], inside, self.labels)

    def to_rows(self) -> Tensor:
        """Write the messages as numbers [K, D].

        Returns:
            [K, D], D = 2 + 3 (d + 1), float64: rows, how many of them differ, means, standard deviations, and 1 where
            a column does not vary.
        """
        leaves = (self.size.unsqueeze(-1), self.different.unsqueeze(-1), *self.inside)
        return torch.cat([leaf.double().cpu() for leaf in leaves], 1)

    @classmethod
    def from_rows(cls, names: Sequence[str], rows: Tensor, columns: int, labels: bool) -> SentMoments:
        """Read the result of `to_rows`.

        Args:
            names: of the K clients.
            rows: numbers of the clients [K, D], D = 2 + 3 c.
            columns: c.
            labels: whether targets are labels.

        Returns:
            The messages.

        Raises:
            ShapeError: when they are no moments.
        """
        if rows.shape != (len(names), width(columns)) or not bool(rows.isfinite().all()):
            raise ShapeError(f"moments of {columns} columns are {width(columns)} finite numbers a client")
        (size, different), (mean, std, flat) = rows[:, :2].unbind(1), rows[:, 2:].split(columns, 1)
        if not bool((size >= 0).all() and (different >= 0).all() and (std >= 0).all()):
            raise ShapeError("a number of rows or a standard deviation is negative")
        return cls(names, size, different, Moments(mean, std, flat != 0), labels)


def width(columns: int) -> int:
    """Count the numbers of one client's message.

    Args:
        columns: c.

    Returns:
        2 + 3 c.
    """
    return 2 + 3 * columns
