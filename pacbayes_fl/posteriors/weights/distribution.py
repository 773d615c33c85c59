"""A family of distributions over weights from a torch distribution alone, fed with the clients' own random numbers."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from keyword import iskeyword
from typing import Any, NamedTuple, Self

import pyro
import torch
from torch import Tensor
from torch.distributions import (
    Distribution,
    Independent,
    SoftplusTransform,
    Transform,
    constraints,
    identity_transform,
    kl_divergence,
    transform_to,
)
from torch.utils._python_dispatch import TorchDispatchMode

from pacbayes_fl import tensors
from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.noise import Noise, generator_from_text
from pacbayes_fl.posteriors.weights.by_autograd import ByAutograd, check_uncertain
from pacbayes_fl.posteriors.weights.mean_field import initial_mean_field

Base = tuple[Tensor, ...]
"""Standard normals and uniforms in (0, 1) behind one draw, in the order in which `rsample` takes them, each [K, *]."""


class Start(NamedTuple):
    """The independent normals at which a mean field would begin.

    Args:
        loc: means [D].
        scale: standard deviations [D].
    """

    loc: Tensor
    scale: Tensor


class _Fed(TorchDispatchMode):
    """Gives `rsample` normals and uniforms of the clients' streams in place of torch's own, and refuses others."""

    def __init__(self, take: Callable[[Tensor, bool], Tensor]) -> None:
        """Store the source of standard normals, or of uniforms, like a tensor [K, *]."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._take = take

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer a random operation, and pass on all others."""
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        name, values = func.overloadpacket.__name__, dict(zip(("first", "second"), args[1:], strict=False)) | kwargs
        if name == "normal_":
            return args[0].copy_(self._normal(args[0], values))
        if name == "uniform_":
            return args[0].copy_(self._uniform(args[0], values))
        if name in ("randn", "rand", "randn_like", "rand_like"):
            shaped = args[0] if name.endswith("_like") else torch.empty(args[0], **_options(kwargs))
            return self._take(shaped, name.startswith("rand_") or name == "rand")
        what = f"a distribution draws by {name!r}, and the clients' streams give normals and uniforms alone"
        raise StudyError(what, hint="give it an rsample that transforms torch.randn or torch.rand")

    def _normal(self, like: Tensor, values: Mapping[str, Any]) -> Tensor:
        mean, std = values.get("first", values.get("mean", 0.0)), values.get("second", values.get("std", 1.0))
        drawn = self._take(like, False)
        return drawn if (mean, std) == (0.0, 1.0) else mean + std * drawn

    def _uniform(self, like: Tensor, values: Mapping[str, Any]) -> Tensor:
        low, high = values.get("first", values.get("from", 0.0)), values.get("second", values.get("to", 1.0))
        drawn = self._take(like, True)
        return drawn if (low, high) == (0.0, 1.0) else low + (high - low) * drawn


def _options(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in kwargs.items() if name in ("dtype", "device") and value is not None}


class FromDistribution(ByAutograd):
    """A member of a `DistributionFamily`; a child is a NamedTuple of its unconstrained parameters."""

    __slots__ = ()

    kind: DistributionFamily

    @property
    def loc(self) -> Tensor:
        """Mean of the weights [*, D], where no parameter has this name."""
        return self.mean()

    def distribution(self) -> Distribution:
        """Torch's distribution of the weights, batch shape [*] and event shape [D]."""
        leaves: Any = self
        return self.kind.made(dict(zip(self.kind.names, leaves, strict=True)))

    def draw(self, noise: Noise) -> Base:
        """Take the random numbers behind one draw from the clients' streams."""
        base: list[Tensor] = []
        clients = len(noise.ids)

        def take(like: Tensor, uniform: bool) -> Tensor:
            if like.dim() < 2 or len(like) != clients:
                what = f"a draw must take numbers client by client, [{clients}, *], and takes {list(like.shape)}"
                raise StudyError(f"{self.kind.name}: {what}", hint="batch the distribution over the clients")
            base.append(noise.weights(like, "uniform" if uniform else "normal"))
            return base[-1]

        self._sampled(take)
        return tuple(base)

    def weights(self, draw: Base) -> Tensor:
        """Weights theta [K, D] of a draw, `rsample` with its random numbers."""
        left: Iterator[Tensor] = iter(draw)
        return self._sampled(lambda like, uniform: next(left))

    def mean(self) -> Tensor:
        """Mean of the weights [*, D]."""
        mean: Tensor = self.distribution().mean
        return mean

    def kl(self, prior: Self) -> Tensor:
        """KL divergence as `torch.distributions.kl` has it: [K], in nats, float64."""
        both: tuple[Any, Any] = (self, prior)
        q, w = (type(self)(*(leaf.double() for leaf in family)).distribution() for family in both)
        divergence: Tensor = kl_divergence(q, w)
        return divergence

    def bounded(self) -> Self:
        """Clamp the parameters that are transformed, in place, to where softplus and exp are exact numbers."""
        leaves: Any = self
        for name, leaf in zip(self.kind.names, leaves, strict=True):
            if self.kind.transforms[name] is not identity_transform:
                limit = 40.0 if leaf.dtype == torch.float64 else 20.0
                leaf.clamp_(-limit, limit)
        return self

    def _sampled(self, take: Callable[[Tensor, bool], Tensor]) -> Tensor:
        fed_noise = self.distribution()
        with _Fed(take):
            theta: Tensor = fed_noise.rsample()
        return theta


@dataclass(frozen=True, eq=False)
class DistributionFamily:
    """All distributions that a constructor makes of its parameters; see `Family.from_distribution`.

    Args:
        make: gives the distribution of parameters [K, *] or [*].
        start: gives the initial value [*] of each parameter, from independent normals.
        transforms: to each parameter from the unconstrained one that is learned.
        name: for errors and records.
    """

    make: Callable[..., Distribution]
    start: Mapping[str, Callable[[Start], Tensor]]
    transforms: Mapping[str, Transform]
    name: str

    def __str__(self) -> str:
        """Its name."""
        return self.name

    @property
    def names(self) -> tuple[str, ...]:
        """Parameters, in the order of a member's leaves."""
        return tuple(self.start)

    @cached_property
    def member(self) -> type[Any]:
        """The NamedTuple of its members: a parameter that is transformed is called raw_NAME."""
        raw = [name if self.transforms[name] is identity_transform else f"raw_{name}" for name in self.names]
        fields = namedtuple(self.name, raw)  # type: ignore[misc]
        return type(self.name, (fields, FromDistribution), {"__slots__": (), "kind": self})

    def made(self, unconstrained: Mapping[str, Tensor]) -> Distribution:
        """Make the distribution of unconstrained parameters.

        Args:
            unconstrained: [K, *] or [*] by name.

        Returns:
            Batch shape [K] or [], event shape [D].
        """
        with pyro.validation_enabled(False):  # it would ask the device
            made = self.make(**{name: self.transforms[name](leaf) for name, leaf in unconstrained.items()})
            return made if made.event_shape else Independent(made, 1)

    def initial(self, model: WeightModel, std: float, rho: float, generator: torch.Generator) -> Any:
        """Apply `start` to the mean field's initial normals; see `initial_mean_field`."""
        mean_field = initial_mean_field(model, std, rho, generator)
        start = Start(mean_field.loc, mean_field.scale)
        return self.member(*(self.transforms[name].inv(value(start)).clone() for name, value in self.start.items()))

    def held(self, dim: int) -> int:
        """Numbers of a client beside mean and scale of D weights."""
        start = Start(torch.zeros(dim), torch.ones(dim))
        sizes: list[int] = [self.transforms[name].inv(value(start)).numel() for name, value in self.start.items()]
        return max(0, sum(sizes) - 2 * dim)

    def check(self, model: WeightModel) -> None:
        """Try the distribution on two clients before anything is trained.

        Args:
            model: the likelihood.

        Raises:
            StudyError: when draws are not [K, D], take random numbers of another kind than normals and uniforms, do not
                depend on each client's own numbers alone or not on the parameters, or no KL divergence is known.
        """
        check_uncertain(model, self.name)
        one = self.initial(model, 1.0, 0.0, generator_from_text(f"check/{self.name}"))
        two, alone = (tensors.tree_map(torch.clone, tensors.expand(one, clients)) for clients in (2, 1))
        made, noise = two.distribution(), Noise(0, 0, (1, 2))
        if not made.has_rsample:
            raise StudyError(f"{self.name} has no rsample, and slopes go through draws")
        draw = two.draw(noise.copy())
        theta = two.weights(draw)
        if list(theta.shape) != [2, model.dim]:
            what = f"draws for 2 clients and {model.dim} weights must be [2, {model.dim}], got {list(theta.shape)}"
            raise StudyError(f"{self.name}: {what}", hint="let batch and event shape be [K, D], or [K] and [D]")
        if not torch.allclose(alone.weights(alone.draw(noise.select([0])))[0], theta[0], rtol=1e-4, atol=1e-5):
            raise StudyError(f"{self.name}: the draw of a client depends on who else is drawn for")
        slopes = two.precompute().vjp(draw, torch.ones_like(theta))
        if not any(bool(slope.any()) for slope in tensors.leaves(slopes).values()):
            raise StudyError(f"{self.name}: draws do not depend on the parameters", hint="use their rsample")
        self._check_divergence(two, made)

    def _check_divergence(self, two: Any, made: Distribution) -> None:
        try:
            divergence, mean = two.kl(two), two.mean()
        except NotImplementedError as error:
            what = f"of a {type(made).__name__} no KL divergence from another one is known, or no mean"
            hint = "torch.distributions.kl.register_kl takes a closed form: what a certificate says must be exact"
            raise StudyError(f"{self.name}: {what}", hint=hint) from error
        if divergence.shape != (2,) or not bool((divergence.abs() < 1e-6 * (1 + mean.shape[-1])).all()):
            what = (
                f"the KL divergence of a distribution from itself must be 0 for both clients, got {divergence.tolist()}"
            )
            raise StudyError(f"{self.name}: {what}", hint="batch shape [K], event shape [D]")


def from_distribution(
    make: Callable[..., Distribution],
    initial: Mapping[str, Callable[[Start], Tensor]] | None = None,
    transforms: Mapping[str, Transform] | None = None,
    name: str | None = None,
) -> DistributionFamily:
    """Make a family of distributions over weights; see `posteriors.weights.families.Family.from_distribution`.

    Args:
        make: gives the distribution of parameters [K, *] or [*].
        initial: gives the initial value [*] of each parameter.
        transforms: to parameters from unconstrained ones.
        name: for errors and records.

    Returns:
        The family.

    Raises:
        StudyError: when a parameter has no transform, or its name is no identifier.
    """
    start = {"loc": _loc, "scale": _scale} if initial is None else dict(initial)
    known = getattr(make, "arg_constraints", None)
    known = known if isinstance(known, Mapping) else {}  # they may depend on the parameters
    title: str = name or str(getattr(make, "__name__", ""))
    title = title if title.isidentifier() else "Distribution"
    for parameter in start:
        if not parameter.isidentifier() or iskeyword(parameter) or parameter.startswith("_"):
            raise StudyError(f"{title}: a parameter must have a name, got {parameter!r}")
    result = {one: _transform(title, one, known, transforms or {}) for one in start}
    return DistributionFamily(make, start, result, title)


def _loc(start: Start) -> Tensor:
    return start.loc


def _scale(start: Start) -> Tensor:
    return start.scale


def _transform(title: str, name: str, known: Mapping[str, Any], given: Mapping[str, Transform]) -> Transform:
    """Look up the transform of a parameter from an unconstrained one: softplus where it must be positive."""
    if name in given:
        return given[name]
    constraint = constraints.real if name == "loc" else known.get(name)
    while isinstance(constraint, constraints.independent):
        constraint = constraint.base_constraint
    if constraint in (constraints.positive, constraints.nonnegative):
        return SoftplusTransform()
    if constraint is constraints.real:
        return identity_transform
    try:
        result: Transform = transform_to(constraint)
    except NotImplementedError:
        hint = f"transforms = {{{name!r}: SoftplusTransform()}}, or identity_transform where any number will do"
        raise StudyError(f"{title}: how {name!r} is made of any number is not known", hint=hint) from None
    return result
