"""SVGD against closed forms, Pyro's kernel, and the ways in which it can go wrong."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from pyro.infer import RBFSteinKernel as PyroKernel
from scipy.optimize import root
from torch import Tensor

from pacbayes_fl.errors import StudyError
from pacbayes_fl.server.svgd import Bandwidth, bandwidth, direction, spread

RBFSteinKernel: Any = PyroKernel  # has no types
RULES: tuple[Any, ...] = ("off-diagonal", "all-pairs", "per-dimension", 2.0)
every_rule = pytest.mark.parametrize("rule", RULES)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def distances(particles: Tensor) -> Tensor:
    return (particles.unsqueeze(0) - particles.unsqueeze(1)).square()


def loop(particles: Tensor, score: Tensor, h: float) -> Tensor:
    """Equation 39 term by term, with the kernel's gradient by autograd."""
    rows = []
    for mine in particles:
        moved = torch.zeros_like(mine)
        for other, slope in zip(particles, score, strict=True):
            at = other.clone().requires_grad_(True)
            kernel = torch.exp(-(at - mine).square().sum() / h)
            (gradient,) = torch.autograd.grad(kernel, at)
            moved += kernel.detach() * slope + gradient
        rows.append(moved / len(particles))
    return torch.stack(rows)


@pytest.mark.quick
def test_two_particles_in_the_plane() -> None:
    particles = torch.tensor([[0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    phi = direction(particles, -particles, 2.0)
    expected = [[-0.1641699972477976, -0.4589575006880506], [-0.9179150013761012, -0.0820849986238988]]
    torch.testing.assert_close(phi, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=1e-15)
    after = [[-0.01641699972, 0.95410424993], [1.90820849986, -0.00820849986]]
    torch.testing.assert_close(particles + 0.1 * phi, torch.tensor(after, dtype=torch.float64), rtol=1e-9, atol=1e-11)


def test_independent_particles_are_the_limit_of_a_small_bandwidth() -> None:
    particles, score = random(4, 3), random(4, 3, seed=1)
    torch.testing.assert_close(direction(particles, score, "independent"), 4 * direction(particles, score, 1e-3))


@every_rule
def test_sets_of_particles_do_not_feel_each_other(rule: Any) -> None:
    particles, score = random(4, 5, 3), random(4, 5, 3, seed=1)
    particles[2] *= 100.0
    each = [direction(one, slope, rule) for one, slope in zip(particles, score, strict=True)]
    torch.testing.assert_close(direction(particles, score, rule), torch.stack(each), rtol=1e-13, atol=1e-14)
    assert torch.equal(direction(particles[:, :1], score[:, :1], rule), score[:, :1])


@pytest.mark.quick
@pytest.mark.parametrize("h", [0.3, 2, 50.0])
def test_the_direction_is_the_double_loop(h: float) -> None:
    particles, score = random(6, 3), random(6, 3, seed=1)
    torch.testing.assert_close(direction(particles, score, h), loop(particles, score, h), rtol=1e-12, atol=1e-14)
    joint = float(bandwidth(distances(particles).sum(-1), "off-diagonal"))
    torch.testing.assert_close(direction(particles, score), loop(particles, score, joint), rtol=1e-12, atol=1e-14)


def fixed_point(particles: int) -> np.ndarray[Any, Any]:
    """Solve sum_l k(x_l, x_k) (-x_l + x_k - x_l) = 0 for k = exp(-d^2 / 2), a symmetric set, by its positive half."""

    def whole(half: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        middle = [0.0] if particles % 2 else []
        return np.concatenate([-half[::-1], middle, half])

    def equations(half: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        x = whole(half)
        gap = x[:, None] - x[None, :]  # [k, l]
        stationarity = (np.exp(-0.5 * gap**2) * (-x[None, :] + gap)).sum(1)
        return np.asarray(stationarity[particles - particles // 2 :])

    solved = root(equations, np.linspace(0.5, 1.5, particles // 2), tol=1e-12)
    assert solved.success and (np.diff(np.concatenate([[0.0], solved.x])) > 0.1).all()
    return whole(solved.x)


@pytest.mark.law
@pytest.mark.parametrize(
    ("particles", "outermost", "variance"), [(2, 0.7411519036837, 0.549), (3, 1.0056552122, 0.674), (5, None, None)]
)
def test_fixed_points_on_a_standard_normal(particles: int, outermost: float | None, variance: float | None) -> None:
    expected = fixed_point(particles)
    if outermost is not None:
        assert expected[-1] == pytest.approx(outermost, abs=1e-10)
        assert (expected**2).mean() == pytest.approx(variance, abs=5e-4)
    assert (expected**2).mean() < 1  # SVGD spreads too little
    x = random(particles, 1, seed=particles)
    for _ in range(4000):
        x = x + 1.5 * direction(x, -x, 2.0)
    np.testing.assert_allclose(x.flatten().sort().values.numpy(), expected, rtol=0, atol=1e-10)
    assert float(direction(x, -x, 2.0).abs().max()) < 1e-12


def test_two_particles_rest_where_the_formula_says_for_any_h() -> None:
    for h_squared in (0.5, 1.0, 3.0):  # k = exp(-d^2 / (2 h^2))
        x = math.sqrt(h_squared * math.log(1 + 2 / h_squared) / 2)
        pair = column(-x, x)
        assert float(direction(pair, -pair, 2 * h_squared).abs().max()) < 1e-15


def test_bandwidths_follow_their_conventions() -> None:
    line = distances(column(0.0, 1.0, 3.0)).sum(-1)
    assert float(bandwidth(line, "off-diagonal")) == pytest.approx(2.8853900817779268, rel=1e-14)
    assert float(bandwidth(line, "all-pairs")) == pytest.approx(2 * 0.36067376022224085, rel=1e-14)
    plane = distances(torch.tensor([[0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)).sum(-1)
    assert float(bandwidth(plane, "off-diagonal")) == pytest.approx(5 / math.log(3), rel=1e-14)
    assert float(bandwidth(plane, "all-pairs")) == pytest.approx(2 * 1.1377990332835466, rel=1e-14)  # median 2.5


@pytest.mark.parametrize("count", [2, 3, 4, 5, 8])
def test_medians_are_numpy_s(count: int) -> None:
    particles = random(count, 3)
    by_coordinate = distances(particles)
    upper = np.triu_indices(count, 1)
    joint = by_coordinate.sum(-1).numpy()
    assert float(bandwidth(by_coordinate.sum(-1), "off-diagonal")) == pytest.approx(
        float(np.median(joint[upper])) / math.log(count + 1), rel=1e-14
    )
    assert float(bandwidth(by_coordinate.sum(-1), "all-pairs")) == pytest.approx(
        float(np.median(joint)) / math.log(count + 1), rel=1e-14
    )
    expected = np.median(by_coordinate.numpy()[upper], axis=0) / math.log(count + 1)
    np.testing.assert_allclose(bandwidth(by_coordinate, "per-dimension").numpy(), expected, rtol=1e-14)


@pytest.mark.parametrize("count", [2, 3, 6, 7])  # of an even number of pairs Pyro takes the lower middle one
def test_per_dimension_is_pyro_s(count: int) -> None:
    particles, score = random(count, 4) * torch.tensor([1e-3, 1.0, 10.0, 3.0]), random(count, 4, seed=1)
    log_kernel, gradient = RBFSteinKernel().log_kernel_and_grad(particles)
    kernel = log_kernel.exp()
    expected = (torch.einsum("nmd,md->nd", kernel, score) + torch.einsum("nmd,nmd->nd", kernel, -gradient)) / count
    torch.testing.assert_close(direction(particles, score, "per-dimension"), expected, rtol=1e-12, atol=1e-14)


def test_pyro_s_bandwidth_for_the_points_of_a_line() -> None:
    log_kernel, _ = RBFSteinKernel().log_kernel_and_grad(column(0.0, 1.0, 3.0))
    h = bandwidth(distances(column(0.0, 1.0, 3.0)), "per-dimension")
    torch.testing.assert_close(-distances(column(0.0, 1.0, 3.0)) / h, log_kernel, rtol=1e-14, atol=0)
    assert log_kernel[(0, 0, 1), (1, 2, 2), 0].tolist() == pytest.approx([-0.3466, -3.1192, -1.3863], abs=5e-5)


@every_rule
def test_one_particle_follows_its_score(rule: Bandwidth | float) -> None:
    particles, score = random(1, 5), random(1, 5, seed=1)
    torch.testing.assert_close(direction(particles, score, rule), score, rtol=1e-12, atol=0)


@every_rule
def test_coincident_particles_feel_no_repulsion_and_never_part(rule: Bandwidth | float) -> None:
    particles = torch.full((4, 3), 2.5, dtype=torch.float64)
    score = random(4, 3, seed=1)
    phi = direction(particles, score, rule)
    torch.testing.assert_close(phi, score.mean(0).expand(4, -1), rtol=1e-14, atol=1e-15)
    for _ in range(20):
        particles = particles + 0.1 * direction(particles, -particles, rule)
        assert torch.equal(particles, particles[:1].expand_as(particles)) and particles.isfinite().all()


@every_rule
@pytest.mark.parametrize("same", [2, 4])
def test_some_coincident_particles_or_coordinates_are_no_trouble(rule: Bandwidth | float, same: int) -> None:
    particles = random(5, 3)
    particles[:same] = particles[0].clone()  # with 4 of 5 the median distance is 0
    particles[:, 1] = -7.0
    phi = direction(particles, random(5, 3, seed=1), rule)
    assert phi.isfinite().all()
    torch.testing.assert_close(phi[:same], phi[:1].expand(same, -1), rtol=1e-12, atol=1e-14)


def test_in_5000_dimensions_the_median_keeps_the_kernel_alive() -> None:
    particles, count = random(4, 5000), 4
    # with scores 1 and positions standing still, phi - repulsion shows the mean kernel
    ones = torch.ones_like(particles)
    mean_kernel = direction(particles, ones) - direction(particles, torch.zeros_like(particles))
    off_diagonal = (mean_kernel[:, 0] * count - 1) / (count - 1)
    torch.testing.assert_close(off_diagonal, torch.full_like(off_diagonal, 1 / (count + 1)), rtol=0, atol=0.01)


@every_rule
@pytest.mark.parametrize("scale", [1.0, 0.0078125])
def test_a_shift_by_100_changes_nothing(rule: Bandwidth | float, scale: float) -> None:
    exact = (random(5, 4) * 2**10).round() / 2**10 * scale  # so that the shifted numbers are exact
    score = random(5, 4, seed=1)
    moved = exact + 100.0
    assert torch.equal(moved - 100.0, exact)
    torch.testing.assert_close(direction(moved, score, rule), direction(exact, score, rule), rtol=1e-14, atol=1e-15)


def test_float32_far_from_the_origin_sees_true_distances() -> None:
    near = (random(4, 3).float() * 2**8).round() / 2**18  # steps of 2^-18: about 1e-3, exact beside 32
    score = random(4, 3, seed=1).float()
    phi = direction(near + 16.0, score)
    torch.testing.assert_close(phi, direction(near, score), rtol=1e-3, atol=1e-3)
    assert phi.dtype == torch.float32


@every_rule
def test_particles_have_no_order_and_inputs_stay(rule: Bandwidth | float) -> None:
    particles, score = random(5, 3), random(5, 3, seed=1)
    kept = particles.clone(), score.clone()
    turned = direction(particles.flip(0), score.flip(0), rule)
    torch.testing.assert_close(turned.flip(0), direction(particles, score, rule), rtol=1e-12, atol=1e-14)
    assert torch.equal(particles, kept[0]) and torch.equal(score, kept[1])


def test_a_rule_that_does_not_exist_is_refused() -> None:
    for rule in ("median", 0.0, -1.0, math.nan):
        with pytest.raises(StudyError, match="bandwidth must be"):
            direction(random(3, 2), random(3, 2), rule)  # type: ignore[arg-type]


def test_spread_is_a_distance_per_coordinate() -> None:
    pair = torch.tensor([[1.0, 5.0], [3.0, 5.0]], dtype=torch.float64)
    assert float(spread(pair)) == pytest.approx(math.sqrt(0.5))
    assert float(spread(pair + 1000)) == pytest.approx(math.sqrt(0.5)) and float(spread(pair[:1])) == 0.0
    assert float(spread(random(2000, 50) * 3)) == pytest.approx(3, rel=0.01)
