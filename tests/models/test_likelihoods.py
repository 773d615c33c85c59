"""The noise and its raw parameter; targets of networks against torch's distributions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import distributions

from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.likelihoods import (
    NOISE_STD,
    Categorical,
    Gaussian,
    HeteroscedasticGaussian,
    gaussian_noise,
    gaussian_noise_slope,
    inverse_softplus,
)


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (0.1, -2.2521684610440906),
        (0.31326168751822286, -1.0),
        (0.04858735157374206, -3.0),
        (math.log(2), 0.0),
        (4.1399376e-08, -17.0),
        (1e-30, math.log(1e-30)),
        (800.0, 800.0),  # exp(800) overflows
    ],
)
def test_inverse_softplus_inverts(value: float, raw: float) -> None:
    assert inverse_softplus(value) == pytest.approx(raw, rel=1e-8, abs=1e-14)
    back = torch.nn.functional.softplus(torch.tensor(inverse_softplus(value), dtype=torch.float64))
    assert float(back) == pytest.approx(value, rel=1e-8)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_nothing_not_positive_has_an_inverse(value: float) -> None:
    with pytest.raises(ValueError, match=r"math domain|positive"):
        inverse_softplus(value)


def test_the_centre_of_the_hyper_prior_is_the_paper_s_noise() -> None:
    raw = torch.tensor([inverse_softplus(NOISE_STD)], dtype=torch.float64)
    assert float(gaussian_noise(raw)) == pytest.approx(0.16, rel=1e-14)  # a variance, not a standard deviation


@pytest.mark.parametrize(("dtype", "floor"), [(torch.float64, 1e-8), (torch.float32, 1e-4)])
def test_the_noise_has_a_floor_by_precision(dtype: torch.dtype, floor: float) -> None:
    raw = torch.tensor([[-200.0, -12.0], [0.0, 3.0]], dtype=dtype)
    variance = gaussian_noise(raw)
    assert variance.shape == (2, 2) and variance.dtype == dtype
    assert variance[0].tolist() == pytest.approx([floor, floor], rel=1e-6)
    assert variance[1].tolist() == pytest.approx([math.log(2) ** 2, math.log1p(math.exp(3)) ** 2], rel=1e-6)
    assert gaussian_noise(torch.tensor([torch.nan], dtype=dtype)).isnan().all()  # a fault is not hidden


def test_the_gradient_is_the_chain_rule_above_the_floor() -> None:
    raw = torch.tensor([-1.5, 0.2, 30.0], dtype=torch.float64, requires_grad=True)
    gaussian_noise(raw).sum().backward()
    plain = raw.detach()
    expected = 2 * torch.log1p(plain.exp()) * torch.sigmoid(plain)
    assert raw.grad is not None
    torch.testing.assert_close(raw.grad, expected, rtol=1e-12, atol=0)


def test_the_slope_of_the_noise_is_autograd_s_and_zero_at_the_floor() -> None:
    raw = torch.tensor([-200.0, -10.0, -9.0, -1.5, 0.2, 30.0], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(gaussian_noise(raw).sum(), raw)
    torch.testing.assert_close(gaussian_noise_slope(raw.detach()), slope, rtol=1e-12, atol=0)
    assert slope[0] == 0 and slope[2] > 0


# targets of networks --------------------------------------------------------------------------------------------


def outputs(*shape: int) -> torch.Tensor:
    return 5 * torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_labels_follow_the_softmax_of_the_outputs() -> None:
    logits, y = outputs(2, 5, 4), torch.arange(10).view(2, 5) % 4
    likelihood = Categorical(4)
    assert (likelihood.outputs, likelihood.classes) == (4, 4)
    expected = distributions.Categorical(logits=logits).log_prob(y)
    torch.testing.assert_close(likelihood.log_prob(logits, y), expected, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(likelihood.distribution(logits).log_prob(y), expected, rtol=1e-13, atol=1e-14)
    torch.testing.assert_close(likelihood.distribution(logits).probs, torch.softmax(logits, -1), rtol=1e-13, atol=1e-15)
    sure = torch.tensor([[[1e4, 0.0, 0.0, 0.0]]], dtype=torch.float64)
    assert likelihood.log_prob(sure, torch.tensor([[1]])).item() == -1e4


def test_numbers_are_normal_around_the_output() -> None:
    mean, y = outputs(2, 5, 1), outputs(2, 5)
    likelihood = Gaussian(0.3)
    assert (likelihood.outputs, likelihood.classes) == (1, None)
    expected = distributions.Normal(mean[..., 0], 0.3).log_prob(y)
    torch.testing.assert_close(likelihood.log_prob(mean, y), expected, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(likelihood.distribution(mean).log_prob(y), expected, rtol=1e-13, atol=1e-13)
    assert likelihood.log_prob(mean.float(), y).dtype == torch.float32  # targets take the network's dtype
    assert Gaussian() == Gaussian(NOISE_STD)


@pytest.mark.parametrize("noise_std", [0.0, -0.1, math.inf, math.nan])
def test_a_noise_out_of_range_is_refused(noise_std: float) -> None:
    for likelihood in (Gaussian, HeteroscedasticGaussian):
        with pytest.raises(StudyError, match="noise_std must be positive"):
            likelihood(noise_std)


def test_a_noise_that_outputs_decide_is_that_of_torch_s_normal_and_bounded() -> None:
    given, y = outputs(2, 5, 2), outputs(2, 5)
    likelihood = HeteroscedasticGaussian(0.3)
    assert (likelihood.outputs, likelihood.classes) == (2, None)
    std = 0.3 * (4 * torch.tanh(given[..., 1] / 8)).exp()
    expected = distributions.Normal(given[..., 0], std).log_prob(y)
    torch.testing.assert_close(likelihood.log_prob(given, y), expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(likelihood.distribution(given).log_prob(y), expected, rtol=1e-12, atol=1e-12)
    level = torch.zeros(1, 1, 2, dtype=torch.float64)  # an output of 0 is the known noise
    plain = Gaussian(0.3).log_prob(level[..., :1], y[:1, :1])
    torch.testing.assert_close(likelihood.log_prob(level, y[:1, :1]), plain, rtol=1e-13, atol=1e-13)
    far = torch.tensor([[[0.0, -1e6], [0.0, 1e6]]], dtype=torch.float64)
    ratio = likelihood.distribution(far).stddev / 0.3
    torch.testing.assert_close(ratio, torch.tensor([[-4.0, 4.0]], dtype=torch.float64).exp(), rtol=1e-12, atol=0)
    assert likelihood.log_prob(given.float(), y).dtype == torch.float32


def test_the_slope_of_a_predicted_noise_is_the_textbook_s() -> None:
    """By the mean -(y - mu) / s^2, by the log variance (1 - (y - mu)^2 / s^2) / 2, times that of the bound."""
    given, y = outputs(1, 6, 2).requires_grad_(), outputs(1, 6)
    (slope,) = torch.autograd.grad(-HeteroscedasticGaussian(0.3).log_prob(given, y).sum(), given)
    mean, raw = given.detach().unbind(-1)
    variance, residual = 0.09 * (8 * torch.tanh(raw / 8)).exp(), y - mean
    by_raw = 0.5 * (1 - residual.square() / variance) * (1 - torch.tanh(raw / 8).square())
    torch.testing.assert_close(slope, torch.stack((-residual / variance, by_raw), -1), rtol=1e-10, atol=1e-12)
