"""ln dQ/dP of one drawn hypothesis of any model: against the library's own families, by closed forms, and mutants."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from sklearn.linear_model import BayesianRidge, LinearRegression
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, Normal
from torch.nn.utils import vector_to_parameters
from torch.utils.data import DataLoader, TensorDataset

from pacbayes_fl import bounds, certify_model
from pacbayes_fl.bounds import Premises, Provenance
from pacbayes_fl.certificates.ratios import number_of, of_gaussians, require_likely
from pacbayes_fl.data.torchvision_ops import ensure_importable
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.posteriors.weights.density import log_ratio
from pacbayes_fl.posteriors.weights.mean_field import MeanField

FINE: dict[str, Any] = {"source": "split", "independent": True}
PREMISES = Premises(Provenance("split"), independent=True)


def data(n: int, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 2))
    return x, (x[:, 0] + 0.5 * random.normal(size=n) > 0).astype(int)


class Linear:
    """A classifier by two drawn weights."""

    def __init__(self, theta: Tensor) -> None:
        self.theta = theta

    def __call__(self, x: Any) -> Tensor:
        score = torch.as_tensor(x) @ self.theta
        return torch.stack((-score, score), 1)


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_a_gaussian_with_known_densities_has_the_certificate_of_the_library_s_own_family(seed: int) -> None:
    q, p = (
        MeanField(*(torch.tensor([each]).double() for each in own)) for own in (([2, 0.3], [-1, 0]), ([0, 0], [1, 1]))
    )

    def draw(generator: torch.Generator) -> Linear:
        return Linear(Normal(q.loc[0], q.scale[0]).loc + q.scale[0] * torch.randn(2, generator=generator).double())

    def ratio(h: Linear) -> Tensor:
        own = [Normal(each.loc[0], each.scale[0]).log_prob(h.theta).sum() for each in (q, p)]
        return own[0] - own[1]

    x, y = data(120, seed)
    got = certify_model(None, None, (x, y), sample=draw, log_ratio=ratio, bound="one-draw", seed=seed, **FINE)
    eps = torch.randn(2, generator=torch.Generator().manual_seed(seed)).double()
    theta, known = log_ratio(q, p, eps.unsqueeze(0))
    risk = float((Linear(theta[0])(x).argmax(1) != torch.from_numpy(y)).double().mean())
    expected = bounds.one_draw(risk, known.item(), 120, 0.05, PREMISES)
    assert (
        got.valid
        and got.premises.predictor == "drawn once"
        and got.value.item() == pytest.approx(expected.value.item(), rel=1e-12)
    )
    assert got.terms["kl"].item() == pytest.approx(known.item(), rel=1e-12) and got.terms["risk"].item() == risk
    alone = certify_model(Linear(theta[0]), None, (x, y), log_ratio=known.item(), **FINE)
    by_default = certify_model(None, None, (x, y), sample=draw, log_ratio=ratio, seed=seed, **FINE)
    assert alone.value.item() == pytest.approx(got.value.item(), rel=1e-12) and by_default.value.equal(got.value)
    seeger = certify_model(None, None, (x, y), sample=draw, log_ratio=ratio, kl=3.0, draws=50, **FINE)
    assert seeger.theorem != got.theorem and seeger.terms["kl"] == 3.0  # the default where a divergence is known


def test_of_gaussians_is_the_difference_of_their_log_densities() -> None:
    generator = torch.Generator().manual_seed(0)
    theta, root = torch.randn(3, generator=generator).double(), torch.randn(3, 3, generator=generator).double()
    q, p = (torch.zeros(3).double(), torch.eye(3).double()), (torch.ones(3).double(), root @ root.mT)
    expected = MultivariateNormal(*q).log_prob(theta) - MultivariateNormal(*p).log_prob(theta)
    assert of_gaussians(theta.float().requires_grad_(), q, p) == pytest.approx(expected.item(), rel=1e-5)


def test_a_drawn_predictor_of_a_list_is_the_one_of_the_seed() -> None:
    x, y = data(90, 2)
    models = [Linear(torch.tensor(each).double()) for each in ([1.0, 0.0], [0.0, 1.0], [-1.0, 0.0])]
    weights, prior = torch.tensor([0.6, 0.3, 0.1]).double(), torch.tensor([0.2, 0.3, 0.5]).double()
    seen = set()
    for seed in range(12):
        got = certify_model(models, prior, (x, y), weights=weights, bound="one-draw", seed=seed, **FINE)
        at = int(torch.multinomial(weights, 1, generator=torch.Generator().manual_seed(seed)))
        risk = float((models[at](x).argmax(1) != torch.from_numpy(y)).double().mean())
        expected = bounds.one_draw(risk, (weights[at] / prior[at]).log(), 90, 0.05, PREMISES).value
        assert got.value.item() == pytest.approx(expected.item(), rel=1e-12)
        seen.add(at)
    assert len(seen) > 1


def test_a_ridge_s_drawn_coefficients_are_those_of_the_seed() -> None:
    (x, _), (more, _) = data(50), data(70, 3)

    def target(x: Any, seed: int) -> Any:
        return x @ [1.0, -2.0] + 0.3 * np.random.default_rng(seed).normal(size=len(x))

    prior, posterior = (BayesianRidge(fit_intercept=False).fit(each, target(each, 0)) for each in (x, more))
    got = certify_model(posterior, prior, (more, target(more, 0)), bound="one-draw", seed=4, **FINE)
    normal = torch.randn(2, generator=torch.Generator().manual_seed(4), dtype=torch.float64).numpy()
    theta = posterior.coef_ + np.linalg.cholesky(posterior.sigma_) @ normal
    q, p = (MultivariateNormal(*map(torch.from_numpy, (each.coef_, each.sigma_))) for each in (posterior, prior))
    ratio = (q.log_prob(torch.from_numpy(theta)) - p.log_prob(torch.from_numpy(theta))).item()
    assert got.terms["kl"].item() == pytest.approx(ratio, rel=1e-9)
    losses = 1 - np.exp(-((more @ theta - target(more, 0)) ** 2))
    assert got.terms["risk"].item() == pytest.approx(losses.mean(), rel=1e-9)


def test_a_laplace_posterior_s_drawn_network_is_that_of_the_seed() -> None:
    ensure_importable()
    from laplace import Laplace

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    x, y = (torch.from_numpy(each) for each in data(60))
    posterior = Laplace(network, "classification", "all", "full")
    posterior.fit(DataLoader(TensorDataset(x.float(), y), 99))
    got = certify_model(
        posterior, "own", (x.float(), y), bound="one-draw", seed=3, source="data-free", independent=True
    )
    theta = posterior.sample(1, generator=torch.Generator().manual_seed(3))[0]
    q = MultivariateNormal(posterior.mean.double(), posterior.posterior_covariance.double())
    ratio = q.log_prob(theta.double()) - Normal(torch.zeros(17).double(), 1.0).log_prob(theta.double()).sum()
    assert got.terms["kl"].item() == pytest.approx(ratio.item(), rel=1e-4)
    drawn = copy.deepcopy(network)
    vector_to_parameters(theta, drawn.parameters())
    assert got.terms["risk"].item() == pytest.approx((drawn(x.float()).argmax(1) != y).double().mean().item())


def test_a_guide_s_drawn_sites_are_those_of_the_seed() -> None:
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    y = x[:, 0] - 0.5 * x[:, 1]

    def program(x: Tensor) -> None:
        w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", dist.Normal(x @ w, 0.3))

    def guide(x: Tensor) -> None:
        pyro.sample("w", dist.Normal(torch.tensor([1.0, -0.5]), 0.2).to_event(1))

    got = certify_model(guide, program, (x, y), bound="one-draw", seed=5, **FINE)
    before = torch.random.get_rng_state()
    torch.manual_seed(5)
    w = pyro.poutine.trace(guide).get_trace(x).nodes["w"]["value"]
    torch.random.set_rng_state(before)
    ratio = Normal(torch.tensor([1.0, -0.5]), 0.2).log_prob(w).sum() - Normal(0.0, 1.0).log_prob(w).sum()
    assert got.terms["kl"].item() == pytest.approx(ratio.item(), rel=1e-5)
    losses = 1 - (-((x @ w).double() - y.double()).square()).exp()
    assert got.terms["risk"].item() < 0.5 and got.terms["risk"].item() == pytest.approx(losses.mean().item(), abs=0.09)


ROWS, MANY, WORLDS = 30, 5000, 60


def failures(log_ratio: Callable[[float], float]) -> int:
    """Worlds in which the certificate of one draw of nearly the best of many coins is below the true risk, 1/2."""
    inputs, targets, failed = np.arange(ROWS)[:, None], np.zeros(ROWS, dtype=int), 0
    errors = np.random.default_rng(0).integers(0, 2, (WORLDS, MANY, ROWS))
    for seed, world in enumerate(errors):
        weights = torch.softmax(-40.0 * torch.from_numpy(world.sum(1)), 0)

        def sample(generator: torch.Generator, world: Any = world, weights: Tensor = weights) -> Any:
            at = int(torch.multinomial(weights, 1, generator=generator))

            class Table:
                weight = float(weights[at])

                def __call__(self, x: Any) -> Any:
                    return world[at][x[:, 0]]

            return Table()

        got = certify_model(
            None, None, (inputs, targets), sample=sample, log_ratio=lambda h: log_ratio(h.weight), seed=seed, **FINE
        )
        failed += got.value.item() < 0.5
    return failed


def test_one_draw_of_a_model_of_one_s_own_covers_and_does_not_without_its_ratio() -> None:
    """Failures of a right bound are 5 % at most: more than 15 of 60 have a probability below 1e-6."""
    assert failures(lambda weight: math.log(weight * MANY)) <= 15
    assert failures(lambda weight: 0.0) > 45  # mutant: as if the posterior were the prior


def test_a_ratio_upside_down_is_refused_by_draws_that_see_no_row() -> None:
    q, p = Normal(2.0, 1.0), Normal(0.0, 1.0)
    sample = lambda generator: 2.0 + torch.randn((), generator=generator)  # noqa: E731
    require_likely(sample, lambda h: q.log_prob(h) - p.log_prob(h))
    with pytest.raises(AssumptionError, match=r"log_ratio must be ln dQ/dP, whose mean over draws .* got -[12]\."):
        require_likely(sample, lambda h: p.log_prob(h) - q.log_prob(h))


def test_a_sampler_that_leaves_its_generator_alone_is_refused() -> None:
    """Its predictor could not be drawn again from the seed that the certificate is of."""
    q, p = Normal(2.0, 1.0), Normal(0.0, 1.0)
    with torch.random.fork_rng(devices=[]), pytest.raises(AssumptionError, match="sample must draw by its generator"):
        require_likely(lambda generator: q.sample(), lambda h: q.log_prob(h) - p.log_prob(h))


@pytest.mark.parametrize(
    "said", [None, True, torch.tensor(True), torch.zeros(2), math.nan, math.inf, -math.inf, "much"]
)
def test_a_ratio_that_is_no_number_of_nats_is_refused(said: Any) -> None:
    assert number_of(torch.tensor(-0.5, requires_grad=True)) == -0.5
    with pytest.raises(AssumptionError, match=r"log_ratio must be ln dQ/dP at the drawn predictor, a finite number"):
        number_of(said)


def test_a_number_that_hardly_any_draw_has_is_refused() -> None:
    """P[ln dQ/dP <= -14] <= exp(-14) < 1e-6: a bound with such a number would be the empirical risk itself."""
    drawn, rows = Linear(torch.ones(2).double()), data(9)
    assert certify_model(drawn, rows=rows, log_ratio=-13.0, **FINE).valid
    for said in (-14.0, torch.tensor(-100.0)):
        with pytest.raises(AssumptionError, match=r"at the drawn predictor, got -1(4|00), which less than one of a"):
            certify_model(drawn, rows=rows, log_ratio=said, **FINE)


def test_what_says_too_little_or_too_much_of_a_draw_is_told_what_to_give() -> None:
    rows, sample = data(9), lambda generator: Linear(torch.ones(2).double())
    for given, message in (
        ({"log_ratio": lambda h: 1.0}, r"is of what sample gives, got no sample \(sample=lambda"),
        ({"log_ratio": 1.0, "kl": 1.0}, r"the one drawn predictor that the model is, got sample or kl"),
        ({"log_ratio": 1.0, "sample": sample}, r"got sample or kl beside it \(leave them out; or log_ratio=lambda h"),
        ({"sample": sample}, r"without a divergence certifies nothing \(kl = .*log_ratio = a function"),
        ({"log_ratio": 1.0, "bound": "seeger"}, r"'seeger' needs kl, which certify_model does not know .*one-draw"),
        ({"log_ratio": 1.0, "bound": "holdout-kl"}, r"is on one predictor that is fixed, and the model is a posterior"),
        ({"kl": 1.0, "bound": "one-draw"}, r"'one-draw' needs log_ratio, .*log_ratio=lambda h: ln q\(h\) - ln p\(h\)"),
    ):
        with pytest.raises(AssumptionError, match=message):
            certify_model(Linear(torch.ones(2).double()), None, rows, **given, **FINE)


def test_an_estimator_that_was_drawn_is_certified_by_its_number() -> None:
    x, y = data(60)
    drawn = LinearRegression().fit(x, y.astype(float))
    got = certify_model(drawn, rows=(x, y.astype(float)), log_ratio=4.0, **FINE)
    losses = 1 - np.exp(-((drawn.predict(x) - y) ** 2))
    assert got.value.item() == pytest.approx(
        bounds.one_draw(losses.mean(), 4.0, 60, 0.05, PREMISES).value.item(), rel=1e-9
    )
