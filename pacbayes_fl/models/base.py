"""Interfaces of models for methods."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import ClassVar, Protocol, Self, TypeVar

import pyro
import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from pyro import poutine
from pyro.distributions import Independent, MaskedDistribution, TorchDistribution
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.models.fixed_weights import FixedWeights, observed
from pacbayes_fl.models.inducing import Inducing
from pacbayes_fl.models.prior_values import PriorGradients, PriorValues, Pullback, Spreads

Default = TypeVar("Default", bound=Callable[..., object])


def default(method: Default) -> Default:
    """Mark what a class does unless one that is derived from it says otherwise; no other concrete method is replaced.

    Who replaces a default does not call it.

    Args:
        method: of a base class.

    Returns:
        The method.
    """
    method.__default__ = True  # type: ignore[attr-defined]
    return method


class FunctionModel(ABC):
    """A Gaussian-process prior over functions whose hyper-parameters theta are given at call time.

    Nothing is stored: all hyper-parameters of all particles and clients are one tensor theta [K, P, D], flat in an
    order that the model chooses.
    """

    host_bound: ClassVar[str | None] = None
    """Why evaluating it must read numbers on the CPU, in words for people; None where it need not."""

    inducing: Inducing | None = None
    """Which clients' rows are known through inducing points; None for exact evidence and posteriors."""

    def with_inducing(self, rule: Inducing | None) -> Self:
        """Give the same prior with inducing points for clients, or without.

        Args:
            rule: how many, and for whom; None for nobody.

        Returns:
            A shallow copy.

        Raises:
            StudyError: when there would be no point.
        """
        result = copy.copy(self)
        object.__setattr__(result, "inducing", None if rule is None else rule.checked())
        return result

    def footprint(self, rows: int) -> int:
        """Numbers that the evidence of a client of `rows` rows takes under one particle: of its covariance, or less."""
        exact = self.inducing is None or rows <= self.inducing.above
        return rows * (rows if self.inducing is None or exact else 4 * min(rows, self.inducing.points))

    @property
    @abstractmethod
    def dim(self) -> int:
        """Number of hyper-parameters, D."""

    @property
    @abstractmethod
    def input_dim(self) -> int:
        """Number of input features, d."""

    def check_inputs(self, x: Tensor, clients: int) -> None:
        """Refuse inputs of another shape: many a kernel takes any number of features.

        Args:
            x: inputs [K, N, d]; [1, N, d] for the same of all clients.
            clients: K; 1 for any number.

        Raises:
            ShapeError: saying what came.
        """
        if x.dim() != 3 or x.shape[2] != self.input_dim or len({1, clients, len(x)}) > 2:
            raise ShapeError(f"x must be [K, N, d] with K={clients}, d={self.input_dim}, got {list(x.shape)}")

    @abstractmethod
    def location(self) -> Tensor:
        """Centre of the default hyper-prior [D]: 0, and for the raw noise softplus^-1(0.4) (PAC-PFL section 8.6.2)."""

    @abstractmethod
    def noise(self, theta: Tensor, x: Tensor) -> Tensor:
        """Variance of the observation noise, which may depend on the input.

        Args:
            theta: hyper-parameters [K, P, D].
            x: inputs [K, N, d].

        Returns:
            [K, P, N], in squared units of y; a view of [K, P, 1] where it does not depend on the input.
        """

    @abstractmethod
    def mean(self, theta: Tensor, x: Tensor) -> Tensor:
        """Prior mean.

        Args:
            theta: hyper-parameters [K, P, D].
            x: inputs [K, N, d].

        Returns:
            [K, P, N], in units of y.
        """

    @abstractmethod
    def covariance(self, theta: Tensor, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Prior covariance of function values, without the noise.

        Args:
            theta: hyper-parameters [K, P, D].
            x: inputs [K, N, d].
            other: inputs [K, M, d]; x itself when not given.

        Returns:
            [K, P, N, M], in squared units of y.
        """

    @abstractmethod
    def variance(self, theta: Tensor, x: Tensor) -> Tensor:
        """Diagonal of the prior covariance.

        Args:
            theta: hyper-parameters [K, P, D].
            x: inputs [K, N, d].

        Returns:
            [K, P, N], in squared units of y.
        """

    @abstractmethod
    def embedding(self, theta: Tensor, x: Tensor) -> Tensor | None:
        """Features whose squared distance alone decides the covariance, exp(-|z - z'|^2 / 2), if it is of that kind.

        Args:
            theta: hyper-parameters [K, P, D].
            x: inputs [K, N, d].

        Returns:
            z [K, P, N, F] for the closed-form path, None for a covariance of any other form.
        """

    @default
    def outputscale(self, theta: Tensor) -> Tensor | None:
        """Factor of the covariance that the embedding gives.

        Args:
            theta: hyper-parameters [K, P, D].

        Returns:
            [K, P], in squared units of y; None for 1.
        """
        return None

    @default
    def linear_features(self, theta: Tensor, x: Tensor) -> Tensor | None:
        """Features whose products are added to the covariance that the embedding gives.

        Args:
            theta: hyper-parameters [K, P, D].
            x: inputs [K, N, d].

        Returns:
            b [K, P, N, R], in units of y, for b(x)' b(x') beside exp(-|z - z'|^2 / 2); None for 0.
        """
        return None

    @default
    def degrees_of_freedom(self, theta: Tensor) -> Tensor | None:
        """Degrees of freedom [K, P] of Student-t noise at theta [K, P, D], `noise` its squared scale; None: normal."""
        return None

    @default
    def spreads(self) -> Spreads | None:
        """How far the default hyper-prior lets each hyper-parameter go; None where all go alike."""
        return None

    @default
    def bind(self, theta: Tensor) -> Callable[[Tensor], tuple[Tensor, Tensor | None]]:
        """Fix the hyper-parameters, so that many evaluations share the terms that depend on them alone.

        Args:
            theta: hyper-parameters [K, P, D].

        Returns:
            A function of inputs [K, N, d] that gives the prior mean [K, P, N] and the embedding [K, P, N, F] or None.
        """
        return lambda x: (self.mean(theta, x), self.embedding(theta, x))

    @default
    def with_vjp(self, theta: Tensor, x: Tensor) -> tuple[PriorValues, Pullback]:
        """Evaluate the prior and keep the way back to the hyper-parameters; by autograd, which defines faster ways.

        Args:
            theta: hyper-parameters [P, D], the same for all clients, or [K, P, D].
            x: inputs [K, N, d].

        Returns:
            Values without autograd, and the function that turns gradients by them into one by theta.
        """
        with torch.enable_grad():
            shared = theta if theta.dim() == 3 else theta.expand(len(x), *theta.shape)
            leaf = shared.detach().clone().requires_grad_(True)  # a copy per client: a gradient per client
            embedding = self.embedding(leaf, x)
            kernel = self.covariance(leaf, x) if embedding is None else embedding
            scale = None if embedding is None else self.outputscale(leaf)
            linear = None if embedding is None else self.linear_features(leaf, x)
            outputs = self.mean(leaf, x), self.noise(leaf, x), kernel, scale, linear, self.degrees_of_freedom(leaf)

        def vjp(gradients: PriorGradients) -> Tensor:
            pairs = zip(outputs, gradients, strict=True)
            reached = [(out, by) for out, by in pairs if out is not None and by is not None and out.requires_grad]
            with torch.enable_grad():  # their sum, as `grad_outputs` would import sympy
                total = torch.stack([(out * by).sum() for out, by in reached]).sum()
            return torch.autograd.grad(total, leaf)[0]

        mean, noise, kernel = (output.detach() for output in outputs[:3])
        beside = (None if output is None else output.detach() for output in outputs[3:])
        return PriorValues(mean, noise, kernel, embedding is not None, *beside), vjp

    def prior(self, theta: Tensor, x: Tensor) -> tuple[MultivariateNormal, Tensor]:
        """Prior at some inputs as GPyTorch's distribution: the definition that every faster path is held to.

        Args:
            theta: hyper-parameters [K, P, D].
            x: inputs [K, N, d].

        Returns:
            N with batch [K, P] and event [N], and the noise variance [K, P, N].
        """
        # An operator, not a tensor: GPyTorch factors a dense covariance at once and raises for all if one client fails.
        covariance = to_linear_operator(self.covariance(theta, x))
        return MultivariateNormal(self.mean(theta, x), covariance), self.noise(theta, x)


class WeightPrior(Protocol):
    """The source of a Pyro program's weights: a distribution per site."""

    def site(self, name: str) -> TorchDistribution:
        """Distribution of one site, its event dimensions those of the site's shape."""


class WeightModel(ABC):
    """A likelihood with random weights, written as a Pyro program over one plate "clients" at dim -1.

    A user's model gives `shapes` and `model`; every variational method takes it as it is. The program holds `sample`
    statements only: what is learned comes in as arguments, so Pyro's parameter store stays empty.

    Example:
        >>> import pyro, torch, pacbayes_fl as fl
        >>> class Level(fl.WeightModel):  # y ~ N(level, 1), zeta and scale being those of the objective
        ...     shapes = {"level": ()}
        ...     def model(self, batch, prior, zeta, scale):
        ...         with (clients := pyro.plate("clients", batch.clients, dim=-1)), pyro.poutine.scale(scale=zeta):
        ...             level = pyro.sample("level", prior.site("level")).unsqueeze(1)
        ...         with clients, pyro.poutine.scale(scale=scale):
        ...             rows = pyro.distributions.Normal(level, 1.0).mask(batch.mask).to_event(1)
        ...             pyro.sample("y", rows, obs=batch.y)
        >>> batch = fl.ClientBatch.pad([(torch.zeros(5, 1), torch.ones(5))], dtype=torch.float32)
        >>> fl.run_rounds(fl.PFedBayes(Level()), batch, fl.FederationPlan(rounds=2)).server.w.loc.shape
        torch.Size([1])
    """

    dtype: torch.dtype = torch.float32
    """Of the weights."""

    row_by_row: ClassVar[bool] = True
    """False where a prediction depends on statistics of other rows: of the reference, or of the batch without one."""

    deterministic: frozenset[str] = frozenset()
    """Sites whose weights are learned as numbers, without uncertainty."""

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Event shape of every site of weights, in the order in which they stand in a flat vector of D weights."""

    @abstractmethod
    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        """Draw every site from `prior.site(name)` and observe the targets; see `BayesianNetwork.model`.

        Args:
            batch: rows of K clients. Rows are event dimensions: the observation has batch shape [K], and rows of
                padding are masked.
            prior: of the weights.
            zeta: weight of the KL divergence, a `poutine.scale` around the weights.
            scale: m_k over the rows of the minibatch [K], a `poutine.scale` around the observation.
        """

    def draw_weights(self, prior: WeightPrior) -> dict[str, Tensor]:
        """Draw every site inside a Pyro program, those without uncertainty outside of any KL divergence.

        Args:
            prior: a prior or a guide's posterior.

        Returns:
            Weights [K, *shape] by site.
        """
        weights = {}
        for name in self.shapes:
            with poutine.mask(mask=name not in self.deterministic):
                weights[name] = pyro.sample(name, prior.site(name))
        return weights

    @default
    def observation(
        self, weights: Tensor, batch: ClientBatch, reference: ClientBatch | None = None
    ) -> TorchDistribution:
        """Distribution of each target given the weights, found by tracing the program.

        Args:
            weights: flat [K, D].
            batch: inputs [K, N, *feature]; its targets are not looked at.
            reference: the clients' training rows, for a network that normalises by their statistics.

        Returns:
            A distribution with batch shape [K, N].

        Raises:
            StudyError: when the program observes nothing, or more than one site.
        """
        ones = torch.ones(batch.clients, dtype=weights.dtype, device=weights.device)
        with pyro.validation_enabled(False):
            trace = poutine.trace(self.model).get_trace(batch, FixedWeights(self.unflatten(weights)), 1.0, ones)
        result = observed(trace)
        if len(result) != 1:
            raise StudyError(f"the Pyro program must observe one site, found {len(result)}")
        distribution = result[0][1]["fn"]
        while isinstance(distribution, Independent | MaskedDistribution):
            distribution = distribution.base_dist
        return distribution if distribution.batch_shape == batch.y.shape else distribution.expand(batch.y.shape)

    @default
    def with_statistics(self, weights: Tensor, reference: ClientBatch) -> Self:
        """Take the statistics of reference rows once, for many calls at the same weights.

        Args:
            weights: flat [K, D].
            reference: the clients' training rows.

        Returns:
            What gives at these weights what this model gives with `reference`; itself where it has no statistics.
        """
        return self

    @default
    def log_likelihood(self, weights: Tensor, batch: ClientBatch) -> Tensor:
        """Log likelihood summed over real rows.

        Args:
            weights: flat [K, D].
            batch: rows [K, N, *feature].

        Returns:
            [K], in nats.
        """
        return torch.where(batch.mask, self.log_likelihood_by_row(weights, batch), 0.0).sum(1)

    @default
    def log_likelihood_by_row(self, weights: Tensor, batch: ClientBatch) -> Tensor:
        """Log likelihood of every row.

        Args:
            weights: flat [K, D].
            batch: rows [K, N, *feature].

        Returns:
            [K, N], in nats; of padding any number.
        """
        by_row: Tensor = self.observation(weights, batch).log_prob(batch.y)
        return by_row

    @property
    def dim(self) -> int:
        """Number of weights, D."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def span(self, name: str) -> slice:
        """Where a site stands in a flat vector of weights."""
        sizes = {site: math.prod(shape) for site, shape in self.shapes.items()}
        start = sum(sizes[site] for site in takewhile(lambda site: site != name, sizes))
        return slice(start, start + sizes[name])

    def shared(self, personal_sites: int) -> int:
        """Number of weights before the last sites, which are a client's own.

        Args:
            personal_sites: number of those last sites; 2 are the last layer's weight and bias.

        Returns:
            Where they begin in a flat vector of weights.

        Raises:
            StudyError: when none or all of the sites would be personal.
        """
        sites = list(self.shapes)
        if not 0 < personal_sites < len(sites):
            raise StudyError(f"personal_sites must be between 1 and {len(sites) - 1}, got {personal_sites}")
        return int(self.span(sites[-personal_sites]).start)

    @default
    def footprint(self, rows: int) -> int:
        """Numbers that the hot loop holds per client of `rows` rows: here the weights."""
        return self.dim

    def stochastic_columns(self) -> Tensor:
        """Mark the weights that carry uncertainty: bool [D], False in the sites of `deterministic`."""
        sites = [torch.full((math.prod(shape),), name not in self.deterministic) for name, shape in self.shapes.items()]
        return torch.cat(sites)

    @default
    def centre(self) -> Tensor:
        """Centre of the initial means [D]; 0 but for weights that scale."""
        return torch.zeros(self.dim, dtype=self.dtype)

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """Cut flat weights into sites.

        Args:
            flat: [*, D].

        Returns:
            Views [*, *shape] by site.
        """
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        cut = zip(self.shapes.items(), flat.split(sizes, -1), strict=True)
        return {name: part.unflatten(-1, shape) if shape else part.squeeze(-1) for (name, shape), part in cut}
