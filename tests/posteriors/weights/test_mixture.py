"""Weighted mixtures of posteriors over weights against loops."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from pyro import distributions
from scipy import stats
from torch import Tensor

from pacbayes_fl import bounds
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Engine, Noise
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.predictive import FinitePosterior, NormalMixture, SampledPosterior
from pacbayes_fl.posteriors.sampled import SampledMixture
from pacbayes_fl.posteriors.weights import posterior as weights_posterior
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.posteriors.weights.mixture import (
    FamilyMixture,
    MixturePosterior,
    WeightedSamples,
    log_mixture_kl,
    mixed,
)
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
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
    result = posterior(LABELS, engine).predict(X)
    expected = sum(w.view(-1, 1, 1) * torch.softmax(out, -1) for w, out in by_draw(LABELS, engine))
    assert isinstance(result, ClassMixture) and isinstance(expected, Tensor)
    torch.testing.assert_close(result.probs, expected, rtol=1e-12, atol=1e-14)


@engines
def test_densities_are_mixed_with_the_weights_of_their_draws(engine: Engine) -> None:
    result, y = posterior(REGRESSION, engine).predict(X), randn(61, K, N)
    each = [(w.view(-1, 1), distributions.Normal(out.squeeze(-1), 0.3)) for w, out in by_draw(REGRESSION, engine)]
    assert isinstance(result, NormalMixture)
    density, mean = (
        sum(w * f for w, f in pairs)
        for pairs in ([(w, one.log_prob(y).exp()) for w, one in each], [(w, one.mean) for w, one in each])
    )
    torch.testing.assert_close(result.log_prob(y).exp(), density, rtol=1e-11, atol=1e-14)
    torch.testing.assert_close(result.mean, mean, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("model", [LABELS, REGRESSION])
def test_means_are_mixed_with_the_weights_of_their_families(model: BayesianMLP) -> None:
    result = posterior(model).predict_at_mean(X)
    share = weights().exp().sum(-1)
    each = [outputs(model, q.loc) for q in families(model)]
    each = [torch.softmax(out, -1) if model is LABELS else out for out in each]
    expected: Any = sum(share[:, m].view(-1, 1, 1) * out for m, out in enumerate(each))
    got = result.probs if isinstance(result, ClassMixture) else result.mean.unsqueeze(-1)
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
    result = MixturePosterior(LABELS, q, weights(1), noise(), tuple(one.loc for one in q), batch())
    torch.testing.assert_close(
        result.predict(X).log_prob(torch.ones(K, N)), result.predict_at_mean(X).log_prob(torch.ones(K, N))
    )
    assert not result.uncertain and posterior(LABELS).uncertain


def test_every_prediction_sees_the_same_draws() -> None:
    result = posterior(LABELS)
    whole = result.predict(X)
    assert isinstance(whole, ClassMixture)
    parts = [result.predict(part) for part in X.split(4, 1)]
    together = torch.cat([part.log_probs for part in parts if isinstance(part, ClassMixture)], 1)
    torch.testing.assert_close(together, whole.log_probs, rtol=0, atol=1e-14)


def test_many_draws_in_float32_still_add_up_to_one() -> None:
    model = BayesianMLP((2, 4, 3), Categorical(3))
    q = MeanField(*(leaf.float() for leaf in families(LABELS)[0]))
    alike = torch.full((K, 1, 600), -math.log(600))
    result = MixturePosterior(model, (q,), alike, noise(), (q.loc,), batch()).predict(X.float())
    assert isinstance(result, ClassMixture)
    torch.testing.assert_close(result.probs.sum(-1), torch.ones(K, N), rtol=0, atol=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    q = families(LABELS)
    means = tuple(one.loc for one in q)
    for wrong in (weights()[:, :1], weights()[:2], weights()[..., 0], weights()[..., :0]):
        with pytest.raises(ShapeError, match=r"log_weights must be \[3, 2\]"):
            MixturePosterior(LABELS, q, wrong, noise(), means, batch())
    with pytest.raises(ShapeError, match="2 means, got 1"):
        MixturePosterior(LABELS, q, weights(), noise(), means[:1], batch())


def test_counts_are_mixed_with_the_weights_of_their_draws() -> None:
    shares, rates = weights().flatten(1).unbind(1), randn(64, M * S, K, N).exp()
    result = mixed(zip(shares, map(distributions.Poisson, rates), strict=True), noise())
    assert isinstance(result, SampledMixture)
    density = sum(
        w.exp().unsqueeze(1).numpy() * stats.poisson(r.numpy()).pmf(3) for w, r in zip(shares, rates, strict=True)
    )
    y = torch.full((K, N), 3.0).double()
    torch.testing.assert_close(result.log_prob(y).exp(), torch.as_tensor(density), rtol=1e-11, atol=0)


class Counts(BayesianMLP):
    """A network of which the library cannot part what several draws predict."""

    def observation(self, weights: Tensor, batch: ClientBatch, reference: ClientBatch | None = None) -> Any:
        return distributions.Poisson(super().observation(weights, batch, reference).mean.exp())


@pytest.mark.parametrize("model", [REGRESSION, LABELS, Counts((2, 3, 1), Gaussian(0.3), torch.float64)])
def test_draws_are_predicted_in_one_call_where_they_can_be_parted(
    model: BayesianMLP, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws, calls, known = 40, list[int](), type(model).observation

    def counted(self: BayesianMLP, weights: Tensor, *rows: Any) -> Any:
        calls.append(len(weights))
        return known(self, weights, *rows)

    monkeypatch.setattr(type(model), "observation", counted)
    y, found = (X[..., 0].abs() > 1).long(), []
    for most in (2**18, 4000, 0):
        monkeypatch.setattr(weights_posterior, "_AT_ONCE", most)
        found.append(weighed(model, weights(draws)).predict(X))
        calls.append(0)
    whole, some, single = ([int(one) for one in part.split()] for part in " ".join(map(str, calls)).split(" 0")[:3])
    parted = not isinstance(found[0], SampledMixture)
    assert single == [K] * (M * draws) and whole == ([K, K * (draws - 1)] * M if parted else single)
    assert 2 * M < len(some) < M * draws if parted else some == single
    for other in found[1:]:
        torch.testing.assert_close(found[0].log_prob(y), other.log_prob(y), rtol=1e-10, atol=1e-12)


# hypotheses -----------------------------------------------------------------------------------------------------


def family_mixture(model: BayesianMLP, draws: int = S) -> FamilyMixture:
    q = families(model)
    share = randn(62, K, M, 1).log_softmax(1) - math.log(draws)
    return FamilyMixture(model, q, share.expand(-1, -1, draws), noise(), tuple(one.loc for one in q), batch())


def weighed(model: BayesianMLP, log_weights: Tensor | None = None) -> WeightedSamples:
    q = families(model)
    log_weights = weights() if log_weights is None else log_weights
    return WeightedSamples(model, q, log_weights, noise(), tuple(one.loc for one in q), batch())


def test_lists_and_families_are_told_apart() -> None:
    q = weighed(LABELS), family_mixture(LABELS), posterior(LABELS)
    assert [isinstance(one, FinitePosterior) for one in q] == [True, False, False]
    assert [isinstance(one, SampledPosterior) for one in q] == [False, True, False]


@engines
def test_a_list_gives_every_draw_with_its_weight(engine: Engine) -> None:
    listed = replace(weighed(LABELS), noise=noise(engine)).enumerate_hypotheses(X)
    for (log_weight, one), (weight, out) in zip(listed, by_draw(LABELS, engine), strict=True):
        assert torch.is_grad_enabled()
        assert isinstance(one, distributions.Categorical)
        torch.testing.assert_close(log_weight.exp(), weight, rtol=1e-12, atol=0)
        torch.testing.assert_close(one.probs, torch.softmax(out, -1), rtol=1e-12, atol=1e-14)


def test_families_are_drawn_by_their_weights_and_weights_from_them() -> None:
    """At these inputs a line's predictions are its intercept, and that plus a slope: moments of the mixture."""
    line, clients, draws = BayesianMLP((2, 1), Gaussian(0.3), torch.float64), 3000, 2
    axes = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]).double().expand(clients, -1, -1)
    loc, rho = randn(70, M, 3), randn(71, M, 3) - 1  # the same families for all clients
    q = tuple(MeanField(loc[m].expand(clients, -1), rho[m].expand(clients, -1)) for m in range(M))
    share = torch.tensor([0.3, 0.7]).double()
    streams = Noise(8, 0, range(clients))
    log_weights = share.log().view(1, M, 1).expand(clients, -1, -1)
    mixture = FamilyMixture(line, q, log_weights, streams, tuple(one.loc for one in q))
    outputs = torch.stack([one.mean for one in mixture.sample_hypotheses(axes, draws, streams)]).flatten(0, 1)
    theta = torch.cat((outputs[:, 1:] - outputs[:, :1], outputs[:, :1]), -1)
    count, scale = clients * draws, torch.nn.functional.softplus(rho)
    mean = (share.unsqueeze(-1) * loc).sum(0)
    apart = loc - mean
    variance = (share.unsqueeze(-1) * (scale.square() + apart.square())).sum(0)
    cross = (share.view(-1, 1, 1) * apart.unsqueeze(-1) * apart.unsqueeze(-2)).sum(0)  # one family for all weights
    assert theta.shape == (count, 3)
    assert ((theta.mean(0) - mean).abs() < 4.5 * (variance / count).sqrt()).all()
    result = theta.T.cov()
    slack = 6 * (variance.unsqueeze(-1) * variance / count).sqrt()
    assert ((result - cross - torch.diag(variance - cross.diagonal())).abs() < slack).all()
    off = ~torch.eye(3, dtype=torch.bool)
    assert (cross.abs() > 3 * slack)[off].any()  # weights drawn from different families would not go together


@engines
def test_the_same_streams_draw_the_same_weights_whatever_the_inputs(engine: Engine) -> None:
    q, streams = family_mixture(LABELS), Noise(8, 0, IDS, engine=engine)
    whole = torch.stack([one.probs for one in q.sample_hypotheses(X, 9, streams)])
    again = torch.cat(
        [torch.stack([one.probs for one in q.sample_hypotheses(part, 9, streams)]) for part in X.split(4, 1)], 2
    )
    torch.testing.assert_close(again, whole, rtol=0, atol=1e-14)
    other = torch.stack([one.probs for one in q.sample_hypotheses(X, 9, Noise(9, 0, IDS, engine=engine))])
    assert (other - whole).abs().amax((1, 2, 3)).min() > 1e-3
    assert (whole[1:] - whole[:-1]).abs().amax((1, 2, 3)).min() > 1e-3
    for _ in q.sample_hypotheses(X, 1, streams):
        assert torch.is_grad_enabled()


def test_draws_of_a_family_weigh_alike() -> None:
    q = families(LABELS)
    with pytest.raises(StudyError, match="weigh alike"):
        FamilyMixture(LABELS, q, weights(), noise(), tuple(one.loc for one in q), batch())


def test_the_divergence_of_weighed_draws_is_that_of_their_weights() -> None:
    mine, theirs = weights(), randn(63, K, M * S).log_softmax(-1).view(K, M, S)
    expected = bounds.discrete_kl(mine.flatten(1).exp(), theirs.flatten(1).exp())
    result = weighed(LABELS, mine).kl(weighed(LABELS, theirs))
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=0)
    assert result.dtype == torch.float64 and (weighed(LABELS).kl(weighed(LABELS)) == 0).all()


def test_the_divergence_of_families_is_bounded_by_convexity() -> None:
    q = family_mixture(LABELS)
    moved = tuple(MeanField(one.loc + 0.1 * m, one.rho + 0.2) for m, one in enumerate(q.components))
    p = replace(q, components=moved, log_weights=q.log_weights.flip(1))
    each = torch.stack(
        [
            bounds.diagonal_gaussian_kl(mine.loc, mine.scale.square(), prior.loc, prior.scale.square())
            for mine, prior in zip(q.components, moved, strict=True)
        ],
        1,
    )
    shares = [one.log_weights.exp().sum(-1) for one in (q, p)]
    torch.testing.assert_close(q.kl(p), bounds.mixture_kl(shares[0], each, shares[1]), rtol=1e-10, atol=1e-12)
    assert (q.kl(q) < 1e-12).all()


def test_weights_of_zero_are_no_numbers_to_add() -> None:
    none, sure = -math.inf, torch.tensor([[0.0, -math.inf]])
    even = torch.full((1, 2), -math.log(2.0))
    assert log_mixture_kl(sure, even).item() == pytest.approx(math.log(2), rel=1e-7)
    assert log_mixture_kl(even, sure).item() == math.inf
    assert log_mixture_kl(sure, sure, torch.tensor([[0.5, math.nan]])).item() == 0.5
    assert log_mixture_kl(even, even, torch.tensor([[0.5, math.nan]])).item() == math.inf
    assert log_mixture_kl(torch.full((1, 2), math.nan), even).item() == math.inf
    far = torch.tensor([[0.0, -1e30]]).double()  # what a likelihood of zero leaves
    assert log_mixture_kl(far, even).item() == pytest.approx(math.log(2), rel=1e-7)
    assert log_mixture_kl(torch.tensor([[0.0, none]]), far).item() == 0.0
