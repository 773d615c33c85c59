"""Temperature scaling against its definition, a grid, scipy, and the draws one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy import optimize
from torch import Tensor

from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.predictive import FinitePosterior, SampledPosterior
from pacbayes_fl.posteriors.tempered import RANGE, best, temper, tempered
from pacbayes_fl.posteriors.weights.posterior import WeightPosterior
from tests.laplace import float64, randn


def nll(log_probs: Tensor, y: Tensor, weight: Tensor, temperature: float) -> float:
    probs = log_probs.exp() ** (1 / temperature)
    own = (probs / probs.sum(-1, keepdim=True)).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    return -float((weight * own.log()).sum())


def rows(seed: int, count: int = 40, classes: int = 4, spread: float = 3.0) -> tuple[Tensor, Tensor, Tensor]:
    """Return log probabilities, labels that follow a softer version of them, and weights of the rows."""
    logits = spread * randn(seed, count, classes)
    generator = torch.Generator().manual_seed(seed)
    y = torch.multinomial((logits / 2).softmax(-1), 1, generator=generator).squeeze(-1)
    return logits.log_softmax(-1), y, torch.rand(count, generator=generator, dtype=torch.float64) / count


def test_probabilities_to_a_power() -> None:
    log_probs, *_ = rows(1)
    for temperature in (0.2, 0.7, 1.0, 1.9, 8.0):
        powers = log_probs.exp() ** (1 / temperature)
        torch.testing.assert_close(temper(log_probs, temperature).exp(), powers / powers.sum(-1, keepdim=True))
    assert temper(log_probs, 1.0) is log_probs
    impossible = float64([[0.5, 0.5, 0.0]]).log()
    assert temper(impossible, 3.0).exp().tolist() == [[0.5, 0.5, 0.0]]
    assert temper(impossible, 1e-3).exp().tolist() == [[0.5, 0.5, 0.0]]


@pytest.mark.parametrize("seed", range(5))
def test_the_best_temperature_is_the_minimum_of_scipy_and_no_worse_than_one(seed: int) -> None:
    log_probs, y, weight = rows(seed)
    result = best(log_probs, y, weight)
    by_scipy = optimize.minimize_scalar(lambda t: nll(log_probs, y, weight, t), bounds=RANGE, method="bounded")
    assert nll(log_probs, y, weight, result) <= float(by_scipy.fun) + 1e-12
    assert result == pytest.approx(float(by_scipy.x), rel=1e-3) and result > 1.1
    assert nll(log_probs, y, weight, result) < nll(log_probs, y, weight, 1.0)
    assert best(temper(log_probs, result), y, weight) == pytest.approx(1.0, abs=1e-6)
    assert best(log_probs, y, 7.0 * weight) == pytest.approx(result, rel=1e-9)


def test_the_ends_are_for_labels_that_are_all_right_or_all_wrong() -> None:
    log_probs, _, weight = rows(3)
    assert best(log_probs, log_probs.argmax(-1), weight) == pytest.approx(RANGE[0], rel=1e-9)
    assert best(log_probs, log_probs.argmin(-1), weight) == pytest.approx(RANGE[1], rel=1e-9)
    flat = torch.full((5, 3), 1 / 3, dtype=torch.float64).log()
    assert best(flat, torch.tensor([0, 1, 2, 0, 1]), torch.ones(5)) == 1.0  # nothing to choose
    single = float64([[0.9, 0.1]]).log()
    assert best(single, torch.tensor([0]), torch.ones(1)) == pytest.approx(RANGE[0], rel=1e-9)
    sure = float64([[1.0, 0.0], [0.0, 1.0], [0.6, 0.4]]).log()  # an impossible class does not come true
    assert RANGE[0] <= best(sure, torch.tensor([0, 1, 1]), torch.ones(3)) <= RANGE[1]


MODEL = BayesianMLP((2, 3, 4), Categorical(4), torch.float64)


def test_every_draw_is_tempered_on_its_own() -> None:
    loc, x, noise = randn(1, 2, MODEL.dim), randn(2, 2, 5, 2), Noise(1, 0, range(2))
    plain = WeightPosterior(MODEL, PointMass(loc), 1, noise)
    one: Any = tempered(plain, 2.5)
    kinds = (isinstance(one, SampledPosterior), isinstance(one, FinitePosterior))
    assert kinds == (True, False) and one.uncertain is False
    for mine, theirs in zip(one.sample_hypotheses(x, 3, noise), plain.sample_hypotheses(x, 3, noise), strict=True):
        torch.testing.assert_close(mine.probs, (theirs.logits / 2.5).softmax(-1))
    torch.testing.assert_close(one.predict(x).log_probs, one.predict_at_mean(x).log_probs)


def test_a_client_without_numbers_leaves_the_others_theirs() -> None:
    loc, x, noise = randn(1, 2, MODEL.dim), randn(2, 2, 5, 2), Noise(1, 0, range(2))
    broken = torch.stack((loc[0] * torch.nan, loc[1]))
    part, whole = (tempered(WeightPosterior(MODEL, PointMass(q), 1, noise), 2.5) for q in (broken, loc))
    assert isinstance(part, SampledPosterior) and isinstance(whole, SampledPosterior)
    for mine, theirs in zip(part.sample_hypotheses(x, 2, noise), whole.sample_hypotheses(x, 2, noise), strict=True):
        assert mine.logits[0].isnan().all() and torch.equal(mine.logits[1], theirs.logits[1])


def test_numbers_have_no_temperature() -> None:
    model = BayesianMLP((2, 3, 1), Gaussian(), torch.float64)
    one = tempered(WeightPosterior(model, PointMass(randn(1, 2, model.dim)), 1, Noise(1, 0, range(2))), 2.0)
    with pytest.raises(StudyError, match="for probabilities of classes, got a NormalMixture"):
        one.predict(randn(2, 2, 5, 2))
