"""KL divergences: published digits, torch, scipy and scikit-learn, and what is infinite or refused."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from pacbayes_fl.bounds.divergence import (
    bernoulli_gaussian_kl,
    diagonal_gaussian_kl,
    discrete_kl,
    full_gaussian_kl,
    gibbs_weights,
    gp_posterior_kl,
    mixture_kl,
)
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.models.likelihoods import inverse_softplus
from pacbayes_fl.posteriors.functions.gaussian_process import condition
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.posteriors.weights.spike_slab import SpikeSlab


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Gaussians ------------------------------------------------------------------------------------------------------


def test_gaussians_have_their_published_divergences() -> None:
    q, w = (numbers(0.5), numbers(0.04)), (numbers(0.0), numbers(1.0))
    assert diagonal_gaussian_kl(*q, *w).item() == pytest.approx(1.2544379124341003, rel=1e-14)
    assert diagonal_gaussian_kl(*w, *q).item() == pytest.approx(13.515562087565897, rel=1e-14)
    a, b = numbers(0.5, -1), numbers(0, 0)
    cov_a, cov_b = torch.tensor([[0.5, 0.2], [0.2, 0.4]]), torch.tensor([[1.0, 0.3], [0.3, 2.0]])
    assert full_gaussian_kl(a, cov_a, b, cov_b).item() == pytest.approx(1.0461250754165132, rel=1e-6)  # float32 in
    args = a, cov_a.double(), b, cov_b.double()
    assert full_gaussian_kl(*args).item() == pytest.approx(
        kl_divergence(MultivariateNormal(args[0], args[1]), MultivariateNormal(args[2], args[3])).item(), rel=1e-13
    )


def test_diagonal_and_full_gaussians_agree_with_each_other_and_with_the_mean_field() -> None:
    mean, other = randn(4, 6), randn(4, 6, seed=1)
    q, w = MeanField(mean, randn(4, 6, seed=2)), MeanField(other, randn(4, 6, seed=3))
    variance, spread = q.scale.square(), w.scale.square()
    got = diagonal_gaussian_kl(mean, variance, other, spread)
    torch.testing.assert_close(got, q.kl(w), rtol=1e-12, atol=0)
    full = full_gaussian_kl(mean, torch.diag_embed(variance), other, torch.diag_embed(spread))
    torch.testing.assert_close(got, full, rtol=1e-12, atol=0)


def test_known_coordinates_add_nothing_or_everything() -> None:
    one = numbers(1.0)

    def kl(m: float, v: float, o: float, w: float) -> float:
        return diagonal_gaussian_kl(one * m, one * v, one * o, one * w).item()

    assert kl(0.3, 0.0, 0.3, 0.0) == 0
    assert kl(0.3, 0.0, 0.2, 0.0) == math.inf  # two point masses
    assert kl(0.3, 0.0, 0.3, 1.0) == math.inf  # a point mass and a density
    assert kl(0.3, 1.0, 0.3, 0.0) == math.inf
    assert kl(0.3, 0.7, 0.3, 0.7) == 0


def test_close_gaussians_keep_their_digits() -> None:
    got = diagonal_gaussian_kl(numbers(0), numbers(1 + 1e-9), numbers(0), numbers(1)).item()
    assert got == pytest.approx(0.25 * (1e-9 + 8.274037e-17) ** 2, rel=1e-7)  # 1 + 1e-9 is not a float64


def test_a_covariance_that_is_not_definite_is_refused() -> None:
    singular, mean = torch.ones(2, 2), numbers(0, 0)
    with pytest.raises(AssumptionError, match="both covariances must be positive definite"):
        full_gaussian_kl(mean, singular, mean, torch.eye(2))


# spike and slab -------------------------------------------------------------------------------------------------


def test_spike_and_slab_has_its_published_divergence_and_is_the_family_s() -> None:
    got = bernoulli_gaussian_kl(*map(numbers, (0.3, 0.01, 0.8, 0.0, 0.04, 0.5)))
    assert got.item() == pytest.approx(1.3472625014697135, rel=1e-14)
    q, w = (SpikeSlab(*(randn(3, 5, seed=seed + i) for i in range(3))) for seed in (0, 5))
    parts = [part for family in (q, w) for part in (family.loc, family.slab.scale.square(), family.inclusion)]
    torch.testing.assert_close(bernoulli_gaussian_kl(*parts), q.kl(w), rtol=1e-11, atol=0)


def test_a_pruned_weight_costs_its_gate_alone() -> None:
    got = bernoulli_gaussian_kl(*map(numbers, (0.0, 0.0, 0.0, 0.0, 1.0, 0.75)))
    assert got.item() == pytest.approx(math.log(4), rel=1e-14)
    assert bernoulli_gaussian_kl(*map(numbers, (0.0, 1.0, 0.5, 0.0, 1.0, 0.0))).item() == math.inf


# mixtures and lists ---------------------------------------------------------------------------------------------


def test_smoothed_particles_have_their_published_bound_which_is_above_the_truth() -> None:
    centres = numbers(-0.741151903683737, 0.741151903683737).unsqueeze(-1)
    each = diagonal_gaussian_kl(centres, numbers(0.09), numbers(0), numbers(1))
    got = mixture_kl(numbers(0.5, 0.5), each).item()
    assert got == pytest.approx(1.0236258764929498, rel=1e-13)
    assert got - math.log(2) < 0.34913119630314204 < got  # the exact divergence, by quadrature


def test_weights_of_a_mixture_cost_their_own_divergence() -> None:
    weights, prior, each = numbers(0.7, 0.3, 0.0), numbers(0.2, 0.3, 0.5), numbers(1.0, 2.0, math.inf)
    expected = stats.entropy([0.7, 0.3, 0], [0.2, 0.3, 0.5]) + 0.7 * 1.0 + 0.3 * 2.0
    assert mixture_kl(weights, each, prior).item() == pytest.approx(expected, rel=1e-14)
    assert discrete_kl(weights, prior).item() == pytest.approx(stats.entropy(weights, prior), rel=1e-14)
    assert discrete_kl(prior, weights).item() == math.inf
    assert discrete_kl(numbers(0, 1, 0, 0)).item() == pytest.approx(math.log(4), rel=1e-15)
    assert discrete_kl(torch.full((2, 7), 1 / 7)).tolist() == [0, 0]


def test_gibbs_weights_have_their_published_values_and_identity() -> None:
    prior, risk, beta = numbers(0.5, 0.3, 0.2), numbers(0.1, 0.3, 0.05), 10.0
    weights, log_z = gibbs_weights(risk, beta, prior)
    assert log_z.exp().item() == pytest.approx(0.32018197303860707, rel=1e-14)
    assert weights.tolist() == pytest.approx([0.5744849369, 0.046648849, 0.3788662141], rel=1e-8)
    kl = discrete_kl(weights, prior)
    assert kl.item() == pytest.approx(0.23500118812818943, rel=1e-13)
    assert (weights @ risk).item() == pytest.approx(0.0903864590943621, rel=1e-14)
    assert (weights @ risk + kl / beta).item() == pytest.approx(-log_z.item() / beta, rel=1e-14)


def test_gibbs_weights_go_client_by_client_and_survive_large_beta() -> None:
    risk, beta = randn(3, 5).abs(), numbers(1.0, 10.0, 1e6)
    weights, log_z = gibbs_weights(risk, beta)
    for k in range(3):
        one, its_z = gibbs_weights(risk[k], beta[k])
        torch.testing.assert_close(weights[k], one, rtol=0, atol=0)
        assert log_z[k].item() == its_z.item()
    assert weights[2].max().item() == 1 and log_z.isfinite().all()
    assert bool((discrete_kl(weights) <= math.log(5) + 1e-15).all())


def test_what_is_no_distribution_is_refused() -> None:
    for bad in (numbers(0.5, 0.6), numbers(-0.1, 1.1), numbers(math.nan, 1.0)):
        with pytest.raises(AssumptionError, match="weights must be at least 0 and sum to 1"):
            discrete_kl(bad)
        with pytest.raises(AssumptionError, match="prior must be"):
            gibbs_weights(numbers(0.1, 0.2), 1.0, bad)
    with pytest.raises(AssumptionError, match="risk must be finite"):
        gibbs_weights(numbers(0.1, math.nan), 1.0)


# Gaussian processes ---------------------------------------------------------------------------------------------


def test_a_gp_posterior_is_measured_against_its_prior_as_scikit_learn_has_both_at_the_inputs() -> None:
    model = DeepKernelGP(2)
    x, y = randn(7, 2, seed=1), randn(7, seed=2)
    batch = ClientBatch.pad([(x[:4], y[:4]), (x, y)])
    theta = model.location() + 0.1 * randn(2, model.dim, seed=3).to(model.location())
    posterior = condition(model, theta.expand(2, -1, -1), batch)
    got = gp_posterior_kl(posterior)
    single = torch.zeros(2, 2).double()
    for k, rows in enumerate((4, 7)):
        for p in range(2):
            at = theta[p : p + 1].unsqueeze(0)
            features = model.embedding(at, x[None, :rows])
            assert features is not None
            noise = model.noise(at, x[None, :1]).item()
            reference = GaussianProcessRegressor(RBF(1.0), alpha=noise, optimizer=None)
            mean = model.mean(at, x[None, :rows])[0, 0]
            reference.fit(features[0, 0].numpy(), (y[:rows] - mean).numpy())
            q_mean, q_covariance = reference.predict(features[0, 0].numpy(), return_cov=True)
            prior = torch.from_numpy(reference.kernel_(features[0, 0].numpy()))
            # Whitened by the prior's eigenvectors: nearby features make its covariance nearly singular.
            values, vectors = torch.linalg.eigh(prior)
            keep = values > 1e-9
            moved = (vectors.mT @ torch.from_numpy(q_mean))[keep]
            spread = (vectors.mT @ torch.from_numpy(q_covariance) @ vectors)[keep][:, keep]
            single[k, p] = full_gaussian_kl(moved, spread, torch.zeros_like(moved), values[keep].diag_embed())
    torch.testing.assert_close(posterior.kl(), single, rtol=1e-4, atol=1e-6)
    weights = posterior.log_weights.exp()
    entropy = torch.tensor([stats.entropy(row, [0.5, 0.5]) for row in weights.numpy()])
    torch.testing.assert_close(got, entropy + (weights * single).sum(1), rtol=1e-4, atol=1e-6)


def test_inverse_softplus_is_what_the_mean_field_of_the_oracle_holds() -> None:
    q = MeanField(numbers(0.1).unsqueeze(0), numbers(-2.5).unsqueeze(0))
    std = torch.nn.functional.softplus(numbers(-2.5))
    assert inverse_softplus(std.item()) == pytest.approx(-2.5, rel=1e-12)
    w_std = torch.nn.functional.softplus(numbers(-2.0))
    got = diagonal_gaussian_kl(q.loc, q.scale.square(), numbers(0), w_std.square()).item()
    assert got == pytest.approx(0.479071927522958, rel=1e-13)
