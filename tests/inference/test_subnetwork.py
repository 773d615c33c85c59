"""Which weights stay uncertain, by every rule, and which of them a covariance has to hold."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.inference.subnetwork import (
    Candidates,
    LargestCurvature,
    LargestMagnitude,
    LargestVariance,
    LastLayer,
    Mask,
    RandomShare,
    choose,
    curved,
)
from pacbayes_fl.noise import Noise
from tests.laplace import float64, randn

K, R, H = 3, 10, 4  # 10 weights of the representation, one of them a number, and 4 of the decision layers
D = R + H
REPRESENTATION = torch.tensor([True] * 3 + [False] + [True] * 6 + [False] * H)
DECISION = torch.arange(D) >= R


def noise() -> Noise:
    return Noise(0, 1, range(K))


def candidates(seed: int = 1) -> Candidates:
    variance, curvature, prior = (randn(seed + more, K, D).square() for more in (1, 2, 3))
    return Candidates(randn(seed, K, D), variance, curvature, prior, REPRESENTATION, DECISION)


def best(scores: torch.Tensor, size: int) -> list[list[int]]:
    """Rank the representation of every client in a loop."""
    allowed = [i for i in range(D) if REPRESENTATION[i]]
    return [sorted(sorted(allowed, key=lambda i: -float(row[i]))[:size]) for row in scores]


@pytest.mark.parametrize("fraction", [0.05, 0.34, 0.5, 1.0])
def test_a_share_of_the_representation_by_each_rule(fraction: float) -> None:
    given, size = candidates(), max(1, math.floor(fraction * 9))
    uniform = noise().weights(given.mean, "uniform")
    rules: dict[Any, torch.Tensor] = {
        LargestVariance: given.variance,
        LargestMagnitude: given.mean.abs(),
        RandomShare: uniform,
    }
    rules |= {LargestCurvature: given.curvature}
    for rule, scores in rules.items():
        assert choose(rule(fraction), given, noise()).tolist() == best(scores, size)
        assert rule(fraction).size(given) == size
    everywhere = given._replace(variance=given.variance.index_fill(1, torch.tensor([3, 11]), 1e9))
    assert choose(LargestVariance(1.0), everywhere, noise()).tolist() == [[0, 1, 2, 4, 5, 6, 7, 8, 9]] * K


def test_sizes_are_rounded_down_but_not_by_rounding_errors() -> None:
    def of(weights: int, fraction: float) -> int:
        every = torch.ones(weights, dtype=torch.bool)
        return LargestVariance(fraction).size(candidates()._replace(representation=every, decision=~every))

    assert of(78_500, 0.05) == 3_925  # the papers' network
    assert [of(100, hundredth / 100) for hundredth in range(1, 101)] == list(range(1, 101))
    assert (of(6, 1 / 3), of(10, 0.19), of(10, 0.01), of(1, 1.0)) == (2, 1, 1, 1)


def test_of_equally_good_weights_the_first_ones_are_taken() -> None:
    variance = torch.ones(K, D, dtype=torch.float64)
    variance[1, 7] = 2.0
    variance[2, [0, 1, 2]] = 0.5
    given = candidates()._replace(variance=variance)
    assert choose(LargestVariance(0.45), given, noise()).tolist() == [[0, 1, 2, 4], [0, 1, 2, 7], [4, 5, 6, 7]]


def test_the_largest_variances_are_the_least_distance_of_independent_weights() -> None:
    """FedSI eq. 14 by trying out every subnetwork of four weights."""
    given = candidates()
    chosen = choose(LargestVariance(0.45), given, noise())
    allowed = torch.tensor([i for i in range(D) if REPRESENTATION[i]])
    for k in range(K):
        total = given.variance[k, allowed].sum()
        distances = [total - given.variance[k, pick].sum() for pick in torch.combinations(allowed, 4)]
        assert total - given.variance[k, chosen[k]].sum() == pytest.approx(min(float(d) for d in distances), rel=1e-12)


def test_random_shares_differ_by_client_and_round_and_are_uniform() -> None:
    given, rule = candidates(), RandomShare(0.34)
    one, again = (choose(rule, given, noise()) for _ in range(2))
    assert torch.equal(one, again) and len({tuple(row) for row in one.tolist()}) > 1
    assert not torch.equal(one, choose(rule, given, Noise(0, 2, range(K))))
    many = 6_000
    wide = candidates()._replace(mean=torch.zeros(many, D))
    counts = choose(rule, wide, Noise(0, 1, range(many))).flatten().bincount(minlength=D)
    expected = many * 3 / 9
    assert not counts[~REPRESENTATION].any()
    assert ((counts[REPRESENTATION] - expected).abs() < 4.5 * math.sqrt(expected * (1 - 3 / 9))).all()


def test_the_last_layer_is_all_of_the_decision_layers() -> None:
    assert choose(LastLayer(), candidates(), noise()).tolist() == [[10, 11, 12, 13]] * K
    number = DECISION.clone()
    number[12] = False
    given = candidates()._replace(decision=number)
    assert choose(LastLayer(), given, noise()).tolist() == [[10, 11, 13]] * K


def test_a_mask_is_taken_as_it_is() -> None:
    keep = torch.zeros(D, dtype=torch.bool)
    keep[[1, 8, 12]] = True
    assert choose(Mask(keep), candidates(), noise()).tolist() == [[1, 8, 12]] * K


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (torch.ones(D), r"keep must be bool \[14\] with at least one True, got \[14\] torch.float32"),
        (torch.ones(D - 1, dtype=torch.bool), r"keep must be bool \[14\].*, got \[13\] torch.bool"),
        (torch.ones(K, D, dtype=torch.bool), r"keep must be bool \[14\].*, got \[3, 14\]"),
        (torch.zeros(D, dtype=torch.bool), "with at least one True"),
        (torch.arange(D) == 3, "weights that the model has as numbers without uncertainty"),
    ],
)
def test_a_mask_that_fits_nothing_is_refused(keep: torch.Tensor, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        choose(Mask(keep), candidates(), noise())


@pytest.mark.parametrize("rule", [LargestVariance, LargestCurvature, LargestMagnitude, RandomShare])
@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1, float("nan")])
def test_a_share_out_of_range_is_refused(rule: type, fraction: float) -> None:
    with pytest.raises(StudyError, match=r"fraction must be in \(0, 1\]"):
        rule(fraction)


def test_weights_without_curvature_are_left_out_of_a_covariance() -> None:
    ggn = float64([[1.0, 0.0, 2.0, 0.0, 3.0], [0.0, 0.0, 0.0, 4.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    index = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 4], [0, 1, 2, 3]])
    some = curved(index, ggn)
    assert some.tolist() == [[0, 2], [3, 1], [0, 1]]  # filled up from the front
    assert curved(index[2:], ggn[2:]).tolist() == [[0]]  # a factor needs a row
    assert torch.equal(curved(index, torch.ones_like(ggn)), index)
