"""Mean-field Gaussians: published values, torch's divergences and slopes, and the ends of the range of rho."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import softplus

from pacbayes_fl.inference.optim import sgd
from pacbayes_fl.models.likelihoods import Gaussian, inverse_softplus
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.mean_field import MeanField, NormalFrom, initial_mean_field, log_softplus

K, D = 3, 7


def mean_field(loc: float, std: float) -> MeanField:
    return MeanField(*(torch.tensor([[value]], dtype=torch.float64) for value in (loc, inverse_softplus(std))))


def at_rho(loc: float, rho: float) -> MeanField:
    return MeanField(torch.tensor([[loc]], dtype=torch.float64), torch.tensor([[rho]], dtype=torch.float64))


def some(seed: int, *shape: int, spread: float = 1.0) -> MeanField:
    generator = torch.Generator().manual_seed(seed)
    loc, rho = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return MeanField(loc, spread * rho - 1.0)


def asking(q: MeanField) -> MeanField:
    return MeanField(*(leaf.clone().requires_grad_(True) for leaf in q))


def torch_kl(q: MeanField, w: MeanField) -> Tensor:
    divergence: Tensor = kl_divergence(Normal(q.loc, q.scale), Normal(w.loc, w.scale))
    return divergence.sum(-1)


def same(mine: MeanField, loc: Tensor, rho: Tensor, rtol: float = 1e-12) -> None:
    torch.testing.assert_close(mine.loc, loc, rtol=rtol, atol=1e-14)
    torch.testing.assert_close(mine.rho, rho, rtol=rtol, atol=1e-14)


# softplus -------------------------------------------------------------------------------------------------------


def test_the_scale_is_the_softplus() -> None:
    rho = torch.tensor([-1.0, -1.5, -2.0, -2.5, -3.0], dtype=torch.float64)
    published = [0.31326168751822286, 0.2014132779827524, 0.1269280110429725, 0.07888973429254963, 0.04858735157374206]
    assert MeanField(rho, rho).scale.tolist() == pytest.approx(published, rel=1e-14)
    assert mean_field(0.0, 0.1).rho.item() == pytest.approx(-2.2521684610440906, rel=1e-14)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rho", [-800.0, -110.0, -104.0, -100.0, -88.0, -40.0, -20.0, -15.01, -14.99, 0.0, 20.0, 89.0])
def test_the_logarithm_of_softplus_holds_where_softplus_is_no_number(rho: float, dtype: torch.dtype) -> None:
    value = torch.tensor(rho, dtype=dtype, requires_grad=True)
    got = log_softplus(value)
    got.backward()
    with mpmath.workdps(60):
        exact = float(mpmath.log(mpmath.log1p(mpmath.exp(value.item()))))
        slope = float(1 / (1 + mpmath.exp(-value.item())) / mpmath.log1p(mpmath.exp(value.item())))
    # below -15 the answer is rho, which is off by exp(rho) / 2
    slack = 2e-7 if dtype == torch.float32 else 1e-14 + (math.exp(rho) if rho < -15 else 0.0)
    assert got.item() == pytest.approx(exact, rel=slack, abs=slack)
    assert value.grad is not None and value.grad.item() == pytest.approx(slope, rel=max(slack, 3e-7))


# the divergence -------------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_the_divergence_has_its_published_values_in_both_directions() -> None:
    q, w = mean_field(0.5, 0.2), mean_field(0.0, 1.0)
    assert q.kl(w).item() == pytest.approx(1.2544379124341003, rel=1e-12)
    assert w.kl(q).item() == pytest.approx(13.515562087565897, rel=1e-12)


def test_the_divergence_of_a_whole_network() -> None:
    zero = torch.zeros(1, 79510, dtype=torch.float64)
    got = MeanField(zero, zero - 2.5).kl(MeanField(zero[0], zero[0] - 3.0))
    assert got.item() == pytest.approx(26513.502494264554, rel=1e-10)
    single = MeanField(zero.float(), zero.float() - 2.5).kl(MeanField(zero[0].float(), zero[0].float() - 3.0))
    assert single.dtype == torch.float64 and single.item() == pytest.approx(26513.502494264554, rel=1e-7)


def test_the_divergence_and_its_four_slopes() -> None:
    q, w = at_rho(0.1, -2.5), at_rho(0.0, -2.0)
    assert q.kl(w).item() == pytest.approx(0.479071927522958, rel=1e-12)
    mine, theirs = q.precompute().kl_gradient(w.precompute()), q.precompute().kl_gradient_wrt_prior(w.precompute())
    got = [leaf.item() for leaf in (*mine, *theirs)]
    published = [6.207047238029999, -0.5901157586482254, -6.207047238029999, -0.0065795127237479]
    assert got == pytest.approx(published, rel=1e-10)


def test_one_step_of_the_prior_towards_the_posterior() -> None:
    q, w = at_rho(0.1, -2.5), at_rho(0.0, -2.0)
    moved = sgd(w, q.precompute().kl_gradient_wrt_prior(w.precompute()), 1e-3)
    assert moved.loc.item() == pytest.approx(0.006207047238029999, rel=1e-12)
    assert moved.rho.item() == pytest.approx(-1.9999934204872762, rel=1e-14)
    assert q.kl(moved).item() == pytest.approx(0.4417406182620196, rel=1e-12)


@pytest.mark.quick
@pytest.mark.parametrize("shared", [True, False])
def test_the_divergence_and_its_slopes_are_torch_s(shared: bool) -> None:
    q, w = asking(some(0, K, D)), asking(some(1, *((D,) if shared else (K, D))))
    value = torch_kl(q, w)
    torch.testing.assert_close(q.kl(w), value, rtol=1e-13, atol=0)
    torch.testing.assert_close(q.kl_by_weight(w).sum(1), value, rtol=1e-13, atol=0)
    slopes = torch.autograd.grad(value.sum(), [*q, *(leaf for leaf in w)])
    with torch.no_grad():
        torch.testing.assert_close(q.precompute().kl(w.precompute()), value, rtol=1e-13, atol=0)
        same(q.precompute().kl_gradient(w.precompute()), *slopes[:2])
        grad_prior = q.precompute().kl_gradient_wrt_prior(w.precompute())
        assert grad_prior.loc.shape == grad_prior.rho.shape == (K, D)
        if shared:
            grad_prior = MeanField(*(leaf.sum(0) for leaf in grad_prior))
        same(grad_prior, *slopes[2:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_at_the_prior_everything_is_exactly_zero(dtype: torch.dtype) -> None:
    q = MeanField(*(leaf.to(dtype) for leaf in some(2, K, 1001, spread=3.0)))
    w = MeanField(*(leaf.clone() for leaf in q))
    assert torch.equal(q.kl(w), torch.zeros(K, dtype=torch.float64))
    assert torch.equal(q.precompute().kl(w.precompute()), torch.zeros(K, dtype=torch.float64))
    for slopes in (q.precompute().kl_gradient(w.precompute()), q.precompute().kl_gradient_wrt_prior(w.precompute())):
        assert not any(leaf.any() for leaf in slopes)


@pytest.mark.parametrize("distance", [1e-5, 1e-3, 1e-1])
def test_float32_terms_hold_many_digits_of_the_divergence_however_near_the_prior(distance: float) -> None:
    w = MeanField(*(leaf.float() for leaf in some(5, K, 10_001, spread=1.0)))
    q = MeanField(*(leaf + distance * step.float() for leaf, step in zip(w, some(6, K, 10_001), strict=True)))
    terms = MeanField(q.loc, q.rho).precompute(), w.precompute()
    assert terms[0].kl(terms[1]).dtype == torch.float64
    torch.testing.assert_close(terms[0].kl(terms[1]), q.kl(w), rtol=2e-7 / distance + 1e-5, atol=0)


def test_the_divergence_is_the_mean_of_the_log_ratio() -> None:
    q, w, draws = some(3, 1, D), some(4, D), 200_000
    eps = torch.randn(draws, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theta = q.weights(eps)
    ratio = (Normal(q.loc, q.scale).log_prob(theta) - Normal(w.loc, w.scale).log_prob(theta)).sum(1)
    assert abs(ratio.mean().item() - q.kl(w).item()) < 4 * ratio.std().item() / math.sqrt(draws)


ENDS = {torch.float32: (-20.0, -2.5, 20.0), torch.float64: (-40.0, -2.5, 40.0)}


@pytest.mark.parametrize("dtype", ENDS, ids=str)
def test_nothing_breaks_at_the_ends_of_the_range(dtype: torch.dtype) -> None:
    ends = ENDS[dtype]
    rho_q, rho_w = (leaf.flatten().to(dtype) for leaf in torch.meshgrid(*[torch.tensor(ends)] * 2, indexing="ij"))
    q, w = MeanField(torch.full((1, 9), 0.5, dtype=dtype), rho_q[None]), MeanField(torch.zeros(9, dtype=dtype), rho_w)
    terms = q.kl_by_weight(w)[0]
    with mpmath.workdps(60):
        for k in range(9):
            sigma, omega = (mpmath.log1p(mpmath.exp(leaf[k].item())) for leaf in (rho_q, rho_w))
            exact = mpmath.log(omega / sigma) + (sigma**2 + mpmath.mpf("0.25")) / (2 * omega**2) - mpmath.mpf("0.5")
            assert terms[k].item() == pytest.approx(float(exact), rel=3e-8)
    assert q.precompute().kl(w.precompute()).isfinite().all()
    for slopes in (q.precompute().kl_gradient(w.precompute()), q.precompute().kl_gradient_wrt_prior(w.precompute())):
        assert all(leaf.isfinite().all() for leaf in slopes)
    leaf_q, leaf_w = asking(q), asking(w)
    slopes = torch.autograd.grad(leaf_q.kl(leaf_w).sum(), [*leaf_q, *leaf_w])
    assert all(leaf.isfinite().all() for leaf in slopes)


@pytest.mark.parametrize("dtype", ENDS, ids=str)
@pytest.mark.parametrize("wild", [-110.0, -1e6, 1e6])
def test_rho_is_kept_in_its_range_in_place(wild: float, dtype: torch.dtype) -> None:
    low, usual, high = ENDS[dtype]
    q = MeanField(torch.zeros(1, 2, dtype=dtype), torch.tensor([[wild, usual]], dtype=dtype))
    same_q = q.bounded()
    assert same_q.rho.data_ptr() == q.rho.data_ptr()
    assert q.rho.tolist() == [[low if wild < 0 else high, usual]]
    w = MeanField(torch.zeros(2, dtype=dtype), torch.full((2,), usual, dtype=dtype))
    assert q.kl(w).isfinite().all()
    for slopes in (q.precompute().kl_gradient(w.precompute()), q.precompute().kl_gradient_wrt_prior(w.precompute())):
        assert all(leaf.isfinite().all() for leaf in slopes)


# draws ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["philox", "generators"])
def test_draws_have_the_stated_moments(engine: str) -> None:
    clients = 20_000
    q = MeanField(*(leaf.expand(clients, 3) for leaf in some(5, 3)))
    noise = Noise(0, 1, range(clients), engine=engine)  # type: ignore[arg-type]
    theta = q.weights(q.draw(noise))
    standard = (theta - q.mean()) / q.scale
    assert stats.kstest(standard.flatten().numpy(), stats.norm.cdf).pvalue > 1e-3
    assert (standard.mean(0).abs() < 4 / math.sqrt(clients)).all()
    correlation = torch.corrcoef(standard.T) - torch.eye(3)
    assert (correlation.abs() < 4 / math.sqrt(clients)).all()


def test_the_way_back_from_the_weights_is_autograd_s() -> None:
    q = asking(some(6, K, D))
    eps, grad_weights = some(7, K, D)
    theta = q.loc + softplus(q.rho) * eps
    slopes = torch.autograd.grad(theta, [*q], grad_weights)
    with torch.no_grad():
        assert torch.equal(q.precompute().weights(eps), q.weights(eps))
        torch.testing.assert_close(q.weights(eps), theta, rtol=1e-14, atol=1e-15)
        same(q.precompute().vjp(eps, grad_weights), *slopes)


def test_a_site_is_a_normal_whose_draw_is_given() -> None:
    q, eps = some(8, K, 2, 3), some(9, K, D).loc
    flat = MeanField(*(torch.cat((torch.zeros(K, 1, dtype=torch.float64), leaf.flatten(1)), 1) for leaf in q))
    site = flat.site(slice(1, 7), (2, 3), eps)
    assert site.batch_shape == (K,) and site.event_shape == (2, 3) and isinstance(site.base_dist, NormalFrom)
    torch.testing.assert_close(site.rsample(), flat.weights(eps)[:, 1:].unflatten(1, (2, 3)), rtol=1e-14, atol=1e-15)
    wide = site.base_dist.expand((2, K, 2, 3)).rsample()
    assert torch.equal(wide[1], site.rsample())
    prior = some(10, D).site(slice(1, 7), (2, 3), None)
    torch.testing.assert_close(
        kl_divergence(site, prior), flat.kl_by_weight(some(10, D))[:, 1:].sum(1), rtol=1e-12, atol=0
    )
    scalar = flat.site(slice(0, 1), (), eps)
    assert scalar.batch_shape == (K,) and scalar.event_shape == ()


def test_the_start_breaks_the_symmetry_of_means_alone() -> None:
    model = BayesianMLP((99, 200, 1), Gaussian(), torch.float64)
    start = initial_mean_field(model, 0.1, -2.5, torch.Generator().manual_seed(1), 2)
    assert start.loc.shape == start.rho.shape == (2, model.dim)
    assert (start.rho == -2.5).all()
    for row in start.loc.numpy():
        assert stats.kstest(row / 0.1, stats.norm.cdf).pvalue > 1e-3
    assert abs(np.corrcoef(start.loc.numpy())[0, 1]) < 0.03  # clusters differ
    single = BayesianMLP((99, 200, 1), Gaussian())
    again = initial_mean_field(single, 0.1, -2.5, torch.Generator().manual_seed(1), 2)
    assert again.loc.dtype == torch.float32 and torch.equal(again.loc, start.loc.float())
    assert initial_mean_field(model, 0.1, -3.0, torch.Generator().manual_seed(1)).loc.shape == (model.dim,)


def test_the_start_knows_centres_and_sites_without_uncertainty() -> None:
    class Scaled(BayesianMLP):
        deterministic = frozenset({"bias_0"})

        def centre(self) -> Tensor:
            return torch.arange(self.dim, dtype=torch.float64)

    model = Scaled((2, 3, 1), Gaussian(), torch.float64)
    start = initial_mean_field(model, 1e-6, -2.5, torch.Generator().manual_seed(1))
    torch.testing.assert_close(start.loc, model.centre(), rtol=0, atol=1e-5)
    assert start.rho.tolist() == [-2.5] * 6 + [-20.0] * 3 + [-2.5] * 4
