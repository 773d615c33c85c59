"""Moments of all clients' columns from one bounded message of each client, as a private run releases them.

A client's message lies in the box [-1, 1]^D, so that with every message |v|_1 <= D and |v|_2 <= sqrt(D): without the
client the sum over clients moves by no more. Columns are taken within public ranges: what lies beyond counts as an end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.client_blocks import by_size
from pacbayes_fl.data.moments import Moments, columns_of, moments_of, power_of_two
from pacbayes_fl.data.scaling import ColumnScale, Shared
from pacbayes_fl.data.shrinkage import log_std
from pacbayes_fl.data.summaries import SummaryScale, summarise

_LEAST: Final = 0.02  # of half a range: scales of clients below count as this
_APART: Final = 1.0 / 3.0  # standard deviation of what is released about what is usual, in halves of the ranges
_ENOUGH: Final = 0.25  # share of clients whose rows tell a scale, below which it is that between clients
_POOLED, _SHRUNK, _SUMMARY = 2, 5, 3  # numbers of a message for each column or summary
_CLIENT: Final = 2  # numbers for a client with shrunk columns: 1 / m, and the error of the logarithm of a scale
_ERRORS: Final = 3  # and with summaries
_WORST: Final = float(torch.polygamma(1, torch.tensor(0.5, dtype=torch.float64))) / 4.0  # of two rows
_CORRELATION: Final = 2.5  # artanh of a correlation beyond counts as this
_LOWEST, _HIGHEST = -6.0, 1.0  # ln of a target's scale in its unit: what is outside counts as an end


@dataclass(frozen=True, eq=False)
class MomentMessage:
    """What clients send of their columns, and what follows from the mean over all clients.

    Args:
        kinds: of the d features and, last, of the target [d + 1].
        low: ends of public ranges [d + 1], in units of each column; not looked at of columns scaled by client.
        high: likewise, above `low`.
        summaries: whether the clients' summaries are scaled too.
    """

    kinds: tuple[ColumnScale, ...]
    low: Tensor
    high: Tensor
    summaries: bool = False

    @classmethod
    def of(
        cls, kinds: Sequence[ColumnScale], ranges: Mapping[int, tuple[float, float]], summaries: bool = False
    ) -> MomentMessage:
        """Make one from ranges by number of the column.

        Args:
            kinds: of the columns.
            ranges: of those that are scaled across clients, and of the target where summaries are.
            summaries: as the class.

        Returns:
            The message.
        """
        low, high = (
            torch.tensor([ranges.get(at, (-1.0, 1.0))[end] for at in range(len(kinds))], dtype=torch.float64)
            for end in (0, 1)
        )
        return cls(tuple(kinds), low, high, summaries)

    @property
    def coordinates(self) -> int:
        """D, the length of a message; 0 where clients send nothing."""
        pooled, shrunk = (self.kinds.count(kind) for kind in ("pooled", "shrunk"))
        columns = _POOLED * pooled + _SHRUNK * shrunk + _CLIENT * (shrunk > 0)
        return columns + (_SUMMARY * (len(self.kinds) + 1) + _ERRORS if self.summaries else 0)

    @property
    def longest(self) -> tuple[float, float]:
        """L1 and L2 norm that no message exceeds."""
        return float(self.coordinates), math.sqrt(self.coordinates)

    @property
    def unit(self) -> Tensor:
        """Unit of the target in which logarithms are taken [], a power of two that the range alone determines."""
        return power_of_two(torch.maximum(self.low[-1].abs(), self.high[-1].abs()))

    def of_clients(self, batch: ClientBatch) -> Tensor:
        """Make the messages of clients.

        With v = x as a number from -1 to 1 of its range, means over a client's m rows: of pooled columns of v and v^2;
        of shrunk ones (u, u^2, l, l^2, 1) with the mean u of v and the estimate l of the logarithm of its standard
        deviation, 0 where the rows do not tell one; and 1 / m and the variance of l. Of summaries n likewise
        (n, n^2, 1), and their variances.

        Args:
            batch: training rows of K clients, x [K, N, d], y [K, N], in units of the columns.

        Returns:
            [K, D], float64, in [-1, 1]; 0 for a client without rows or with one that is no number.
        """
        middle, half = (0.5 * (self.high + sign * self.low).to(batch.x.device) for sign in (1.0, -1.0))
        rows = batch.size.unsqueeze(-1).double()
        count = rows.clamp_min(1.0)

        def means(part: ClientBatch) -> list[Tensor]:
            v = ((columns_of(part).double() - middle) / half).clamp(-1.0, 1.0)
            sums = [torch.where(part.mask.unsqueeze(-1), one, 0.0).sum(1) for one in (v, v.square())]
            return [*sums, *moments_of(v, part.mask)] if "shrunk" in self.kinds else sums

        first, second, *inside = by_size(batch, means)
        first, second = first / count, second / count
        of = [torch.stack((first, second), -1)[:, self._are("pooled")].flatten(1)]
        if "shrunk" in self.kinds:
            own, error = log_std(Moments(*inside), rows, torch.ones_like(half))
            known, low = error.isfinite(), math.log(_LEAST)
            level = torch.where(known, 1.0 - 2.0 * own.clamp(low, 0.0) / low, 0.0)
            numbers = torch.stack((first, first.square(), level, level.square(), known.double()), -1)
            half_rows = (rows - 1.0).clamp_min(1.0) / 2.0
            of += [numbers[:, self._are("shrunk")].flatten(1), 1.0 / count]
            of += [torch.where(rows > 1, torch.polygamma(1, half_rows) / (4.0 * _WORST), 0.0)]
        if self.summaries:
            of += self._summaries(batch, rows)
        result = torch.cat(of, 1)
        good = (rows > 0) & result.isfinite().all(1, keepdim=True)
        return torch.where(good, result.clamp(-1.0, 1.0), 0.0)

    def _summaries(self, batch: ClientBatch, rows: Tensor) -> list[Tensor]:
        numbers, errors = summarise(batch, self.unit.to(batch.x.device))
        middle, half = (leaf.to(numbers) for leaf in self._box)
        known = errors.isfinite()
        inside = torch.where(known, ((numbers - middle) / half).clamp(-1.0, 1.0), 0.0)
        of_level = torch.where(known[:, 1:2], errors[:, 1:2].clamp_max(1.0), 0.0)
        scale, correlation = 0.5 / (rows - 1.0).clamp_min(0.5), 1.0 / (rows - 3.0).clamp_min(1.0)
        return [torch.stack((inside, inside.square(), known.double()), -1).flatten(1), scale, of_level, correlation]

    @property
    def _box(self) -> tuple[Tensor, Tensor]:
        """Middles and half widths of the summaries [d + 2]."""
        ends = [(_LOWEST, _HIGHEST), (-1.0, 1.0), *[(-_CORRELATION, _CORRELATION)] * (len(self.kinds) - 1)]
        low, high = torch.tensor(ends, dtype=torch.float64).unbind(1)
        return 0.5 * (low + high), 0.5 * (high - low)

    def _are(self, kind: ColumnScale) -> Tensor:
        return torch.tensor([one == kind for one in self.kinds])

    @property
    def usual(self) -> Tensor:
        """Mean of the messages of clients that fill their ranges and are much alike [D], known without any rows."""
        level = 1.0 - 2.0 * math.log(0.5) / math.log(_LEAST)
        of = [0.0, 1.0 / 3.0] * self.kinds.count("pooled")
        if "shrunk" in self.kinds:
            of += [0.0, 0.1, level, level**2 + 0.01, 1.0] * self.kinds.count("shrunk") + [0.1, 0.02]
        if self.summaries:
            of += [0.0, 0.1, 1.0] * (len(self.kinds) + 1) + [0.05, 0.05, 0.1]
        return torch.tensor(of, dtype=torch.float64)

    def shared(self, mean: Tensor, noise_std: float = 0.0) -> Shared:
        """Scale columns by the mean of the clients' messages, a function of nothing else.

        Every client counts alike, whatever its rows. Of shrunk columns, with E over clients,
        spread^2 = E l^2 - (E l)^2 - E var(l),   std = exp(E l),
        between^2 = E u^2 - (E u)^2 - E 1/m exp(2 E l + 2 spread^2), 0 at least.
        What is released is first drawn towards `usual` as the best linear prediction is of numbers that lie about it
        with standard deviation 1/3, and no variance is taken to be less than the noise that is left.

        Args:
            mean: noisy mean [D].
            noise_std: of each of its numbers, public.

        Returns:
            What the maps have in common, without an average.
        """
        trust = _APART**2 / (_APART**2 + noise_std**2)
        mean, rest_std = self.usual + trust * (mean.double().cpu() - self.usual), trust * noise_std
        middle, half = 0.5 * (self.high + self.low), 0.5 * (self.high - self.low)
        loc, std = torch.zeros_like(middle), torch.ones_like(middle)
        between, spread = torch.zeros_like(middle), torch.zeros_like(middle)
        pooled, shrunk = self._are("pooled"), self._are("shrunk")
        sizes = [_POOLED * int(pooled.sum()), _SHRUNK * int(shrunk.sum()), _CLIENT * bool(shrunk.any())]
        of_pooled, of_shrunk, of_client, rest = mean.split([*sizes, len(mean) - sum(sizes)])
        first, second = of_pooled.view(-1, _POOLED).unbind(1)
        first = first.clamp(-1.0, 1.0)
        loc[pooled] = middle[pooled] + half[pooled] * first
        std[pooled] = half[pooled] * (second - first.square()).clamp_min(max(_LEAST**2, rest_std)).sqrt()
        if bool(shrunk.any()):
            values = _population(of_shrunk.view(-1, _SHRUNK), of_client)
            loc[shrunk] = middle[shrunk] + half[shrunk] * values[0]
            std[shrunk], between[shrunk] = half[shrunk] * values[1], half[shrunk] * values[2]
            spread[shrunk] = values[3]
        result = Shared(self.kinds, loc, std, summaries=self._scale(rest) if self.summaries else None)
        return result._replace(between=between, spread=spread) if bool(shrunk.any()) else result

    def _scale(self, mean: Tensor) -> SummaryScale:
        """Scale the summaries by the mean of the clients' messages."""
        (first, second, known), errors = mean[:-_ERRORS].view(-1, _SUMMARY).unbind(1), mean[-_ERRORS:]
        middle, half = self._box
        share = known.clamp(_ENOUGH, 1.0)
        centre = (first / share).clamp(-1.0, 1.0)
        variance = half.square() * (second / share - centre.square()).clamp_min(_LEAST**2)
        error = errors[[0, 1, *[2] * (len(self.kinds) - 1)]].clamp_min(0.0)
        between = (variance - error).clamp_min(0.0).sqrt()
        return SummaryScale(self.unit, middle + half * centre, variance.sqrt(), between)


def _population(columns: Tensor, client: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return means, typical scales, deviations of means and of logarithms of scales, in halves of the ranges [c]."""
    first, second, level, square, known = columns.unbind(1)
    fewer, error = client.clamp(0.0, 1.0)
    loc = first.clamp(-1.0, 1.0)
    total = (second - loc.square()).clamp_min(0.0)
    share, per = known.clamp(_ENOUGH, 1.0), -0.5 * math.log(_LEAST)
    centre = (level / share).clamp(-1.0, 1.0)
    spread = (per**2 * (square / share - centre.square()) - _WORST * error / share).clamp_min(0.0)
    log = per * (centre - 1.0)
    within = (2.0 * (log + spread)).exp().clamp_max(1.0) * fewer
    own = known > _ENOUGH  # else a column varies inside hardly any client: its scale is that between them
    std = torch.where(own, log.exp(), total.sqrt().clamp_min(_LEAST))
    between = torch.where(own, (total - within).clamp_min(0.0).sqrt(), 0.0)
    return loc, std, between, torch.where(own, spread.sqrt(), 0.0)
