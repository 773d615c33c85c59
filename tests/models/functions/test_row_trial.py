"""Modules of which a row has other values beside other rows, alone or at another call are refused by name."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import AdditiveStructureKernel, InducingPointKernel, Kernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.means import Mean, ZeroMean
from torch import Tensor, nn
from torch.distributions import Normal
from torch.nn.utils.parametrizations import spectral_norm

from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.models.functions.gpytorch_prior import GPyTorchPrior
from pacbayes_fl.models.functions.row_trial import inputs
from tests.models.functions.test_gpytorch_prior import InputNoise


class Network(Mean):
    """A mean by any layers, whose last dimension goes as `squeeze` says."""

    def __init__(self, *layers: nn.Module, squeeze: Callable[[Tensor], Tensor] = lambda y: y.squeeze(-1)) -> None:
        super().__init__()
        self.layers, self.squeeze = nn.Sequential(nn.Linear(2, 4), *layers, nn.Linear(4, 1)), squeeze

    def forward(self, x: Tensor) -> Tensor:
        return self.squeeze(self.layers(x))


class Centred(Mean):
    """One that takes the rows of its call for those of the population."""

    def forward(self, x: Tensor) -> Tensor:
        centred: Tensor = (x - x.mean(-2, keepdim=True)).sum(-1)
        return centred


class Deep(RBFKernel):
    """A deep kernel, by any layers."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 4), *layers)

    def forward(self, x1: Tensor, x2: Tensor, **more: Any) -> Tensor:
        covariance: Tensor = super().forward(self.layers(x1), self.layers(x2), **more)
        return covariance


class Scaled(RBFKernel):
    """A kernel that divides by the spread of the rows of its call."""

    def forward(self, x1: Tensor, x2: Tensor, **more: Any) -> Tensor:
        covariance: Tensor = super().forward(x1 / x1.std(), x2 / x1.std(), **more)
        return covariance


class RowNoise(InputNoise):
    """A noise that grows with the number of rows."""

    def forward(self, f: Tensor, x: Tensor) -> Any:
        return Normal(f, 0.1 * x.shape[-2] * torch.ones_like(f))


def noisy(x: Tensor) -> Tensor:
    return x.squeeze(-1) + torch.randn_like(x.squeeze(-1))


@pytest.mark.parametrize(
    ("mean", "kernel", "said"),
    [
        (Centred(), RBFKernel(), "^mean gives a row another value beside other rows than alone"),
        (ZeroMean(), Scaled(), "^covariance gives a row another value beside other rows"),
        (Network(nn.BatchNorm1d(4)), RBFKernel(), r"^mean\.layers\.1 \(BatchNorm1d\) is in training mode"),
        (ZeroMean(), Deep(nn.BatchNorm1d(4)), r"^kernel\.layers\.1 \(BatchNorm1d\) is in training mode"),
        (Network(nn.Dropout(0.1)), RBFKernel(), r"^mean\.layers\.1 \(Dropout\) .*: it gives other values every time"),
        (ZeroMean(), Deep(nn.Dropout(0.1)), r"^kernel\.layers\.1 \(Dropout\) is in training mode"),
        (
            ZeroMean(),
            Deep(spectral_norm(nn.Linear(4, 4))),
            r"^kernel\.layers\.1\.parametrizations\.weight\.0 \(_SpectralNorm\) is in training mode",
        ),
        (Network(squeeze=lambda y: y.squeeze(-1).log()), RBFKernel(), "^mean is no finite number at some inputs"),
        (Network(squeeze=noisy), RBFKernel(), "^mean gives other values every time that it is called"),
        (
            ZeroMean(),
            InducingPointKernel(RBFKernel(), torch.randn(3, 2, dtype=torch.float64), GaussianLikelihood()),
            r"^covariance cannot be taken at inputs \[5, 2\] and \[4, 2\]",
        ),
    ],
)
def test_rows_that_do_not_stand_for_themselves_are_refused(mean: Mean, kernel: Kernel, said: str) -> None:
    with pytest.raises(StudyError, match=said):
        GPyTorchPrior(mean, kernel, 2)


@pytest.mark.parametrize("features", [1, 2, 3, 5])
def test_sums_over_features_are_taken_whatever_the_number_of_rows(features: int) -> None:
    """GPyTorch's own diagonal of such a kernel fails where there are as many rows as features."""
    prior = GPyTorchPrior(ZeroMean(), AdditiveStructureKernel(RBFKernel(), features), features)
    theta = prior.location().view(1, 1, -1).expand(2, 3, -1)
    for rows in range(1, 7):
        x = inputs(2 * rows, features).view(2, rows, features)
        expected = prior.covariance(theta, x).diagonal(dim1=-2, dim2=-1)
        torch.testing.assert_close(prior.variance(theta, x), expected)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(2).eval(), nn.Unflatten(1, (2,))])
def test_means_of_flat_rows_alone_are_called_one_by_one(layer: nn.Module) -> None:
    class Flat(Mean):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(layer, nn.Linear(2, 1))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layers(x).squeeze(-1)
            return y

    assert not GPyTorchPrior(Flat(), RBFKernel(), 2).batched


class Rounded(Mean):
    """A mean that is computed in float32, and cancels."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = (torch.sin(x.float() @ torch.ones(2, 64)).tanh() @ torch.linspace(-1, 1, 64)).to(x)
        return y + x[..., 0]


def test_rounding_of_a_part_is_no_other_value() -> None:
    assert GPyTorchPrior(Rounded(), RBFKernel(), 2).batched


def test_a_noise_by_the_other_rows_is_refused() -> None:
    with pytest.raises(StudyError, match=r"^noise gives a row another value beside other rows than alone"):
        GPyTorchPrior(ZeroMean(), RBFKernel(), 2, likelihood=RowNoise())


def test_a_mean_that_drops_a_single_row_is_refused() -> None:
    with pytest.raises(ShapeError, match=r"^mean must give \[1\] at \[1, 2\], got \[\] \(squeeze\(-1\)"):
        GPyTorchPrior(Network(squeeze=torch.squeeze), RBFKernel(), 2)


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4), nn.Dropout(0.5), nn.LayerNorm(4)])
def test_layers_that_are_set_to_predict_pass(layer: nn.Module) -> None:
    prior = GPyTorchPrior(Network(layer.eval()), Deep(layer), 2)
    theta, x = prior.location().view(1, 1, -1) + 0.3, inputs(6, 2).unsqueeze(0)
    torch.testing.assert_close(prior.mean(theta, x)[:, :, 2:3], prior.mean(theta, x[:, 2:3]))


def test_a_noise_by_the_place_of_rows_is_refused_whatever_their_number() -> None:
    likelihood = FixedNoiseGaussianLikelihood(torch.full((9,), 4.0), learn_additional_noise=True)
    with pytest.raises(StudyError, match="FixedNoiseGaussianLikelihood gives noises of 9 rows by their place"):
        GPyTorchPrior(ZeroMean(), RBFKernel(), 1, likelihood=likelihood)


def scaled(value: float) -> ScaleKernel:
    kernel = ScaleKernel(RBFKernel())
    kernel.outputscale = value
    return kernel


def test_values_at_an_end_of_their_constraint_are_refused_unless_they_are_kept() -> None:
    with pytest.raises(StudyError, match=r"^kernel\.raw_outputscale holds 0, an end of its constraint Positive"):
        GPyTorchPrior(ZeroMean(), scaled(0.0), 1)
    kept = scaled(0.0)
    kept.raw_outputscale.requires_grad_(False)
    assert "kernel.raw_outputscale" not in GPyTorchPrior(ZeroMean(), kept, 1).shapes
    inside = RBFKernel(lengthscale_constraint=Interval(0.1, 5.0))
    inside.lengthscale = 0.1
    with pytest.raises(StudyError, match=r"^kernel\.raw_lengthscale holds 0\.1, an end of its constraint Interval"):
        GPyTorchPrior(ZeroMean(), inside, 1)


def test_a_constraint_that_holds_nothing_is_refused() -> None:
    loose = GreaterThan(0.05, transform=None, initial_value=0.1)
    with pytest.raises(StudyError, match=r"^kernel\.raw_lengthscale has a constraint without a transform"):
        GPyTorchPrior(ZeroMean(), RBFKernel(lengthscale_constraint=loose), 1)
    with pytest.raises(StudyError, match=r"^likelihood\.noise_covar\.raw_noise has a constraint without a transform"):
        GPyTorchPrior(ZeroMean(), RBFKernel(), 1, likelihood=GaussianLikelihood(noise_constraint=loose))


def test_inputs_are_distinct() -> None:
    rows = inputs(20, 3)
    assert rows.shape == (20, 3) and len({*map(tuple, rows.tolist())}) == 20 and float(rows.abs().max()) <= 3.0
    assert math.isclose(float(rows[0, 0]), 3.0)
