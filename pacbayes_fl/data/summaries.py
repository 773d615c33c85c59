"""Summaries of a client's own training rows, which tell a prior that all clients share what kind of client it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.moments import log_in, moments_of, power_of_two


class SummaryScale(NamedTuple):
    """How the s summaries are brought to mean 0 and standard deviation 1 over clients.

    Args:
        unit: of the target in which logarithms are taken, a power of two.
        mean: [s].
        std: [s], positive.
    """

    unit: Tensor
    mean: Tensor
    std: Tensor


def summary_names(columns: Sequence[str]) -> tuple[str, ...]:
    """Name the summaries.

    Args:
        columns: names of the d features and, last, of the target.

    Returns:
        d + 2 names.
    """
    *features, target = columns
    correlations = [f"correlation of {target} and {name}" for name in features]
    return (f"log scale of {target}", f"level of {target}", *correlations)


def summarise(batch: ClientBatch, unit: Tensor) -> Tensor:
    """Summarise the targets of each client, and how they go with its features.

    ln(s / unit),   y_mean / sqrt(y_mean^2 + s^2),   and d correlations of y and x_j
    with mean y_mean and standard deviation s of the client's targets.

    Args:
        batch: rows of K clients, x [K, N, d], y [K, N].
        unit: of the target, a power of two [].

    Returns:
        [K, d + 2], float64; NaN where the rows do not say, as of a single row or a column that does not vary.
    """
    columns = torch.cat((batch.x, batch.y.unsqueeze(-1)), -1).double()
    mean, std, flat = moments_of(columns, batch.mask)
    z = (columns / std.unsqueeze(1) - (mean / std).unsqueeze(1)).nan_to_num(posinf=0.0, neginf=0.0)
    z = torch.where(batch.mask.unsqueeze(-1) & ~flat.unsqueeze(1), z, 0.0)
    correlation = (z[..., :-1] * z[..., -1:]).sum(1) / batch.size.unsqueeze(-1)
    correlation = torch.where(flat[:, :-1] | flat[:, -1:], torch.nan, correlation)
    ratio = mean[:, -1] / std[:, -1]
    level = torch.where(ratio.abs() < 1e150, ratio / (1.0 + ratio.square()).sqrt(), ratio.sign())
    own = torch.stack((log_in(std[:, -1], unit), level), -1)
    return torch.cat((torch.where(flat[:, -1:], torch.nan, own), correlation), -1)


def settle_summaries(batch: ClientBatch) -> SummaryScale:
    """Take mean and standard deviation of the summaries over clients: one message of a client, its numbers and squares.

    Args:
        batch: training rows of the existing clients.

    Returns:
        Moments of what the rows say; 0 and 1 where no two clients differ.
    """
    largest = torch.where(batch.mask, batch.y.abs(), 0.0).amax().double()
    unit = power_of_two(largest)
    numbers = summarise(batch, unit)
    moments = moments_of(numbers.nan_to_num().T.unsqueeze(-1), ~numbers.isnan().T)
    return SummaryScale(unit, moments.mean[:, 0], torch.where(moments.flat, 1.0, moments.std)[:, 0])


def summary_inputs(batch: ClientBatch, scale: SummaryScale) -> Tensor:
    """Bring the summaries of clients to the federation's scale.

    Args:
        batch: training rows of K clients.
        scale: of the existing clients' summaries.

    Returns:
        [K, s], without unit; 0, which is the average client's, where the rows do not say.
    """
    unit, mean, std = (leaf.to(batch.x.device) for leaf in scale)
    return ((summarise(batch, unit) - mean) / std).nan_to_num(nan=0.0)


def with_inputs(batch: ClientBatch, inputs: Tensor) -> ClientBatch:
    """Give every row of a client the same further inputs.

    Args:
        batch: rows x [K, N, d].
        inputs: [K, s].

    Returns:
        The rows with x [K, N, d + s], zero on padding.
    """
    wide = inputs.to(batch.x).unsqueeze(1).expand(-1, batch.x.shape[1], -1)
    return replace(batch, x=torch.cat((batch.x, torch.where(batch.mask.unsqueeze(-1), wide, 0.0)), -1))
