"""Moments of clients' columns as messages: of every client the number of its rows, their sums and sums of squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.moments import Moments, moments_of, power_of_two
from pacbayes_fl.data.scaling import columns_of
from pacbayes_fl.errors import ShapeError

_ROUNDING = 64  # units in the last place of a column's largest mean: a spread below is rounding


@dataclass(frozen=True, eq=False)
class SentMoments:
    """What K clients have sent of their d features and, last, of the target.

    Mean and standard deviation stand for sum and sum of squares, which they are functions of with the number of rows,
    and lose no digits where a column is far from 0.

    Args:
        names: of the clients.
        size: their rows [K].
        inside: moments of every client [K, d + 1], float64, in units of each column.
        labels: whether targets are labels, of which nothing is sent.
    """

    names: Sequence[str]
    size: Tensor
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
        inside = moments_of(columns_of(batch), batch.mask)
        return cls(batch.names, batch.size.double(), inside, not batch.y.is_floating_point())

    @cached_property
    def whole(self) -> Moments:
        """Moments of all rows together [1, d + 1].

        mean = sum m_k mean_k / m,   var = sum m_k (var_k + (mean_k - mean)^2) / m
        """
        share = (self.size / self.size.sum().clamp_min(1.0)).unsqueeze(-1)
        peak = self.inside.mean.abs().amax(0)
        unit = power_of_two(torch.maximum(peak, self.inside.std.amax(0)))
        mean, std = self.inside.mean / unit, self.inside.std / unit
        middle = (share * mean).sum(0, keepdim=True)
        spread = (share * (std.square() + (mean - middle).square())).sum(0, keepdim=True).sqrt()
        still = self.inside.flat.all(0) & (spread <= _ROUNDING * torch.finfo(spread.dtype).eps * (peak / unit))
        return Moments(middle * unit, spread * unit, still | (spread == 0))

    def select(self, index: Tensor) -> SentMoments:
        """Leave the other clients out.

        Args:
            index: positions [*].

        Returns:
            The messages of those clients.
        """
        names = [self.names[k] for k in index.tolist()]
        return SentMoments(names, self.size[index], Moments(*(leaf[index] for leaf in self.inside)), self.labels)

    def to_rows(self) -> Tensor:
        """Write the messages as numbers [K, D].

        Returns:
            [K, D], D = 1 + 3 (d + 1), float64: rows, means, standard deviations, and 1 where a column does not vary.
        """
        leaves = (self.size.unsqueeze(-1), *self.inside)
        return torch.cat([leaf.double().cpu() for leaf in leaves], 1)

    @classmethod
    def from_rows(cls, names: Sequence[str], rows: Tensor, columns: int, labels: bool) -> SentMoments:
        """Read the result of `to_rows`.

        Args:
            names: of the K clients.
            rows: numbers of the clients [K, D], D = 1 + 3 c.
            columns: c.
            labels: whether targets are labels.

        Returns:
            The messages.

        Raises:
            ShapeError: when they are no moments.
        """
        if rows.shape != (len(names), 1 + 3 * columns) or not bool(rows.isfinite().all()):
            raise ShapeError(f"moments of {columns} columns are {1 + 3 * columns} finite numbers a client")
        size, (mean, std, flat) = rows[:, 0], rows[:, 1:].split(columns, 1)
        if not bool((size >= 0).all() and (std >= 0).all()):
            raise ShapeError("a number of rows or a standard deviation is negative")
        return cls(names, size, Moments(mean, std, flat != 0), labels)
