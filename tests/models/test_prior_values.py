"""What a prior is at some inputs: every number of it has a gradient, and an embedding makes a kernel."""

from __future__ import annotations

import torch
from gpytorch.kernels import RBFKernel

from pacbayes_fl.models.prior_values import PriorGradients, PriorValues, squared_exponential
from tests.inference.test_evidence import draw


def test_every_number_of_a_prior_has_a_gradient_of_its_name() -> None:
    assert [name for name in PriorValues._fields if name != "embedded"] == [*PriorGradients._fields]
    assert (
        PriorValues._field_defaults
        == PriorGradients._field_defaults
        == {"outputscale": None, "linear": None, "dof": None}
    )


def test_squared_exponential_is_gpytorch_s() -> None:
    z, other = draw(2, 3, 5, 2), draw(2, 3, 4, 2, seed=1)
    kernel = RBFKernel().double()
    kernel.lengthscale = 1.0
    torch.testing.assert_close(squared_exponential(z, other), kernel(z, other).to_dense(), rtol=1e-12, atol=1e-14)
    assert squared_exponential(1e8 * z, 1e8 * z).le(1.0).all()
