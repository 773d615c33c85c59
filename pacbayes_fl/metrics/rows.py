"""The border of every metric: shapes checked, padding made harmless, averages over real rows only."""

from __future__ import annotations

import torch
from torch import Tensor

from pacbayes_fl.errors import ShapeError
from pacbayes_fl.posteriors.base import RegressionPredictive
from pacbayes_fl.shapes import require


def real_rows(predictive: RegressionPredictive, y: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Check shapes and put zeros into the padding of the targets.

    Args:
        predictive: predictions for the same rows, [K, N].
        y: targets [K, N], in the unit of the predictive; anything in padding.
        mask: bool [K, N], True on real rows.

    Returns:
        y [K, N] in float64, zero in padding, and the mask [K, N].

    Raises:
        ShapeError: when y, mask and the predictive disagree in shape, or the mask is not bool.
    """
    sizes = require("y", y, "K N")
    require("mask", mask, "K N", **sizes)
    require("predictive.mean", predictive.mean, "K N", **sizes)
    if mask.dtype != torch.bool:
        raise ShapeError(f"mask must be bool, got {mask.dtype}")
    return y.double().masked_fill(~mask, 0.0), mask


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Average each client's real rows.

    Args:
        values: one number a row [K, N], in any unit; anything in padding, NaN included.
        mask: bool [K, N], True on real rows.

    Returns:
        Averages [K], in the unit of the values; NaN for a client without rows.
    """
    return values.masked_fill(~mask, 0.0).sum(1) / mask.sum(1)
