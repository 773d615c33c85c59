"""The federation's ridge regression, from one message of sums per client: where a prior's learning starts."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.client_blocks import by_size
from pacbayes_fl.data.row_counts import counted_rows

_PENALTIES: Final = tuple(10.0 ** (power / 4) for power in range(-12, 21))
_LEAST_STD: Final = 1e-2  # of residuals: a noise below is slow to leave


class LinearStart(NamedTuple):
    """A linear model w' x + b of standardised rows.

    Args:
        weight: w [d], in units of y per unit of x.
        bias: b, in units of y.
        noise_std: standard deviation of what it leaves, in units of y.
    """

    weight: Tensor
    bias: float
    noise_std: float


class LinearMoments(NamedTuple):
    """Sums over rows z = (x, 1), y, which add up over clients; of one that repeats its rows w_k / m_k times them.

    Args:
        inputs: sum of z z' [K, d + 1, d + 1].
        targets: sum of z y [K, d + 1].
        squares: sum of y^2 [K].
    """

    inputs: Tensor
    targets: Tensor
    squares: Tensor


def linear_moments(batch: ClientBatch) -> LinearMoments:
    """Take the sums of every client's rows, each client as many as it counts as (`data.row_counts`).

    Args:
        batch: rows of all clients x [K, N, d], y [K, N].

    Returns:
        The sums of K clients, float64.
    """
    sums = LinearMoments(*by_size(batch, _sums))
    share = counted_rows(batch) / batch.size.double().clamp_min(1.0)
    return LinearMoments(*(leaf * share.view(-1, *[1] * (leaf.dim() - 1)) for leaf in sums))


def _sums(batch: ClientBatch) -> tuple[Tensor, Tensor, Tensor]:
    real = batch.mask.unsqueeze(-1)
    z = torch.where(real, torch.cat((batch.x, torch.ones_like(batch.x[..., :1])), -1), 0.0).double()
    y = torch.where(batch.mask, batch.y, 0.0).double()
    return z.mT @ z, (z.mT @ y.unsqueeze(-1)).squeeze(-1), y.square().sum(1)


def pooled_ridge(moments: LinearMoments) -> LinearStart:
    """Fit ridge regression to all clients' rows, the penalty by its evidence.

    y ~ N(w' x + b, s^2), w ~ N(0, s^2 / lambda), b free: of centred rows, with S = sum x x' and c = sum x y,
    w = (S + lambda I)^-1 c,  s^2 = R / m,  R = sum y^2 - c' w,
    ln p(y | lambda) = -m / 2 ln s^2 + d / 2 ln lambda - 1 / 2 ln |S + lambda I| + const
    (MacKay, Neural Computation 4, 1992; Bishop, Pattern Recognition and Machine Learning, section 3.5.1)

    The noise that is left has variance R / sum_k (m_k - 1): each client's rows were centred by their own mean.

    Args:
        moments: of any number of clients.

    Returns:
        The line of the most likely lambda of a grid; 0 and a noise of 1, that of standardised targets, where no client
        has two rows.
    """
    left = float((moments.inputs[:, -1, -1] - 1.0).clamp_min(0.0).sum())
    inputs, targets, squares = (leaf.sum(0).cpu() for leaf in moments)
    rows, x_sum, y_sum = inputs[-1, -1], inputs[:-1, -1], targets[-1]
    if not left > 0:
        return LinearStart(torch.zeros_like(x_sum), 0.0, 1.0)
    scatter = inputs[:-1, :-1] - x_sum.outer(x_sum) / rows
    cross, total = targets[:-1] - x_sum * y_sum / rows, squares - y_sum.square() / rows
    eigenvalues, basis = torch.linalg.eigh(scatter)
    penalties = inputs.new_tensor(_PENALTIES).unsqueeze(-1)
    inverse = 1.0 / (eigenvalues.clamp_min(0.0) + penalties)  # [penalties, d]
    projected = basis.mT @ cross
    residual = (total - inverse @ projected.square()).clamp_min(_LEAST_STD**2 * left)
    evidence = -0.5 * rows * residual.log() + 0.5 * (inverse.log() + penalties.log()).sum(-1)
    best = int(evidence.argmax())
    weight = basis @ (inverse[best] * projected)
    return LinearStart(weight, float((y_sum - x_sum @ weight) / rows), math.sqrt(float(residual[best]) / left))
