"""Predictive distribution of any likelihood: the mixture of its distributions over draws of the weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.noise import Noise, generator_from_text
from pacbayes_fl.posteriors import univariate
from pacbayes_fl.posteriors.predictive import at_levels, streams

_DRAWS = 4096  # behind whatever no formula is known of
_INSIDE = (2.0**-1022, 1.0 - 2.0**-53)  # the levels next to 0 and 1


@dataclass(frozen=True, eq=False)
class SampledMixture:
    """Mixture of S distributions of each target, one per draw of the weights, of any torch or Pyro kind.

    p(y) = sum_s w_s p(y | theta_s)

    Where the kind has a distribution function (see `univariate.cdf`: nearly all), it, quantiles and draws follow from
    it; for kinds that have only a density and a sampler they come from 4096 draws, taken for all K clients together.

    Args:
        log_weights: [K, S], normalised over S.
        components: S distributions with batch shape [K, N].
        noise: the clients' streams, for whatever is estimated by draws.
        loc: [K], in units of y; see `rescale`. 0 when None.
        scale: [K], positive. 1 when None.
    """

    log_weights: Tensor
    components: tuple[TorchDistribution, ...]
    noise: Noise
    loc: Tensor | None = None
    scale: Tensor | None = None

    def __post_init__(self) -> None:
        """Refuse weights of something else and targets that are vectors."""
        shapes = {(tuple(one.batch_shape), tuple(one.event_shape)) for one in self.components}
        batch, event = next(iter(shapes), ((), ()))
        if len(shapes) != 1 or len(batch) != 2 or event or self.log_weights.shape != (batch[0], len(self.components)):
            result = f"{list(self.log_weights.shape)} and {sorted(shapes)}"
            raise ShapeError(f"log_weights must be [K, S] for S distributions of batch shape [K, N], got {result}")

    def __repr__(self) -> str:
        """Kind, number and shape in one line."""
        return f"SampledMixture({len(self.components)} {self.kind} {list(self.components[0].batch_shape)})"

    @property
    def kind(self) -> str:
        """Name of the distributions."""
        return type(self.components[0]).__name__

    @property
    def discrete(self) -> bool:
        """Whether targets are whole numbers."""
        return univariate.discrete(self.components[0])

    @cached_property
    def exact(self) -> bool:
        """Whether the distribution function is known; where it is not, it and quantiles are those of 4096 draws."""
        return all(univariate.known(one, self.log_weights.device) for one in self.components)

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance [K, N] of the targets in the components' own units."""
        seed = generator_from_text(f"moments/{self.noise.seed}/{self.noise.round}/{self.noise.ids}")
        means, variances = zip(
            *(univariate.moments(one, seed, self.log_weights.device) for one in self.components), strict=True
        )
        mean = self._mix(means)
        variance = self._mix(v + (m - mean).square() for m, v in zip(means, variances, strict=True))
        return mean, torch.where(mean.isinf(), torch.inf, variance)

    @property
    def mean(self) -> Tensor:
        """Mean [K, N], in units of y; NaN or infinite where a component has none."""
        return self._out(self._moments[0])

    @property
    def variance(self) -> Tensor:
        """Variance [K, N], in squared units of y: within the components and between them."""
        return self._moments[1] if self.scale is None else self._moments[1] * self.scale.unsqueeze(-1).square()

    @property
    def probs(self) -> Tensor:
        """Probabilities [K, N, C] of the classes 0..C-1, for kinds that have finitely many, such as Bernoulli."""
        low, high = univariate.ends(self.components[0])
        if not (self.discrete and self.loc is None and bool((low == 0).all()) and bool(high.isfinite().all())):
            raise StudyError(f"{self.kind} targets are no classes", hint="read log_prob, mean, cdf and quantile")
        labels = torch.arange(int(high.max()) + 1, dtype=torch.float64, device=self.log_weights.device)
        like = torch.zeros(self.components[0].batch_shape, dtype=torch.float64, device=labels.device)
        return torch.stack([self.log_prob(like + label).exp() for label in labels], -1)

    @property
    def entropy(self) -> Tensor:
        """Entropy [K, N] in nats, of kinds with finitely many classes."""
        information: Tensor = torch.special.entr(self.probs)
        return information.sum(-1)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density, or log probability of whole numbers.

        ln p(y) = logsumexp_s (ln w_s + ln p(y | theta_s))

        Args:
            y: targets [K, N], in units of y.

        Returns:
            [K, N], in nats; minus infinity where a target is impossible.
        """
        own = self._into(y)
        terms = (univariate.log_prob(one, own) for one in self.components)
        mixed = torch.stack([term + weight for term, weight in zip(terms, self._columns, strict=True)]).logsumexp(0)
        return mixed if self.scale is None else mixed - self.scale.log().unsqueeze(-1)

    def cdf(self, y: Tensor) -> Tensor:
        """Probability of a target up to y.

        Args:
            y: targets [K, N], in units of y; a leading [L] is allowed.

        Returns:
            [K, N], or [L, K, N].
        """
        own = self._into(y)
        if self.exact:
            return self._mix(univariate.cdf(one, own) for one in self.components)
        wanted = own if own.dim() == 3 else own.unsqueeze(0)
        place = torch.searchsorted(self._sorted, wanted.movedim(0, -1).contiguous(), right=True)
        place = place.double().masked_fill(self._sorted[..., -1:].isnan(), torch.nan)
        return (place / _DRAWS).movedim(-1, 0).view(own.shape)

    def below(self, y: Tensor) -> Tensor:
        """Probability of a target under y, which is less than up to y where that target itself has a probability.

        Args:
            y: targets [K, N], in units of y.

        Returns:
            [K, N].
        """
        own = self._into(y)
        return (self.cdf(y) - self._mix(univariate.mass(one, own) for one in self.components)).clamp_min(0.0)

    @at_levels
    def quantile(self, level: Tensor) -> Tensor:
        """Smallest targets up to which there is at least this probability, by bisection.

        Args:
            level: [L], from 0 to 1, whose quantiles are the ends of what is possible; or a number, for [K, N].

        Returns:
            [L, K, N], in units of y.
        """
        level = level.to(self.log_weights.device).double()
        each, result = level.view(-1, 1, 1), self._inner_quantile(level.clamp(*_INSIDE))
        for at, end in zip((0.0, 1.0), self._ends(), strict=True):
            result = torch.where((each == at) & ~result.isnan(), end, result)
        return self._out(result)

    def _inner_quantile(self, level: Tensor) -> Tensor:
        """Quantiles [L, K, N] at levels [L] strictly between 0 and 1, in the components' own units."""
        if not self.exact:
            rank = (level * _DRAWS).ceil().long().clamp(1, _DRAWS) - 1
            return self._sorted[..., rank].movedim(-1, 0)
        each = level.view(-1, 1, 1)
        low, high = torch.as_tensor(torch.inf).to(level), torch.as_tensor(-torch.inf).to(level)
        for weight, one in zip(self._columns, self.components, strict=True):
            result, counts = univariate.quantile(one, each), ~weight.isneginf()
            low = torch.where(counts, low.minimum(result), low)  # NaN, where one of them is
            high = torch.where(counts, high.maximum(result), high)

        def of(y: Tensor) -> Tensor:
            return self._mix(univariate.cdf(one, y) for one in self.components)

        return univariate.bisect(of, each, low - float(self.discrete), high, self.discrete)

    def _ends(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest target [K, 1] or [K, N] that a component of some weight allows, in their own units."""
        low, high = (torch.as_tensor(end).to(self.log_weights).double() for end in (torch.inf, -torch.inf))
        for weight, one in zip(self._columns, self.components, strict=True):
            (first, last), counts = univariate.ends(one), ~weight.isneginf()
            low = torch.where(counts, low.minimum(first.to(weight)), low)
            high = torch.where(counts, high.maximum(last.to(weight)), high)
        return low, high

    def sample(self, draws: int, noise: Noise | int) -> Tensor:
        """Draw [S, K, N] targets in units of y, independent: each from a component, at a uniform level of its quantile.

        Args:
            draws: S.
            noise: streams of the K clients, or a seed.
        """
        noise = streams(noise, self.log_weights)
        clients, rows = self.components[0].batch_shape
        like = self.log_weights.new_empty(clients, rows, draws, dtype=torch.float64)
        steps = self.log_weights.double().exp().cumsum(1)[:, :-1].contiguous()
        result = torch.searchsorted(steps, noise.uniform(like).flatten(1))  # rows first: padding moves no number
        chosen, level = result.view(like.shape).movedim(-1, 0), noise.uniform(like).movedim(-1, 0)
        generator = generator_from_text(f"draws/{level[..., :1].tolist()}")
        out = torch.empty_like(level)
        for s, one in enumerate(self.components):
            taken = chosen == s
            place = taken.cumsum(0) - 1
            most = int(place.max()) + 1 if draws else 0  # of this component, over all rows
            if most == 0:
                continue
            if self.exact:
                at = level.new_full((most + 1, clients, rows), 0.5)
                own = at.scatter(0, torch.where(taken, place, most), level)[:most]
                drawn = univariate.quantile(one, own)
            else:
                drawn = univariate.draws(one, most, generator)
            out = torch.where(taken, drawn.gather(0, place.clamp_min(0)), out)
        return self._out(out)

    def rescale(self, loc: Tensor, scale: Tensor) -> SampledMixture:
        """Distribution of loc + scale * y for loc and scale [K], scale positive.

        Raises:
            StudyError: for whole numbers, which have no other unit.
        """
        loc, scale = loc.to(self.log_weights.device).double(), scale.to(self.log_weights.device).double()
        if self.discrete:
            if bool((loc == 0).all()) and bool((scale == 1).all()):
                return self
            raise StudyError(
                f"{self.kind} targets are whole numbers, which cannot be shifted or scaled",
                hint="scale the inputs alone, and train, predict and score counts by run_rounds, join and metrics: "
                "runs of studies score in standardised units",
            )
        before = torch.zeros_like(loc) if self.loc is None else self.loc
        size = torch.ones_like(scale) if self.scale is None else self.scale
        return replace(self, loc=loc + scale * before, scale=scale * size)

    @property
    def _columns(self) -> Iterator[Tensor]:
        """Log weight [K, 1] of each component."""
        return iter(self.log_weights.double().unsqueeze(-1).unbind(1))

    def _mix(self, parts: Iterable[Tensor]) -> Tensor:
        """Average [*, K, N] over components; one of no weight counts for nothing, whatever it is."""
        terms = (torch.where(w.isneginf(), 0.0, w.exp() * part) for w, part in zip(self._columns, parts, strict=True))
        total = next(terms)
        for term in terms:
            total = total + term
        return total

    @cached_property
    def _sorted(self) -> Tensor:
        """Draws [K, N, S] in order, behind the distribution function of a kind that has none."""
        blank = replace(self, loc=None, scale=None)
        return blank.sample(_DRAWS, self.noise.copy()).movedim(0, -1).sort(-1).values

    def _into(self, y: Tensor) -> Tensor:
        y = y.double()
        return y if self.scale is None or self.loc is None else (y - self.loc.unsqueeze(-1)) / self.scale.unsqueeze(-1)

    def _out(self, own: Tensor) -> Tensor:
        if self.scale is None or self.loc is None:
            return own
        return self.loc.unsqueeze(-1) + self.scale.unsqueeze(-1) * own
