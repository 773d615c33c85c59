"""Trees as tensors: a tree by hand, the forests of several clients, and where the noise and the summaries stand."""

from __future__ import annotations

import torch

from pacbayes_fl.posteriors.trees import Forest, TreePosterior, beside, no_trees, side_by_side

DOUBLE = torch.float64


def forest(thresholds: list[float], baseline: float = 1.0) -> Forest:
    """Return trees that add 10 above each threshold of the first feature and 0 up to it."""
    count = len(thresholds)
    tree = torch.tensor([[1, 1, 2], [2, 1, 2]])  # children of the root and of both leaves
    threshold = torch.zeros(1, count, 3, dtype=DOUBLE)
    threshold[0, :, 0] = torch.tensor(thresholds, dtype=DOUBLE)
    value = torch.tensor([7.0, 0.0, 10.0], dtype=DOUBLE).expand(1, count, 3)
    left, right = (side.expand(1, count, 3) for side in tree)
    none = torch.zeros(1, count, 3, dtype=torch.int64)
    return Forest(none, threshold, left, right, value, torch.tensor([baseline], dtype=DOUBLE))


def test_rows_go_left_up_to_the_threshold_and_leaves_are_added() -> None:
    x = torch.tensor([[[-1.0, 9.0], [0.5, 9.0], [0.6, 9.0], [3.0, 9.0]]], dtype=DOUBLE)
    assert forest([0.5, 2.0]).predict(x).tolist() == [[1.0, 1.0, 11.0, 21.0]]
    one, two = x[:, :, :1].expand(2, -1, -1).unbind()
    other = torch.stack([one, two + 1])
    assert forest([0.5]).predict(other).tolist() == [[1.0, 1.0, 11.0, 11.0], [1.0, 11.0, 11.0, 11.0]], "one for all"


def test_forests_of_clients_stand_side_by_side() -> None:
    joined = side_by_side([forest([0.5, 2.0]), no_trees(), forest([0.0, 1.0], -1.0)])
    x = torch.tensor([[0.7]], dtype=DOUBLE).expand(3, 1, 1)
    assert joined.predict(x).tolist() == [[11.0], [0.0], [9.0]]
    assert no_trees().predict(x).tolist() == [[0.0]] * 3


def test_noise_is_added_and_numbers_of_clients_stand_behind_the_features() -> None:
    x, own = torch.zeros(2, 3, 2), torch.tensor([[1.0], [2.0]])
    assert beside(x, own)[:, :, 2].tolist() == [[1.0] * 3, [2.0] * 3]
    whose = forest([1.5])._replace(feature=torch.full((1, 1, 3), 2))
    predicted = TreePosterior(whose, torch.tensor([4.0, 9.0], dtype=DOUBLE), own).predict(x)
    assert predicted.mean.tolist() == [[1.0] * 3, [11.0] * 3] and predicted.variance.tolist() == [[4.0] * 3, [9.0] * 3]
