"""Increasing maps t = g(y) of targets, which models learn in place of y."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.client_blocks import by_block, by_size
from pacbayes_fl.data.target_bounds import Place, row_number
from pacbayes_fl.errors import DataError

_Map = Callable[[Tensor, "Transform"], Tensor]

_LARGEST: Final = 1e150  # transforms whose variances are numbers


@dataclass(frozen=True)
class Kind:
    """A family of transforms.

    Args:
        name: in studies.
        title: formula of g, with `low`, `high` and `power` in braces.
        forward: g, from y [*] to t [*].
        inverse: g^-1, from t [*] to y [*].
        log_slope: ln g'(y) of y [*].
        domain: between which y must lie, itself no end; None for the bounds of the target.
        knots: where g^-1 bends, in units of t, for quadrature.
        growth: see `Transform.growth`.
    """

    name: str
    title: str
    forward: _Map
    inverse: _Map
    log_slope: _Map
    domain: tuple[float, float] | None
    knots: tuple[float, ...]
    growth: Callable[[Transform], tuple[float, float]]


class Transform(NamedTuple):
    """A transform with its settings.

    Args:
        name: of its kind in `TRANSFORMS`.
        low: lower bound of the targets, of a kind that is between bounds.
        high: upper bound, likewise.
        power: lambda of the Yeo-Johnson transform, in [0, 2].

    Example:
        >>> import torch
        >>> from pacbayes_fl.data.transforms import Transform
        >>> log1p = Transform("log1p")
        >>> log1p.forward(torch.tensor([0.0, 1.0]).double()).numpy().round(3).tolist()
        [0.0, 0.693]
    """

    name: str
    low: float = -math.inf
    high: float = math.inf
    power: float = 0.5

    @property
    def kind(self) -> Kind:
        """The family."""
        return TRANSFORMS[self.name]

    @property
    def title(self) -> str:
        """Formula of t."""
        return self.kind.title.format(**self._asdict())

    @property
    def domain(self) -> tuple[float, float]:
        """Ends between which targets lie, themselves none."""
        return (self.low, self.high) if self.kind.domain is None else self.kind.domain

    @property
    def growth(self) -> tuple[float, float]:
        """Powers a with which |y| grows as |t|^a towards minus infinity and infinity; 0 at an end, inf as exp does."""
        return self.kind.growth(self)

    def forward(self, y: Tensor) -> Tensor:
        """Transform targets.

        Args:
            y: [*], in the data's own units; ends of the domain may be among them.

        Returns:
            t [*]; infinite at an end and beyond.
        """
        low, high = self.domain
        return self.kind.forward(y.clamp(low, high), self)

    def inverse(self, t: Tensor) -> Tensor:
        """Bring transforms back.

        Args:
            t: [*]; infinite ones go to the ends of the domain.

        Returns:
            y [*], in the data's own units.
        """
        return self.kind.inverse(t, self)

    def log_slope(self, y: Tensor) -> Tensor:
        """Take the logarithm of the slope, which log densities of y have beside those of t.

        Args:
            y: [*], in the data's own units, inside the domain.

        Returns:
            ln g'(y) [*], in nats.
        """
        return self.kind.log_slope(y, self)

    def check(self, batch: ClientBatch, place: Place = row_number) -> None:
        """Refuse targets outside the domain, and those whose transform is too large to be squared.

        Args:
            batch: rows in the data's own units.
            place: what to call a client's row.

        Raises:
            DataError: naming the first client that has one, the target and its row.
        """
        low, high = self.domain
        outside, large = by_size(batch, lambda part: [self._outside(part).any(1), self._large(part).any(1)])
        if bool(outside.any()):
            k = int(outside.nonzero()[0])
            row = int(self._outside(batch.select(torch.tensor([k])))[0].nonzero()[0])
            what = f"{_said(batch, k, row, place)}, and data.transform = {self.name!r} takes those"
            hint = "data.transform = 'yeo-johnson' takes all numbers; or leave data.transform out"
            ends = f"above {low:g}" if math.isinf(high) else f"above {low:g} and below {high:g}"
            raise DataError(f"{what} {ends} alone", client=batch.names[k], hint=hint)
        if bool(large.any()):
            k = int(large.nonzero()[0])
            row = int(self._large(batch.select(torch.tensor([k])))[0].nonzero()[0])
            what = f"{_said(batch, k, row, place)}, of which {self.title} is too large to be squared"
            raise DataError(what, client=batch.names[k], hint="give the target in a larger unit")

    def _outside(self, batch: ClientBatch) -> Tensor:
        """Which targets are outside the domain [K, N]."""
        low, high = self.domain
        return batch.mask & ~((batch.y > low) & (batch.y < high))

    def _large(self, batch: ClientBatch) -> Tensor:
        """Which targets have a transform that is too large to be squared [K, N]."""
        return batch.mask & ~(self.forward(batch.y).abs() < _LARGEST)

    def apply(self, batch: ClientBatch) -> ClientBatch:
        """Transform the targets of a batch.

        Args:
            batch: rows in the data's own units; see `check`.

        Returns:
            The same rows with t for y; padding stays zero.
        """
        if batch.groups() is None:
            return self._applied(batch)
        return by_block(batch, lambda part, _: self._applied(part))

    def _applied(self, batch: ClientBatch) -> ClientBatch:
        return replace(batch, y=torch.where(batch.mask, self.forward(batch.y), 0.0))


def _said(batch: ClientBatch, k: int, row: int, place: Place) -> str:
    return f"has a target of {float(batch.y[k, row]):g} ({place(batch.names[k], row)})"


def _root(t: Tensor, power: float) -> Tensor:
    """Return (1 + power t)^(1 / power) - 1 for t >= 0, and its limit for power 0."""
    return torch.expm1(torch.log1p(power * t) / power if power else t)


def _power(y: Tensor, power: float) -> Tensor:
    """Return ((1 + y)^power - 1) / power for y >= 0, and its limit for power 0."""
    return torch.expm1(power * torch.log1p(y)) / power if power else torch.log1p(y)


def _inverse(power: float) -> float:
    return 1.0 / power if power else math.inf


def _two_sided(function: Callable[[Tensor, float], Tensor], values: Tensor, power: float) -> Tensor:
    """Take a power on numbers that are not negative, and 2 - power on the others, with both signs turned."""
    above, below = function(values.clamp_min(0.0), power), function((-values).clamp_min(0.0), 2.0 - power)
    return torch.where(values >= 0, above, -below)


_KINDS: Final = (
    Kind(
        "log1p",
        "ln(1 + y)",
        lambda y, _: torch.log1p(y),
        lambda t, _: torch.expm1(t),
        lambda y, _: -torch.log1p(y),
        (-1.0, math.inf),
        (),
        lambda _: (0.0, math.inf),
    ),
    Kind(
        "logit",
        "ln((y - {low:g}) / ({high:g} - y))",
        lambda y, of: (y - of.low).log() - (of.high - y).log(),
        lambda t, of: torch.where(
            t > 0, of.high - (of.high - of.low) * torch.sigmoid(-t), of.low + (of.high - of.low) * torch.sigmoid(t)
        ),
        lambda y, of: math.log(of.high - of.low) - (y - of.low).log() - (of.high - y).log(),
        None,
        (-30.0, -12.0, -6.0, -3.0, -1.5, 0.0, 1.5, 3.0, 6.0, 12.0, 30.0),
        lambda _: (0.0, 0.0),
    ),
    Kind(  # Yeo and Johnson, Biometrika 87, 2000, eq. 2.1
        "yeo-johnson",
        "Yeo and Johnson's of y with lambda = {power:g}",
        lambda y, of: _two_sided(_power, y, of.power),
        lambda t, of: _two_sided(_root, t, of.power),
        lambda y, of: (of.power - 1.0) * y.sign() * torch.log1p(y.abs()),
        (-math.inf, math.inf),
        (0.0,),
        lambda of: (_inverse(2.0 - of.power), _inverse(of.power)),
    ),
)

TRANSFORMS: Final[Mapping[str, Kind]] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""Families of transforms by name."""
