"""Predictions in the units of a client's training targets and in the data's own, within the bounds of the targets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.moments import power_of_two, standardised
from pacbayes_fl.data.scaling import FEDERATED
from pacbayes_fl.data.transforms import Transform
from pacbayes_fl.errors import StudyError
from pacbayes_fl.posteriors.censored import CensoredMixture
from pacbayes_fl.posteriors.predictive import NormalMixture, RegressionPredictive
from pacbayes_fl.posteriors.transformed import TransformedMixture
from pacbayes_fl.study.data import ScaledGroup

_SQUARE: Final = 1e-100  # from here to its inverse, standard deviations can be squared


class Views(NamedTuple):
    """A predictive distribution in two units.

    Args:
        standard: in units of the client's training targets.
        own: in `unit`s of the data's own.
        unit: powers of two [k], 1 unless targets are so large or small that their squares leave the range of numbers.
    """

    standard: RegressionPredictive
    own: RegressionPredictive
    unit: Tensor

    def log_prob(self, y: Tensor) -> Tensor:
        """Log density in the data's own units.

        Args:
            y: targets [k, N], in these units.

        Returns:
            [k, N], in nats.
        """
        unit = self.unit.unsqueeze(-1)
        return self.own.log_prob(y / unit) - unit.log()


def scored_rows(scaled: ScaledGroup, index: Tensor) -> ClientBatch:
    """Take the test rows of clients, without padding up to longer ones where that is most of the group's.

    Args:
        scaled: the group.
        index: positions of the clients there [k].

    Returns:
        Their rows [k, n] in the method's units.
    """
    return scaled.test.select(index.cpu(), _longest(scaled, index))


def raw_scored_rows(scaled: ScaledGroup, index: Tensor) -> ClientBatch:
    """Take the rows of `scored_rows` in the data's own units.

    Args:
        scaled: the group.
        index: positions of the clients there [k].

    Returns:
        The same rows [k, n].
    """
    return scaled.raw.test.select(index.cpu(), _longest(scaled, index))


def _longest(scaled: ScaledGroup, index: Tensor) -> int | None:
    """Most test rows of some clients; None, for all, where no client has many more than most."""
    test = scaled.raw.test
    return None if test.groups() is None else max(1, int(test.size[index].max()))


def unit_of(std: Tensor) -> Tensor:
    """Choose the unit in which targets of some spread are calculated with.

    Args:
        std: standard deviation [*], in units of y.

    Returns:
        Powers of two [*], in units of y: 1, but where squares of the spread would leave the range of numbers.
    """
    return torch.where((std > _SQUARE) & (std < 1.0 / _SQUARE), 1.0, power_of_two(std))


def units_of(predictive: Any, scaled: ScaledGroup, index: Tensor, x: Tensor | None = None) -> Views:
    """Give a predictive distribution in standardised units and in the data's own.

    Args:
        predictive: a `RegressionPredictive` in the method's units.
        scaled: the group it belongs to.
        index: positions of its clients there [k].
        x: rows that are predicted, in the data's own units [k, N, d]; the test rows when None.

    Returns:
        The distribution in both.
    """
    ends = ends_of(scaled, index, x)
    if (transform := scaled.shared.transform) is not None:
        return _of_transforms(predictive, transform, scaled, index, ends)
    loc, std = scaled.units.y_mean[index], scaled.units.y_std[index]
    kind, zero = scaled.shared.kinds[-1], torch.zeros_like(std)
    if kind == "none":
        own, unit = predictive, torch.ones_like(std)
        standard = predictive.rescale(-loc / std, 1.0 / std)
    else:
        own_loc, own_std = scaled.used.y_mean[index], scaled.used.y_std[index]
        unit = unit_of(own_std)
        own = predictive.rescale(own_loc / unit, own_std / unit)
        standard = predictive
        if kind in FEDERATED:
            standard = predictive.rescale((own_loc - loc) / std, own_std / std)
    return Views(within(standard, ends, loc, std), within(own, ends, zero, unit), unit)


def ends_of(scaled: ScaledGroup, index: Tensor, x: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
    """Give the bounds of the targets of rows.

    Args:
        scaled: the group of their clients.
        index: positions of these there [k].
        x: the rows, in the data's own units [k, N, d]; the test rows when None.

    Returns:
        Lower and upper bounds [k, 1] or [k, N], in the data's own units; None without any.
    """
    if scaled.shared.bounds is None:
        return None
    x = scaled.raw.test.x[index] if x is None else x.to(scaled.units.y_mean)
    return scaled.shared.bounds.ends(x)


def _of_transforms(
    predictive: Any, transform: Transform, scaled: ScaledGroup, index: Tensor, bounds: tuple[Tensor, Tensor] | None
) -> Views:
    """Bring predictions of transformed targets back to the targets, in both units."""
    shared = scaled.shared
    if not isinstance(predictive, NormalMixture):
        what = f"[data] transform = {transform.name!r} is for predictions that are mixtures of normals"
        raise StudyError(what, hint="drop it, or choose the Gaussian likelihood")
    loc, std = scaled.units.y_mean[index], scaled.units.y_std[index]
    inner: NormalMixture = predictive
    if shared.kinds[-1] != "none":
        inner = predictive.rescale(scaled.used.y_mean[index], scaled.used.y_std[index])

    def seen(centre: Tensor, spread: Tensor) -> TransformedMixture:
        low, high = _standardised(
            bounds or (loc.new_full((1, 1), -torch.inf), loc.new_full((1, 1), torch.inf)), centre, spread
        )
        return TransformedMixture(inner, transform, centre, spread, low, high)

    unit = unit_of(std)
    return Views(seen(loc, std), seen(torch.zeros_like(loc), unit), unit)


def _standardised(ends: Iterable[Tensor], loc: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Bring bounds [k, 1] or [k, N] to units of (y - loc) / std."""
    low, high = (standardised(end, loc.unsqueeze(-1), std.unsqueeze(-1)) for end in ends)
    return low, high


def within(predictive: Any, bounds: tuple[Tensor, Tensor] | None, loc: Tensor, std: Tensor) -> Any:
    """Censor predictions of (y - loc) / std at the bounds of y.

    Args:
        predictive: a `RegressionPredictive` of k clients.
        bounds: as `ends_of` gives them.
        loc: [k], in the data's own units.
        std: [k], in these too.

    Returns:
        The distribution of what can be observed; the same one without bounds.

    Raises:
        StudyError: when it is no mixture of normals.
    """
    if bounds is None:
        return predictive
    if not isinstance(predictive, NormalMixture):
        what = "[data] lower_bound and upper_bound are for predictions that are mixtures of normals"
        raise StudyError(what, hint="drop them, or choose the Gaussian likelihood")
    return CensoredMixture(predictive, *_standardised(bounds, loc, std))
