"""Means and standard deviations of clients' columns, in any units that a number can have."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.client_blocks import by_size

_ROUNDING: Final = 64  # units in the last place of a column's largest value: a spread below is rounding


def columns_of(batch: ClientBatch) -> Tensor:
    """Put the target behind the features; 0 for labels, which stay where they are.

    Args:
        batch: x [K, N, d], y [K, N].

    Returns:
        [K, N, d + 1].
    """
    y = batch.y if batch.y.is_floating_point() else torch.zeros_like(batch.x[..., 0])
    return torch.cat((batch.x, y.unsqueeze(-1)), -1)


def power_of_two(size: Tensor) -> Tensor:
    """Return the largest power of two that is not above a size, 1 for a size of 0.

    Division by it is exact: what is computed in such units has the same bits as without, but for overflow.

    Args:
        size: not negative [*].

    Returns:
        [*], in the same units.
    """
    mantissa, _ = torch.frexp(size)
    return torch.where(size > 0, size / (2.0 * mantissa), 1.0)


def standardised(values: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Return (values - mean) / std, also where the difference itself is too large for the dtype.

    Args:
        values: any shape [*], in units of a column.
        mean: in the same units, broadcast against the values [*].
        std: positive, likewise [*].

    Returns:
        [*], without unit.
    """
    result = (values - mean) / std
    return (
        result if bool(result.isfinite().all()) else torch.where(result.isfinite(), result, values / std - mean / std)
    )


def log_in(size: Tensor, unit: Tensor) -> Tensor:
    """Return ln(size / unit), also where the quotient is too small or large for a number.

    Args:
        size: positive [*].
        unit: a power of two, broadcast against the sizes [*].

    Returns:
        [*], without unit: the same bits in whatever power of two the sizes and the unit are given.
    """
    (mantissa, exponent), (_, base) = torch.frexp(size), torch.frexp(unit)
    return mantissa.log() + math.log(2.0) * (exponent - base + 1).double()


class Moments(NamedTuple):
    """Mean and population standard deviation of c columns of K clients.

    Args:
        mean: [K, c], in units of each column; 0 without rows.
        std: likewise [K, c].
        flat: [K, c] bool: where a column does not vary, but for rounding.
    """

    mean: Tensor
    std: Tensor
    flat: Tensor


def combined(inside: Moments, rows: Tensor) -> Moments:
    """Take moments of all clients' rows together, from those of each.

    mean = sum m_k mean_k / m,   var = sum m_k (var_k + (mean_k - mean)^2) / m

    Args:
        inside: of K clients [K, c].
        rows: m_k, what each counts as [K].

    Returns:
        Moments [1, c].
    """
    share = (rows / rows.sum().clamp_min(1.0)).unsqueeze(-1)
    peak = inside.mean.abs().amax(0)
    unit = power_of_two(torch.maximum(peak, inside.std.amax(0)))
    mean, std = inside.mean / unit, inside.std / unit
    middle = (share * mean).sum(0, keepdim=True)
    spread = (share * (std.square() + (mean - middle).square())).sum(0, keepdim=True).sqrt()
    still = inside.flat.all(0) & (spread <= _ROUNDING * torch.finfo(spread.dtype).eps * (peak / unit))
    return Moments(middle * unit, spread * unit, still | (spread == 0))


def client_moments(batch: ClientBatch) -> Moments:
    """Take moments of the columns of every client, those of similar sizes together.

    Args:
        batch: x [K, N, d], y [K, N].

    Returns:
        Moments [K, d + 1], those that `moments_of` takes of `columns_of` the batch.
    """
    return Moments(*by_size(batch, lambda part: moments_of(columns_of(part), part.mask)))


def pooled_moments(batch: ClientBatch) -> Moments:
    """Take moments of the columns of all rows together, without padding where that is most of the batch.

    Args:
        batch: x [K, N, d], y [K, N].

    Returns:
        Moments [1, d + 1].
    """
    groups = batch.groups()
    if groups is None:
        return moments_of(columns_of(batch).flatten(0, 1).unsqueeze(0), batch.mask.flatten().unsqueeze(0))
    parts = [batch.select(at, rows) for at, rows in groups]
    columns = torch.cat([columns_of(part)[part.mask] for part in parts]).unsqueeze(0)
    return moments_of(columns, torch.ones_like(columns[..., 0], dtype=torch.bool))


def moments_of(columns: Tensor, mask: Tensor) -> Moments:
    """Take moments in units of each column's largest value: none is too large or small to square.

    Args:
        columns: [K, N, c].
        mask: real rows [K, N].

    Returns:
        Moments [K, c].

    Example:
        >>> import torch
        >>> from pacbayes_fl.data.moments import moments_of
        >>> columns, mask = torch.tensor([[[1.0], [3.0], [99.0]]]), torch.tensor([[True, True, False]])
        >>> found = moments_of(columns, mask)
        >>> found.mean.tolist(), found.std.tolist()  # of real rows
        ([[2.0]], [[1.0]])
    """
    mask, count = mask.unsqueeze(-1), mask.sum(1, dtype=torch.float64).clamp_min(1.0).to(columns.dtype).unsqueeze(-1)
    peak = torch.where(mask, columns.abs(), 0.0).amax(1)
    unit = power_of_two(peak)
    low, high = torch.where(mask, columns, torch.inf).amin(1), torch.where(mask, columns, -torch.inf).amax(1)
    columns = columns / unit.unsqueeze(1)
    mean = torch.where(mask, columns, 0.0).sum(1) / count
    std = (torch.where(mask, columns - mean.unsqueeze(1), 0.0).square().sum(1) / count).sqrt()
    tiny = std <= _ROUNDING * torch.finfo(std.dtype).eps * (peak / unit)  # of a large constant: rounding
    mean, std = mean * unit, std * unit
    return Moments(mean, std, tiny | (low >= high) | (std == 0))  # the last: below the smallest number of the dtype
