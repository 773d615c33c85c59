"""Slopes by automatic differentiation: those that are written out, where both are known."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.distributions import Gumbel

from pacbayes_fl import tensors
from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.by_autograd import ByAutograd, Differentiated, check_uncertain
from pacbayes_fl.posteriors.weights.distribution import from_distribution
from pacbayes_fl.posteriors.weights.full_rank import FullRank
from pacbayes_fl.posteriors.weights.low_rank import LowRank
from pacbayes_fl.posteriors.weights.mean_field import MeanField

K, D = 3, 5


class _Leaves(NamedTuple):
    loc: Tensor
    rho: Tensor


class Slow(_Leaves, ByAutograd):
    """The mean field without its written-out slopes."""

    def draw(self, noise: Noise) -> Tensor:
        return noise.weights(self.loc)

    def weights(self, draw: Tensor) -> Tensor:
        return MeanField(*self).weights(draw)

    def mean(self) -> Tensor:
        return self.loc

    def kl(self, prior: Any) -> Tensor:
        return MeanField(*self).kl(MeanField(*prior))


def pair(seed: int, *shape: int) -> tuple[Slow, MeanField]:
    generator = torch.Generator().manual_seed(seed)
    leaves = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)]
    return Slow(*leaves), MeanField(*leaves)


@pytest.mark.parametrize("shared", [False, True], ids=["a prior each", "one prior"])
def test_slopes_are_those_that_are_written_out(shared: bool) -> None:
    (q, q_fast), (w, w_fast) = pair(0, K, D), pair(1, *(() if shared else (K,)), D)
    draw = q.draw(Noise(0, 1, range(K)))
    grad_weights = torch.linspace(-1, 2, K * D, dtype=torch.float64).view(K, D)
    mine, theirs = (q.precompute(), w.precompute()), (q_fast.precompute(), w_fast.precompute())
    assert torch.equal(mine[0].weights(draw), theirs[0].weights(draw))
    torch.testing.assert_close(mine[0].kl(mine[1]), theirs[0].kl(theirs[1]), rtol=1e-12, atol=0)
    pairs = [
        (mine[0].vjp(draw, grad_weights), theirs[0].vjp(draw, grad_weights)),
        (mine[0].kl_gradient(mine[1]), theirs[0].kl_gradient(theirs[1])),
        (mine[0].kl_gradient_wrt_prior(mine[1]), theirs[0].kl_gradient_wrt_prior(theirs[1])),
    ]
    for slow, fast in pairs:
        assert type(slow) is Slow
        for leaf, expected in zip(slow, fast, strict=True):
            assert leaf.shape == (K, D)
            torch.testing.assert_close(leaf, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", [FullRank(), LowRank(2), from_distribution(Gumbel)], ids=str)
def test_slopes_of_the_divergence_vanish_at_the_prior_to_the_last_bit(family: Any, dtype: torch.dtype) -> None:
    """Also where the prior is one for all: Adam would make whole steps of what rounding leaves."""
    w = family.initial(BayesianMLP((2, 3, 1), Gaussian(), dtype), 0.5, -1.0, torch.Generator().manual_seed(0))
    w = tensors.tree_map(
        lambda leaf: leaf + 0.1 * torch.randn(leaf.shape, generator=torch.Generator().manual_seed(1)), w
    )
    q = tensors.tree_map(torch.clone, tensors.expand(w, K))
    for prior in (w, tensors.expand(w, K), q):
        slopes = (
            q.precompute().kl_gradient(prior.precompute()),
            q.precompute().kl_gradient_wrt_prior(prior.precompute()),
        )
        for slope in slopes:
            assert not any(leaf.any() for leaf in slope)
    moved = tensors.tree_map(lambda leaf: leaf + 0.01, q)
    assert all(leaf.any() for leaf in moved.precompute().kl_gradient(w.precompute()))


def test_slopes_have_memory_of_their_own_and_leave_the_family_alone() -> None:
    q, _ = pair(0, K, D)
    before = tensors.tree_map(torch.clone, q)
    grad_weights = torch.ones(K, D, dtype=torch.float64)
    slopes = q.precompute().vjp(q.draw(Noise(0, 1, range(K))), grad_weights)
    tensors.tree_map(lambda leaf: leaf.add_(1.0), slopes)
    assert torch.equal(grad_weights, torch.ones_like(grad_weights))
    assert all(torch.equal(leaf, was) and not leaf.requires_grad for leaf, was in zip(q, before, strict=True))


def test_the_sites_of_such_a_family_are_not_independent() -> None:
    q, _ = pair(0, K, D)
    assert isinstance(q.precompute(), Differentiated)
    with pytest.raises(StudyError, match="the weights of a Slow depend on each other"):
        q.site(slice(0, 2), (2,), None)


def test_weights_without_uncertainty_are_refused() -> None:
    class WithNumbers(BayesianMLP):
        deterministic = frozenset({"bias_0"})

    network = WithNumbers((2, 3, 1), Gaussian())
    with pytest.raises(StudyError, match=r"FullRank makes all weights uncertain, and bias_0 are numbers"):
        check_uncertain(network, "FullRank")
