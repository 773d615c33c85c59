"""Averages by cluster, and the first grouping."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.server import clusters

K, D, J = 7, 4, 3


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


UPLOADS, OLD = MeanField(randn(0, K, D), randn(1, K, D)), MeanField(randn(2, J, D), randn(3, J, D))
CLUSTER = torch.tensor([0, 2, 0, 2, 2, 0, 2])  # nobody in 1
WEIGHT = torch.tensor([1.0, 2.0, 0.0, 4.0, 1.0, 3.0, 1.0], dtype=torch.float64)


def test_every_cluster_is_the_mean_of_its_members_and_an_empty_one_stays() -> None:
    mean, weight = clusters.mean(UPLOADS, CLUSTER, WEIGHT, OLD)
    assert weight.tolist() == [4.0, 0.0, 8.0]
    for got, sent, old in zip(mean, UPLOADS, OLD, strict=True):
        assert torch.equal(got[1], old[1])
        for j in (0, 2):
            members = [k for k in range(K) if CLUSTER[k] == j]
            loop = torch.stack([WEIGHT[k] * sent[k] for k in members]).sum(0) / sum(float(WEIGHT[k]) for k in members)
            torch.testing.assert_close(got[j], loop, rtol=1e-13, atol=1e-15)


def test_clients_outside_a_cluster_do_not_shrink_its_mean() -> None:
    """The printed algorithm divides by all clients drawn."""
    alike = tensors.tree_map(torch.ones_like, UPLOADS)
    ones = torch.ones(K, dtype=torch.float64)
    mean, _ = clusters.mean(alike, CLUSTER, ones, tensors.tree_map(torch.zeros_like, OLD))
    assert mean.loc[0].tolist() == mean.loc[2].tolist() == [1.0] * D and mean.loc[1].tolist() == [0.0] * D


def test_sums_of_chunks_are_the_sum_of_all() -> None:
    whole = clusters.sums(UPLOADS, CLUSTER, WEIGHT, J)
    parts = [torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5, 6])]
    result = [clusters.sums(tensors.select(UPLOADS, part), CLUSTER[part], WEIGHT[part], J) for part in parts]
    torch.testing.assert_close(result[0][0].loc + result[1][0].loc, whole[0].loc, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(result[0][1] + result[1][1], whole[1], rtol=0, atol=0)


def test_float32_uploads_with_float64_weights() -> None:
    single = tensors.tree_map(Tensor.float, UPLOADS)
    mean, weight = clusters.mean(single, CLUSTER, WEIGHT, tensors.tree_map(Tensor.float, OLD))
    assert mean.loc.dtype == torch.float32 and weight.dtype == torch.float64


# the first grouping ---------------------------------------------------------------------------------------------


def blobs(groups: int, seed: int, spread: float = 0.3) -> tuple[Tensor, Tensor]:
    """Return points around distant centres, and their groups."""
    truth = torch.arange(30) % groups
    return 3.0 * randn(seed, groups, 6)[truth] + spread * randn(seed + 1, 30, 6) + 100.0, truth


@pytest.mark.parametrize("groups", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(0, 10, 2))
def test_clear_groups_are_found_and_are_scikit_learn_s(groups: int, seed: int) -> None:
    points, truth = blobs(groups, seed)
    result = clusters.k_means(points, torch.ones(30, dtype=torch.float64), groups)
    assert result.dtype == torch.int64 and set(result.tolist()) == set(range(groups))
    assert adjusted_rand_score(truth.numpy(), result.numpy()) == 1.0
    theirs = KMeans(groups, n_init=5, random_state=0).fit_predict(points.numpy())
    assert adjusted_rand_score(theirs, result.numpy()) == 1.0


def test_a_grouping_is_a_fixed_point_of_lloyd_s_algorithm() -> None:
    points = randn(5, 40, 3)
    result = clusters.k_means(points, torch.ones(40, dtype=torch.float64), 4, steps=100)
    centres = torch.stack([points[result == j].mean(0) for j in range(4)])
    assert torch.equal(torch.cdist(points, centres).argmin(1), result)


def test_the_order_of_clients_only_renames_groups() -> None:
    points, _ = blobs(3, 4, spread=1.5)
    ones, order = torch.ones(30, dtype=torch.float64), torch.randperm(30, generator=torch.Generator().manual_seed(0))
    one, other = clusters.k_means(points, ones, 3), clusters.k_means(points[order], ones, 3)
    assert adjusted_rand_score(one[order].numpy(), other.numpy()) == 1.0


def test_clients_of_no_weight_found_no_group() -> None:
    points, _ = blobs(2, 0)
    points[7] = 1e6
    weight = torch.ones(30, dtype=torch.float64)
    weight[7] = 0.0
    rest = torch.arange(30) != 7
    result = clusters.k_means(points, weight, 2)
    alone = clusters.k_means(points[rest], weight[rest], 2)
    assert adjusted_rand_score(alone.numpy(), result[rest].numpy()) == 1.0 and set(result[rest].tolist()) == {0, 1}


def test_who_is_absent_takes_no_group_from_who_is_there() -> None:
    points = torch.tensor([[-10.0], [10.0], [9.0], [0.1]])
    assert clusters.k_means(points, torch.tensor([1.0, 1.0, 1.0, 0.0]), 3).tolist()[:3] == [0, 1, 2]


def test_fewer_clients_than_groups_leave_some_empty() -> None:
    result = clusters.k_means(randn(0, 2, 3), torch.ones(2, dtype=torch.float64), 5)
    assert sorted(result.tolist()) == [0, 1]
    assert clusters.k_means(torch.ones(3, 2), torch.ones(3), 2).tolist() == [0, 0, 0]  # nothing tells them apart


def smallest_cut(cosines: Tensor) -> tuple[float, set[frozenset[int]]]:
    """Go through all cuts."""
    count, cuts = len(cosines), []
    for bits in range(1, 2 ** (count - 1)):
        one = [i for i in range(count) if bits >> i & 1]
        two = [i for i in range(count) if not bits >> i & 1]
        cuts.append((float(cosines[one][:, two].max()), {frozenset(one), frozenset(two)}))
    return min(cuts, key=lambda cut: cut[0])


def cosines_of(steps: Any) -> Tensor:
    unit = torch.nn.functional.normalize(torch.as_tensor(steps, dtype=torch.float64), dim=1)
    return unit @ unit.T


@pytest.mark.parametrize(
    ("steps", "sides", "alpha"),
    [
        (((1, 0.1), (0.9, -0.2), (-0.6, 0.9), (-0.7, 0.6), (0.2, 1)), ({0, 1}, {2, 3, 4}), 0.292714272094),
        (((0, -2), (2, -3), (-3, -2), (2, 3), (2, -1)), ({3}, {0, 1, 2, 4}), 0.124034734589),  # complete linkage fails
    ],
)
def test_a_cut_is_the_best_one(steps: Any, sides: tuple[set[int], set[int]], alpha: float) -> None:
    cosines = cosines_of(steps)
    everybody = torch.ones(5, dtype=torch.bool)
    second, result = clusters.bipartition(cosines, everybody, torch.ones(5))
    assert {frozenset(everybody.logical_and(side).nonzero().flatten().tolist()) for side in (second, ~second)} == {
        frozenset(side) for side in sides
    }
    assert float(result) == pytest.approx(alpha, abs=1e-12) == smallest_cut(cosines)[0]


def test_a_cut_is_the_best_of_all_cuts() -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(30):
        cosines = cosines_of(torch.randn(7, 3, generator=generator, dtype=torch.float64))
        member = torch.tensor([True] * 6 + [False])
        second, alpha = clusters.bipartition(cosines, member, torch.arange(7.0))
        expected, cut = smallest_cut(cosines[:6, :6])
        one, two = ({k for k in range(6) if bool(second[k]) == side} for side in (False, True))
        assert {frozenset(one), frozenset(two)} == cut and float(alpha) == pytest.approx(expected, abs=1e-15)
        assert 5 in one, "the longest step of a member"


def test_a_group_of_one_is_not_cut() -> None:
    second, alpha = clusters.bipartition(torch.ones(2, 2), torch.tensor([True, False]), torch.ones(2))
    assert not second.any() and alpha == 2
