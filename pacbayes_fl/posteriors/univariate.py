"""Distribution function, quantiles, moments and draws of any torch or Pyro distribution of single targets."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial, singledispatch
from types import MappingProxyType
from typing import Any

import pyro
import torch
from pyro.distributions import FoldedDistribution, GammaPoisson, TorchDistribution, ZeroInflatedDistribution
from pyro.distributions.torch_distribution import ExpandedDistribution
from torch import Tensor, distributions
from torch.overrides import TorchFunctionMode

_LEVELS = 1024  # of the quadrature of moments without a closed form
_BLOCK = 64  # levels asked for at once
_WIDEST = 1000  # doublings, which stay inside the range of float64
_HALVINGS = 200
_FEW = 16  # levels of a count that are looked for one by one


def _support(one: TorchDistribution) -> Any:
    """Constraint of the targets, any number where a kind says nothing of it."""
    try:
        return one.support
    except NotImplementedError:
        return distributions.constraints.real


def discrete(one: TorchDistribution) -> bool:
    """Whether targets are whole numbers.

    Args:
        one: batch shape [K, N].
    """
    return bool(_support(one).is_discrete)


def ends(one: TorchDistribution) -> tuple[Tensor, Tensor]:
    """Smallest and largest target that is possible.

    Args:
        one: batch shape [K, N].

    Returns:
        Two tensors that broadcast to [K, N], float64; infinite where there is no end.
    """
    support = _support(one)
    whole = (0.0, 1.0) if support is distributions.constraints.boolean else (-math.inf, math.inf)
    result = (getattr(support, name, end) for name, end in zip(("lower_bound", "upper_bound"), whole, strict=True))
    low, high = (torch.as_tensor(end, dtype=torch.float64) for end in result)
    return low, high


def log_prob(one: TorchDistribution, y: Tensor) -> Tensor:
    """Log density, or log probability of whole numbers, also where a target is impossible.

    Args:
        one: batch shape [K, N].
        y: targets [K, N], in their unit.

    Returns:
        [K, N] in nats, float64; minus infinity outside of the support.
    """
    with pyro.validation_enabled(False):
        result = one.log_prob(y.double()).double()
        return torch.where(_support(one).check(y) | y.isnan(), result, -math.inf)


def mass(one: TorchDistribution, y: Tensor) -> Tensor:
    """Probability of exactly this target: 0 where the distribution has a density.

    Args:
        one: batch shape [K, N].
        y: targets [K, N], in their unit.

    Returns:
        [K, N], float64.
    """
    if discrete(one):
        return log_prob(one, y).exp()
    if isinstance(one, ZeroInflatedDistribution):
        return torch.where(y == 0, one.gate.double(), 0.0)
    return torch.zeros_like(y, dtype=torch.float64)


def cdf(one: TorchDistribution, y: Tensor) -> Tensor:
    """Probability of a target up to y.

    Args:
        one: batch shape [K, N].
        y: targets [K, N], in their unit; leading dimensions [*] are allowed.

    Returns:
        [*, K, N], float64.

    Raises:
        NotImplementedError: when none is known of this kind; sums over what is finite or whole are always known.
    """
    low, high = (end.to(y.device) for end in ends(one))
    y = y.double()
    at = y.floor() if discrete(one) else y
    with pyro.validation_enabled(False), torch.no_grad():
        inside = _cdf(one, torch.minimum(torch.maximum(at, low), high)).double()
    inside = torch.where(at >= high, 1.0, inside)
    return torch.where((at < low) | at.isneginf(), 0.0, inside)


@singledispatch
def _cdf(one: Any, y: Tensor) -> Tensor:
    """Distribution function inside of the support: a closed form by kind, else torch's own, else a sum."""
    if discrete(one):
        return _summed(one, y)
    result: Tensor = one.cdf(y)
    return result


def _summed(one: TorchDistribution, y: Tensor) -> Tensor:
    """Sum the probabilities of whole numbers from the smallest that is possible."""
    at, high = ends(one)[0].to(y).expand(one.batch_shape), torch.where(y.isfinite(), y, -math.inf)
    if not bool(at.isfinite().all()):
        raise NotImplementedError(f"whole numbers of {type(one).__name__} have no smallest")
    total = torch.zeros_like(y)
    while bool((at <= high).any()):
        total = total + torch.where(at <= y, log_prob(one, at).exp(), 0.0)
        at = at + 1
    return total.clamp_max(1.0)


def _by_scipy(name: str, *arguments: Tensor) -> Tensor:
    """Evaluate a special function that torch lacks, on the CPU in float64."""
    from scipy import special  # a fifth of a second, which few predictions take

    function = getattr(special, name)
    wide = torch.broadcast_tensors(*(argument.double() for argument in arguments))
    return torch.as_tensor(function(*(argument.detach().cpu().numpy() for argument in wide))).to(arguments[-1].device)


@_cdf.register
def _(one: distributions.Poisson, y: Tensor) -> Tensor:
    return _by_scipy("pdtr", y, one.rate)


@_cdf.register
def _(one: distributions.NegativeBinomial, y: Tensor) -> Tensor:
    return _by_scipy("betainc", one.total_count, y + 1.0, 1.0 - one.probs.double())


@_cdf.register
def _(one: GammaPoisson, y: Tensor) -> Tensor:
    rate = one.rate.double()
    return _by_scipy("betainc", one.concentration, y + 1.0, rate / (1.0 + rate))


@_cdf.register
def _(one: distributions.Binomial, y: Tensor) -> Tensor:
    failures = (one.total_count.double() - y).clamp_min(1.0)  # at the largest number the caller knows that it is 1
    return _by_scipy("betainc", failures, y + 1.0, 1.0 - one.probs.double())


@_cdf.register
def _(one: distributions.Geometric, y: Tensor) -> Tensor:
    return -torch.expm1((y + 1.0) * torch.log1p(-one.probs.double()))


@_cdf.register
def _(one: distributions.StudentT, y: Tensor) -> Tensor:
    return _by_scipy("stdtr", one.df, (y - one.loc.double()) / one.scale.double())


@_cdf.register
def _(one: distributions.Normal, y: Tensor) -> Tensor:
    below: Tensor = torch.special.ndtr((y - one.loc.double()) / one.scale.double())
    return below


@_cdf.register
def _(one: distributions.HalfNormal, y: Tensor) -> Tensor:
    return torch.erf(y / (one.scale.double() * math.sqrt(2.0)))


@_cdf.register
def _(one: distributions.HalfCauchy, y: Tensor) -> Tensor:
    return torch.atan(y / one.scale.double()) * (2.0 / math.pi)


@_cdf.register
def _(one: distributions.Gamma, y: Tensor) -> Tensor:
    return _by_scipy("gammainc", one.concentration, one.rate.double() * y)


@_cdf.register
def _(one: distributions.Beta, y: Tensor) -> Tensor:
    return _by_scipy("betainc", one.concentration1, one.concentration0, y)


@_cdf.register
def _(one: distributions.FisherSnedecor, y: Tensor) -> Tensor:
    return _by_scipy("fdtr", one.df1, one.df2, y)


@_cdf.register
def _(one: FoldedDistribution, y: Tensor) -> Tensor:
    return cdf(one.base_dist, y) - cdf(one.base_dist, -y)


@_cdf.register
def _(one: ExpandedDistribution, y: Tensor) -> Tensor:
    return cdf(one.base_dist, y)


@_cdf.register
def _(one: ZeroInflatedDistribution, y: Tensor) -> Tensor:
    gate: Tensor = one.gate.double()
    return torch.where(y >= 0, gate, 0.0) + (1.0 - gate) * cdf(one.base_dist, y)


@_cdf.register
def _(one: distributions.MixtureSameFamily, y: Tensor) -> Tensor:
    each = cdf(one.component_distribution, y.unsqueeze(-1))
    below: Tensor = (one.mixture_distribution.probs.double() * each).sum(-1)
    return below


@_cdf.register
def _(one: distributions.TransformedDistribution, y: Tensor) -> Tensor:
    rising: Any = 1
    for transform in reversed(one.transforms):
        rising = rising * transform.sign  # NotImplementedError where it is not monotone
        y = transform.inv(y)
    below = cdf(one.base_dist, y)
    up: Tensor = torch.as_tensor(rising, device=y.device) > 0
    return torch.where(up, below, 1.0 - below)


def known(one: TorchDistribution, device: torch.device) -> bool:
    """Whether `cdf` knows this kind.

    Args:
        one: batch shape [K, N].
        device: where its parameters are.
    """
    low = ends(one)[0].to(device)
    try:
        cdf(one, torch.where(low.isfinite(), low, 0.0).expand(one.batch_shape))
    except NotImplementedError:
        return False
    return True


def quantile(one: TorchDistribution, level: Tensor) -> Tensor:
    """Smallest target up to which there is at least this probability.

    Args:
        one: batch shape [K, N], of a kind that `cdf` knows.
        level: [*, K, N], strictly between 0 and 1.

    Returns:
        [*, K, N], in the unit of the targets, float64.
    """
    level = torch.broadcast_tensors(level.double(), level.new_empty(one.batch_shape))[0]
    with pyro.validation_enabled(False), torch.no_grad():
        try:
            return _icdf(one, level).double()
        except NotImplementedError:
            pass
    whole = discrete(one)
    if whole and level.dim() > len(one.batch_shape) and len(level) > _FEW:
        least, most = (quantile(one, edge) for edge in level.aminmax(dim=0))
        width = int((most - least).nan_to_num(0.0).amax()) + 1
        if width <= 4 * len(level):  # fewer evaluations than a bisection for every level
            steps = torch.arange(width, device=level.device).view(-1, *[1] * least.dim())
            table = cdf(one, least + steps).movedim(0, -1).contiguous()
            return least + torch.searchsorted(table, level.movedim(0, -1).contiguous()).movedim(-1, 0)
    low, high = (end.to(level.device).expand(level.shape) for end in ends(one))
    inner = torch.where(low.isfinite(), low, torch.where(high.isfinite(), high, 0.0))
    low = _reach(inner, -1.0, lambda y: ~(cdf(one, y) >= level)) if bool(low.isinf().any()) else low - float(whole)
    high = _reach(inner, 1.0, lambda y: ~(cdf(one, y) < level)) if bool(high.isinf().any()) else high
    return bisect(partial(cdf, one), level, low, high, whole)


@singledispatch
def _icdf(one: Any, level: Tensor) -> Tensor:
    """Quantile in closed form, where there is one."""
    if discrete(one):
        raise NotImplementedError
    result: Tensor = one.icdf(level)
    return result


@_icdf.register
def _(one: distributions.Normal, level: Tensor) -> Tensor:
    found: Tensor = one.loc.double() + one.scale.double() * torch.special.ndtri(level)
    return found


@_icdf.register
def _(one: distributions.StudentT, level: Tensor) -> Tensor:
    return one.loc.double() + one.scale.double() * _by_scipy("stdtrit", one.df, level)


@_icdf.register
def _(one: distributions.Gamma, level: Tensor) -> Tensor:
    return _by_scipy("gammaincinv", one.concentration, level) / one.rate.double()


@_icdf.register
def _(one: distributions.Beta, level: Tensor) -> Tensor:
    return _by_scipy("betaincinv", one.concentration1, one.concentration0, level)


def _reach(start: Tensor, step: float, enough: Callable[[Tensor], Tensor]) -> Tensor:
    """Go away from a point in steps that double, until enough."""
    end = start + step
    for power in range(1, _WIDEST):
        done = enough(end)
        if bool(done.all()):
            break
        end = torch.where(done, end, start + step * 2.0**power)
    return end


def bisect(of: Callable[[Tensor], Tensor], level: Tensor, low: Tensor, high: Tensor, whole: bool) -> Tensor:
    """Find the smallest y whose distribution function reaches a level.

    Args:
        of: takes y [*, K, N], gives the distribution function there.
        level: broadcastable to [*, K, N].
        low: [*, K, N]; the quantile or below it.
        high: [*, K, N]; the quantile or above it.
        whole: the quantile is a whole number, and so are both ends.

    Returns:
        [*, K, N]: exact where it is whole, else to the last bit that the steps resolve; NaN where `of` is NaN.
    """
    high = torch.where(of(low) >= level, low, high)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        middle = middle.floor() if whole else middle
        inner = (low < middle) & (middle < high)
        if not bool(inner.any()):
            break
        result = of(middle)
        reached = result >= level
        low = torch.where(inner & ~reached, middle, low)
        high = torch.where(inner & reached, middle, high)
        high = torch.where(result.isnan(), torch.nan, high)
    return high


def moments(one: TorchDistribution, generator: torch.Generator, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and variance, NaN or infinite where a distribution has none.

    Without a closed form they are integrals over levels, int Q(t) dt, by a midpoint rule of 1024 points that crowd
    towards 0 and 1; without a distribution function too, those of 4096 draws. An angle's are those of a number: its
    circular variance is in other units than squared radians.

    Args:
        one: batch shape [K, N].
        generator: of the draws.
        device: where its parameters are.

    Returns:
        [K, N] each, in the unit of the targets and in squared units, float64.
    """
    try:
        if not isinstance(one, distributions.VonMises):
            return one.mean.double(), one.variance.double()
    except NotImplementedError:
        pass
    steps: Any = getattr(one, "transforms", ())
    if steps and all(isinstance(step, distributions.AffineTransform) for step in steps):
        mean, variance = moments(one.base_dist, generator, device)
        for step in steps:
            mean, variance = step.loc + step.scale * mean, step.scale**2 * variance
        return mean, variance
    if not known(one, device):
        drawn = draws(one, 4 * _LEVELS, generator)
        return drawn.mean(0), drawn.var(0)
    u = (torch.arange(_LEVELS, dtype=torch.float64, device=device) + 0.5) / _LEVELS
    level, weight = u.square() * (3 - 2 * u), 6 * u * (1 - u) / _LEVELS
    mean = square = torch.zeros(one.batch_shape, dtype=torch.float64, device=device)
    for t, share in zip(level.split(_BLOCK), weight.split(_BLOCK), strict=True):
        value = quantile(one, t.view(-1, *[1] * len(one.batch_shape)))
        share = share.view(-1, *[1] * len(one.batch_shape))
        mean, square = mean + (share * value).sum(0), square + (share * value.square()).sum(0)
    return mean, (square - mean.square()).clamp_min(0.0)


class _Seeded(TorchFunctionMode):
    """Give torch's own random functions a generator, for distributions that ask for none."""

    WITH_GENERATOR = frozenset(
        {
            *(torch.rand, torch.randn, torch.normal, torch.randint, torch.bernoulli, torch.poisson, torch.multinomial),
            *(torch.binomial, torch._standard_gamma, torch._sample_dirichlet),
            *(getattr(Tensor, f"{name}_") for name in ("normal", "uniform", "exponential", "cauchy", "geometric")),
            *(Tensor.log_normal_, Tensor.bernoulli_, Tensor.random_),
        }
    )
    LIKE = MappingProxyType({torch.rand_like: torch.rand, torch.randn_like: torch.randn})

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.generator = generator

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in self.LIKE:
            like = args[0]
            return self.LIKE[func](like.shape, dtype=like.dtype, device=like.device, generator=self.generator)
        if func in self.WITH_GENERATOR:
            kwargs["generator"] = self.generator
        return func(*args, **kwargs)


def draws(one: TorchDistribution, count: int, generator: torch.Generator) -> Tensor:
    """Draw targets by the distribution's own sampler.

    Args:
        one: batch shape [K, N].
        count: S.
        generator: source of randomness; torch's own is left as it is.

    Returns:
        [S, K, N], in the unit of the targets, float64.
    """
    with pyro.validation_enabled(False), torch.no_grad(), _Seeded(generator):
        result: Tensor = one.sample(  # every number comes from the generator that the mode hands out
            torch.Size([count])
        )
        return result.double()
