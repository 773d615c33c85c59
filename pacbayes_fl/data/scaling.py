"""Standardisation by client, fitted on training rows alone (PAC-PFL appendix 8.5; the published generator's rule)."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch

_SMALLEST = 1e-12


class Scaling(NamedTuple):
    """Affine maps per client: scaled = (raw - mean) / std. Labels, which are integers, stay as they are.

    Args:
        x_mean: [K, *feature], in units of the features.
        x_std: [K, *feature], positive.
        y_mean: [K], in units of y; 0 for labels.
        y_std: [K], positive; 1 for labels.
    """

    x_mean: Tensor
    x_std: Tensor
    y_mean: Tensor
    y_std: Tensor

    def apply(self, batch: ClientBatch) -> ClientBatch:
        """Scale a batch of the same clients in the same order; padding stays zero.

        Args:
            batch: raw rows, x [K, N, *feature], y [K, N].

        Returns:
            The scaled batch.
        """
        x = (batch.x - self.x_mean.unsqueeze(1)) / self.x_std.unsqueeze(1)
        x = torch.where(batch.mask.view(*batch.mask.shape, *[1] * (x.dim() - 2)), x, 0.0)
        if not batch.y.is_floating_point():
            return replace(batch, x=x)
        y = (batch.y - self.y_mean.unsqueeze(1)) / self.y_std.unsqueeze(1)
        return replace(batch, x=x, y=torch.where(batch.mask, y, 0.0))


def fit(batch: ClientBatch) -> Scaling:
    """Fit mean and population standard deviation of every client's features and, where it is no label, of its target.

    A column (or target) that is constant, or whose standard deviation is under 1e-12, is shifted but not scaled, and
    everything of a client without rows is left as it is; a warning says whose targets.

    Args:
        batch: training rows, x [K, N, d], y [K, N].

    Returns:
        The scaling of its K clients.
    """
    labels = not batch.y.is_floating_point()
    count = batch.size.clamp_min(1.0).to(batch.x.dtype).unsqueeze(-1)
    mask = batch.mask.unsqueeze(-1)
    y = torch.zeros_like(batch.x[..., 0]) if labels else batch.y  # labels: a constant, left where it is
    columns = torch.cat((batch.x, y.unsqueeze(-1)), -1)
    mean = torch.where(mask, columns, 0.0).sum(1) / count
    std = (torch.where(mask, columns - mean.unsqueeze(1), 0.0).square().sum(1) / count).sqrt()
    low, high = torch.where(mask, columns, torch.inf).amin(1), torch.where(mask, columns, -torch.inf).amax(1)
    flat = (std < _SMALLEST) | (low >= high)  # a large constant's std is rounding, which its size decides
    constant = flat[:, -1] & batch.mask.any(1)
    if constant.any() and not labels:
        names = [name for name, is_flat in zip(batch.names, constant.tolist(), strict=True) if is_flat]
        warnings.warn(f"targets of {', '.join(names)} do not vary: left unscaled (std := 1)", stacklevel=2)
    std = torch.where(flat, 1.0, std)
    return Scaling(mean[:, :-1], std[:, :-1], mean[:, -1], std[:, -1])


def identity(batch: ClientBatch) -> Scaling:
    """Leave the clients of a batch in their own units.

    Args:
        batch: x [K, N, *feature].

    Returns:
        A scaling that changes nothing.
    """
    shape = (batch.clients, *batch.x.shape[2:])
    zero, one = batch.x.new_zeros(()), batch.x.new_ones(())
    return Scaling(zero.expand(shape), one.expand(shape), zero.expand(batch.clients), one.expand(batch.clients))
