"""Weights that are exactly zero or Gaussian: published values, torch's registry, and the gate's relaxed slope."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Bernoulli, Normal, kl_divergence
from torch.nn.functional import logsigmoid, softplus

from pacbayes_fl import bounds
from pacbayes_fl.models.likelihoods import inverse_softplus
from pacbayes_fl.noise import Engine, Noise
from pacbayes_fl.posteriors.weights.spike_slab import (
    BernoulliGaussian,
    HardGate,
    SpikeSlab,
    SpikeSlabDraw,
    bernoulli_kl,
    relaxed_slope,
)

K, D = 3, 7


def one(inclusion: float, loc: float, std: float) -> SpikeSlab:
    logit = math.log(inclusion / (1 - inclusion))
    return SpikeSlab(*(torch.tensor([[value]], dtype=torch.float64) for value in (loc, inverse_softplus(std), logit)))


def some(seed: int, *shape: int) -> SpikeSlab:
    generator = torch.Generator().manual_seed(seed)
    loc, rho, logit = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    return SpikeSlab(loc, rho - 1.0, 2.0 * logit)


def random_draw(seed: int, *shape: int, temperature: float = 0.5) -> SpikeSlabDraw:
    generator = torch.Generator().manual_seed(seed)
    eps = torch.randn(shape, generator=generator, dtype=torch.float64)
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    return SpikeSlabDraw(eps, torch.logit(uniform), temperature)


def asking(q: SpikeSlab) -> SpikeSlab:
    return SpikeSlab(*(leaf.clone().requires_grad_(True) for leaf in q))


def distribution(q: SpikeSlab) -> BernoulliGaussian:
    return BernoulliGaussian(q.loc, softplus(q.rho), q.logit)


def plain_kl(q: SpikeSlab, w: SpikeSlab) -> Tensor:
    """Eq. 34 from torch's own divergences."""
    gates = kl_divergence(Bernoulli(logits=q.logit), Bernoulli(logits=w.logit.expand_as(q.logit)))
    slabs = kl_divergence(Normal(q.loc, softplus(q.rho)), Normal(w.loc, softplus(w.rho)))
    total: Tensor = gates + torch.sigmoid(q.logit) * slabs
    return total.sum(-1)


# the divergence -------------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_the_divergence_has_its_published_value() -> None:
    q, w = one(0.8, 0.3, 0.1), one(0.5, 0.0, 0.2)
    assert q.kl(w).item() == pytest.approx(1.3472625014697135, abs=1e-10)
    assert kl_divergence(distribution(q), distribution(w)).item() == pytest.approx(1.3472625014697135, abs=1e-10)


@pytest.mark.parametrize("pair", ["published", "random"])
def test_the_divergence_is_the_mean_of_the_log_ratio_of_what_is_drawn(pair: str) -> None:
    """The bound of eq. 34 is an equality: gates need not be seen, since a weight is 0 only where its gate is shut."""
    q, w = (one(0.8, 0.3, 0.1), one(0.5, 0.0, 0.2)) if pair == "published" else (some(0, 1, D), some(1, 1, D))
    draws = 400_000
    theta = q.weights(random_draw(2, draws, q.loc.shape[1]))
    ratio = (distribution(q).log_prob(theta) - distribution(w).log_prob(theta)).sum(1)
    error = ratio.std().item() / math.sqrt(draws)
    assert abs(ratio.mean().item() - q.kl(w).item()) < 4 * error
    assert error < 0.02 * q.kl(w).item()


@pytest.mark.parametrize("shared", [True, False])
def test_the_divergence_its_registry_and_its_slopes_are_torch_s(shared: bool) -> None:
    q, w = asking(some(0, K, D)), asking(some(1, *((D,) if shared else (K, D))))
    value = plain_kl(q, w)
    torch.testing.assert_close(q.kl(w), value, rtol=1e-12, atol=0)
    torch.testing.assert_close(kl_divergence(distribution(q), distribution(w)).sum(-1), value, rtol=1e-12, atol=0)
    slopes = torch.autograd.grad(value.sum(), [*q, *w])
    with torch.no_grad():
        torch.testing.assert_close(q.precompute().kl(w.precompute()), value, rtol=1e-12, atol=0)
        mine = q.precompute().kl_gradient(w.precompute())
        theirs = q.precompute().kl_gradient_wrt_prior(w.precompute())
        assert all(leaf.shape == (K, D) for leaf in (*mine, *theirs))
        summed = [leaf.sum(0) if shared else leaf for leaf in theirs]
        for got, expected in zip((*mine, *summed), slopes, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_at_the_prior_everything_is_exactly_zero(dtype: torch.dtype) -> None:
    q = SpikeSlab(*(3.0 * leaf.to(dtype) for leaf in some(2, K, 1001)))
    w = SpikeSlab(*(leaf.clone() for leaf in q))
    assert torch.equal(q.kl(w), torch.zeros(K, dtype=torch.float64))
    assert torch.equal(q.precompute().kl(w.precompute()), torch.zeros(K, dtype=torch.float64))
    for slopes in (q.precompute().kl_gradient(w.precompute()), q.precompute().kl_gradient_wrt_prior(w.precompute())):
        assert not any(leaf.any() for leaf in slopes)


@pytest.mark.parametrize(
    ("logit", "prior", "value", "slope"),
    [
        (-30.0, 0.0, 0.6931472, None),
        (0.0, -30.0, 14.306853, 7.5),
        (0.0, 100.0, 49.306854, -25.0),
        (100.0, 100.0, 0.0, 0.0),
        (15.0, -15.0, 14.999990823, None),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gates_divergence_is_finite_wherever_logits_are(
    logit: float, prior: float, value: float, slope: float | None, dtype: torch.dtype
) -> None:
    leaf = torch.tensor(logit, dtype=dtype, requires_grad=True)
    got = bernoulli_kl(leaf, torch.tensor(prior, dtype=dtype))
    got.backward()
    assert got.item() == pytest.approx(value, rel=1e-6, abs=1e-6)
    assert leaf.grad is not None and leaf.grad.isfinite()
    if slope is not None:
        assert leaf.grad.item() == pytest.approx(slope, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 20.0), (torch.float64, 40.0)])
def test_parameters_are_kept_where_nothing_breaks(dtype: torch.dtype, limit: float) -> None:
    wild = torch.tensor([-110.0, -3.0, 110.0], dtype=dtype)
    grid = torch.meshgrid(wild, wild, wild, wild, indexing="ij")
    rho_q, rho_w, logit_q, logit_w = (leaf.flatten() for leaf in grid)
    q = SpikeSlab(torch.full((1, 81), 0.5, dtype=dtype), rho_q[None].clone(), logit_q[None].clone())
    w = SpikeSlab(torch.zeros(81, dtype=dtype), rho_w.clone(), logit_w.clone())
    assert q.bounded().logit.data_ptr() == q.logit.data_ptr()
    w.bounded()
    assert (q.rho.min(), q.rho.max(), q.logit.min(), q.logit.max()) == (-limit, limit, -15, 15)
    assert q.kl(w).isfinite().all() and (q.kl(w) > 0).all()
    for slopes in (q.precompute().kl_gradient(w.precompute()), q.precompute().kl_gradient_wrt_prior(w.precompute())):
        assert all(leaf.isfinite().all() for leaf in slopes)
    back = q.precompute().vjp(random_draw(0, 1, 81).map(lambda leaf: leaf.to(dtype)), torch.ones_like(q.loc))
    assert all(leaf.isfinite().all() for leaf in back)


# draws and gates ------------------------------------------------------------------------------------------------


def test_the_gate_its_slope_and_the_weight_have_their_published_values() -> None:
    logistic = torch.logit(torch.tensor(0.3, dtype=torch.float64))
    inclusion = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    eta = torch.logit(inclusion) + logistic
    assert eta.item() == pytest.approx(0.5389965007326872, rel=1e-13)
    relaxed = torch.sigmoid(eta / 0.5)
    assert relaxed.item() == pytest.approx(0.7461139896373058, rel=1e-13)
    gate = HardGate.apply(eta, 0.5)  # type: ignore[no-untyped-call]
    gate.backward()
    assert gate.item() == 1.0
    assert inclusion.grad is not None
    assert inclusion.grad.item() == pytest.approx(2.3678488013101022, rel=1e-12)
    assert relaxed_slope(eta.detach(), 0.5).item() * 1 / 0.16 == pytest.approx(2.3678488013101022, rel=1e-12)

    weight = one(0.8, 0.3, 0.07888973429254963)
    draw = SpikeSlabDraw(torch.full((1, 1), 1.2, dtype=torch.float64), logistic.view(1, 1))
    assert weight.weights(draw).item() == pytest.approx(0.39466768115105955, rel=1e-12)
    assert weight.weights(draw._replace(logistic=draw.logistic - 3.0)).item() == 0.0


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
def test_the_way_back_from_the_weights_is_the_straight_through_estimate(temperature: float) -> None:
    q, draw = asking(some(3, K, D)), random_draw(4, K, D, temperature=temperature)
    grad_weights = some(5, K, D).loc
    eta = q.logit + draw.logistic
    relaxed = torch.sigmoid(eta / temperature)
    gate = (eta > 0).to(eta.dtype) + relaxed - relaxed.detach()  # hard forward, relaxed backward, in plain torch
    theta = gate * (q.loc + softplus(q.rho) * draw.eps)
    expected = torch.autograd.grad(theta, [*q], grad_weights)
    given = BernoulliGaussian(q.loc, softplus(q.rho), q.logit, draw)
    sampled = given.rsample()
    through_site = torch.autograd.grad(sampled, [*q], grad_weights)
    with torch.no_grad():
        assert torch.equal(q.weights(draw), q.precompute().weights(draw))
        for other in (sampled, q.weights(draw)):
            assert torch.equal(other != 0, eta > 0)
            torch.testing.assert_close(other, theta, rtol=1e-13, atol=1e-15)
        for got in (q.precompute().vjp(draw, grad_weights), through_site):
            for leaf, wanted in zip(got, expected, strict=True):
                torch.testing.assert_close(leaf, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("engine", ["philox", "generators"])
def test_draws_have_the_stated_law(engine: Engine) -> None:
    clients = 20_000
    q = SpikeSlab(*(leaf.expand(clients, 3) for leaf in some(6, 3)))
    draw = q.draw(Noise(0, 1, range(clients), engine=engine))
    assert draw.logistic.isfinite().all() and draw.temperature == 0.5
    assert stats.kstest(draw.logistic.flatten().numpy(), stats.logistic.cdf).pvalue > 1e-3
    theta = q.weights(draw)
    inside = theta != 0
    share = q.inclusion[0]
    assert ((inside.double().mean(0) - share).abs() < 4 * (share * (1 - share) / clients).sqrt()).all()
    assert ((theta.mean(0) - q.mean()[0]).abs() < 4 * theta.std(0) / math.sqrt(clients)).all()
    for k in range(3):
        slab = (theta[inside[:, k], k] - q.loc[0, k]) / softplus(q.rho[0, k])
        assert stats.kstest(slab.numpy(), stats.norm.cdf).pvalue > 1e-3  # the gate does not look at eps


def test_pruned_weights_are_never_drawn() -> None:
    q = some(7, K, 200)
    pruned = q.pruned(0.4)
    gone = torch.sigmoid(q.logit) < 0.4
    assert 0 < gone.sum() < gone.numel()
    for seed in range(5):
        draw = random_draw(seed, K, 200)
        assert torch.equal(pruned.weights(draw), q.weights(draw) * ~gone)
    assert torch.equal(pruned.mean(), q.mean() * ~gone)
    assert torch.equal(pruned.inclusion, q.inclusion * ~gone)
    everything = q.pruned(0.0)
    assert all(torch.equal(a, b) for a, b in zip(everything, q, strict=True))


def test_a_site_is_what_its_weights_are() -> None:
    q, w, draw = some(8, K, D), some(9, D), random_draw(10, K, D)
    site, prior = q.site(slice(1, 7), (2, 3), draw), w.site(slice(1, 7), (2, 3), None)
    assert site.batch_shape == (K,) and site.event_shape == prior.event_shape == (2, 3)
    expected = q.weights(draw)[:, 1:].unflatten(1, (2, 3))
    torch.testing.assert_close(site.rsample(), expected, rtol=1e-13, atol=1e-15)
    rest = [SpikeSlab(*(leaf[..., 1:] for leaf in family)) for family in (q, w)]
    torch.testing.assert_close(kl_divergence(site, prior), plain_kl(*rest), rtol=1e-12, atol=0)
    wide = site.base_dist.expand((2, K, 2, 3))
    assert torch.equal(wide.rsample()[1], site.rsample())
    with pytest.raises(NotImplementedError, match="pass them as `draw`"):
        prior.base_dist.rsample()


def test_the_density_has_a_mass_at_zero() -> None:
    q = some(11, D)
    law = distribution(q)
    assert torch.equal(law.log_prob(torch.zeros(D, dtype=torch.float64)), logsigmoid(-q.logit))
    value = torch.full((D,), 0.3, dtype=torch.float64)
    slab = stats.norm(q.loc.numpy(), softplus(q.rho).numpy()).pdf(0.3) * q.inclusion.numpy()
    assert law.log_prob(value).exp().numpy() == pytest.approx(slab, rel=1e-12)


def test_the_divergence_of_pruned_distributions_is_the_certificates_oracle() -> None:
    """A gate that is shut in both adds nothing; one that the prior shuts and q may open makes it infinite."""
    p, q = some(3, K, D), some(4, K, D)
    shut = torch.zeros(K, D, dtype=torch.bool)
    shut[0, :3] = shut[1, 5] = True
    p = p._replace(logit=p.logit.masked_fill(shut, -torch.inf))
    closed = q._replace(logit=q.logit.masked_fill(shut, -torch.inf))
    more = closed._replace(logit=closed.logit.index_fill(1, torch.tensor([6]), -torch.inf))  # q may prune by itself
    for one in (closed, more):
        oracle = bounds.bernoulli_gaussian_kl(
            *(one.loc, softplus(one.rho).square(), one.inclusion), *(p.loc, softplus(p.rho).square(), p.inclusion)
        )
        torch.testing.assert_close(one.kl(p), oracle, rtol=1e-12, atol=0)
        assert oracle.isfinite().all()
    assert q.kl(p).isinf().tolist() == [True, True, False] and not closed.kl(closed).any()
    broken = closed._replace(logit=closed.logit.index_fill(1, torch.tensor([6]), torch.nan))
    assert broken.kl(p).isnan().all()
