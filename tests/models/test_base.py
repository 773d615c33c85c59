"""What every prior over functions gives: GPyTorch's distribution as the definition."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from pacbayes_fl.models.base import FunctionModel


class Line(FunctionModel):
    """f(x) = theta_0 + a x with a ~ N(0, theta_1^2) and noise variance theta_2^2: the least a user has to write."""

    @property
    def dim(self) -> int:
        return 3

    @property
    def input_dim(self) -> int:
        return 1

    def location(self) -> Tensor:
        return torch.zeros(3, dtype=torch.float64)

    def noise(self, theta: Tensor) -> Tensor:
        return theta[..., 2].square()

    def mean(self, theta: Tensor, x: Tensor) -> Tensor:
        return theta[..., :1].expand(-1, -1, x.shape[1])

    def covariance(self, theta: Tensor, x: Tensor, other: Tensor | None = None) -> Tensor:
        other = x if other is None else other
        return theta[..., 1, None, None].square() * (x @ other.mT).unsqueeze(1)

    def variance(self, theta: Tensor, x: Tensor) -> Tensor:
        return theta[..., 1:2].square() * x.square().mT

    def embedding(self, theta: Tensor, x: Tensor) -> Tensor | None:
        return None


THETA = torch.tensor([[[1.0, 2.0, 0.5], [-3.0, 0.1, 2.0]], [[0.0, 1.0, 1.0], [5.0, 3.0, 0.2]]], dtype=torch.float64)
X = torch.tensor([[[0.3], [-1.0], [2.0]], [[1.0], [0.0], [-0.7]]], dtype=torch.float64)


def test_the_prior_is_a_distribution_over_the_rows_of_each_client_and_particle() -> None:
    prior, noise = Line().prior(THETA, X)
    assert prior.batch_shape == (2, 2) and prior.event_shape == (3,) and noise.shape == (2, 2)
    torch.testing.assert_close(noise, THETA[..., 2] ** 2)
    y = torch.tensor([0.4, 1.0, -2.0], dtype=torch.float64)
    with_noise = type(prior)(
        prior.mean, prior.covariance_matrix + torch.diag_embed(noise.unsqueeze(-1).expand(2, 2, 3))
    )
    value = with_noise.log_prob(y.expand(2, 2, 3))
    for k in range(2):
        for p in range(2):
            x, (level, slope, sigma) = X[k, :, 0].numpy(), THETA[k, p].tolist()
            covariance = [
                [slope**2 * a * b + (sigma**2 if i == j else 0) for j, b in enumerate(x)] for i, a in enumerate(x)
            ]
            expected = stats.multivariate_normal([level] * 3, covariance).logpdf(y.numpy())
            assert float(value[k, p]) == pytest.approx(float(expected), rel=1e-10)


def test_one_client_s_broken_covariance_stops_no_other() -> None:
    broken = THETA.clone()
    broken[0, 1, 1] = math.nan
    prior, noise = Line().prior(broken, X)
    assert prior.covariance_matrix[0, 0].isfinite().all() and prior.covariance_matrix[1].isfinite().all()
    assert prior.covariance_matrix[0, 1].isnan().all() and noise.isfinite().all()
    indefinite, _ = Line().prior(torch.zeros(2, 1, 3, dtype=torch.float64), X)  # of rank 0
    assert not indefinite.covariance_matrix.any()


class Slope(Line):
    """The same line seen as an embedding z = theta_1 x, with a mean that no hyper-parameter moves."""

    def mean(self, theta: Tensor, x: Tensor) -> Tensor:
        return x.mT.expand(-1, theta.shape[1], -1)

    def embedding(self, theta: Tensor, x: Tensor) -> Tensor | None:
        return theta[..., 1, None, None] * x.unsqueeze(1)


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("model", [Line(), Slope()], ids=["covariance", "embedding"])
@pytest.mark.parametrize("shared", [False, True])
def test_the_way_back_to_the_hyper_parameters_is_autograd_s_for_every_client(model: Line, shared: bool) -> None:
    theta = THETA[0] if shared else THETA
    embedded = isinstance(model, Slope)
    with torch.no_grad():
        values, pullback = model.with_pullback(theta, X)
    assert values.embedded is embedded and not any(part.requires_grad for part in values[:3])
    by_mean, by_noise, by_kernel = draw(2, 2, 3, seed=0), draw(2, 2, seed=1), draw(*values.kernel.shape, seed=2)
    gradient = pullback(by_mean, by_noise, by_kernel)
    assert gradient.shape == (2, 2, 3)
    for k in range(2):
        for p in range(2):
            own = (theta[p] if shared else theta[k, p]).clone().view(1, 1, 3).requires_grad_(True)
            x = X[k : k + 1]
            kernel = model.embedding(own, x) if embedded else model.covariance(own, x)
            assert kernel is not None
            mean, noise = model.mean(own, x), model.noise(own)
            for batched, single in ((values.mean, mean), (values.noise, noise), (values.kernel, kernel)):
                torch.testing.assert_close(batched[k, p], single.detach()[0, 0], rtol=1e-14, atol=0)
            inner = (mean * by_mean[k, p]).sum() + (noise * by_noise[k, p]).sum() + (kernel * by_kernel[k, p]).sum()
            (expected,) = torch.autograd.grad(inner, own)
            torch.testing.assert_close(gradient[k, p], expected[0, 0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("model", [Line(), Slope()], ids=["covariance", "embedding"])
def test_bound_hyper_parameters_give_mean_and_embedding_anywhere(model: Line) -> None:
    at = model.bind(THETA)
    for x in (X, X[:, :1] + 3):
        mean, embedding = at(x)
        expected = model.embedding(THETA, x)
        assert torch.equal(mean, model.mean(THETA, x))
        assert (embedding is None) == (expected is None)
        assert embedding is None or expected is None or torch.equal(embedding, expected)


def test_a_prior_that_lacks_a_part_cannot_be_made() -> None:
    assert FunctionModel.__abstractmethods__ == {
        "dim",
        "input_dim",
        "location",
        "noise",
        "mean",
        "covariance",
        "variance",
        "embedding",
    }
    with pytest.raises(TypeError, match="abstract"):
        FunctionModel()  # type: ignore[abstract]
