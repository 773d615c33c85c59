"""Summaries of a client's own training rows, which tell a prior that all clients share what kind of client it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.client_blocks import by_size
from pacbayes_fl.data.moments import log_in, moments_of, power_of_two, standardised
from pacbayes_fl.data.shrinkage import random_effects, shrink

_LARGEST: Final = 1e20  # ratio of mean and standard deviation: what is more is the same
_SURE: Final = 1.0 - 1e-6  # correlation, whose artanh would be infinite


class SummaryScale(NamedTuple):
    """How the s summaries differ between clients.

    Args:
        unit: of the target in which logarithms are taken, a power of two.
        mean: over clients [s].
        std: of the clients' estimates [s], positive.
        between: standard deviation of what they estimate [s]: 0 where clients differ by no more than their errors.
    """

    unit: Tensor
    mean: Tensor
    std: Tensor
    between: Tensor


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


def summarise(batch: ClientBatch, unit: Tensor) -> tuple[Tensor, Tensor]:
    """Summarise the targets of each client, and how they go with its features.

    ln(s / unit),   r / sqrt(1 + r^2) with r = y_mean / s,   and artanh of the d correlations of y and x_j,
    with mean y_mean and standard deviation s of the client's m targets. Their variances for Gaussian rows are
    1 / (2 (m - 1)),   (1 + r^2 / 2) / (m (1 + r^2)^3)   and   1 / (m - 3) (Fisher, Metron 1, 1921).

    Args:
        batch: rows of K clients, x [K, N, d], y [K, N].
        unit: of the target, a power of two [].

    Returns:
        The summaries, and their variances [K, d + 2], float64; infinite where the rows do not say, as of one
        row or, for correlations, three, or a column that does not vary.
    """
    rows = batch.size.unsqueeze(-1)
    mean, std, flat, correlation = by_size(batch, _correlated)
    still, std = flat[:, -1:], torch.where(flat, 1.0, std)[:, -1:]
    ratio = (mean[:, -1:] / std).clamp(-_LARGEST, _LARGEST)
    square = 1.0 + ratio.square()
    numbers = torch.cat((log_in(std, unit), ratio / square.sqrt(), correlation.clamp(-_SURE, _SURE).atanh()), -1)
    errors = (0.5 / (rows - 1.0), 0.5 * (1.0 + square) / (rows * square**3), 1.0 / (rows - 3.0).expand_as(correlation))
    both = ~still & ~flat[:, :-1] & (rows > 3)
    known = torch.cat((~still, ~still, both), -1)
    return torch.where(known, numbers, 0.0), torch.where(known, torch.cat(errors, -1), torch.inf)


def _correlated(batch: ClientBatch) -> tuple[Tensor, ...]:
    """Moments of each client's columns [k, d + 1], and correlations of the features with the target [k, d]."""
    columns = torch.cat((batch.x, batch.y.unsqueeze(-1)), -1).double()
    mean, std, flat = moments_of(columns, batch.mask)
    z = standardised(columns, mean.unsqueeze(1), torch.where(flat, 1.0, std).unsqueeze(1))
    z = torch.where(batch.mask.unsqueeze(-1) & ~flat.unsqueeze(1), z, 0.0)
    correlation = (z[..., :-1] * z[..., -1:]).sum(1) / batch.size.unsqueeze(-1).clamp_min(1.0)
    return mean, std, flat, correlation


def settle_summaries(batch: ClientBatch) -> SummaryScale:
    """Find how the summaries differ between clients, from one message of each client: its numbers and its rows' number.

    Args:
        batch: training rows of the existing clients.

    Returns:
        Moments of what the rows say; a std of 1 where no two clients differ.
    """
    largest = torch.where(batch.mask, batch.y.abs(), 0.0).amax().double()
    unit = power_of_two(largest)
    numbers, errors = summarise(batch, unit)
    mean, between = random_effects(numbers, errors)
    moments = moments_of(numbers.T.unsqueeze(-1), errors.isfinite().T)
    return SummaryScale(unit, mean, torch.where(moments.flat, 1.0, moments.std)[:, 0], between.sqrt())


def summary_inputs(batch: ClientBatch, scale: SummaryScale) -> Tensor:
    """Bring the summaries of clients, shrunk towards the average client's, to the federation's scale.

    Args:
        batch: training rows of K clients.
        scale: of the existing clients' summaries.

    Returns:
        [K, s], without unit, of standard deviation 1 at most; 0, which is the average client's, where the rows do not
        say, or clients do not differ by more than their errors.
    """
    unit, mean, std, between = (leaf.to(batch.x.device) for leaf in scale)
    shrunk, _ = shrink(*summarise(batch, unit), mean, between.square())
    return (shrunk - mean) / std


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
