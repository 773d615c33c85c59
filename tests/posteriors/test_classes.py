"""Class probabilities: averages over draws against plain means, entropy against scipy."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Categorical

from pacbayes_fl.errors import ShapeError
from pacbayes_fl.posteriors.classes import ClassMixture, average_log_probs
from pacbayes_fl.posteriors.predictive import ClassPredictive

S, K, N, C = 7, 3, 5, 4


def draws(seed: int = 0) -> Tensor:
    logits = torch.randn(S, K, N, C, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.log_softmax(3 * logits, -1)


def test_probabilities_log_probability_and_entropy_are_torch_s_and_scipy_s() -> None:
    log_probs = draws()[0]
    ours, theirs = ClassMixture(log_probs), Categorical(logits=log_probs)
    y = torch.arange(K * N).view(K, N) % C
    torch.testing.assert_close(ours.probs, theirs.probs, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(ours.log_prob(y), theirs.log_prob(y), rtol=0, atol=1e-14)
    torch.testing.assert_close(ours.log_prob(y.int()), ours.log_prob(y), rtol=0, atol=0)
    np.testing.assert_allclose(ours.entropy.numpy(), stats.entropy(ours.probs.numpy(), axis=-1), rtol=1e-12)


def test_impossible_classes_and_equal_ones() -> None:
    ours = ClassMixture(torch.tensor([[[1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]]], dtype=torch.float64).log())
    assert ours.entropy[0, 0] == 0.0 and float(ours.entropy[0, 1]) == pytest.approx(math.log(3), rel=1e-15)
    assert ours.log_prob(torch.tensor([[1, 0]]))[0].tolist() == [-math.inf, pytest.approx(-math.log(3))]


def test_the_average_is_the_plain_mean_of_the_probabilities() -> None:
    each = draws()
    torch.testing.assert_close(average_log_probs(each).exp(), each.exp().mean(0), rtol=1e-13, atol=0)
    np.testing.assert_allclose(average_log_probs(each).exp().sum(-1).numpy(), np.ones((K, N)), rtol=1e-13)
    torch.testing.assert_close(average_log_probs(each[:1]), each[0], rtol=0, atol=0)
    # not the mean of the logarithms, which is no distribution
    assert (average_log_probs(each) > torch.log_softmax(each.mean(0), -1)).any()


def test_the_average_does_not_underflow_and_knows_impossible_classes() -> None:
    tiny = torch.tensor([[[-800.0, 0.0, -math.inf]], [[-802.0, 0.0, -math.inf]]], dtype=torch.float64).unsqueeze(1)
    got = average_log_probs(tiny)[0, 0]
    assert float(got[0]) == pytest.approx(-800 + math.log((1 + math.exp(-2)) / 2), abs=1e-12)
    assert got[1:].tolist() == [0.0, -math.inf]


def test_one_draw_at_a_time_is_asked_for_and_dropped() -> None:
    kept: list[int] = []

    def stream() -> Iterator[Tensor]:
        for number, draw in enumerate(draws()):
            kept.append(number)
            yield draw.clone()

    torch.testing.assert_close(average_log_probs(stream()), average_log_probs(draws()), rtol=0, atol=0)
    assert kept == list(range(S))


def test_float32_stays_float32_and_close() -> None:
    single = average_log_probs(draws().float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), average_log_probs(draws()), rtol=1e-5, atol=1e-5)
    assert ClassMixture(single).entropy.dtype == torch.float32


def test_no_draw_and_draws_of_other_shapes_are_refused() -> None:
    with pytest.raises(ShapeError, match="at least one"):
        average_log_probs([])
    with pytest.raises(ShapeError, match=r"draw 1 must be \[3, 5, 4\].*got \[3, 1, 4\]"):
        average_log_probs([draws()[0], draws()[0, :, :1]])


def test_the_mixture_is_what_metrics_ask_for() -> None:
    predictive: ClassPredictive = ClassMixture(draws()[0])  # mypy compares the signatures
    assert all(hasattr(predictive, name) for name in dir(ClassPredictive) if not name.startswith("_"))
