"""Predictions of networks with random weights: averages over draws against loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pyro import distributions
from scipy import stats
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Engine, Noise
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.sampled import SampledMixture
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior, averaged, repeated
from pacbayes_fl.posteriors.weights.spike_slab import SpikeSlab

IDS, K, N, S = (4, 9, 2), 3, 6, 5
REGRESSION = BayesianMLP((2, 4, 1), Gaussian(0.3), torch.float64)
LABELS = BayesianMLP((2, 4, 3), Categorical(3), torch.float64)


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def family(kind: str, model: BayesianMLP) -> Any:
    loc, rho, logit = (randn(seed, K, model.dim) for seed in range(3))
    return {
        "mean-field": MeanField(loc, rho - 1),
        "spike-slab": SpikeSlab(loc, rho - 1, logit),
        "point": PointMass(loc),
    }[kind]


X = randn(50, K, N, 2)
every_family = pytest.mark.parametrize("kind", ["mean-field", "spike-slab", "point"])
both = pytest.mark.parametrize("engine", ["philox", "generators"])


def outputs(model: BayesianMLP, theta: Tensor) -> Tensor:
    w0, b0, w1, b1 = model.unflatten(theta).values()
    return torch.relu(X @ w0 + b0.unsqueeze(1)) @ w1 + b1.unsqueeze(1)


@every_family
@both
def test_probabilities_are_averaged_over_draws(kind: str, engine: Engine) -> None:
    q = family(kind, LABELS)
    predictive = WeightPosterior(LABELS, q, S, Noise(3, 0, IDS, engine=engine)).predict(X)
    noise = Noise(3, 0, IDS, engine=engine)
    each = [torch.softmax(outputs(LABELS, q.weights(q.draw(noise))), -1) for _ in range(S)]
    assert isinstance(predictive, ClassMixture)
    torch.testing.assert_close(predictive.probs, torch.stack(each).mean(0), rtol=1e-12, atol=1e-14)


@every_family
@both
def test_numbers_are_a_mixture_of_a_normal_per_draw(kind: str, engine: Engine) -> None:
    q = family(kind, REGRESSION)
    predictive = WeightPosterior(REGRESSION, q, S, Noise(3, 0, IDS, engine=engine)).predict(X)
    noise = Noise(3, 0, IDS, engine=engine)
    means = torch.stack([outputs(REGRESSION, q.weights(q.draw(noise)))[..., 0] for _ in range(S)])
    assert isinstance(predictive, NormalMixture)
    torch.testing.assert_close(predictive.mean, means.mean(0), rtol=1e-12, atol=1e-13)
    variance = 0.09 + means.var(0, unbiased=False)  # of the observation, and between draws
    torch.testing.assert_close(predictive.variance, variance, rtol=1e-11, atol=0)
    y = randn(60, K, N)
    each = torch.distributions.Normal(means, 0.3).log_prob(y)
    torch.testing.assert_close(predictive.log_prob(y), each.logsumexp(0) - math.log(S), rtol=1e-11, atol=1e-12)


@every_family
def test_at_the_mean_there_is_one_network(kind: str) -> None:
    for model in (LABELS, REGRESSION):
        q = family(kind, model)
        posterior = WeightPosterior(model, q, S, Noise(3, 0, IDS))
        predictive, out = posterior.predict_at_mean(X), outputs(model, q.mean())
        if isinstance(predictive, NormalMixture):
            torch.testing.assert_close(predictive.mean, out[..., 0], rtol=1e-12, atol=1e-14)
            torch.testing.assert_close(predictive.variance, torch.full((K, N), 0.09).double(), rtol=1e-6, atol=0)
        else:
            torch.testing.assert_close(predictive.probs, torch.softmax(out, -1), rtol=1e-12, atol=1e-14)


def test_every_prediction_takes_the_same_draws_and_moves_no_stream() -> None:
    noise = Noise(3, 0, IDS)
    posterior = WeightPosterior(REGRESSION, family("mean-field", REGRESSION), S, noise)
    whole = posterior.predict(X)
    assert isinstance(whole, NormalMixture)
    for rows in (slice(0, 2), slice(3, 6)):  # one function per draw, whatever the rows
        part = posterior.predict(X[:, rows])
        assert isinstance(part, NormalMixture)
        torch.testing.assert_close(part.means, whole.means[:, :, rows], rtol=1e-12, atol=1e-13)
    assert torch.equal(noise.normal(X), Noise(3, 0, IDS).normal(X))


def test_a_shrunk_draw_is_nearer_to_the_mean() -> None:
    q = family("mean-field", REGRESSION)
    usual, shrunk = (WeightPosterior(REGRESSION, q, S, Noise(3, 0, IDS), None, std) for std in (1.0, 1e-6))
    at_mean = usual.predict_at_mean(X).mean  # type: ignore[union-attr]
    torch.testing.assert_close(shrunk.predict(X).mean, at_mean, rtol=1e-4, atol=1e-4)  # type: ignore[union-attr]
    assert (usual.predict(X).mean - at_mean).abs().max() > 0.01  # type: ignore[union-attr]


def test_predictions_carry_no_gradient_and_networks_in_float32_give_float64_numbers() -> None:
    model = BayesianMLP((2, 4, 1), Gaussian(0.3))
    q = MeanField(*(leaf.float().requires_grad_(True) for leaf in family("mean-field", REGRESSION)))
    predictive = WeightPosterior(model, q, S, Noise(3, 0, IDS)).predict(X)
    assert isinstance(predictive, NormalMixture)
    assert (
        predictive.means.dtype == predictive.log_weights.dtype == torch.float64 and not predictive.means.requires_grad
    )


# networks that are drawn ------------------------------------------------------------------------------------------


@every_family
@both
def test_networks_are_drawn_from_the_family_with_the_noise_that_is_given(kind: str, engine: Engine) -> None:
    q, given = family(kind, LABELS), Noise(7, 1, IDS, engine=engine)
    posterior = WeightPosterior(LABELS, q, S, Noise(3, 0, IDS, engine=engine))
    first = [one.logits for one in posterior.sample_hypotheses(X, 4, given)]  # type: ignore[attr-defined]
    noise = Noise(7, 1, IDS, engine=engine)
    for result in first:
        expected = outputs(LABELS, q.weights(q.draw(noise))).log_softmax(-1)
        assert result.shape == (K, N, 3)
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-13)
    assert torch.equal(first[0], first[1]) == (kind == "point")
    for rows in (slice(0, 2), slice(3, 6)):  # the same networks at other inputs: the streams were left as they are
        for result, one in zip(first, posterior.sample_hypotheses(X[:, rows], 4, given), strict=True):
            torch.testing.assert_close(one.logits, result[:, rows], rtol=1e-12, atol=1e-13)  # type: ignore[attr-defined]


def test_draws_that_a_preset_shrinks_are_whole_where_networks_are_drawn() -> None:
    q = family("mean-field", REGRESSION)
    usual, shrunk = (WeightPosterior(REGRESSION, q, S, Noise(3, 0, IDS), None, std) for std in (1.0, 1e-3))
    for one, other in zip(
        usual.sample_hypotheses(X, 3, Noise(7, 1, IDS)), shrunk.sample_hypotheses(X, 3, Noise(7, 1, IDS)), strict=True
    ):
        assert torch.equal(one.mean, other.mean)


def test_drawing_has_no_gradient_and_leaves_the_caller_s_mode_alone() -> None:
    q = MeanField(*(leaf.clone().requires_grad_(True) for leaf in family("mean-field", REGRESSION)))
    posterior = WeightPosterior(REGRESSION, q, S, Noise(3, 0, IDS))
    for one in posterior.sample_hypotheses(X, 2, Noise(7, 1, IDS)):
        assert torch.is_grad_enabled() and not one.mean.requires_grad


@pytest.mark.parametrize("kind", ["mean-field", "spike-slab"])
def test_a_linear_model_s_outputs_have_the_moments_of_its_weights(kind: str) -> None:
    """One layer: f = x w + b, so that mean and covariance of two outputs are known."""
    model, many = BayesianMLP((2, 1), Gaussian(0.3), torch.float64), 400
    loc, rho, logit = (randn(seed, model.dim) for seed in range(3))
    scale = torch.nn.functional.softplus(rho)
    lam = torch.sigmoid(logit) if kind == "spike-slab" else torch.ones_like(loc)
    mean, variance = lam * loc, lam * (scale.square() + loc.square()) - (lam * loc).square()
    leaves = [leaf.expand(many, -1) for leaf in (loc, rho, logit)]
    q = SpikeSlab(*leaves) if kind == "spike-slab" else MeanField(*leaves[:2])
    noise, x = Noise(3, 0, range(many)), randn(51, 2, 2)
    drawn = WeightPosterior(model, q, 1, noise).sample_hypotheses(x.expand(many, 2, 2), 50, noise)
    result = torch.cat([one.mean for one in drawn])  # [20000, 2]
    inputs = torch.cat((x, torch.ones(2, 1, dtype=torch.float64)), 1)
    expected = inputs * variance @ inputs.T
    error = (expected.diagonal() / len(result)).sqrt()
    assert ((result.mean(0) - inputs @ mean).abs() < 4 * error).all()
    torch.testing.assert_close(result.T.cov(), expected, rtol=0.05, atol=0.05 * float(expected.abs().max()))


def test_an_observation_of_another_kind_is_a_mixture_of_its_own() -> None:
    rates = randn(61, S, K, N).exp()
    result = averaged((distributions.Poisson(rate) for rate in rates), Noise(3, 0, IDS))
    assert isinstance(result, SampledMixture) and result.kind == "Poisson"
    y = torch.full((K, N), 2.0).double()
    density = stats.poisson(rates.numpy()).pmf(2).mean(0)
    torch.testing.assert_close(result.log_prob(y).exp(), torch.as_tensor(density), rtol=1e-12, atol=0)
    torch.testing.assert_close(result.mean, rates.mean(0), rtol=1e-12, atol=0)


def by_row(model: BayesianMLP, q: Any, draws: int, engine: Engine = "philox", x: Tensor = X) -> Tensor:
    each = WeightPosterior(model, q, 1, Noise(3, 0, IDS)).sample_by_row(x, draws, Noise(3, 0, IDS, engine=engine))
    assert each is not None
    return torch.stack([one.logits if isinstance(one, distributions.Categorical) else one.mean for one in each])


@both
def test_a_layer_by_row_has_the_normals_of_its_units(engine: Engine) -> None:
    model = BayesianMLP((2, 3), Categorical(3), torch.float64)
    q = family("mean-field", model)
    (mu, m), (sd, s) = (tuple(model.unflatten(leaf).values()) for leaf in (q.loc, q.scale))
    eps = Noise(3, 0, IDS, engine=engine).normal_by_row(X.new_empty(K, N, 3))
    expected = X @ mu + m.unsqueeze(1) + eps * (X.square() @ sd.square() + s.square().unsqueeze(1)).sqrt()
    torch.testing.assert_close(by_row(model, q, 1, engine)[0].softmax(-1), expected.softmax(-1), rtol=1e-12, atol=0)


@pytest.mark.slow
def test_a_row_by_row_is_predicted_as_by_networks_that_serve_all_rows() -> None:
    """Means and covariances of the outputs of a row are those of whole networks; two rows of a draw are independent."""
    q, draws = family("mean-field", LABELS), 4_000
    q = MeanField(q.loc, q.rho - 1.5)
    rows = by_row(LABELS, q, draws).softmax(-1)
    noise = Noise(8, 0, IDS, engine="generators")
    whole = torch.stack([outputs(LABELS, q.weights(q.draw(noise))).softmax(-1) for _ in range(draws)])
    torch.testing.assert_close(rows.mean(0), whole.mean(0), rtol=0, atol=5 * 2**0.5 * 0.5 / draws**0.5)
    for name, one in {"own": 0, "next": 1}.items():
        products = [(each - each.mean(0)) * (each - each.mean(0)).roll(-one, 2) for each in (rows, whole)]
        spread = 5 * (products[0].var(0) / draws + products[1].var(0) / draws).sqrt()
        alone, shared = (each.mean(0) for each in products)
        if name == "own":
            assert ((alone - shared).abs() <= spread).all()
        else:
            assert (alone.abs() <= spread).all() and (shared.abs() > spread).any()


@both
def test_draws_by_row_do_not_depend_on_padding_or_other_clients(engine: Engine) -> None:
    q, wide = family("mean-field", REGRESSION), torch.cat((X, randn(51, K, 300, 2)), 1)
    whole = by_row(REGRESSION, q, 2, engine)
    torch.testing.assert_close(by_row(REGRESSION, q, 2, engine, wide)[:, :, :N], whole, rtol=1e-12, atol=1e-14)
    alone = WeightPosterior(REGRESSION, MeanField(q.loc[1:2], q.rho[1:2]), 1, Noise(3, 0, IDS[1:2]))
    each = alone.sample_by_row(X[1:2], 2, Noise(3, 0, IDS[1:2], engine=engine))
    assert each is not None
    torch.testing.assert_close(torch.stack([one.mean for one in each]), whole[:, 1:2], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", ["spike-slab", "point"])
def test_other_families_do_not_draw_by_row(kind: str) -> None:
    noise = Noise(3, 0, IDS)
    assert WeightPosterior(LABELS, family(kind, LABELS), 1, noise).sample_by_row(X, 3, noise) is None


class Tanh(BayesianMLP):
    """Another nonlinearity than that whose units are known to be drawn row by row."""

    def forward(self, weights: Any, rows: Any, reference: Any = None, traces: Any = None) -> Tensor:
        w0, b0, w1, b1 = weights.values()
        hidden = (rows.x @ w0 + b0.unsqueeze(1)).tanh()
        return hidden @ w1 + b1.unsqueeze(1)


class Tied(BayesianMLP):
    """Units of a layer that share their weights: they are not independent given their inputs."""

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        return {site: leaf[..., :1].expand_as(leaf) for site, leaf in super().unflatten(flat).items()}


@pytest.mark.parametrize("kind", [Tanh, Tied])
def test_a_network_of_one_s_own_does_not_draw_by_row(kind: type[BayesianMLP]) -> None:
    model, noise = kind(LABELS.sizes, LABELS.likelihood, torch.float64), Noise(3, 0, IDS)
    assert WeightPosterior(model, family("mean-field", model), 1, noise).sample_by_row(X, 3, noise) is None


def test_draws_by_row_move_the_streams_on() -> None:
    """Blocks of rows that are read one after the other have networks that are independent of one another's."""
    noise, posterior = Noise(3, 0, IDS), WeightPosterior(LABELS, family("mean-field", LABELS), 1, Noise(3, 0, IDS))
    either = [posterior.sample_by_row(X, 1, noise) for _ in range(2)]
    first, second = (next(each).logits for each in either if each is not None)
    assert not torch.isclose(first, second).any()


def test_rows_are_repeated_client_by_client() -> None:
    x = torch.arange(6, dtype=torch.float64).view(2, 3, 1)
    batch = ClientBatch(x, x[..., 0], x[..., 0] < 4, (5, 7), ("a", "b"))
    twice = repeated(batch, 2)
    assert twice.names == ("a", "a", "b", "b") and twice.ids == (5, 5, 7, 7)
    assert torch.equal(twice.x, batch.x[[0, 0, 1, 1]]) and torch.equal(twice.mask, batch.mask[[0, 0, 1, 1]])
    assert repeated(batch, 1) is batch
