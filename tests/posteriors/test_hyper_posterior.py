"""Hyper-priors, the particles drawn from them, and a user's own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from scipy import integrate
from scipy.stats import kstest, norm
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError, StudyError
from pacbayes_fl.federation import engine, federation_state
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.evidence import particle_scores
from pacbayes_fl.methods.pac_pfl.gp import PacPFL
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.convolutional import BayesianVGG
from pacbayes_fl.posteriors.hyper_posterior import (
    DiagonalHyperPrior,
    FlatHyperPrior,
    GaussianHyperPrior,
    HyperPosterior,
    HyperPrior,
    NetworkHyperPrior,
    SmoothedHyperPosterior,
    gibbs_tau,
)
from pacbayes_fl.posteriors.weights.mean_field import DETERMINISTIC
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
    before = federation_state.start(method, batch, FederationPlan(seed=2)).server.particles
    after = engine.run_rounds(method, batch, FederationPlan(rounds=1, seed=2)).server.particles
    target = -before.sign() / 0.3 + 0.5 * particle_scores(model, before, batch).score.sum(0)
    torch.testing.assert_close(after, before + 0.01 * svgd.direction(before, target), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(after, before)


# over weights ---------------------------------------------------------------------------------------------------


def diagonal() -> DiagonalHyperPrior:
    loc, std = torch.tensor([1.0, -2.0, 5.0]).double(), torch.tensor([0.5, 2.0, 0.0]).double()
    return DiagonalHyperPrior(loc, std, torch.tensor([0.1, 0.0, 0.3]).double())


def test_a_diagonal_hyper_prior_pulls_every_coordinate_with_its_own_force() -> None:
    prior, phi = diagonal(), torch.tensor([[2.0, -1.0, 7.0], [0.0, 0.0, 5.0]], dtype=torch.float64)
    leaf = phi.clone().requires_grad_(True)
    Normal(prior.loc[:2], prior.std[:2]).log_prob(leaf[:, :2]).sum().backward()
    assert leaf.grad is not None
    torch.testing.assert_close(prior.score(phi), leaf.grad, rtol=1e-14, atol=0)
    assert not prior.score(phi)[:, 2].any()  # where nothing may move, nothing pulls


def test_a_diagonal_hyper_prior_starts_where_it_is_told() -> None:
    prior = diagonal()
    drawn = prior.sample(4000, torch.Generator().manual_seed(1))
    assert ((drawn.mean(0) - prior.loc).abs() <= 5 * prior.start_std / 4000**0.5).all()
    assert drawn.std(0).tolist() == pytest.approx(prior.start_std.tolist(), rel=0.06)
    assert torch.equal(drawn[:, 1], prior.loc[1].expand(4000))


@pytest.mark.parametrize(
    "wrong", [torch.tensor([-1.0, 1.0, 1.0]), torch.tensor([1.0]), torch.tensor([1.0, math.nan, 1.0])]
)
def test_spreads_out_of_range_are_refused(wrong: torch.Tensor) -> None:
    loc, good = torch.zeros(3), torch.ones(3)
    for std, start in ((wrong, good), (good, wrong)):
        with pytest.raises(StudyError, match="a number >= 0 for every coordinate"):
            DiagonalHyperPrior(loc, std, start)


def test_the_hyper_prior_over_weights_leaves_numbers_without_a_spread() -> None:
    model = BayesianVGG((1, 32, 32), Categorical(3))
    prior, uncertain = NetworkHyperPrior(-3.0, 2.0, 0.7, 0.2)(model), model.stochastic_columns()
    d = model.dim
    assert prior.loc.shape == (2 * d,) and prior.loc.dtype == model.dtype and 0 < int(uncertain.sum()) < d
    assert torch.equal(prior.loc[:d], model.centre()) and (prior.std[:d] == 2.0).all()
    assert torch.equal(prior.loc[d:], torch.where(uncertain, -3.0, DETERMINISTIC))
    assert torch.equal(prior.std[d:], torch.where(uncertain, 0.7, 0.0))
    assert (prior.start_std[:d] == 0.2).all() and not prior.start_std[d:].any()
    for spreads in ((0.0, 1.0, 1.0), (1.0, -1.0, 1.0), (1.0, 1.0, math.nan)):
        with pytest.raises(StudyError, match="std must be positive and finite, got"):
            NetworkHyperPrior(-3.0, *spreads)(model)


# smoothed -------------------------------------------------------------------------------------------------------


def pair() -> SmoothedHyperPosterior:
    particles = torch.tensor([[-0.741151903683737], [0.741151903683737]], dtype=torch.float64)
    return SmoothedHyperPosterior(particles, 0.3, GaussianHyperPrior(torch.zeros(1, dtype=torch.float64), 1.0))


def test_the_divergence_of_smoothed_particles_is_bounded_by_convexity() -> None:
    got = pair().kl().item()
    assert got == pytest.approx(1.0236258764929498, rel=1e-14)
    exact = integrate.quad(lambda x: _density(x) * (math.log(_density(x)) - norm.logpdf(x)), -6, 6, epsabs=1e-12)[0]
    assert exact == pytest.approx(0.34913119630314204, rel=1e-9)
    assert got - math.log(2) <= exact <= got


def _density(x: float) -> float:
    return float(norm.pdf(x, (-0.741151903683737, 0.741151903683737), 0.3).mean())


def test_the_divergence_agrees_with_torch_for_every_hyper_prior() -> None:
    particles = torch.randn(5, 3, generator=rng(), dtype=torch.float64)
    wide = DiagonalHyperPrior(LOC, torch.tensor([0.5, 2.0, 7.0]).double(), torch.zeros(3).double())
    for prior, std in ((GaussianHyperPrior(LOC, 1.7), torch.full_like(LOC, 1.7)), (wide, wide.std)):
        got = SmoothedHyperPosterior(particles, 0.2, prior).kl()
        expected = kl_divergence(Normal(particles, 0.2), Normal(LOC, std)).sum(-1).mean()
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=0)
        single = SmoothedHyperPosterior(particles.float(), 0.2, prior).kl()
        assert single.dtype == torch.float64
        torch.testing.assert_close(single, got, rtol=1e-5, atol=0)


def test_what_the_hyper_prior_knows_is_neither_blurred_nor_counted() -> None:
    prior = diagonal()  # its third coordinate is known to be 5
    still = torch.tensor([[2.0, -1.0, 5.0], [0.0, 0.0, 5.0]], dtype=torch.float64)
    smoothed = SmoothedHyperPosterior(still, 0.1, prior)
    expected = kl_divergence(Normal(still[:, :2], 0.1), Normal(prior.loc[:2], prior.std[:2])).sum(-1).mean()
    torch.testing.assert_close(smoothed.kl(), expected, rtol=1e-13, atol=0)
    assert (smoothed.sample(50, rng())[:, 2] == 5.0).all()
    moved = SmoothedHyperPosterior(still + 1e-9, 0.1, prior)
    assert moved.kl().item() == math.inf


def test_draws_have_the_moments_of_the_mixture() -> None:
    drawn = pair().sample(40000, rng(5))
    assert drawn.shape == (40000, 1) and drawn.dtype == torch.float64
    assert abs(drawn.mean().item()) <= 4 * 0.8 / 200
    assert drawn.var().item() == pytest.approx(0.3**2 + 0.741151903683737**2, rel=0.03)
    halves = (-0.741151903683737, 0.741151903683737)
    assert kstest(drawn[:, 0].numpy(), lambda x: sum(0.5 * norm.cdf(x, mean, 0.3) for mean in halves)).pvalue > 1e-3
    assert torch.equal(pair().sample(7, rng(5)), pair().sample(7, rng(5)))
    assert not torch.equal(pair().sample(7, rng(5)), pair().sample(7, rng(6)))


def test_without_a_density_or_a_blur_there_is_no_divergence() -> None:
    with pytest.raises(AssumptionError, match="no divergence from a FlatHyperPrior is known"):
        SmoothedHyperPosterior(PHI, 0.1, FlatHyperPrior(LOC, 1.0))
    with pytest.raises(AssumptionError, match="no divergence from a LaplaceHyperPrior is known"):
        SmoothedHyperPosterior(PHI, 0.1, LaplaceHyperPrior(0.3, 3))
    for std in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(AssumptionError, match="std of a smoothed hyper-posterior must be positive and finite"):
            SmoothedHyperPosterior(PHI, std, GaussianHyperPrior(LOC, 1.0))


def test_tau_has_its_published_values() -> None:
    for lam, n2, tau in ((10.0, 0, 0.9652509652509653), (100.0, 24, 0.0011560645527949)):
        assert gibbs_tau(lam, 150.0, 24, n2) == pytest.approx(tau, rel=1e-12)
    with pytest.raises(AssumptionError, match="lambda must be above n2"):
        gibbs_tau(1.5, 150.0, 24, 1, 0.5)


def test_the_papers_hyper_prior_has_one_spread() -> None:
    for wrong, got in ((torch.ones(3), r"\[3\] of them \(a class of your own"), (0.0, "0"), (-1.0, "-1")):
        with pytest.raises(StudyError, match=f"std must be one positive number, got {got}"):
            GaussianHyperPrior(torch.zeros(3), wrong)  # type: ignore[arg-type]
    assert float(GaussianHyperPrior(torch.zeros(3), torch.tensor(2.0)).score(torch.ones(1, 3))[0, 0]) == -0.25  # type: ignore[arg-type]
