"""Trees taken out of scikit-learn predict what it predicts, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import cross_val_predict

from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.boosting import Boosting, forest_of, grow, left_out
from tests.methods.by_hand import randn

X = randn(1, 200, 3)
X[:, 2] = (2 * X[:, 2]).round()  # few values, as of a column of counts
Y = (2 * X[:, 0]).sin() + X[:, 1] * X[:, 2] + 0.2 * randn(2, 200)
BOOSTING = Boosting(30, 0.1, 6, 5, 0.7)


def theirs() -> HistGradientBoostingRegressor:
    return HistGradientBoostingRegressor(
        learning_rate=0.1, max_iter=30, max_leaf_nodes=6, min_samples_leaf=5, l2_regularization=0.7
    )


@pytest.mark.quick
@pytest.mark.parametrize("rows", [200, 7])
def test_predictions_are_scikit_learn_s_to_the_last_bit(rows: int) -> None:
    expected = theirs().fit(X[:rows].numpy(), Y[:rows].numpy())
    forest = forest_of(grow(BOOSTING, X[:rows], Y[:rows]))
    new = torch.cat((randn(3, 300, 3), X[:rows], 1e6 * randn(4, 5, 3)))  # at thresholds and far away too
    assert np.array_equal(forest.predict(new[None])[0].numpy(), expected.predict(new.numpy()))
    assert (forest.feature.shape[1] == 30) and (forest.value.std() > 0) == (rows == 200)


def test_every_fold_is_predicted_by_trees_that_did_not_see_it() -> None:
    fold = torch.arange(200) * 4 // 200
    splits = [(np.flatnonzero(fold != f), np.flatnonzero(fold == f)) for f in range(4)]
    expected = cross_val_predict(theirs(), X.numpy(), Y.numpy(), cv=splits)
    mine = left_out(BOOSTING, X, Y, fold)
    assert np.array_equal(mine.numpy(), expected)
    assert torch.equal(left_out(BOOSTING, X.expand(4, -1, -1), Y, fold), mine)
    other = torch.stack([X, X, torch.zeros_like(X), X])  # where the third fold is left out nothing is known
    known = left_out(BOOSTING, other, Y, fold)
    assert torch.equal(known[fold != 2], mine[fold != 2])
    torch.testing.assert_close(known[fold == 2], Y[fold != 2].mean().expand(50), rtol=1e-6, atol=1e-9)


def test_a_shrinkage_above_one_is_refused() -> None:
    with pytest.raises(StudyError, match="shrinkage"):
        Boosting(shrinkage=1.5)
