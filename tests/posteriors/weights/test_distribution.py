"""Families of a torch distribution alone: the mean field's numbers, torch's own draws, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import (
    Beta,
    Categorical,
    Cauchy,
    Distribution,
    Gumbel,
    Laplace,
    LogNormal,
    LowRankMultivariateNormal,
    MultivariateNormal,
    Normal,
    SoftplusTransform,
    StudentT,
    Uniform,
    kl_divergence,
)
from torch.nn.functional import softplus

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference import svi
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.distribution import DistributionFamily, FromDistribution, Start, from_distribution
from pacbayes_fl.posteriors.weights.full_rank import FullRankNormal
from pacbayes_fl.posteriors.weights.mean_field import Diagonal, MeanField

K = 3
MODEL = BayesianMLP((2, 3, 1), Gaussian(), torch.float64)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def begun(family: Any, seed: int = 0) -> Any:
    """Return members of K clients that differ."""
    one = family.initial(MODEL, 0.5, -1.0, generator(seed))
    return type(one)(*(leaf + 0.1 * torch.randn(K, *leaf.shape, generator=generator(seed + 1)) for leaf in one))


def batch() -> ClientBatch:
    rows = torch.randn(K, 4, 2, generator=generator(7), dtype=torch.float64)
    return ClientBatch.pad([(x, x.sum(-1).sin()) for x in rows])


def test_a_normal_is_the_mean_field_in_every_number() -> None:
    """Draw, fit, KL divergence and gradients, from the same start and the same streams."""
    family = from_distribution(Normal)
    q, w = begun(family), begun(family, 5)
    field, prior = MeanField(*q), MeanField(*w)
    assert q._fields == ("loc", "raw_scale") and q.loc is q[0]
    noise = Noise(3, 1, range(K))
    draws, eps = [q.draw(noise.copy())], [field.draw(noise.copy())]
    assert torch.equal(draws[0][0], eps[0])
    scale = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    result = svi.loss_gradient(MODEL, q, w, batch(), draws, 0.7, scale)
    known = svi.loss_gradient(MODEL, field, prior, batch(), eps, 0.7, scale)
    assert result.kl is not None and known.kl is not None
    torch.testing.assert_close(result.log_likelihood, known.log_likelihood, rtol=1e-13, atol=0)
    torch.testing.assert_close(result.kl, known.kl, rtol=1e-12, atol=0)
    for leaf, expected in zip(result.gradient, known.gradient, strict=True):
        torch.testing.assert_close(leaf, expected, rtol=1e-11, atol=1e-12)
    of_prior = (
        q.precompute().kl_gradient_wrt_prior(w.precompute()),
        field.precompute().kl_gradient_wrt_prior(prior.precompute()),
    )
    for leaf, expected in zip(*of_prior, strict=True):
        torch.testing.assert_close(leaf, expected, rtol=1e-11, atol=1e-12)


def test_it_begins_as_the_mean_field_does() -> None:
    result = from_distribution(Normal).initial(MODEL, 0.1, -2.5, generator())
    known = Diagonal().initial(MODEL, 0.1, -2.5, generator())
    assert torch.equal(result.loc, known.loc)
    torch.testing.assert_close(result.raw_scale, known.rho, rtol=1e-13, atol=0)
    assert from_distribution(Normal).held(MODEL.dim) == Diagonal().held(MODEL.dim) == 0


def test_a_multivariate_normal_is_the_built_in_one() -> None:
    family = from_distribution(
        MultivariateNormal, {"loc": lambda start: start.loc, "scale_tril": lambda start: start.scale.diag()}
    )
    q, w = begun(family), begun(family, 5)

    def built_in(one: Any) -> FullRankNormal:
        factor = one.distribution().scale_tril
        row, column = torch.tril_indices(MODEL.dim, MODEL.dim, -1)
        diagonal = factor.diagonal(dim1=-2, dim2=-1)
        return FullRankNormal(one.loc, SoftplusTransform().inv(diagonal), factor[..., row, column])

    torch.testing.assert_close(q.kl(w), built_in(q).kl(built_in(w)), rtol=1e-9, atol=1e-9)
    draw = q.draw(Noise(0, 1, range(K)))
    torch.testing.assert_close(q.weights(draw), built_in(q).weights(draw[0]), rtol=1e-12, atol=1e-13)
    assert family.held(MODEL.dim) == MODEL.dim**2 - MODEL.dim


def low_rank(start: Start) -> Tensor:
    return 0.1 * start.scale.unsqueeze(-1) * torch.ones(2, dtype=start.scale.dtype)


def isotropic(loc: Tensor, scale: Tensor) -> Distribution:
    return Normal(loc, scale).to_event(1) if hasattr(Normal, "to_event") else Normal(loc, scale)


FAMILIES: dict[str, DistributionFamily] = {
    "Normal": from_distribution(Normal),
    "Laplace": from_distribution(Laplace),
    "Gumbel": from_distribution(Gumbel),
    "LogNormal": from_distribution(LogNormal),
    "LowRankMultivariateNormal": from_distribution(
        LowRankMultivariateNormal,
        {"loc": lambda start: start.loc, "cov_factor": low_rank, "cov_diag": lambda start: start.scale.square()},
    ),
    "isotropic": from_distribution(
        isotropic, {"loc": lambda s: s.loc, "scale": lambda s: s.scale[:1]}, {"scale": SoftplusTransform()}
    ),
}
every_family = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())


@every_family
def test_families_of_torch_s_distributions_are_taken(family: DistributionFamily) -> None:
    family.check(MODEL)
    q, w = begun(family), begun(family, 5)
    assert isinstance(q, FromDistribution) and type(q) is family.member
    noise = Noise(3, 1, range(K))
    draw = q.draw(noise.copy())
    theta = q.weights(draw)
    assert theta.shape == (K, MODEL.dim) and torch.equal(theta, q.weights(draw))
    alone = type(q)(*(leaf[1:2] for leaf in q))
    torch.testing.assert_close(alone.weights(alone.draw(noise.select([1])))[0], theta[1], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(q.kl(w), kl_divergence(q.distribution(), w.distribution()), rtol=1e-12, atol=0)
    assert q.kl(w).shape == (K,) and (q.kl(w) > 0).all()


@every_family
def test_draws_are_torch_s_own_but_for_the_streams(family: DistributionFamily) -> None:
    """Mean and spread of many clients' draws are those of `rsample`."""
    one = family.initial(MODEL, 0.5, 0.5, generator())
    many = type(one)(*(leaf.expand(20_000, *leaf.shape) for leaf in one))
    theta = many.weights(many.draw(Noise(0, 1, range(20_000))))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        own = many.distribution().rsample()
    at = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    for column in (0, 4):
        ours, torch_s = theta[:, column].quantile(at), own[:, column].quantile(at)
        torch.testing.assert_close(ours, torch_s, rtol=0.05, atol=0.05)


@every_family
def test_no_draw_touches_torch_s_own_streams(family: DistributionFamily) -> None:
    before = torch.get_rng_state()
    q = begun(family)
    q.precompute().vjp(q.draw(Noise(3, 1, range(K))), torch.ones(K, MODEL.dim, dtype=torch.float64))
    assert torch.equal(torch.get_rng_state(), before)


def test_parameters_that_are_transformed_stay_where_that_is_exact() -> None:
    q = begun(FAMILIES["LowRankMultivariateNormal"])
    for leaf in q:
        leaf.fill_(1000.0)
    assert q.bounded() is q
    assert [float(leaf.max()) for leaf in q] == [1000.0, 1000.0, 40.0]


def positive(start: Start) -> Tensor:
    return softplus(start.loc)


@pytest.mark.parametrize(
    ("family", "said"),
    [
        (lambda: from_distribution(Cauchy), "draws by 'cauchy_', and the clients' streams give normals and uniforms"),
        (
            lambda: from_distribution(
                StudentT, {"df": positive, "loc": lambda start: start.loc, "scale": lambda start: start.scale}
            ),
            "draws by '_standard_gamma'",
        ),
        (
            lambda: from_distribution(Beta, {"concentration0": positive, "concentration1": positive}),
            "draws by '.*(gamma|dirichlet)",
        ),
        (lambda: from_distribution(Categorical, {"logits": lambda start: start.loc}), "Categorical has no rsample"),
        (lambda: from_distribution(lambda loc, scale: Normal(loc, scale)), "how 'scale' is made of any number is not"),
        (
            lambda: from_distribution(Uniform, {"low": lambda s: s.loc, "high": lambda s: s.loc + s.scale}),
            "how 'low' is made of any number is not known",
        ),
        (lambda: from_distribution(Normal, {"not a name": positive}), "a parameter must have a name, got 'not a name'"),
        (
            lambda: from_distribution(Normal, {"loc": lambda s: s.loc[:4], "scale": lambda s: s.scale[:4]}),
            r"draws for 2 clients and 13 weights must be \[2, 13\], got \[2, 4\]",
        ),
        (
            lambda: from_distribution(lambda loc: Normal(loc.detach(), 1.0), {"loc": lambda s: s.loc}, name="Stuck"),
            "Stuck: draws do not depend on the parameters",
        ),
    ],
)
def test_what_cannot_be_learned_or_certified_is_refused_before_anything_is_trained(family: Any, said: str) -> None:
    with pytest.raises(StudyError, match=said):
        family().check(MODEL)


class Shifted(Normal):
    """A distribution whose divergence nobody has registered: torch would take the Normal's."""


class Unregistered(Distribution):
    """A logistic of its own making."""

    has_rsample = True
    arg_constraints: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, loc: Tensor) -> None:
        self.loc = loc
        super().__init__(loc.shape[:-1], loc.shape[-1:], validate_args=False)

    def rsample(self, sample_shape: Any = ()) -> Tensor:
        return self.loc + torch.rand(self.loc.shape, dtype=self.loc.dtype, device=self.loc.device).logit()

    @property
    def mean(self) -> Tensor:
        return self.loc


def test_a_divergence_must_be_known_in_closed_form() -> None:
    family = from_distribution(Unregistered, {"loc": lambda start: start.loc})
    with pytest.raises(StudyError, match="of a Unregistered no KL divergence from another one is known") as caught:
        family.check(MODEL)
    assert "register_kl" in str(caught.value)
