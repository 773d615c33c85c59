"""Laplace posteriors and their predictions against laplace-torch, the reference implementation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.torchvision_ops import ensure_importable
from pacbayes_fl.inference import curvature
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.models.weights.convolutional import BayesianCNN
from pacbayes_fl.models.weights.jacobian import linearise
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.laplace import DiagonalGaussian, SubnetworkGaussian
from pacbayes_fl.posteriors.weights.linearised import LinearisedPosterior
from pacbayes_fl.posteriors.weights.posterior import rows_of
from tests import laplace as plain
from tests.laplace import randn, torch_module, torch_positions

ensure_importable()  # laplace-torch imports torchmetrics, which imports torchvision
import laplace as peer  # noqa: E402
from laplace.curvature import BackPackGGN, CurvlinopsGGN  # noqa: E402

NOISE, ROWS, TESTS = 0.3, 11, 4
MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "mlp": (BayesianMLP((3, 6, 3), Categorical(3), torch.float64), (3,)),
    "deep mlp": (BayesianMLP((3, 6, 5, 3), Categorical(3), torch.float64), (3,)),
    "mlp, numbers": (BayesianMLP((3, 6, 1), Gaussian(NOISE), torch.float64), (3,)),
    "cnn": (BayesianCNN((1, 16, 16), Categorical(3), torch.float64), (1, 16, 16)),
    "cnn, numbers": (BayesianCNN((1, 16, 16), Gaussian(NOISE), torch.float64), (1, 16, 16)),
}
SMALL = ("mlp", "deep mlp", "mlp, numbers")  # every weight at once


class Scene:
    """One client with a model, weights, prior variances and rows to predict.

    laplace-torch takes no prior variances of its own for the weights of a subnetwork: there they are all alike.
    """

    def __init__(self, name: str, alike: bool = False) -> None:
        self.model, feature = MODELS[name]
        self.numbers = self.model.likelihood.classes is None
        self.batch: ClientBatch = plain.clients(self.model, ROWS, feature=feature)
        self.theta = (0.2 if len(feature) == 3 else 0.7) * randn(3, 1, self.model.dim)
        self.prior = 0.05 + randn(4, 1, self.model.dim).square()
        self.prior = torch.full_like(self.prior, 0.4) if alike else self.prior
        self.x = randn(5, 1, TESTS, *feature)
        self.positions = torch_positions(self.model)  # ours, in the order of torch's parameters

    def fit(self, structure: str, index: Tensor | None = None, backend: Any = CurvlinopsGGN) -> Any:
        """Fit a posterior of laplace-torch; `index` holds positions in the order of its parameters."""
        kind = "regression" if self.numbers else "classification"
        more: dict[str, Any] = {"sigma_noise": NOISE} if self.numbers else {}
        more |= {} if index is None else {"subnetwork_indices": index}
        result = peer.Laplace(
            torch_module(self.model, self.theta[0]),
            kind,
            subset_of_weights="all" if index is None else "subnetwork",
            hessian_structure=structure,
            prior_precision=(1 / self.prior[0])[self.positions] if index is None else 2.5,
            backend=backend,
            **more,
        )
        x, y = plain.own(self.batch, 0)
        result.fit(DataLoader(TensorDataset(x, y[:, None] if self.numbers else y), batch_size=4))
        return result

    def gaussian(self, index: Tensor) -> SubnetworkGaussian:
        """Fit ours to weights at some of our positions [B]."""
        result = curvature.precision(self.model, self.theta, self.batch, index[None], self.prior)
        return SubnetworkGaussian(self.theta, *result, torch.zeros_like(self.theta))

    def compare(self, ours: Any, theirs: Any) -> None:
        """Compare functional variances and predictions at rows that neither has seen."""
        result = linearise(self.model, self.theta, rows_of(self.x, Noise(0, 0, [0])))
        f_mean, f_variance = theirs._glm_predictive_distribution(self.x[0])
        close(result.outputs[0], f_mean.detach())
        close(ours.output_covariance(result.jacobian)[0], f_variance.detach())
        predicted = LinearisedPosterior(self.model, self.theta, lambda: ours, "probit", 1, Noise(0, 0, [0])).predict(
            self.x
        )
        if self.numbers:
            mean, variance = theirs(self.x[0], pred_type="glm")
            close(predicted.mean[0], mean.detach()[:, 0])  # type: ignore[union-attr]
            close(predicted.variance[0], variance.detach().flatten() + NOISE**2)  # type: ignore[union-attr]
        else:
            probs = theirs(self.x[0], pred_type="glm", link_approx="probit")
            close(predicted.probs[0], probs.detach())  # type: ignore[union-attr]


def close(mine: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(mine, theirs.double(), rtol=1e-8, atol=1e-9)


def arranged(matrix: Tensor, chosen: Tensor, order: Tensor) -> Tensor:
    """Bring a matrix [B, B] of weights at some positions into another order of the same positions."""
    at = [chosen.tolist().index(one) for one in order.tolist()]
    return matrix[at][:, at]


@pytest.mark.parametrize("name", SMALL)
def test_the_full_posterior(name: str) -> None:
    scene = Scene(name)
    theirs, ours = scene.fit("full", backend=BackPackGGN), scene.gaussian(torch.arange(scene.model.dim))
    factor = ours.factor[0]
    close(arranged(factor @ factor.T, ours.chosen[0], scene.positions), theirs.posterior_precision)
    close(arranged(ours.covariance()[0], ours.chosen[0], scene.positions), theirs.posterior_covariance)
    scene.compare(ours, theirs)


@pytest.mark.parametrize("name", MODELS)
def test_the_diagonal_posterior(name: str) -> None:
    scene = Scene(name)
    theirs = scene.fit("diag", backend=BackPackGGN if scene.numbers else CurvlinopsGGN)
    ggn = curvature.diagonal_ggn(scene.model, scene.theta, scene.batch)
    ours = DiagonalGaussian(scene.theta, 1 / (ggn + 1 / scene.prior))
    close(1 / ours.variance[0, scene.positions], theirs.posterior_precision)
    close(ours.variance[0, scene.positions], theirs.posterior_variance)
    scene.compare(ours, theirs)


@pytest.mark.law
@pytest.mark.parametrize("backend", [CurvlinopsGGN, BackPackGGN], ids=["curvlinops", "backpack"])
@pytest.mark.parametrize("size", [5, 40])
@pytest.mark.parametrize("name", MODELS)
def test_the_posterior_of_a_subnetwork(name: str, size: int, backend: Any) -> None:
    scene = Scene(name, alike=True)
    order = torch.randperm(scene.model.dim, generator=torch.Generator().manual_seed(1))[
        : min(size, scene.model.dim - 1)
    ]
    theirs, index = scene.fit("full", order, backend), scene.positions[order]
    ours = scene.gaussian(index)
    factor = ours.factor[0]
    close(arranged(factor @ factor.T, ours.chosen[0], index), theirs.posterior_precision)
    close(arranged(ours.covariance()[0], ours.chosen[0], index), theirs.posterior_covariance)
    variance = curvature.marginal_variance(scene.model, scene.theta, scene.batch, index[None], scene.prior)
    close(variance[0], theirs.posterior_covariance.diagonal())
    scene.compare(ours, theirs)


@pytest.mark.parametrize("name", ["mlp", "cnn, numbers"])
def test_independent_weights_of_a_subnetwork(name: str) -> None:
    scene = Scene(name, alike=True)
    order = torch.arange(0, scene.model.dim, 3)
    theirs, index = scene.fit("diag", order, BackPackGGN), scene.positions[order]
    ggn = curvature.diagonal_ggn(scene.model, scene.theta, scene.batch)
    variance = torch.zeros_like(ggn)
    variance[0, index] = (1 / (ggn + 1 / scene.prior))[0, index]
    close(variance[0, index], theirs.posterior_variance)
    scene.compare(DiagonalGaussian(scene.theta, variance), theirs)


def test_softmax_regression_with_published_digits() -> None:
    """Prior precision 1, four rows of two features: predictions at (.5, -1)."""
    model = BayesianMLP((2, 3), Categorical(3), torch.float64)
    theta = plain.float64([[0.2, 0.4, -0.5, -0.1, 0.3, 0.1, 0.1, 0.0, -0.2]])
    batch = ClientBatch.pad([(plain.float64(plain.X), torch.tensor([0, 1, 2, 1]))], classes=3)
    prior, x, noise = torch.ones_like(theta), plain.float64([[[0.5, -1.0]]]), Noise(0, 0, [0])
    result = linearise(model, theta, rows_of(x, noise))
    assert result.outputs.flatten().tolist() == pytest.approx([0.3, -0.1, -0.55], rel=1e-13)
    whole = curvature.precision(model, theta, batch, torch.arange(9)[None], prior)
    diagonal = 1 / (curvature.diagonal_ggn(model, theta, batch) + 1)
    published: tuple[tuple[Any, list[float], list[float]], ...] = (
        (
            SubnetworkGaussian(theta, *whole, torch.zeros_like(theta)),
            [1.5449402269, 1.5577743406, 1.6249012403],
            [0.4458281288, 0.3252157773, 0.2289560940],
        ),
        (
            DiagonalGaussian(theta, diagonal),
            [1.1383837106, 1.0563053894, 1.2301888460],
            [0.4519734389, 0.3238111827, 0.2242153784],
        ),
    )
    for gaussian, variances, probs in published:
        covariance = gaussian.output_covariance(result.jacobian)[0, 0]
        assert covariance.diagonal().tolist() == pytest.approx(variances, abs=6e-11)
        predicted = LinearisedPosterior(model, theta, lambda g=gaussian: g, "probit", 1, noise).predict(x)  # type: ignore[misc]
        assert predicted.probs.flatten().tolist() == pytest.approx(probs, abs=6e-11)  # type: ignore[union-attr]
