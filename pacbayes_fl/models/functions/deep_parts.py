"""Mean, kernel and noise with networks, of which the paper's prior is made, as GPyTorch modules."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from gpytorch.kernels import Kernel, ScaleKernel
from gpytorch.likelihoods import Likelihood
from gpytorch.means import Mean
from torch import Tensor, nn
from torch.distributions import Normal

from pacbayes_fl.models.functions.networks import BatchedMLP
from pacbayes_fl.models.likelihoods import gaussian_noise, inverse_softplus


class DeepMean(Mean):
    """Network mean m(x) (PAC-PFL section 8.3.2), with a linear term w' x + b beside the network if it is asked for.

    Args:
        input_dim: number of input features, d.
        widths: hidden units of the network; None for no network.
        linear: whether there is a linear term.
    """

    def __init__(self, input_dim: int, widths: Sequence[int] | None, linear: bool = False) -> None:
        """Make the network, and the coefficients (w, b) [d + 1]."""
        super().__init__()
        self.linear = nn.Parameter(torch.zeros(input_dim + 1, dtype=torch.float64)) if linear else None
        self.network = None if widths is None else BatchedMLP((input_dim, *widths, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Mean at inputs.

        Args:
            x: [*, N, d].

        Returns:
            [*, N].
        """
        mean: Tensor = x.new_zeros(x.shape[:-1]) if self.network is None else self.network(x).squeeze(-1)
        return mean if self.linear is None else mean + linear_term(self.linear.unsqueeze(-2), x).squeeze(-2)


class DeepKernel(Kernel):
    """Kernel on a network's features, k(x, x') = k_base(f(x), f(x')) (PAC-PFL section 8.3.2; Wilson et al. 2016).

    A linear kernel beside it, s^2 (x' x + 1), gives clients slopes of their own (Rasmussen and Williams, section 2.1).

    Args:
        sizes: numbers of units from d inputs to the features; None for the same feature of all inputs.
        base: kernel on the features.
        linear: whether there is a linear kernel.
    """

    def __init__(self, sizes: Sequence[int] | None, base: Kernel, linear: bool = False) -> None:
        """Make the network, and the standard deviation of slopes s."""
        super().__init__()
        self.slope_std = nn.Parameter(torch.zeros((), dtype=torch.float64)) if linear else None
        self.network = None if sizes is None else BatchedMLP(sizes)
        self.base = base

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **_: object) -> Tensor:
        """Covariance between inputs.

        Args:
            x1: [*, N, d].
            x2: [*, M, d].
            diag: give the diagonal only.
            **_: GPyTorch's other options, which do not matter here.

        Returns:
            [*, N, M], or [*, N] with `diag`.
        """
        kernel = self.base(self._features(x1), self._features(x2), diag=diag)
        dense: Tensor = kernel if diag else kernel.to_dense()
        if self.slope_std is None:
            return dense
        products = (x1 * x2).sum(-1) if diag else (x1 @ x2.mT)
        return dense + self.slope_std.square().view(*self.slope_std.shape, *[1] * (1 if diag else 2)) * (products + 1.0)

    def _features(self, x: Tensor) -> Tensor:
        features: Tensor = torch.zeros_like(x[..., :1]) if self.network is None else self.network(x)
        return features


class DeepNoise(Likelihood):
    """Noise whose size a network reads off the input, y ~ N(f(x), s(x)^2) with s(x) = softplus(r + g(x)).

    With degrees of freedom it is Student-t around f, y ~ t_nu(f(x), s(x)^2); what is said here is then the normal
    distribution of a row whose scale is 1, to which `posteriors.functions.student_noise` gives scales.

    Args:
        sizes: numbers of units of the network g from d inputs to 1; None for g = 0.
        std: s where g is 0, in units of y.
        dof: degrees of freedom that learning starts from; None where they are not learned.
    """

    def __init__(self, sizes: Sequence[int] | None, std: float, dof: float | None = None) -> None:
        """Make r, the raw degrees of freedom and the network."""
        super().__init__()
        self.raw_noise = nn.Parameter(torch.tensor(inverse_softplus(std), dtype=torch.float64))
        raw_dof = None if dof is None else torch.tensor(math.log(dof - 2.0), dtype=torch.float64)
        self.raw_dof = None if raw_dof is None else nn.Parameter(raw_dof)
        self.network = None if sizes is None else BatchedMLP(sizes)

    def forward(self, function_samples: Tensor, x: Tensor) -> Normal:
        """Distribution of targets.

        Args:
            function_samples: f(x) [*, N], in units of y.
            x: [*, N, d].

        Returns:
            Normal [*, N].
        """
        raw = self.raw_noise.unsqueeze(-1)
        raw = raw.expand(*raw.shape[:-1], x.shape[-2]) if self.network is None else raw + self.network(x).squeeze(-1)
        return Normal(function_samples, gaussian_noise(raw).sqrt(), validate_args=False)  # it would stop a GPU


class Scaled(ScaleKernel):
    """GPyTorch's kernel with a variance of its own, of one process: its shape need not be asked of torch (sympy)."""

    batch_shape = torch.Size()


def linear_term(coefficients: Tensor, x: Tensor) -> Tensor:
    """Evaluate w' x + b.

    Args:
        coefficients: (w, b) [*, P, d + 1].
        x: [*, N, d].

    Returns:
        [*, P, N].
    """
    return coefficients[..., :-1] @ x.mT + coefficients[..., -1:]
