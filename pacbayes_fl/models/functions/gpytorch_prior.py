"""Anybody's GPyTorch mean and kernel as a prior whose hyper-parameters come from outside."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from itertools import accumulate
from types import MappingProxyType
from typing import Any, ClassVar, Final

import gpytorch
import numpy as np
import pyro
import torch
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.likelihoods.noise_models import FixedGaussianNoise
from gpytorch.means import ConstantMean, Mean
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.func import functional_call

from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.functions.row_trial import check_constraints, check_rows, inputs
from pacbayes_fl.models.likelihoods import NOISE_STD, gaussian_noise, inverse_softplus

_POINTS: Final = 16  # at which a kernel is tried
_NEGATIVE: Final = 1e-3  # of the largest eigenvalue of a covariance: more than rounding


class _Parts(nn.Module):
    """Noise, mean and kernel under one roof, so that one `functional_call` replaces all their parameters."""

    def __init__(self, mean: Mean, kernel: Kernel, likelihood: Likelihood | None) -> None:
        super().__init__()
        self.raw_noise = nn.Parameter(torch.zeros((), dtype=torch.float64)) if likelihood is None else None
        self.likelihood = likelihood  # before the others: theta begins with what makes the noise
        self.mean = mean
        self.kernel = kernel
        self.diagonal = True  # whether the kernel takes its own

    def observed(self, f: Tensor, x: Tensor) -> Normal:
        """Distribution of targets given f(x) [*, N] at x [*, N, d], if it is normal around it with a noise per row."""
        likelihood: Any = self.likelihood
        with pyro.validation_enabled(False):  # torch's checks would stop a GPU, and one client's NaN everybody
            given = likelihood(f, x)
        while isinstance(given, Independent):
            given = given.base_dist
        if not isinstance(given, Normal):
            raise _likelihood_misfit(likelihood, f"a {type(given).__name__}")
        if given.batch_shape != f.shape:
            raise _likelihood_misfit(likelihood, f"shape {list(given.batch_shape)} for {list(f.shape)} rows")
        return given

    def centres(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters whose own values count: the likelihood's, constrained ones and constants, 0 unless set."""
        if self.likelihood is not None:
            yield from self.likelihood.named_parameters(prefix="likelihood")
        for prefix, part in (("mean", self.mean), ("kernel", self.kernel)):
            for name, parameter, constraint in part.named_parameters_and_constraints():
                if constraint is not None or isinstance(part.get_submodule(name.rpartition(".")[0]), ConstantMean):
                    yield f"{prefix}.{name}", parameter

    def forward(self, part: str, x: Tensor, other: Tensor) -> Tensor:
        # Evaluated inside the call: a kernel evaluated later would use the module's own parameters, silently.
        if part == "mean":
            mean: Tensor = self.mean(x)
            return mean
        if part == "noise":
            given = self.observed(x.new_zeros(x.shape[:-1]), x)
            std: Tensor = given.scale.expand(given.batch_shape)
            return std.square()
        if part == "variance":
            if not self.diagonal:
                whole: Tensor = self.kernel(x, x).to_dense()
                return whole.diagonal(dim1=-2, dim2=-1)
            variance: Tensor = self.kernel(x, x, diag=True)
            return variance
        covariance: Tensor = self.kernel(x, other).to_dense()
        return covariance


class GPyTorchPrior(FunctionModel):
    """Any GPyTorch mean and kernel, with Gaussian noise, as a prior whose hyper-parameters come from outside.

    theta holds the raw noise or the parameters of `likelihood`, then those of `mean` and `kernel`: every one that
    requires a gradient, in the order of `named_parameters`; constrained ones in GPyTorch's raw form. The hyper-prior is
    centred on the values that constrained ones and constants hold, such as `kernel.lengthscale = 3.0` and
    `mean.constant = 1.0`, and for all others (weights of networks, which start anywhere) on 0. Modules that
    broadcast over leading dimensions of their parameters (GPyTorch's own do) are called once for all clients and
    particles; others (a plain `torch.nn.Linear`) once per client and particle: `batched` says which, found out by a
    trial at construction.

    Args:
        mean: prior mean.
        kernel: prior covariance.
        input_dim: number of input features, d.
        noise_std: centre of the hyper-prior of the noise standard deviation, in units of y.
        likelihood: what gives targets y around values of the function, a normal with a noise per row that may depend on
            the input, such as `GaussianLikelihood` or one of your own whose `forward(f, x)` gives Normal(f, std(x));
            the hyper-prior is centred on the values that its parameters hold. None for one noise, as `noise_std` says.
        trial: whether the modules are tried at some inputs; not where they are known to broadcast and to fit together,
            which spares most of the time that it takes to make a prior.

    Raises:
        StudyError: when a part is a class instead of an object, or holds a GPyTorch prior: hyper-parameters have the
            hyper-prior that the method is given, and another one would count for nothing; when a likelihood is not
            normal around the function with a positive noise at any input, or `noise_std` stands beside it; when a
            kernel is no covariance of d features, or does not take all real numbers; when a part gives a row other
            values beside other rows or at another call, or a parameter starts at an end of its constraint.
        ShapeError: when mean or kernel do not map [N, d] inputs to [N] and [N, N].

    Example:
        >>> import gpytorch
        >>> from pacbayes_fl import GPyTorchPrior
        >>> prior = GPyTorchPrior(gpytorch.means.ZeroMean(), gpytorch.kernels.RBFKernel(), input_dim=1)
        >>> prior.location().shape  # lengthscale and noise
        torch.Size([2])
    """

    host_bound: ClassVar[str | None] = "GPyTorch's kernels compare their inputs at every call"

    def __init__(
        self,
        mean: Mean,
        kernel: Kernel,
        input_dim: int,
        noise_std: float = NOISE_STD,
        likelihood: Likelihood | None = None,
        trial: bool = True,
    ) -> None:
        """Lay out theta and find out whether the modules broadcast."""
        _check_part("mean", mean, Mean)
        _check_part("kernel", kernel, Kernel)
        if likelihood is not None:
            _check_part("likelihood", likelihood, Likelihood)
            _check_noise(likelihood)
            if noise_std != NOISE_STD:
                what = f"noise_std={noise_std:g} would count for nothing beside a likelihood"
                raise StudyError(what, hint="the hyper-prior is centred on the noise that the likelihood holds")
        self._parts = _Parts(mean, kernel, likelihood).double()
        free = {name: p.shape for name, p in self._parts.named_parameters() if p.requires_grad}
        held = (*self._parts.named_parameters(), *self._parts.named_buffers())  # one name for what two modules share
        self._fixed = {name: t.detach() for name, t in held if name not in free}
        self._fixed_at: dict[tuple[torch.dtype, torch.device], dict[str, Tensor]] = {}
        self._free = free
        self._sizes = [math.prod(shape) for shape in free.values()]
        self._starts = dict(zip(free, accumulate(self._sizes, initial=0), strict=False))
        self._input_dim, self._noise_std = input_dim, noise_std
        self._held = {name: p.detach().clone() for name, p in self._parts.centres() if name in free}
        self.batched = True
        if trial and likelihood is not None:
            self._check_likelihood(likelihood)
        if trial:
            self.batched = self._broadcasts()

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        """Shape of every named parameter that theta holds, in its order."""
        return MappingProxyType(self._free)

    @property
    def dim(self) -> int:
        """Number of hyper-parameters, D."""
        return sum(self._sizes)

    @property
    def input_dim(self) -> int:
        """Number of input features, d."""
        return self._input_dim

    def location(self) -> Tensor:
        """Centre of the default hyper-prior [D]: what is held, or noise_std; 0 of means' weights."""
        centre = torch.zeros(self.dim, dtype=torch.float64)
        if self._parts.likelihood is None:
            centre[0] = inverse_softplus(self._noise_std)
        named = self.unflatten(centre)
        for name, held in self._held.items():
            named[name].copy_(held)
        return centre

    def unflatten(self, theta: Tensor) -> dict[str, Tensor]:
        """Cut theta into named parameters.

        Args:
            theta: hyper-parameters [*, D].

        Returns:
            Views [*, *shape] by name.

        Raises:
            ShapeError: when theta does not end in D.
        """
        if theta.shape[-1] != self.dim:
            raise ShapeError(f"theta must be [K, P, D] with D={self.dim}, got {list(theta.shape)}")
        parts = theta.split_with_sizes(self._sizes, -1)
        return {name: _shaped(p, shape) for p, (name, shape) in zip(parts, self.shapes.items(), strict=True)}

    def part(self, theta: Tensor, name: str) -> Tensor:
        """Take one named parameter of theta, as `unflatten` has it.

        Args:
            theta: hyper-parameters [*, D].
            name: a key of `shapes`.

        Returns:
            View [*, *shape].
        """
        shape = self.shapes[name]
        return _shaped(theta.narrow(-1, self._starts[name], math.prod(shape)), shape)

    def noise(self, theta: Tensor, x: Tensor) -> Tensor:
        """Observation noise variance [K, P, N] under theta [K, P, D] at x [K, N, d]; see the base class."""
        if self._parts.likelihood is not None:
            return self._call("noise", theta, x, x)
        shape = np.broadcast_shapes(theta.shape[:2], (x.shape[0], 1))
        return gaussian_noise(theta[..., :1]).expand(*shape, x.shape[1])

    def mean(self, theta: Tensor, x: Tensor) -> Tensor:
        """Prior mean [K, P, N] under theta [K, P, D] at x [K, N, d]; see the base class."""
        return self._call("mean", theta, x, x)

    def covariance(self, theta: Tensor, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Covariance [K, P, N, M] under theta [K, P, D] between x [K, N, d] and other [K, M, d]; see the base class."""
        return self._call("covariance", theta, x, x if other is None else other)

    def variance(self, theta: Tensor, x: Tensor) -> Tensor:
        """Prior variance [K, P, N] under theta [K, P, D] at x [K, N, d]; see the base class."""
        return self._call("variance", theta, x, x)

    def embedding(self, theta: Tensor, x: Tensor) -> None:
        """Nothing is known of the kernel's form: None for every theta [K, P, D] and x [K, N, d]."""
        return None

    def content(self) -> tuple[object, ...]:
        """What makes this prior the one that it is: not the weights with which networks in it happen to start.

        Returns:
            All that it holds, the modules with 0 for what theta replaces, and nothing that calls leave behind.
        """
        modules = copy.deepcopy(self._parts)
        with torch.no_grad():
            for name in self._free:
                modules.get_parameter(name).zero_()
        return {name: one for name, one in vars(self).items() if name not in ("_parts", "_fixed_at")}, modules

    def _call(self, part: str, theta: Tensor, x: Tensor, other: Tensor) -> Tensor:
        shape = np.broadcast_shapes(theta.shape[:2], (x.shape[0], 1))  # torch's own imports sympy
        x, other = (t.unsqueeze(1).expand(*shape, *t.shape[1:]) for t in (x, other))
        if self.batched:
            return self._functional(part, theta, x, other)
        flat = [t.expand(*shape, *t.shape[2:]).flatten(0, 1) for t in (theta, x, other)]
        one_by_one = torch.stack([self._functional(part, *row) for row in zip(*flat, strict=True)])
        return one_by_one.view(*shape, *one_by_one.shape[1:])

    def _functional(self, part: str, theta: Tensor, x: Tensor, other: Tensor) -> Tensor:
        with gpytorch.settings.debug(False):  # torch.equal in GPyTorch's checks would stop a GPU
            value: Tensor = functional_call(
                self._parts, self._fixed_like(theta) | self.unflatten(theta), (part, x, other)
            )
        return value

    def _fixed_like(self, theta: Tensor) -> dict[str, Tensor]:
        """What is not learned, like theta: a lengthscale of 1 must not lift a float32 prior to float64."""
        key = (theta.dtype, theta.device)
        if key not in self._fixed_at:
            self._fixed_at[key] = {
                n: t.to(theta) if t.is_floating_point() else t.to(theta.device) for n, t in self._fixed.items()
            }
        return self._fixed_at[key]

    def _broadcasts(self) -> bool:
        theta = torch.arange(4.0 * self.dim, dtype=torch.float64).sin().view(2, 2, self.dim)
        self._parts.diagonal = self._takes_diagonals(theta[0, 0])
        x = inputs(6, self.input_dim).view(2, 3, self.input_dim)
        try:
            one = [self._functional(part, theta[0, 0], x[0], x[0]) for part in ("mean", "covariance", "variance")]
        except (RuntimeError, IndexError) as error:
            raise self._misfit(error) from error
        if [list(t.shape) for t in one] != [[3], [3, 3], [3]]:
            raise ShapeError(
                f"mean and kernel must give [N] and [N, N] at [N, {self.input_dim}], got {[list(t.shape) for t in one]}"
            )
        self._check_definite()
        parts = ["mean", "covariance", "variance"]
        if self._parts.likelihood is not None:
            parts.append("noise")
            one.append(self._functional("noise", theta[0, 0], x[0], x[0]))
        check_rows(self._parts, lambda part, *at: self._functional(part, theta[0, 0], *at), parts, self.input_dim)
        for part, alone in zip(parts, one, strict=True):
            try:
                together = self._call(part, theta, x, x)
                single = self._functional(part, theta[1, 0], x[1], x[1])
            except (RuntimeError, ValueError, IndexError, TypeError):
                return False
            if (
                together.shape[:2] != (2, 2)
                or not torch.allclose(together[0, 0], alone)
                or not torch.allclose(together[1, 0], single)
            ):
                return False
        return True

    def _takes_diagonals(self, theta: Tensor) -> bool:
        """Whether the kernel's own diagonal is that of its matrix: of sums over d features it is another of d rows."""
        for rows in sorted({1, 2, 3, 5, self.input_dim}):
            x = inputs(rows, self.input_dim)
            try:
                own, matrix = (self._functional(part, theta, x, x) for part in ("variance", "covariance"))
                expected = matrix.diagonal(dim1=-2, dim2=-1)
                if own.shape != expected.shape or not torch.allclose(own, expected, rtol=1e-4, equal_nan=True):
                    return False
            except (RuntimeError, IndexError, ValueError, TypeError):
                return False
        return True

    def _check_likelihood(self, likelihood: Likelihood) -> None:
        """Refuse what is not normal around the function, or whose noise is not one of the inputs alone."""
        for rows in (3, 4):
            f = torch.arange(rows, dtype=torch.float64).cos()
            x = torch.arange(float(rows * self.input_dim), dtype=torch.float64).sin().view(rows, self.input_dim)
            with gpytorch.settings.debug(False), torch.no_grad():
                try:
                    given, at_0 = self._parts.observed(f, x), self._parts.observed(torch.zeros_like(f), x)
                except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
                    raise _likelihood_misfit(likelihood, f"an error, {str(error).splitlines()[0]}") from error
            if not torch.equal(given.loc, f):
                raise _likelihood_misfit(likelihood, "a normal around something else")
            if not torch.equal(given.scale, at_0.scale) or not bool((given.scale > 0).all()):
                raise _likelihood_misfit(likelihood, "a noise that inputs alone do not decide")

    def _check_definite(self) -> None:
        """Refuse a kernel whose matrices are no covariances: of two features the cosine of a distance is none."""
        x = inputs(_POINTS, self.input_dim)
        lowest = _lowest(self._functional("covariance", self.location(), x, x))
        if not lowest < -_NEGATIVE:
            return
        alone = ((f"{name} ({type(one).__name__})", _alone(one, x)) for name, one in self._kernels())
        wrong = [name for name, matrix in alone if matrix is not None and _lowest(matrix) < -_NEGATIVE]
        what = f"{wrong[0] if wrong else 'kernel'} gives no covariance of rows of {self.input_dim} features: at some"
        what = f"{what} inputs it has an eigenvalue of {lowest:.3g} times the largest, and none may be negative"
        raise StudyError(what, hint="take another kernel, or give this one a single feature, active_dims=(0,)")

    def _kernels(self) -> list[tuple[str, Kernel]]:
        """The kernels that are not made of others, by name."""
        every = [(name, part) for name, part in self._parts.named_modules() if isinstance(part, Kernel)]
        return [(name, part) for name, part in every if sum(isinstance(one, Kernel) for one in part.modules()) == 1]

    def _misfit(self, error: RuntimeError | IndexError) -> ShapeError | StudyError:
        """Say which kernel does not take as many features as there are, or all numbers."""
        sizes = ((name, getattr(part, "ard_num_dims", None), part) for name, part in self._parts.named_modules())
        wrong = [
            f"{name} has ard_num_dims={size}"
            for name, size, part in sizes
            if size is not None and size != (self.input_dim if part.active_dims is None else len(part.active_dims))
        ]
        reason = str(error).splitlines()[0]
        x = inputs(3, self.input_dim)
        for name, kernel in () if wrong else self._kernels():
            if _alone(kernel, torch.zeros_like(x)) is not None and _alone(kernel, x) is None:
                what = f"{name} ({type(kernel).__name__}) must take all real numbers, as standardised rows have them"
                hint = "give a kernel of real numbers; data.categorical makes features of a column of categories"
                return StudyError(f"{what}: {reason}", hint=hint)
        return ShapeError(
            f"mean or kernel cannot take inputs [N, {self.input_dim}]: {', '.join(wrong) or reason}",
            hint=f"input_dim={self.input_dim} must be what ard_num_dims, active_dims and input_size say",
        )


def _alone(kernel: Kernel, x: Tensor) -> Tensor | None:
    """Matrix of a kernel under the parameters that it came with; None where it does not take inputs by itself."""
    try:
        matrix: Tensor = kernel(x, x).to_dense().detach()
    except (RuntimeError, IndexError, TypeError, ValueError):
        return None
    return matrix


def _lowest(covariance: Tensor) -> float:
    """Lowest eigenvalue in units of the largest; NaN where some number is."""
    if not bool(covariance.isfinite().all()):
        return math.nan
    low, high = torch.linalg.eigvalsh(covariance.detach()).aminmax()
    return float(low / high.abs().clamp_min(1e-300))


def _shaped(values: Tensor, shape: torch.Size) -> Tensor:
    """View numbers of one parameter [*, size] as [*, *shape]."""
    if len(shape) == 1:
        return values
    return values.unflatten(-1, shape) if shape else values.squeeze(-1)


def _likelihood_misfit(likelihood: object, got: str) -> StudyError:
    what = f"likelihood must give a normal around the function with a noise per row, {type(likelihood).__name__} gives"
    hint = "write one whose forward(f, x) gives torch's Normal(f, std), std [*, N] of inputs x [*, N, d]"
    return StudyError(f"{what} {got}", hint=hint)


def _check_part(label: str, part: object, kind: type[nn.Module]) -> None:
    """Check that it is an object of GPyTorch without priors on hyper-parameters, which methods would ignore."""
    if not isinstance(part, kind):
        known = isinstance(part, type) and issubclass(part, kind)
        got = f"the class {part.__name__}" if isinstance(part, type) else type(part).__name__
        hint = f"write {part.__name__}(...)" if known and isinstance(part, type) else None
        raise StudyError(f"{label} must be an object of gpytorch's {kind.__name__}, got {got}", hint=hint)
    priors: Any = part
    if result := [(name, type(prior).__name__) for name, _, prior, *_ in priors.named_priors()]:
        names = ", ".join(f"{label}.{name} ({prior})" for name, prior in result)
        raise StudyError(
            f"GPyTorch priors on hyper-parameters would count for nothing: {names}",
            hint="leave them out and give the method a hyper-prior: GaussianHyperPrior(prior.location(), std), or a "
            "class of your own with sample and score",
        )
    check_constraints(label, part)


def _check_noise(likelihood: Likelihood) -> None:
    """Refuse noises by place: those of other rows, wherever their number happens to be the same."""
    for part in likelihood.modules():
        if isinstance(part, FixedGaussianNoise):
            raise _likelihood_misfit(likelihood, f"noises of {part.noise.shape[-1]} rows by their place")
