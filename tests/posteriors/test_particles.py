"""Hyper-priors, the particles drawn from them, and a user's own."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, Normal

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.engine import FederationPlan
from pacbayes_fl.inference.evidence import particle_scores
from pacbayes_fl.methods.pac_pfl import PacPFL
from pacbayes_fl.models.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.posteriors.particles import FlatHyperPrior, GaussianHyperPrior, HyperPosterior, HyperPrior
from pacbayes_fl.server import svgd

LOC = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
PHI = torch.tensor([[0.3, 1.0, -4.0], [1.0, -2.0, 0.5]], dtype=torch.float64)


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_score_is_the_gradient_of_the_log_density() -> None:
    prior = GaussianHyperPrior(LOC, 1.7)
    phi = PHI.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(prior.log_prob(phi).sum(), phi)
    torch.testing.assert_close(prior.score(PHI), slope, rtol=1e-14, atol=1e-15)
    expected = Independent(Normal(LOC, 1.7), 1).log_prob(PHI)
    torch.testing.assert_close(prior.log_prob(PHI), expected, rtol=1e-14, atol=0)


def test_particles_have_the_moments_of_the_hyper_prior() -> None:
    drawn = GaussianHyperPrior(LOC, 0.5).sample(40000, rng())
    assert drawn.shape == (40000, 3) and drawn.dtype == torch.float64
    torch.testing.assert_close(drawn.mean(0), LOC, rtol=0, atol=4 * 0.5 / 200)
    torch.testing.assert_close(
        drawn.T.cov(), 0.25 * torch.eye(3, dtype=torch.float64), rtol=0, atol=4 * 0.25 * 2**0.5 / 200
    )


@pytest.mark.parametrize("kind", [GaussianHyperPrior, FlatHyperPrior])
def test_a_seed_fixes_the_particles_and_nothing_shared_moves(kind: type[GaussianHyperPrior]) -> None:
    before = torch.get_rng_state()
    first = kind(LOC, 0.5).sample(40, rng(3))
    assert torch.equal(kind(LOC, 0.5).sample(40, rng(3)), first)
    assert not torch.equal(kind(LOC, 0.5).sample(40, rng(4)), first)
    assert torch.equal(torch.get_rng_state(), before)
    small = kind(LOC.float(), 0.5).sample(40, rng(3))
    assert small.dtype == torch.float32
    torch.testing.assert_close(small.double(), first, rtol=0, atol=1e-6)  # the same start at every precision


def test_a_flat_hyper_prior_starts_like_the_gaussian_and_pulls_nowhere() -> None:
    assert torch.equal(FlatHyperPrior(LOC, 2.0).sample(5, rng()), GaussianHyperPrior(LOC, 2.0).sample(5, rng()))
    assert torch.equal(FlatHyperPrior(LOC, 2.0).score(PHI), torch.zeros_like(PHI))


def test_the_hyper_posterior_pulls_as_its_hyper_prior_does() -> None:
    prior = GaussianHyperPrior(LOC, 2.0)
    assert torch.equal(HyperPosterior(PHI, prior).score(), (LOC - PHI) / 4)


@dataclass(frozen=True)
class LaplaceHyperPrior:
    """What a user would write: independent Laplace distributions around 0."""

    scale: float
    dim: int

    def sample(self, particles: int, generator: torch.Generator) -> Tensor:
        u = torch.rand(particles, self.dim, generator=generator, dtype=torch.float64) - 0.5
        return -self.scale * u.sign() * torch.log1p(-2 * u.abs())

    def score(self, particles: Tensor) -> Tensor:
        return -particles.sign() / self.scale


def test_a_user_s_hyper_prior_works_with_pac_pfl() -> None:
    model = DeepKernelGP(1, (3,), (3,))
    prior: HyperPrior = LaplaceHyperPrior(0.3, model.dim)
    method = PacPFL(model, prior, particles=3, tau=0.5, rate=0.01, optimiser="ascent")
    rows = [
        (torch.randn(m, 1, generator=rng(m), dtype=torch.float64), torch.randn(m, generator=rng(m + 9)).double())
        for m in (4, 6)
    ]
    batch = ClientBatch.pad(rows)
    before = engine.start(method, batch, FederationPlan(seed=2)).server.particles
    after = engine.run_rounds(method, batch, FederationPlan(rounds=1, seed=2)).server.particles
    target = -before.sign() / 0.3 + 0.5 * particle_scores(model, before, batch).score.sum(0)
    torch.testing.assert_close(after, before + 0.01 * svgd.direction(before, target), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(after, before)
