"""Clip and noise against loops and distributions."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism, clip, coordinates, noise, noisy_mean, source

GAUSSIAN = Mechanism("gaussian", 0.5, 2.0)
TEN = Cohorts(clients=10)


class Message(NamedTuple):
    w: Tensor
    b: Tensor
    s: Tensor


def message(clients: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Message:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((clients, 3, 2), (clients, 2), (clients,))
    return Message(*(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes))


def rng(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def rows(tree: Any) -> Tensor:
    return torch.cat([leaf.double().reshape(len(leaf), -1) for leaf in tensors.leaves(tree).values()], 1)


def released(update: Any, mechanism: Mechanism, cohorts: Cohorts, seed: int = 1, present: Tensor | None = None) -> Any:
    """Return a round's release."""
    return noisy_mean(clip(update, mechanism, present), mechanism, cohorts, rng(seed))


@pytest.mark.parametrize(("kind", "order"), [("gaussian", 2), ("knorm", 2), ("paper_algorithm_3", 2), ("laplace", 1)])
def test_the_whole_message_is_clipped_as_one_vector(kind: Any, order: int) -> None:
    update = message(3)
    scales = torch.tensor([1e-3, 1.0, 1e6], dtype=torch.float64)
    update = Message(*(leaf * scales.view(-1, *[1] * (leaf.dim() - 1)) for leaf in update))
    clipped = clip(update, Mechanism(kind, 0.5, 1.0))
    for raw, short in zip(rows(update), rows(clipped), strict=True):
        length = sum(abs(float(x)) ** order for x in raw) ** (1 / order)
        torch.testing.assert_close(short, raw / max(1.0, length / 0.5), rtol=1e-13, atol=0)


@given(st.integers(0, 99), st.floats(1e-30, 1e30), st.sampled_from(["gaussian", "laplace"]), st.booleans())
def test_no_message_is_longer_than_the_clip(seed: int, bound: float, kind: Any, short: bool) -> None:
    update = tensors.tree_map(lambda leaf: 1e3 * leaf, message(2, seed, torch.float32 if short else torch.float64))
    mechanism = Mechanism(kind, bound, 1.0)
    length = torch.linalg.vector_norm(rows(clip(update, mechanism)), mechanism.norm, dim=1)
    assert (length <= bound * (1 + 1e-14)).all()


@pytest.mark.parametrize("rogue", [math.nan, math.inf, -math.inf, 1e300, 0.0])
def test_a_message_that_is_not_finite_counts_as_zeros_and_reaches_nobody_else(rogue: float) -> None:
    update = message(3)
    alone = clip(update, GAUSSIAN)
    update.w[1] = rogue
    clipped = clip(update, GAUSSIAN)
    for k in (0, 2):
        assert all(torch.equal(a[k], b[k]) for a, b in zip(alone, clipped, strict=True))
    spoilt = rogue != 0  # 1e300 has no norm in double precision
    assert tensors.finite(clipped).all() and (not spoilt or bool((rows(clipped)[1] == 0).all()))
    assert tensors.finite(released(update, GAUSSIAN, TEN)).all()


def test_a_huge_float32_message_keeps_its_direction_and_empty_leaves_their_shape() -> None:
    update = {"w": torch.tensor([[0.0, 0.0], [3e25, 4e25]]), "none": torch.zeros(2, 0)}
    clipped = clip(update, Mechanism("gaussian", 1.0, 1.0))
    assert clipped["none"].shape == (2, 0) and coordinates(update) == 2
    torch.testing.assert_close(clipped["w"], torch.tensor([[0.0, 0.0], [0.6, 0.8]], dtype=torch.float64))


def test_absent_clients_count_as_zeros_even_with_nan() -> None:
    update = message(3)
    update.b[2] = math.nan
    here = torch.tensor([True, False, False])
    clipped = clip(update, GAUSSIAN, here)
    torch.testing.assert_close(rows(clipped)[0], rows(clip(message(3), GAUSSIAN))[0], rtol=0, atol=0)
    assert (rows(clipped)[1:] == 0).all()


def test_whole_numbers_are_not_released() -> None:
    with pytest.raises(PrivacyError, match=r"leaf 'cluster' must be floating to be released, got torch.int64"):
        clip({"w": torch.zeros(2, 3), "cluster": torch.zeros(2, dtype=torch.int64)}, GAUSSIAN)


@pytest.mark.parametrize("generator", [rng(3), None], ids=["seeded", "system"])
def test_gaussian_noise_is_normal(generator: torch.Generator | None) -> None:
    drawn = noise(GAUSSIAN, 100_000, generator)[0].numpy()
    assert stats.kstest(drawn, "norm", (0, 1.0)).pvalue > 1e-6
    assert stats.kstest(drawn, "norm", (0, 1.05)).pvalue < 1e-2


@pytest.mark.parametrize("kind", ["laplace", "paper_algorithm_3"])
@pytest.mark.parametrize("generator", [rng(4), None], ids=["seeded", "system"])
def test_laplace_noise_is_laplace(kind: Any, generator: torch.Generator | None) -> None:
    drawn = noise(Mechanism(kind, 0.5, 6.0), 100_000, generator)[0].numpy()
    assert stats.kstest(drawn, "laplace", (0, 3.0)).pvalue > 1e-6
    assert stats.kstest(drawn, "laplace", (0, 3.2)).pvalue < 1e-2


def test_knorm_noise_has_a_gamma_radius_and_a_uniform_direction() -> None:
    drawn = noise(Mechanism("knorm", 0.5, 4.0), 5, rng(5), draws=50_000)
    radius = torch.linalg.vector_norm(drawn, dim=1)
    assert stats.kstest(radius.numpy(), "gamma", (5, 0, 2.0)).pvalue > 1e-6
    for coordinate in (drawn / radius[:, None]).T:  # (1 + cosine) / 2 is Beta((D - 1) / 2, (D - 1) / 2)
        assert stats.kstest((1 + coordinate.numpy()) / 2, "beta", (2.0, 2.0)).pvalue > 1e-6
    assert abs(float(stats.spearmanr(radius, drawn[:, 0].abs() / radius).statistic)) < 0.02


def test_knorm_has_less_noise_than_product_laplace_for_one_pure_epsilon() -> None:
    """RMS a coordinate at D = 1000, sensitivity 2 in L2, epsilon 1: 2 sqrt(2 D) = 89.4 and 2 sqrt(D + 1) = 63.3."""
    per_round = noise(Mechanism("knorm", 1.0, 2.0), 1000, rng(6), draws=2000)  # 2: replace, so sensitivity 2
    product = noise(Mechanism("paper_algorithm_3", 1.0, 2.0 * math.sqrt(1000)), 1000, rng(6), draws=2000)
    assert float(per_round.square().mean().sqrt()) == pytest.approx(63.3, rel=5e-3)
    assert float(product.square().mean().sqrt()) == pytest.approx(89.4, rel=5e-3)


def test_algorithm_3_prints_this_scale() -> None:
    """T = 50, gamma = 1, epsilon = 10, c = 20: Laplace of scale .25 on the mean, which is 5 on the sum."""
    mechanism, cohorts = Mechanism.claimed("paper_algorithm_3", 1.0, 10.0, 50), Cohorts(clients=120, size=20)
    assert mechanism.scale / cohorts.divisor == pytest.approx(0.25, rel=1e-15)
    drawn = noisy_mean(torch.zeros(1, 50_000, dtype=torch.float64), mechanism, cohorts, rng(7))
    assert stats.kstest(drawn[0].numpy(), "laplace", (0, 0.25)).pvalue > 1e-6


@pytest.mark.parametrize(
    ("kind", "law"), [("gaussian", "norm"), ("laplace", "laplace"), ("paper_algorithm_3", "laplace")]
)
def test_a_release_is_the_clipped_sum_plus_noise_over_the_fixed_divisor(kind: Any, law: str) -> None:
    update = {"w": torch.randn(4, 50_000, 2, generator=rng(8), dtype=torch.float64)}
    mechanism, cohorts = Mechanism(kind, 0.3, 1.7), Cohorts(clients=100, size=8, kind="poisson")
    mean = released(update, mechanism, cohorts, 9)
    clipped = sum(
        row / max(1.0, float(row.abs().sum() if kind == "laplace" else row.norm()) / 0.3) for row in update["w"]
    )
    rest = (mean["w"][0] * 8 - clipped) / (1.7 * 0.3)
    assert stats.kstest(rest.flatten().numpy(), law).pvalue > 1e-6


@given(st.integers(0, 8))
def test_the_divisor_and_the_noise_do_not_depend_on_who_answers(present: int) -> None:
    update, here = message(8), torch.arange(8) < present
    cohorts = Cohorts(clients=100, size=8, kind="poisson")
    mean = rows(released(update, GAUSSIAN, cohorts, present=here))
    nobody = rows(released(message(0), GAUSSIAN, cohorts))
    told = rows(clip(update, GAUSSIAN))[:present].sum(0) / 8
    torch.testing.assert_close(mean[0] - nobody[0], told, rtol=0, atol=2e-6)
    assert (nobody != 0).all()  # a round without clients says so no louder than any other


def test_chunks_released_together_are_one_release() -> None:
    update = message(6)
    whole = noisy_mean(clip(update, GAUSSIAN), GAUSSIAN, TEN, rng())
    parts = [tensors.total(clip(Message(*(leaf[at] for leaf in update)), GAUSSIAN)) for at in ([0, 1], [2, 3, 4, 5])]
    torch.testing.assert_close(
        rows(noisy_mean(tensors.cat(parts), GAUSSIAN, TEN, rng())), rows(whole), rtol=0, atol=1e-6
    )


def test_a_release_lies_on_a_grid_far_below_the_noise() -> None:
    update = {"w": torch.randn(3, 2, 2, generator=rng()), "b": torch.randn(3, generator=rng(), dtype=torch.float64)}
    mean = released(update, GAUSSIAN, TEN)
    assert {name: tuple(leaf.shape) for name, leaf in mean.items()} == {"w": (1, 2, 2), "b": (1,)}
    for leaf in mean.values():
        steps = leaf * 10 / 2.0**-20
        torch.testing.assert_close(steps, steps.round(), rtol=1e-15, atol=0)


def test_one_serial_number_gives_one_noise_and_another_gives_another() -> None:
    def drawn(seed: int | None, serial: int, mechanism: Mechanism = GAUSSIAN, coordinates: int = 4) -> Tensor:
        """Noise in units of its scale."""
        return noise(mechanism, 4, source(seed, serial, mechanism, coordinates)) / mechanism.scale

    first = drawn(0, 0)
    assert torch.equal(first, drawn(0, 0))
    others = (
        *(drawn(0, 1), drawn(1, 0), drawn(0, 0, coordinates=5)),
        *(drawn(0, 0, Mechanism(*given)) for given in (("gaussian", 0.5, 3.0), ("gaussian", 0.6, 2.0))),
        drawn(0, 0, Mechanism("gaussian", 1.0, 1.0)),  # the same scale, of another clip
    )
    assert all(not torch.isclose(first, other).any() for other in others)
    laplace, paper = (drawn(0, 0, Mechanism(kind, 0.5, 2.0)) for kind in ("laplace", "paper_algorithm_3"))
    assert not torch.isclose(laplace, paper).any()
    assert source(None, 0, GAUSSIAN, 4) is None
    assert not torch.equal(noise(GAUSSIAN, 4, None), noise(GAUSSIAN, 4, None))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"kind": "cauchy"},
            "kind must be one of gaussian, dp-ftrl, laplace, knorm, exponential, paper_algorithm_3, got 'cauchy'",
        ),
        ({"clip": 0.0}, "clip must be positive and finite, got 0.0"),
        ({"multiplier": math.nan}, "multiplier must be positive and finite, got nan"),
        ({"clip": math.inf}, "clip must be positive"),
    ],
)
def test_a_mechanism_that_hides_nothing_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        Mechanism(**{"kind": "gaussian", "clip": 1.0, "multiplier": 1.0} | given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "fixed", "size": 4}, "fixed cohorts have an account only for neighbours = 'replace'"),
        (
            {"kind": "poisson", "size": 4, "neighbours": "replace"},
            "poisson cohorts have an account only for neighbours",
        ),
        ({"size": 11}, "size must be above 0 and at most 10 clients, got 11"),
        ({"kind": "fixed", "size": 2.5, "neighbours": "replace"}, "must be a whole number, got 2.5"),
        ({"kind": "some"}, "kind must be one of"),
        ({"clients": 0}, "clients must be positive"),
    ],
)
def test_cohorts_without_an_account_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(PrivacyError, match=message):
        Cohorts(**{"clients": 10} | given)


@pytest.mark.parametrize(("scale", "kind"), [(0.8, "poisson"), (3.0, "all")])
def test_a_choice_has_the_odds_of_the_exponential_mechanism(scale: float, kind: Any) -> None:
    mechanism, cohorts = Mechanism("exponential", 2.0, scale / 2.0), Cohorts(10, 5, kind)
    regrets = torch.rand(3, 6, generator=rng(7), dtype=torch.float64) * 4 - 1
    clipped = clip({"regret": regrets}, mechanism)["regret"]
    torch.testing.assert_close(clipped, regrets.clamp(0, 2), rtol=0, atol=0)
    released = noisy_mean({"regret": clipped}, mechanism, cohorts, rng(8), 60_000)["regret"]
    assert released.eq(0).sum() == 5 * 60_000 and released.sum(1).eq(1).all()
    weights = [math.exp(-sum(float(row[c]) for row in clipped) / scale) for c in range(6)]
    expected = [60_000 * weight / sum(weights) for weight in weights]
    assert stats.chisquare(released.sum(0).numpy(), expected).pvalue > 1e-6


def test_a_client_without_numbers_has_no_regrets() -> None:
    sent = torch.tensor([[math.nan, 1.0], [0.5, 9.0]], dtype=torch.float64)
    clipped = clip({"regret": sent}, Mechanism("exponential", 2.0, 1.0), torch.tensor([True, True]))["regret"]
    assert clipped.tolist() == [[0.0, 0.0], [0.5, 2.0]]
