"""The border of every metric: shapes checked, padding made harmless, averages over real rows only."""

from __future__ import annotations

import torch
from torch import Tensor

from pacbayes_fl.errors import DataError, ShapeError
from pacbayes_fl.metrics.shapes import require
from pacbayes_fl.posteriors.predictive import ClassPredictive, RegressionPredictive


def real_rows(predictive: RegressionPredictive, y: Tensor, mask: Tensor) -> Tensor:
    """Check shapes and put zeros into the padding of the targets.

    Args:
        predictive: predictions for the same rows, [K, N].
        y: targets [K, N], in the unit of the predictive; anything in padding.
        mask: bool [K, N], True on real rows.

    Returns:
        y [K, N] in float64, zero in padding.

    Raises:
        ShapeError: when y, mask and the predictive disagree in shape, or the mask is not bool.
    """
    sizes = _sizes(y, mask)
    require("predictive.mean", predictive.mean, "K N", **sizes)
    return y.double().masked_fill(~mask, 0.0)


def real_labels(predictive: ClassPredictive, y: Tensor, mask: Tensor) -> Tensor:
    """Check shapes and labels, and put zeros into the padding of the labels.

    Args:
        predictive: predictions for the same rows, [K, N].
        y: integer labels [K, N], 0 to C - 1; anything in padding.
        mask: bool [K, N], True on real rows.

    Returns:
        y [K, N] in int64, zero in padding.

    Raises:
        ShapeError: when y, mask and the predictive disagree in shape, y holds no integers, or the mask is not bool.
        DataError: when a label of a real row is not among the classes.
    """
    sizes = _sizes(y, mask)
    classes = require("predictive.probs", predictive.probs, "K N C", **sizes)["C"]
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise ShapeError(f"y must hold integer labels, got {y.dtype}")
    if (wrong := mask & ((y < 0) | (y >= classes))).any():
        k, row = wrong.nonzero()[0].tolist()
        raise DataError(f"y must hold labels 0 to {classes - 1}, got {y[k, row].item()} (client {k}, row {row})")
    return y.long().masked_fill(~mask, 0)


def _sizes(y: Tensor, mask: Tensor) -> dict[str, int]:
    """Return the sizes K and N on which targets and mask agree."""
    sizes = require("y", y, "K N")
    require("mask", mask, "K N", **sizes)
    if mask.dtype != torch.bool:
        raise ShapeError(f"mask must be bool, got {mask.dtype}")
    return sizes


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Average each client's real rows.

    Args:
        values: one number a row [K, N], in any unit; anything in padding, NaN included.
        mask: bool [K, N], True on real rows.

    Returns:
        Averages [K], in the unit of the values; NaN for a client without rows.
    """
    return values.masked_fill(~mask, 0.0).sum(1) / mask.sum(1)
