"""What a posterior of laplace-torch is over: its Gaussian, the weights that are uncertain, and those that are not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from pacbayes_fl.errors import AssumptionError


def gaussian_of(posterior: Any) -> tuple[Tensor, Tensor]:
    """Give mean and covariance of a posterior of laplace-torch.

    Args:
        posterior: that was fitted, of all weights or of the last layer.

    Returns:
        Mean [D] and covariance [D, D], float64.

    Raises:
        AssumptionError: when it was not fitted, is of some weights, or has no covariance.
    """
    kind = type(posterior).__name__
    if not isinstance(mean := posterior.mean, Tensor) or not mean.dim():
        raise AssumptionError(f"the {kind} must be fitted before it is certified", hint=f"{kind}.fit(loader)")
    if "Subnet" in kind:
        what = f"a posterior of laplace-torch over all weights or the last layer, got a {kind}"
        raise AssumptionError(what, hint="give sample and kl")
    for name, covariance in (("posterior_covariance", Tensor.double), ("posterior_variance", torch.diag)):
        if hasattr(posterior, name):
            return mean.double(), covariance(getattr(posterior, name)).double()
    if hasattr(posterior, "posterior_precision") and hasattr(posterior.posterior_precision, "to_matrix"):
        return mean.double(), torch.linalg.inv(posterior.posterior_precision.to_matrix().double())
    what = f"a posterior of laplace-torch with a covariance, got {kind}"
    raise AssumptionError(what, hint="hessian_structure 'full', 'diag' or 'kron'; or give sample and kl")


def uncertain(posterior: object, network: Any) -> list[nn.Parameter]:
    """List the parameters that a posterior is over.

    Args:
        posterior: of laplace-torch.
        network: its own, or a copy of it.

    Returns:
        Parameters of the network.
    """
    last = type(posterior).__name__.endswith("LLLaplace")
    return [each for each in (network.last_layer if last else network).parameters() if last or each.requires_grad]


def left_alone(posterior: Any) -> list[Tensor]:
    """List what of a network its posterior leaves alone: other parameters, and all buffers.

    Args:
        posterior: of laplace-torch.

    Returns:
        Tensors of the network.
    """
    return [*_frozen(posterior), *posterior.model.buffers()]


def learned_beside(posterior: Any) -> list[Tensor]:
    """List what of a network its posterior leaves alone and rows may have made: buffers of its code's own left out.

    Args:
        posterior: of laplace-torch.

    Returns:
        Parameters, and averages of norms.
    """
    norms = [each for each in posterior.model.modules() if isinstance(each, _NormBase)]
    return [*_frozen(posterior), *(buffer for each in norms for buffer in each.buffers())]


def _frozen(posterior: Any) -> list[Tensor]:
    own = {id(each) for each in uncertain(posterior, posterior.model)}
    return [each.detach() for each in posterior.model.parameters() if id(each) not in own]
