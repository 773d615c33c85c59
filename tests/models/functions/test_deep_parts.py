"""The modules of the paper's prior, against their formulas in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from pacbayes_fl.models.functions.deep_parts import DeepKernel, DeepMean, DeepNoise, Scaled, linear_term


def inputs(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("widths", [None, (), (4,)])
@pytest.mark.parametrize("linear", [False, True])
def test_a_mean_is_its_network_and_its_line(widths: tuple[int, ...] | None, linear: bool) -> None:
    mean, x = DeepMean(3, widths, linear), inputs(5, 3)
    expected = torch.zeros(5, dtype=torch.float64)
    if mean.network is not None:
        for parameter in mean.network.parameters():
            parameter.data = inputs(*parameter.shape, seed=1)
        expected = expected + mean.network(x).squeeze(-1)
    if mean.linear is not None:
        mean.linear.data = inputs(4, seed=2)
        expected = expected + x @ mean.linear[:3] + mean.linear[3]
    torch.testing.assert_close(mean(x), expected)
    assert (mean.network is None, mean.linear is None) == (widths is None, not linear)


@pytest.mark.parametrize("sizes", [None, (3, 4, 2)])
def test_a_kernel_is_that_of_its_features_and_of_lines(sizes: tuple[int, ...] | None) -> None:
    base = Scaled(RBFKernel().double())
    base.outputscale, base.base_kernel.lengthscale = 0.75, 1.5
    kernel, x, other = DeepKernel(sizes, base, linear=True), inputs(5, 3), inputs(4, 3, seed=3)
    assert kernel.slope_std is not None
    kernel.slope_std.data.fill_(0.5)
    z, o = (
        np.zeros((len(one), 1)) if kernel.network is None else kernel.network(one).detach().numpy()
        for one in (x, other)
    )
    distances = ((z[:, None] - o[None]) ** 2).sum(-1)
    expected = 0.75 * np.exp(-distances / (2 * 1.5**2)) + 0.25 * (x.numpy() @ other.numpy().T + 1)
    np.testing.assert_allclose(kernel(x, other).to_dense().detach(), expected, rtol=1e-6)
    torch.testing.assert_close(kernel(x, x, diag=True), kernel(x, x).to_dense().diagonal())


def test_noise_is_softplus_of_a_number_and_of_a_network() -> None:
    x, f = inputs(5, 3), inputs(5, seed=4)
    alone, deep = DeepNoise(None, 0.3), DeepNoise((3, 4, 1), 0.3, dof=5.0)
    assert alone.raw_dof is None and deep.raw_dof is not None and float(2 + deep.raw_dof.exp()) == pytest.approx(5.0)
    torch.testing.assert_close(alone(f, x).stddev, torch.full((5,), 0.3, dtype=torch.float64))
    assert deep.network is not None
    raw = deep.raw_noise + deep.network(x).squeeze(-1)
    normal = deep(f, x)
    assert torch.equal(normal.mean, f)
    torch.testing.assert_close(normal.stddev, torch.nn.functional.softplus(raw))


def test_a_linear_term_is_a_product_and_an_intercept() -> None:
    coefficients, x = inputs(2, 3, 5), inputs(2, 6, 4, seed=1)
    expected = torch.einsum("kpd,knd->kpn", coefficients[..., :4], x) + coefficients[..., 4:]
    torch.testing.assert_close(linear_term(coefficients, x), expected)
