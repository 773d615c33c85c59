"""The power of a Yeo-Johnson transform by maximum likelihood, from one message of sums of every client."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.client_blocks import by_size
from pacbayes_fl.data.transforms import Transform

_STEP: Final = 0.01
_POWERS: Final = tuple(
    _STEP * at for at in range(201)
)  # from 0 to 2: beyond, t(y) ends and cannot be undone everywhere
_ROUNDING: Final = 64  # units in the last place of the mean: a spread below is rounding


class PowerSums(NamedTuple):
    """What clients send of their targets, of which nothing but sums over clients is used.

    Sums of squares are taken around each client's own mean, so that targets far from 0 lose no digits.

    Args:
        rows: m [K].
        bend: sum of sign(y) ln(1 + |y|) [K], in nats.
        mean: of t at every power of the grid [K, G].
        squares: sum of (t - mean)^2 likewise [K, G].
    """

    rows: Tensor
    bend: Tensor
    mean: Tensor
    squares: Tensor


def power_sums(batch: ClientBatch) -> PowerSums:
    """Sum over each client's rows: its one message.

    Args:
        batch: training rows of K clients, y in the data's own units.

    Returns:
        The sums, float64; 0 for a client without rows.
    """
    return PowerSums(*by_size(batch, _power_sums))


def _power_sums(batch: ClientBatch) -> PowerSums:
    y, mask = torch.where(batch.mask, batch.y, 0.0).double(), batch.mask
    rows = mask.sum(1).double()
    means, squares = [], []
    for power in _POWERS:
        t = Transform("yeo-johnson", power=power).forward(y)
        mean = torch.where(mask, t, 0.0).sum(1) / rows.clamp_min(1.0)
        means.append(mean)
        squares.append(torch.where(mask, t - mean.unsqueeze(1), 0.0).square().sum(1))
    return PowerSums(rows, (y.sign() * y.abs().log1p()).sum(1), torch.stack(means, 1), torch.stack(squares, 1))


def learned_power(sums: PowerSums) -> float | None:
    """Find the power under which all clients' targets together are most like draws of one normal.

    l(lambda) = -n/2 ln s^2(lambda) + (lambda - 1) sum_i sign(y_i) ln(1 + |y_i|), s^2 the variance of t over all n rows
    (Yeo and Johnson, Biometrika 87, 2000), on a grid of steps of .01 and at the vertex of the parabola through the best
    of its points and the two beside it.

    Args:
        sums: of all clients.

    Returns:
        lambda, from 0 to 2; None where targets do not vary, or leave the range of numbers whatever it is.
    """
    rows = sums.rows.sum()
    weight = (sums.rows / rows.clamp_min(1.0)).unsqueeze(1)
    mean = (weight * sums.mean).sum(0)
    variance = (weight * (sums.mean - mean).square()).sum(0) + sums.squares.sum(0) / rows.clamp_min(1.0)
    powers = mean.new_tensor(_POWERS)
    score = -0.5 * rows * variance.log() + (powers - 1.0) * sums.bend.sum()
    varies = variance.sqrt() > _ROUNDING * torch.finfo(mean.dtype).eps * mean.abs()
    usable = (varies & score.isfinite()).cpu()
    if not bool(usable[round(1.0 / _STEP)]):  # y itself
        return None
    score = torch.where(usable, score.cpu(), -math.inf)
    at = int(score.argmax().clamp(1, len(_POWERS) - 2))
    before, here, after = score[at - 1 : at + 2].tolist()
    bend = before - 2.0 * here + after
    if not math.isfinite(bend) or bend >= 0:
        return _POWERS[int(score.argmax())]
    vertex: float = _POWERS[at] + 0.5 * _STEP * (before - after) / bend
    return min(max(vertex, _POWERS[0]), _POWERS[-1])
