"""Gradient-boosted regression trees by scikit-learn, and what they leave of rows that they did not see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl.options import check, option
from pacbayes_fl.posteriors.trees import Forest

if TYPE_CHECKING:
    from sklearn.ensemble import HistGradientBoostingRegressor


@dataclass(frozen=True)
class Boosting:
    """How trees are grown, scikit-learn's `HistGradientBoostingRegressor` with squared error (Friedman 2001).

    Args:
        trees: their number.
        shrinkage: factor of every tree, the learning rate of boosting.
        leaves: most leaves of a tree.
        smallest_leaf: fewest rows of a leaf.
        l2: penalty on the leaves' values.
    """

    trees: int = option(120, low=1)
    shrinkage: float = option(0.06, above=0, high=1)
    leaves: int = option(8, low=2)
    smallest_leaf: int = option(10, low=1)
    l2: float = option(1.0, low=0)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check(self)


def grow(boosting: Boosting, x: Tensor, y: Tensor) -> HistGradientBoostingRegressor:
    """Fit trees; no random number is drawn below 200,000 rows, and those of a fixed seed above.

    Args:
        boosting: hyper-parameters.
        x: inputs [R, d], R positive.
        y: targets [R].

    Returns:
        scikit-learn's regressor.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor  # a second of importing, for who grows trees

    regressor = HistGradientBoostingRegressor(
        learning_rate=boosting.shrinkage,
        max_iter=boosting.trees,
        max_leaf_nodes=boosting.leaves,
        min_samples_leaf=boosting.smallest_leaf,
        l2_regularization=boosting.l2,
        early_stopping=False,
        random_state=0,
    )
    return regressor.fit(x.double().cpu().numpy(), y.double().cpu().numpy())


def forest_of(regressor: HistGradientBoostingRegressor) -> Forest:
    """Take the trees out of scikit-learn's regressor, which shows them in private attributes alone.

    Args:
        regressor: fitted.

    Returns:
        Leaves [1, T, L] and [1], on the CPU.
    """
    trees = [stage[0].nodes for stage in regressor._predictors]
    shape = len(trees), max(map(len, trees))
    own = np.broadcast_to(np.arange(shape[1]), shape)
    feature, left, right = np.zeros(shape, np.int64), own.copy(), own.copy()
    threshold, value = np.zeros(shape), np.zeros(shape)
    for t, nodes in enumerate(trees):
        (inner,) = np.nonzero(nodes["is_leaf"] == 0)
        feature[t, inner], threshold[t, inner] = nodes["feature_idx"][inner], nodes["num_threshold"][inner]
        left[t, inner], right[t, inner] = nodes["left"][inner], nodes["right"][inner]
        value[t, : len(nodes)] = nodes["value"]
    leaves = [torch.from_numpy(each).unsqueeze(0) for each in (feature, threshold, left, right, value)]
    return Forest._make([*leaves, torch.from_numpy(np.ravel(regressor._baseline_prediction).astype(np.float64))])


def left_out(boosting: Boosting, x: Tensor, y: Tensor, fold: Tensor) -> Tensor:
    """Predict every fold by trees that were grown on the others.

    Args:
        boosting: hyper-parameters.
        x: inputs [R, d], or those of every fold [F, R, d] where they depend on which one is left out.
        y: targets [R].
        fold: of every row [R], at least two different ones, below F.

    Returns:
        [R], float64 on the CPU.
    """
    result = torch.zeros(len(y), dtype=torch.float64)
    for out in fold.unique().tolist():
        held, rows = fold == out, x[out] if x.dim() == 3 else x
        predicted = grow(boosting, rows[~held], y[~held]).predict(rows[held].double().cpu().numpy())
        result[held.cpu()] = torch.from_numpy(predicted)
    return result
