"""Messages in a subspace: what projection keeps, the law of what is lifted, and that audits still bound epsilon."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.privacy import audit, mechanisms, subspace
from pacbayes_fl.privacy.charges import Charge, gaussian_epsilon
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism
from pacbayes_fl.privacy.subspace import Subspace, check

EMPTY = {"loc": torch.zeros(0, 3, 5, dtype=torch.float64), "rho": torch.zeros(0, 4), "one": torch.zeros(0)}
SIZE = 20
ONE = Cohorts(1)


def space(dimension: int = 6, seed: int = 3) -> Subspace:
    return Subspace.of(EMPTY, dimension, seed)


def drawn(clients: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(clients, *leaf.shape[1:], generator=generator, dtype=torch.float64)
        for name, leaf in EMPTY.items()
    }


def flat(tree: Any) -> Tensor:
    return mechanisms.vectors(tree)


def lifted(own: Subspace, mean: Tensor) -> Tensor:
    return flat(own.lift(subspace.Projected(mean)))


# the projection --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [1, 6, 19])
def test_the_way_there_and_back_is_an_orthogonal_projection(dimension: int) -> None:
    own, sent = space(dimension), drawn(50)
    basis = own.basis
    torch.testing.assert_close(basis @ basis.T, torch.eye(dimension).double(), rtol=0, atol=1e-12)
    within = own.project(sent).within
    torch.testing.assert_close(within, flat(sent) @ basis.T, rtol=0, atol=1e-12)
    assert (within.norm(dim=1) <= flat(sent).norm(dim=1) * (1 + 1e-12)).all(), "no projection lengthens"
    torch.testing.assert_close(lifted(own, within), flat(sent) @ basis.T @ basis, rtol=0, atol=1e-6)
    inside = drawn(50, seed=1)["loc"].flatten(1)[:, :1] * basis[0]
    assert float((inside @ basis.T @ basis - inside).abs().max()) < 1e-12, "of the subspace nothing is lost"


def test_leaves_keep_their_names_shapes_and_dtypes_and_their_order_is_that_of_the_tree() -> None:
    """A basis of single coordinates says which leaf a direction moves."""
    own = Subspace(torch.eye(SIZE, dtype=torch.float64)[[0, 15, 19]], EMPTY)
    sent = own.project(
        {"loc": torch.full((2, 3, 5), 1.0), "rho": torch.full((2, 4), 2.0), "one": torch.full((2,), 3.0)}
    )
    assert sent.within.tolist() == [[1.0, 2.0, 3.0]] * 2
    back = own.lift(sent)
    assert {name: (leaf.shape, leaf.dtype) for name, leaf in back.items()} == {
        name: ((2, *leaf.shape[1:]), leaf.dtype) for name, leaf in EMPTY.items()
    }
    assert back["loc"].flatten(1).sum(1).tolist() == [1.0] * 2 and back["rho"].tolist() == [[2.0, 0, 0, 0]] * 2
    assert back["one"].tolist() == [3.0] * 2


def test_whoever_knows_seed_and_sizes_makes_the_same_subspace_and_nobody_else_does() -> None:
    assert torch.equal(space().basis, space().basis)
    for other in (space(seed=4), Subspace.of({"x": torch.zeros(0, 21)}, 6, 3), space(7)):
        assert other.basis.shape != space().basis.shape or not torch.isclose(other.basis, space().basis).any()


def test_a_random_subspace_keeps_its_share_of_every_message() -> None:
    """E P = (k / D) I, and of a fixed message |Q u|^2 is Beta(k / 2, (D - k) / 2): mean .3, over 400 seeds."""
    kept, one = torch.zeros(SIZE, SIZE, dtype=torch.float64), list[float]()
    for seed in range(400):
        basis = space(seed=seed).basis
        kept += basis.T @ basis / 400
        one.append(float(basis[:, 0].square().sum()))
    torch.testing.assert_close(kept, 0.3 * torch.eye(SIZE).double(), rtol=0, atol=0.03)
    a, b = 3.0, 7.0
    spread = math.sqrt(a * b / ((a + b) ** 2 * (a + b + 1)))
    assert float(torch.tensor(one).std()) == pytest.approx(spread, rel=0.15)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_message_that_is_not_finite_adds_zeros_and_moves_no_other(value: float) -> None:
    own, sent = space(), drawn(3)
    good = own.project(sent).within
    sent["rho"][1, 2] = value
    within = own.project(sent).within
    assert not within[1].isfinite().any() and torch.equal(within[[0, 2]], good[[0, 2]])
    clipped = mechanisms.clip(own.project(sent), Mechanism("gaussian", 1.0, 1.0)).within
    assert clipped[1].tolist() == [0.0] * 6


# the release -----------------------------------------------------------------------------------------------------


def test_lifted_noise_has_the_covariance_of_the_projection() -> None:
    """s^2 Q^T Q: a mean square length of s^2 k in the place of s^2 D, and nothing outside of the subspace."""
    own, mechanism = space(), Mechanism("gaussian", 2.0, 1.5)
    noise = lifted(own, mechanisms.noise(mechanism, 6, torch.Generator().manual_seed(1), 100_000))
    covariance = noise.T @ noise / len(noise)
    torch.testing.assert_close(covariance, 9.0 * own.basis.T @ own.basis, rtol=0, atol=0.15)
    assert float(noise.square().sum(1).mean()) == pytest.approx(9.0 * 6, rel=0.01)
    assert float((noise - noise @ own.basis.T @ own.basis).abs().max()) < 1e-5


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "knorm"])
def test_a_message_in_the_subspace_is_released_without_bias_and_another_is_projected(kind: str) -> None:
    own = space()
    mechanism = Mechanism(kind, 30.0, 0.01)
    for seed, inside in ((0, True), (1, False)):
        u = drawn(1, seed)
        if inside:
            u = own.lift(own.project(u))
        clipped = mechanisms.clip(own.project(u), mechanism)
        released = mechanisms.noisy_mean(clipped, mechanism, ONE, torch.Generator().manual_seed(2), 50_000)
        mean = lifted(own, released.within).mean(0)
        expected = flat(u)[0] @ own.basis.T @ own.basis
        torch.testing.assert_close(mean, expected, rtol=0, atol=0.02)
        assert inside == torch.allclose(expected, flat(u)[0], atol=1e-6)


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "knorm"])
@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace"])
def test_no_message_moves_the_sum_by_more_than_its_clip(kind: str, neighbours: Any) -> None:
    own, mechanism = space(), Mechanism(kind, 0.7, 1.0)
    clipped = mechanisms.clip(own.project(drawn(2000)), mechanism).within
    order = 1 if kind == "laplace" else 2
    moved = clipped[:1000] - clipped[1000:] if neighbours == "replace" else clipped
    most = Cohorts(2, neighbours=neighbours).sensitivity * 0.7
    assert float(torch.linalg.vector_norm(moved, order, dim=1).max()) <= most * (1 + 1e-12)


@pytest.mark.parametrize("noise", [1.0, 0.8])
def test_games_with_what_the_server_sees_show_no_more_than_is_reported(noise: float) -> None:
    """The worst pair sends along the subspace and nothing; the best test of lifted releases is along it too."""
    own, mechanism, games = space(), Mechanism("gaussian", 0.5, noise), 40_000
    u = own.lift(subspace.Projected(100.0 * torch.eye(1, 6, dtype=torch.float64)))
    scores = []
    for sent, seed in ((u, 1), (tensors.tree_map(torch.zeros_like, u), 2)):
        clipped = mechanisms.clip(own.project(sent), mechanism)
        released = mechanisms.noisy_mean(clipped, mechanism, ONE, torch.Generator().manual_seed(seed), games)
        scores.append(lifted(own, released.within) @ own.basis[0])

    def gaussian(low: float, high: float) -> float:
        return audit._of_gaussian(low, high, 1e-3)

    shown, reported = audit._best(*scores, gaussian, 0.95), gaussian_epsilon([Charge("gaussian", 1.0, 6, ONE)], 1e-3)
    if noise == 1:
        assert 0.9 * reported < shown <= reported
    else:
        assert shown > reported, "the games would see less noise than is reported"


# directions of one's own -----------------------------------------------------------------------------------------


def own_directions(tmp_path: Path, body: str) -> str:
    path = tmp_path / "mine.py"
    path.write_text(f"import torch\n\ndef basis(d, k, seed):\n    {body}\n")
    return f"{path}:basis"


def test_directions_of_ones_own_are_made_orthonormal_and_keep_their_span(tmp_path: Path) -> None:
    mine = own_directions(tmp_path, "return torch.tril(torch.ones(k, d))")
    own = Subspace.of(EMPTY, 4, 0, mine)
    torch.testing.assert_close(own.basis, torch.eye(4, SIZE, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("return torch.ones(k, d)", r"gives 3 that are not independent \(lower privacy.subspace"),
        ("return torch.ones(k, d - 1)", r"must give finite numbers \[3, 20\], got \[3, 19\]"),
        ("return torch.full((k, d), torch.nan)", r"must give finite numbers \[3, 20\]"),
        ("return [1.0]", r"must give finite numbers \[3, 20\], got list"),
    ],
)
def test_what_is_no_basis_is_refused(tmp_path: Path, body: str, text: str) -> None:
    with pytest.raises(PrivacyError, match=text):
        Subspace.of(EMPTY, 3, 0, own_directions(tmp_path, body))


@pytest.mark.parametrize("dimension", [20, 21, 0])
def test_a_subspace_that_is_none_is_refused(dimension: int) -> None:
    with pytest.raises(PrivacyError, match=rf"must be from 1 to 19, as a message has 20 numbers, got {dimension}"):
        space(dimension)


def test_a_basis_that_takes_too_much_memory_is_refused_before_it_is_made() -> None:
    with pytest.raises(PrivacyError, match=r"basis of 1000000000, at most 268435456 are allowed \(at most 268\)"):
        Subspace.of({"x": torch.zeros(0, 1_000_000)}, 1000, 0)


def test_a_leaf_that_cannot_carry_noise_is_named() -> None:
    with pytest.raises(PrivacyError, match="leaf 'count' must be floating"):
        space().project({"count": torch.zeros(1, SIZE, dtype=torch.int64)})


@pytest.mark.parametrize(
    ("kind", "text"), [("exponential", "chooses, and sums no"), ("paper_algorithm_3", "noise that a paper prints")]
)
def test_mechanisms_without_a_sum_of_ones_own_are_refused(kind: str, text: str) -> None:
    with pytest.raises(PrivacyError, match=f"subspace is not for {kind}, which .*{text}"):
        check(kind)
