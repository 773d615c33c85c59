"""Weighted mixtures of posteriors over weights against loops."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pyro import distributions
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.models.bayesian_network import BayesianMLP
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.noise import Engine, Noise
from pacbayes_fl.posteriors.base import NormalMixture
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.posteriors.mean_field import MeanField
from pacbayes_fl.posteriors.mixture import MixturePosterior, mixed
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.weights import WeightPosterior
from tests.methods.by_hand import randn

IDS, K, M, S, N = (4, 9, 2), 3, 2, 5, 6
REGRESSION = BayesianMLP((2, 4, 1), Gaussian(0.3), torch.float64)
LABELS = BayesianMLP((2, 4, 3), Categorical(3), torch.float64)
X = randn(50, K, N, 2)
engines = pytest.mark.parametrize("engine", ["philox", "generators"])


def families(model: BayesianMLP) -> tuple[MeanField, ...]:
    return tuple(MeanField(randn(m, K, model.dim), randn(9 + m, K, model.dim) - 1) for m in range(M))


def noise(engine: Engine = "philox") -> Noise:
    return Noise(3, 0, IDS, engine=engine)


def batch() -> ClientBatch:
    return ClientBatch(X, X[..., 0], X[..., 0] > -9, IDS, ("a", "b", "c"))


def weights(draws: int = S) -> Tensor:
    return randn(60, K, M * draws).log_softmax(-1).view(K, M, draws)


def posterior(model: BayesianMLP, engine: Engine = "philox") -> MixturePosterior:
    q = families(model)
    return MixturePosterior(model, q, weights(), noise(engine), tuple(one.mean() for one in q), batch())


def outputs(model: BayesianMLP, theta: Tensor) -> Tensor:
    w0, b0, w1, b1 = model.unflatten(theta).values()
    return torch.relu(X @ w0 + b0.unsqueeze(1)) @ w1 + b1.unsqueeze(1)


def by_draw(model: BayesianMLP, engine: Engine) -> list[tuple[Tensor, Tensor]]:
    """Weight and outputs of every draw of every family, which share their random numbers."""
    streams, out = noise(engine), []
    for s in range(S):
        eps = streams.weights(torch.empty(K, model.dim, dtype=torch.float64))
        out += [
            (weights()[:, m, s].exp(), outputs(model, q.loc + q.scale * eps)) for m, q in enumerate(families(model))
        ]
    return out


@engines
def test_probabilities_are_averaged_with_the_weights_of_their_draws(engine: Engine) -> None:
    found = posterior(LABELS, engine).predict(X)
    expected = sum(w.view(-1, 1, 1) * torch.softmax(out, -1) for w, out in by_draw(LABELS, engine))
    assert isinstance(found, ClassMixture) and isinstance(expected, Tensor)
    torch.testing.assert_close(found.probs, expected, rtol=1e-12, atol=1e-14)


@engines
def test_densities_are_mixed_with_the_weights_of_their_draws(engine: Engine) -> None:
    found, y = posterior(REGRESSION, engine).predict(X), randn(61, K, N)
    each = [(w.view(-1, 1), distributions.Normal(out.squeeze(-1), 0.3)) for w, out in by_draw(REGRESSION, engine)]
    assert isinstance(found, NormalMixture)
    density, mean = (
        sum(w * f for w, f in pairs)
        for pairs in ([(w, one.log_prob(y).exp()) for w, one in each], [(w, one.mean) for w, one in each])
    )
    torch.testing.assert_close(found.log_prob(y).exp(), density, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(found.mean, mean, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("model", [LABELS, REGRESSION])
def test_means_are_mixed_with_the_weights_of_their_families(model: BayesianMLP) -> None:
    found = posterior(model).predict_at_mean(X)
    share = weights().exp().sum(-1)
    each = [outputs(model, q.loc) for q in families(model)]
    each = [torch.softmax(out, -1) if model is LABELS else out for out in each]
    expected: Any = sum(share[:, m].view(-1, 1, 1) * out for m, out in enumerate(each))
    got = found.probs if isinstance(found, ClassMixture) else found.mean.unsqueeze(-1)
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("model", [LABELS, REGRESSION])
def test_one_family_of_equal_weights_is_a_weight_posterior(model: BayesianMLP) -> None:
    q = families(model)[0]
    alike = torch.full((K, 1, S), -math.log(S), dtype=torch.float64)
    mine = MixturePosterior(model, (q,), alike, noise(), (q.loc,), batch())
    theirs = WeightPosterior(model, q, S, noise())
    for one, other in ((mine.predict(X), theirs.predict(X)), (mine.predict_at_mean(X), theirs.predict_at_mean(X))):
        y = torch.zeros(K, N, dtype=torch.float64)
        torch.testing.assert_close(one.log_prob(y), other.log_prob(y), rtol=1e-12, atol=1e-13)


def test_points_need_no_draws() -> None:
    q = tuple(PointMass(one.loc) for one in families(LABELS))
    found = MixturePosterior(LABELS, q, weights(1), noise(), tuple(one.loc for one in q), batch())
    torch.testing.assert_close(
        found.predict(X).log_prob(torch.ones(K, N)), found.predict_at_mean(X).log_prob(torch.ones(K, N))
    )
    assert found.uncertain


def test_every_prediction_sees_the_same_draws() -> None:
    found = posterior(LABELS)
    whole = found.predict(X)
    assert isinstance(whole, ClassMixture)
    parts = [found.predict(part) for part in X.split(4, 1)]
    together = torch.cat([part.log_probs for part in parts if isinstance(part, ClassMixture)], 1)
    torch.testing.assert_close(together, whole.log_probs, rtol=0, atol=1e-14)


def test_many_draws_in_float32_still_add_up_to_one() -> None:
    model = BayesianMLP((2, 4, 3), Categorical(3))
    q = MeanField(*(leaf.float() for leaf in families(LABELS)[0]))
    alike = torch.full((K, 1, 600), -math.log(600))
    found = MixturePosterior(model, (q,), alike, noise(), (q.loc,), batch()).predict(X.float())
    assert isinstance(found, ClassMixture)
    torch.testing.assert_close(found.probs.sum(-1), torch.ones(K, N), rtol=0, atol=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    q = families(LABELS)
    means = tuple(one.loc for one in q)
    for wrong in (weights()[:, :1], weights()[:2], weights()[..., 0], weights()[..., :0]):
        with pytest.raises(ShapeError, match=r"log_weights must be \[3, 2\]"):
            MixturePosterior(LABELS, q, wrong, noise(), means, batch())
    with pytest.raises(ShapeError, match="2 means, got 1"):
        MixturePosterior(LABELS, q, weights(), noise(), means[:1], batch())
    with pytest.raises(StudyError, match="Categorical or Normal observation, got Poisson"):
        mixed(iter([(torch.zeros(1), distributions.Poisson(torch.ones(1, 2)))]))
