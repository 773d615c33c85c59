"""Log densities of every family against torch's own, and divergences as means of their differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributions import Independent, Laplace, MultivariateNormal, Normal
from torch.nn.functional import softplus

from pacbayes_fl import tensors
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.weights.density import log_density, log_ratio
from pacbayes_fl.posteriors.weights.distribution import from_distribution
from pacbayes_fl.posteriors.weights.full_rank import FullRankNormal
from pacbayes_fl.posteriors.weights.laplace import DiagonalGaussian, SubnetworkGaussian
from pacbayes_fl.posteriors.weights.low_rank import LowRankNormal
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.posteriors.weights.spike_slab import SpikeSlab

K, D, DRAWS = 2, 4, 4000


def made(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)

    def some(*shape: int) -> torch.Tensor:
        return 0.5 * torch.randn(*shape, generator=generator, dtype=torch.float64)

    loc, rho = some(K, D), some(K, D)
    return {
        "mean field": MeanField(loc, rho),
        "spike and slab": SpikeSlab(loc, rho, some(K, D)),
        "full rank": FullRankNormal(loc, rho, some(K, D * (D - 1) // 2)),
        "low rank": LowRankNormal(loc, rho, some(K, D, 2)),
    }


def test_densities_are_those_of_torch() -> None:
    family, theta = made(0), torch.randn(K, D, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    mean_field, full, low = (family[name] for name in ("mean field", "full rank", "low rank"))
    expected = {
        "mean field": Independent(Normal(mean_field.loc, mean_field.scale), 1),
        "full rank": MultivariateNormal(full.loc, scale_tril=full.factor),
        "low rank": MultivariateNormal(low.loc, torch.diag_embed(low.scale**2) + low.factor @ low.factor.mT),
    }
    for name, one in expected.items():
        torch.testing.assert_close(log_density(family[name], theta), one.log_prob(theta), rtol=1e-12, atol=0)


def test_a_family_made_from_a_distribution_draws_tensors_in_no_tree() -> None:
    """Of which `one-draw` could make nothing: bounds of such runs ended in an error about trees."""

    member: Any = from_distribution(Laplace).member
    q, p = (member(*made(seed)["mean field"]) for seed in (1, 2))
    theta, ratio = log_ratio(q, p, q.draw(Noise(0, 0, range(K))))
    expected = [one.distribution().log_prob(theta) for one in (q, p)]
    torch.testing.assert_close(ratio, expected[0] - expected[1])
    assert theta.shape == (K, D) and not torch.equal(theta, q.loc)


@pytest.mark.parametrize("name", list(made(0)))
def test_the_mean_of_log_ratios_is_the_divergence(name: str) -> None:
    q, p = made(1)[name], made(2)[name]
    many, other = (tensors.tree_map(lambda leaf: leaf.repeat(DRAWS, *[1] * (leaf.dim() - 1)), one) for one in (q, p))
    noise = Noise(0, 0, range(DRAWS * K))  # every draw is one client's
    ratios = log_ratio(many, other, many.draw(noise))[1].view(DRAWS, K)
    error = ratios.std(0) / DRAWS**0.5
    assert bool(((ratios.mean(0) - q.kl(p)).abs() < 4.5 * error).all()) and bool((error < 0.03 * q.kl(p)).all())
    assert log_ratio(many, many, many.draw(noise))[1].abs().max() == 0


def test_laplace_posteriors_have_a_density_on_their_subnetwork_and_known_weights_count_nothing() -> None:
    precision = torch.tensor([[3.0, 1.0], [1.0, 2.0]]).double()
    loc, chosen = torch.arange(4.0).double().expand(1, 4), torch.tensor([[0, 2]])
    variance = torch.tensor([[0.0, 0.5, 0.0, 0.0]]).double()
    gaussian = SubnetworkGaussian(loc, chosen, torch.linalg.cholesky(precision).unsqueeze(0), variance)
    theta = gaussian.weights(torch.tensor([[0.3, -1.0, 0.8, 2.0]]).double())
    assert theta[0, 3] == loc[0, 3]
    expected = MultivariateNormal(loc[0, [0, 2]], precision_matrix=precision).log_prob(theta[0, [0, 2]])
    expected = expected + Normal(loc[0, 1], variance[0, 1].sqrt()).log_prob(theta[0, 1])
    torch.testing.assert_close(log_density(gaussian, theta)[0], expected, rtol=1e-12, atol=0)
    assert log_density(gaussian, theta + 1e-3)[0] == -torch.inf
    alone = DiagonalGaussian(loc, variance)
    at = loc + torch.tensor([[0.0, 0.7, 0.0, 0.0]]).double()
    torch.testing.assert_close(log_density(alone, at)[0], Normal(0.0, 0.5**0.5).log_prob(torch.tensor(0.7).double()))


def test_a_spike_is_a_unit_mass_and_what_has_no_density_says_so() -> None:
    spiky = made(3)["spike and slab"]
    zero = torch.zeros(K, D)
    shut = torch.nn.functional.logsigmoid(-spiky.logit).sum(-1)
    torch.testing.assert_close(log_density(spiky, zero), shut, rtol=1e-12, atol=0)
    assert bool((softplus(spiky.rho) > 0).all())
    with pytest.raises(AssumptionError, match="the density of a PointMass at given weights is not known"):
        log_density(PointMass(zero), zero)
