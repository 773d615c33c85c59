"""Aggregates that few clients cannot steer: closed forms, brute force, another optimiser, and laws on random steps."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import trim_mean
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.server import robust

Rule = Callable[[Tensor, Tensor], Tensor]
FIVE = torch.tensor([[1.0, 0.0], [2.0, 1.0], [0.0, 2.0], [1.5, 0.5], [100.0, -50.0]], dtype=torch.float64)
POINT = torch.tensor([[0.0, 0.0], [2.0, 1.0], [0.0, 2.0], [3.0, 1.0], [100.0, -50.0]], dtype=torch.float64)
RULES: dict[str, Rule] = {
    "clipped": lambda steps, weight: robust.clipped(
        steps, weight, 2.0 * robust.middle(robust.norms(steps[weight > 0]))
    ),
    "median": robust.median,
    "trimmed": partial(robust.trimmed, faulty=1),
    "multi-krum": partial(robust.multi_krum, faulty=1),
    "krum": partial(robust.multi_krum, faulty=1, keep=1),
    "geometric-median": robust.geometric_median,
}
every_rule = pytest.mark.parametrize("name", RULES)


def ones(steps: Tensor) -> Tensor:
    return torch.ones(len(steps), dtype=torch.float64)


def cloud(seed: int, n: int, d: int) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# closed forms ----------------------------------------------------------------------------------------------------


def test_each_rule_gives_its_closed_form_on_five_points() -> None:
    w = ones(FIVE)
    assert tensors.weighted_mean(FIVE, w).tolist() == pytest.approx([20.9, -9.3])
    assert robust.median(FIVE, w).tolist() == [1.5, 0.5]
    assert robust.median(FIVE[:4], w[:4]).tolist() == [1.25, 0.75]
    assert robust.trimmed(FIVE, w, 1).tolist() == pytest.approx([1.5, 0.5], abs=1e-15)
    assert robust.krum_scores(FIVE, 1).tolist() == [2.5, 2.5, 9.5, 1.0, 24457.5]
    assert robust.multi_krum(FIVE, w, 1, 1).tolist() == [1.5, 0.5]
    assert robust.multi_krum(FIVE, w, 1, 3).tolist() == pytest.approx([1.5, 0.5], abs=1e-15)
    assert robust.multi_krum(FIVE, w, 1).tolist() == pytest.approx([1.125, 0.875], abs=1e-15)
    assert robust.clipped(FIVE, w, torch.tensor(2.0)).tolist() == pytest.approx([1.2155417528, 0.5], rel=1e-10)
    assert robust.geometric_median(FIVE, w).tolist() == pytest.approx([1.5, 0.5], abs=1e-5)


def test_a_tie_for_the_last_place_of_multi_krum_is_shared() -> None:
    """The two steps with score 2.5 have half a place each beside the one with 1."""
    expected = [(1.5 + (1.0 + 2.0) / 2) / 2, (0.5 + (0.0 + 1.0) / 2) / 2]
    for order in itertools.permutations(range(5)):
        steps = FIVE[list(order)]
        assert robust.multi_krum(steps, ones(steps), 1, 2).tolist() == pytest.approx(expected, abs=1e-15)


def test_the_geometric_median_may_be_a_point_and_is_near_it_after_four_steps_from_the_mean() -> None:
    w = ones(POINT)
    four = robust.weiszfeld(POINT, w, POINT.mean(0), 4)
    assert four.tolist() == pytest.approx([2.161114781341, 0.898978216570], rel=1e-11)
    assert robust.geometric_median(POINT, w).tolist() == pytest.approx([2.0, 1.0], abs=1e-5)


def test_the_geometric_median_of_triangles() -> None:
    right = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    result = robust.geometric_median(right, ones(right))
    assert result.tolist() == pytest.approx([0.751176106505, 0.695788534088], abs=1e-10)
    assert float((right - result).norm(dim=1).sum()) == pytest.approx(math.sqrt(25 + 12 * math.sqrt(3)), rel=1e-12)
    equal = torch.tensor([[0.0, 0.0], [2.0, 0.0], [1.0, math.sqrt(3)]], dtype=torch.float64)
    assert robust.geometric_median(equal, ones(equal)).tolist() == pytest.approx([1.0, 1 / math.sqrt(3)], rel=1e-12)


# other libraries and brute force ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 6, 7])
def test_median_and_trimmed_mean_are_those_of_numpy_and_scipy(n: int) -> None:
    steps = cloud(n, n, 9)
    assert robust.median(steps, ones(steps)).tolist() == np.median(steps.numpy(), 0).tolist()
    for faulty in range((n + 1) // 2):
        expected = trim_mean(steps.numpy(), (faulty + 1e-9) / n, 0)
        assert robust.trimmed(steps, ones(steps), faulty).tolist() == pytest.approx(expected.tolist(), rel=1e-13)


@pytest.mark.parametrize("seed", range(4))
def test_the_geometric_median_is_what_another_optimiser_finds(seed: int) -> None:
    steps = cloud(seed, 6, 3) * torch.tensor([1.0, 10.0, 0.1], dtype=torch.float64)
    weight = torch.rand(6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.1

    def total(z: Tensor) -> float:
        return float((weight * (steps - torch.as_tensor(z)).norm(dim=1)).sum())

    best = minimize(total, steps.mean(0), method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-14})
    result = robust.geometric_median(steps, weight)
    assert total(result) == pytest.approx(best.fun, rel=1e-7)  # the smoothing's, where it is one of the points
    assert result.tolist() == pytest.approx(best.x.tolist(), abs=1e-4)


@pytest.mark.parametrize(("n", "faulty", "keep"), [(5, 1, 4), (7, 2, 5), (7, 1, 1), (9, 3, 6)])
def test_multi_krum_is_what_counting_by_hand_gives(n: int, faulty: int, keep: int) -> None:
    steps = cloud(n + faulty, n, 4)
    scores = []
    for k in range(n):
        apart = sorted(float(sum((a - b) ** 2 for a, b in zip(steps[k], steps[j], strict=True))) for j in range(n))
        scores.append(sum(apart[1 : n - faulty - 1]))  # its own distance, 0, is the first
    best = sorted(range(n), key=scores.__getitem__)[:keep]
    assert robust.krum_scores(steps, faulty).tolist() == pytest.approx(scores, rel=1e-12)
    got = robust.multi_krum(steps, ones(steps), faulty, keep)
    assert got.tolist() == pytest.approx(steps[best].mean(0).tolist(), rel=1e-12)


def test_a_step_beyond_the_bound_counts_as_if_it_had_ended_there() -> None:
    steps, weight = cloud(3, 6, 5), torch.tensor([1.0, 2.0, 0.0, 3.0, 1.0, 1.0], dtype=torch.float64)
    clipped = [s * min(1.0, 1.7 / float(s.norm())) for s in steps]
    expected = sum((float(w) * s for w, s in zip(weight, clipped, strict=True)), torch.zeros(5)) / 8.0
    assert robust.clipped(steps, weight, torch.tensor(1.7, dtype=torch.float64)).tolist() == pytest.approx(
        expected.tolist(), rel=1e-13
    )


# laws --------------------------------------------------------------------------------------------------------------


@every_rule
@pytest.mark.parametrize("scale", [1e-250, 1e-3, 1.0, 1e6, 1e250])
def test_scaled_steps_have_a_scaled_aggregate(name: str, scale: float) -> None:
    steps = cloud(1, 7, 4)
    expected = scale * RULES[name](steps, ones(steps))
    torch.testing.assert_close(RULES[name](scale * steps, ones(steps)), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", [name for name in RULES if name != "clipped"])
def test_shifted_steps_have_a_shifted_aggregate(name: str) -> None:
    steps, shift = cloud(2, 7, 4), torch.tensor([3.0, -100.0, 0.1, 7.0], dtype=torch.float64)
    got = RULES[name](steps + shift, ones(steps))
    torch.testing.assert_close(got, RULES[name](steps, ones(steps)) + shift, rtol=1e-10, atol=1e-9)


@every_rule
@given(seed=st.integers(0, 99), order=st.permutations(range(7)))
@settings(max_examples=15, deadline=None)
def test_the_order_of_clients_decides_nothing(name: str, seed: int, order: list[int]) -> None:
    steps = cloud(seed, 7, 3).round()  # with ties and repeated steps
    torch.testing.assert_close(
        RULES[name](steps[order], ones(steps)), RULES[name](steps, ones(steps)), rtol=1e-9, atol=1e-9
    )


def test_without_faults_the_rules_are_the_mean() -> None:
    steps, weight = cloud(4, 6, 5), torch.tensor([1.0, 2.0, 0.5, 3.0, 1.0, 1.0], dtype=torch.float64)
    w, mean = ones(steps), steps.mean(0)
    torch.testing.assert_close(robust.trimmed(steps, w, 0), mean, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(robust.multi_krum(steps, w, 0), mean, rtol=1e-13, atol=1e-15)
    far = robust.norms(steps).max()
    expected = tensors.weighted_mean(steps, weight)
    torch.testing.assert_close(robust.clipped(steps, weight, far), expected, rtol=1e-13, atol=1e-15)


@every_rule
@pytest.mark.parametrize("size", [1e4, 1e30, 1e300])
@pytest.mark.parametrize("n", [5, 6, 9])
def test_one_client_moves_a_rule_by_a_bounded_amount_and_the_mean_by_any(name: str, size: float, n: int) -> None:
    steps = cloud(n, n, 3)
    honest = RULES[name](steps, ones(steps))
    most = float(robust.norms(steps[1:]).max())
    for direction in (torch.ones(3), torch.tensor([-1.0, 1.0, 0.0])):
        hit = torch.cat((size * direction.double().unsqueeze(0), steps[1:]))
        moved = RULES[name](hit, ones(hit))
        assert float((moved - honest).norm()) <= 2.0 * most
        assert float((hit.mean(0) - honest).norm()) > 100.0 * most


@every_rule
def test_a_minority_that_agrees_does_not_win(name: str) -> None:
    """Two of seven say the same far step: what is left stays among the honest."""
    steps = cloud(8, 7, 3)
    steps[:2] = 1e6
    rules = RULES | {
        "trimmed": partial(robust.trimmed, faulty=2),
        "multi-krum": partial(robust.multi_krum, faulty=2),
        "krum": partial(robust.multi_krum, faulty=2, keep=1),
    }
    most = float(robust.norms(steps[2:]).max())
    assert float(rules[name](steps, ones(steps)).norm()) <= 2.0 * most


@every_rule
@pytest.mark.parametrize("value", [0.0, 1e300])
def test_rows_of_weight_zero_count_nowhere(name: str, value: float) -> None:
    steps = cloud(5, 7, 3)
    more = torch.cat((torch.full((4, 3), value, dtype=torch.float64), steps))
    weight = torch.cat((torch.zeros(4, dtype=torch.float64), ones(steps)))
    torch.testing.assert_close(RULES[name](more, weight), RULES[name](steps, ones(steps)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in RULES if name != "clipped"])
def test_nobody_moves_nothing(name: str) -> None:
    assert RULES[name](cloud(0, 3, 2), torch.zeros(3, dtype=torch.float64)).tolist() == [0.0, 0.0]
    assert robust.clipped(cloud(0, 3, 2), torch.zeros(3), torch.tensor(1.0)).tolist() == [0.0, 0.0]


@every_rule
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_few_clients_leave_a_rule_what_it_can_do(name: str, n: int) -> None:
    """With no room for a fault the rules are means or medians of those who are there."""
    steps = cloud(n, n, 3)
    result = RULES[name](steps, ones(steps))
    assert result.isfinite().all()
    if n == 1:
        torch.testing.assert_close(result, steps[0], rtol=1e-12, atol=0)


@every_rule
def test_equal_steps_are_their_own_aggregate(name: str) -> None:
    for one in (torch.zeros(3), torch.tensor([1.0, -2.0, 1e-30])):
        steps = one.double().repeat(6, 1)
        torch.testing.assert_close(RULES[name](steps, ones(steps)), one.double(), rtol=1e-12, atol=1e-40)


class Pair(NamedTuple):
    a: Tensor
    b: Tensor


@every_rule
def test_leaves_of_a_step_are_one_vector_in_their_own_dtypes(name: str) -> None:
    steps = cloud(6, 6, 7).float().double()
    tree = Pair(steps[:, :1].squeeze(1), steps[:, 1:].reshape(6, 2, 3).float())
    got: Pair = RULES[name](tree, ones(steps)) if name != "clipped" else robust.clipped(tree, ones(steps), 2.0)  # type: ignore[arg-type, assignment]
    flat = RULES[name](steps, ones(steps)) if name != "clipped" else robust.clipped(steps, ones(steps), 2.0)  # type: ignore[arg-type]
    assert (got.a.dtype, got.b.dtype, got.a.shape, got.b.shape) == (torch.float64, torch.float32, (), (2, 3))
    torch.testing.assert_close(got.a, flat[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(got.b.flatten().double(), flat[1:], rtol=1e-6, atol=1e-7)
    assert robust.norms(tree).tolist() == pytest.approx(steps.norm(dim=1).tolist(), rel=1e-12)


def test_blocks_of_coordinates_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = cloud(7, 6, 50)
    whole = robust.median(steps, ones(steps)), robust.trimmed(steps, ones(steps), 1)
    monkeypatch.setattr(robust, "_BLOCK", 13)
    again = robust.median(steps, ones(steps)), robust.trimmed(steps, ones(steps), 1)
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))


# norms and what is told ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1.0, 1e300])
def test_norms_neither_overflow_nor_vanish(size: float) -> None:
    steps = size * torch.tensor([[3.0, 4.0], [0.0, 0.0], [-5.0, 12.0]], dtype=torch.float64)
    assert robust.norms(steps).tolist() == pytest.approx([5 * size, 0.0, 13 * size], rel=1e-14)


def test_the_running_median_is_that_of_the_last_rounds() -> None:
    random, medians = np.random.default_rng(0), list[float]()
    for t in range(25):
        lengths = random.lognormal(size=1 + t % 4)
        result = float(robust.running_median(medians, torch.tensor(lengths)))
        medians.append(statistics.median_low(lengths.tolist()))
        assert result == statistics.median_low(medians[-robust.WINDOW :])
    assert float(robust.running_median([1.0], torch.tensor([1e9]))) == 1.0
    assert float(robust.running_median([], torch.tensor([1e9, 1.0]))) == 1.0


def test_winsorised_sums_take_the_next_value_for_the_farthest() -> None:
    values = torch.tensor([5.0, 1.0, 1e12, 2.0, -7.0, 3.0], dtype=torch.float64)
    weight = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 0.0])
    assert robust.winsorised(values, weight, 0).item() == 1e12 + 1.0
    assert robust.winsorised(values, weight, 1).item() == 5.0 + 1.0 + 5.0 + 2.0 + 1.0
    assert robust.winsorised(values, weight, 9).item() == 5 * 2.0
    assert robust.winsorised(torch.ones(3, 2), torch.ones(3), 1).tolist() == [3.0, 3.0]
