"""Audits: how well two neighbours can be told apart by what is released, measured, beside what is claimed of it.

A game takes the worst pair of neighbours, of whom one client's message is as long as the clip lets it be and all others
are 0, makes all releases of one of them by the code that makes those of a run, and scores them by their log likelihood
ratio, the best test there is. Whatever claim is below what the games show is refuted; an epsilon above is not proved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

import torch
from scipy import stats
from scipy.special import ndtri
from torch import Tensor

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.privacy import kinds, mechanisms
from pacbayes_fl.privacy.accounting import epsilon
from pacbayes_fl.privacy.charges import Charge, checked, gaussian_epsilon
from pacbayes_fl.privacy.correlated import band, following, sensitivity
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism

GAMES: Final = 20_000
CONFIDENCE: Final = 0.95
_LEAST: Final = 100  # games
_THRESHOLDS: Final = 25
_LONE: Final = 4  # coordinates where one carries the whole difference, and noise on the others says nothing
_SPREAD: Final = 32  # where all of them carry it
_CHOICES: Final = 32  # of an exponential mechanism: more are closer to its epsilon, and hit by fewer games
_EVERYBODY: Final = Cohorts(1)  # what is divided by does not matter


class Audit(NamedTuple):
    """What the games have shown.

    Args:
        lower: epsilon that the releases exceed or reach at `delta`, whatever their distribution is.
        gaussian: the same where their trade-off curve is that of Gaussian noise; None where it is another.
        reported: epsilon of the account, at `delta`.
        delta: of all three.
        confidence: with which each lower bound holds.
        games: with each of the two neighbours.
        releases: of a game.
    """

    lower: float
    gaussian: float | None
    reported: float
    delta: float
    confidence: float
    games: int
    releases: int

    @property
    def holds(self) -> bool:
        """Whether nothing speaks against what is reported."""
        return max(self.lower, self.gaussian or 0.0) <= self.reported


def audit(
    charges: Sequence[Charge], delta: float, games: int = GAMES, seed: int = 0, confidence: float = CONFIDENCE
) -> Audit:
    """Find a lower bound on the epsilon of releases by distinguishing games.

    epsilon >= ln((P(O) - delta) / Q(O)) for every set O of outcomes, with Clopper-Pearson bounds on both probabilities.
    O = {score >= threshold}, its threshold chosen by half of the games and judged by the others (Jagielski et al.,
    2020). Of Gaussian noise without chance also by mu >= ndtri(P(O)) - ndtri(Q(O)) (Nasr et al. 2023), which needs no
    rare O.

    Args:
        charges: one a release.
        delta: of the guarantee.
        games: with each neighbour.
        seed: of the games.
        confidence: of each lower bound.

    Returns:
        The bounds, 0 where nothing was shown, beside the epsilon of the account.

    Raises:
        PrivacyError: when there is nothing to audit, or too few games for any bound.

    Example:
        >>> from pacbayes_fl.privacy.audit import audit
        >>> from pacbayes_fl.privacy.charges import Charge
        >>> from pacbayes_fl.privacy.mechanisms import Cohorts
        >>> found = audit([Charge("gaussian", 1.0, 1, Cohorts(10))], delta=1e-3, games=2000)
        >>> 0 < found.lower < found.gaussian < found.reported  # what the games show stays below the account
        True
    """
    given, charges = charges, checked(charges)
    if not charges:
        raise PrivacyError("nothing was released that could be audited")
    if games < _LEAST:
        raise PrivacyError(f"an audit takes at least {_LEAST} games with each neighbour, got {games}")
    if not 0 < confidence < 1:
        raise PrivacyError(f"confidence must be strictly between 0 and 1, got {confidence}")
    generator = torch.Generator().manual_seed(seed)
    correlated = [one for one in given if kinds.MECHANISMS[one.kind].correlated]
    others = [one for one in charges if not kinds.MECHANISMS[one.kind].correlated]
    rows = [(charge, len([*row])) for charge, row in groupby(correlated)]
    p, q = (
        sum((_in_order(*row, games, here, generator) for row in rows), _scores(others, games, here, generator))
        .mul(1e9)
        .round()  # of atoms the last bits differ by chance
        for here in (True, False)
    )

    def plain(low: float, high: float) -> float:
        return math.log((low - delta) / high) if low > delta else 0.0

    def normal(low: float, high: float) -> float:
        return _of_gaussian(low, high, delta)

    closed = delta > 0 and all(charge.closed for charge in charges)
    lower = _best(p, q, plain, confidence)
    gaussian = _best(p, q, normal, confidence) if closed else None
    releases = len(others) + len(correlated)
    return Audit(lower, gaussian, epsilon(charges, delta), delta, confidence, games, releases)


def _best(p: Tensor, q: Tensor, bound: Callable[[float, float], float], confidence: float) -> float:
    """Choose a threshold by every other game, and bound by the rest."""

    def at(threshold: float, first: int) -> float:
        hits, alarms = (int((side[first::2] >= threshold).sum()) for side in (p, q))
        return max(0.0, bound(*_clopper_pearson(hits, alarms, len(p[first::2]), len(q[first::2]), confidence)))

    levels = torch.linspace(0.02, 0.98, _THRESHOLDS, dtype=torch.float64)
    thresholds = torch.quantile(torch.cat((p[::2], q[::2])), levels).tolist()
    thresholds += torch.quantile(p[::2], levels).tolist()
    return at(max(thresholds, key=lambda threshold: at(threshold, 0)), 1)


def _of_gaussian(low: float, high: float, delta: float) -> float:
    """Bound epsilon by the mu of a Gaussian trade-off that allows P(O) = low where Q(O) = high."""
    mu = float(ndtri(low) - ndtri(high))
    return gaussian_epsilon([Charge("gaussian", 1 / mu, 1, _EVERYBODY)], delta) if mu > 0 else 0.0


def _clopper_pearson(hits: int, alarms: int, of_p: int, of_q: int, confidence: float) -> tuple[float, float]:
    """Bound P(O) from below and Q(O) from above, both at once."""
    miss = (1 - confidence) / 2
    low = float(stats.beta.ppf(miss, hits, of_p - hits + 1)) if hits else 0.0
    high = float(stats.beta.ppf(1 - miss, alarms + 1, of_q - alarms)) if alarms < of_q else 1.0
    return low, high


def _scores(charges: Sequence[Charge], games: int, here: bool, generator: torch.Generator) -> Tensor:
    """Play games with one neighbour: log likelihood ratios of all releases together [S]."""
    total = torch.zeros(games, dtype=torch.float64)
    for charge, count in Counter(charges).items():
        mechanism, (u, v) = _pair(charge)
        for _ in range(count):
            came = torch.rand(games, generator=generator, dtype=torch.float64) < charge.cohorts.share
            releases = torch.empty(games, u.shape[1], dtype=torch.float64)
            for drawn, sent in ((came, u if here else v), (~came, torch.zeros_like(u))):
                number = int(drawn.sum())
                if number:
                    releases[drawn] = mechanisms.noisy_mean(sent, mechanism, _EVERYBODY, generator, number)
            total += _ratio(releases, u, v, mechanism, charge.cohorts.share)
    return total


def _in_order(charge: Charge, count: int, games: int, here: bool, generator: torch.Generator) -> Tensor:
    """Play a row of releases of cohorts in order whose noise is correlated: log likelihood ratios of all of it [S].

    The first client of the order takes part in rounds of its own, as often as any does. Of releases X = G + C^-1 Z the
    likelihood is that of C X = C G + Z, whose rows are independent.
    """
    mechanism, (u, v) = _pair(charge)
    cohorts, weights = charge.cohorts, band(charge.cohorts.separation)
    turns = {int(j * cohorts.clients // cohorts.divisor) for j in range(math.ceil(count * cohorts.share))}
    noise = torch.empty(0, games * u.shape[1], dtype=torch.float64)
    releases, scale = torch.empty(count, games, u.shape[1], dtype=torch.float64), sensitivity(cohorts) * mechanism.scale
    total = torch.zeros(games, dtype=torch.float64)
    for i in range(count):
        fresh = mechanisms.noise(mechanism, u.shape[1], generator, games).view(1, -1)
        drawn = following(cohorts, noise[len(noise) - min(i, len(weights) - 1) :], fresh)
        noise, own = torch.cat((noise, drawn))[-len(weights) :], i in turns
        sent = (u if here else v) if own else torch.zeros_like(u)
        releases[i] = mechanisms.noisy_mean(sent, mechanism, _EVERYBODY, None, games, drawn.view(games, -1))
        last = range(max(0, i - len(weights) + 1), i + 1)
        y = sum((weights[i - j] * releases[j] for j in last), torch.zeros_like(releases[i]))
        with_u, with_v = (
            sum((weights[i - j] * one for j in last if j in turns), torch.zeros_like(one)) for one in (u, v)
        )
        total += ((y - with_v).square() - (y - with_u).square()).sum(1) / (2 * scale**2)
    return total


def _pair(charge: Charge) -> tuple[Mechanism, tuple[Tensor, Tensor]]:
    """Clip two neighbours' messages [1, D] that are as far apart as they can be, and far longer before."""
    mechanism = Mechanism(charge.kind, 1.0, charge.multiplier)
    if mechanism.chooses:  # one client wants the last of several that are alike to all others: ties take the first
        against = torch.ones(1, min(charge.coordinates, _CHOICES), dtype=torch.float64)
        against[0, -1] = 0.0
        other = 1.0 - against if charge.cohorts.neighbours == "replace" else torch.zeros_like(against)
        return mechanism, (mechanisms.clip(1e3 * against, mechanism), mechanisms.clip(1e3 * other, mechanism))
    spread = kinds.MECHANISMS[charge.kind].growth(4) > 1  # L2 distances are hidden worse where all coordinates differ
    size = min(charge.coordinates, _SPREAD if spread else _LONE)
    direction = torch.ones(1, size, dtype=torch.float64) if spread else torch.eye(1, size, dtype=torch.float64)
    back = -1e3 if charge.cohorts.neighbours == "replace" else 0.0
    return mechanism, (mechanisms.clip(1e3 * direction, mechanism), mechanisms.clip(back * direction, mechanism))


def _ratio(x: Tensor, u: Tensor, v: Tensor, mechanism: Mechanism, share: float) -> Tensor:
    """Log density of x [S, D] where the client sends u with probability `share`, against v; of others u . x."""
    if mechanism.chooses:
        return _odds(x, u, share, mechanism) - _odds(x, v, share, mechanism)
    powers = {"gaussian": (2, 2), "laplace": (1, 1), "paper_algorithm_3": (1, 1), "knorm": (2, 1)}
    if mechanism.kind not in powers:  # of a mechanism of one's own no density is known
        return (x * (u - v)).sum(1)
    order, power = powers[mechanism.kind]

    def density(centre: Tensor) -> Tensor:
        distance: Tensor = torch.linalg.vector_norm((x - centre) / mechanism.scale, order, dim=1)
        return -distance.pow(power) / power

    if share == 1:
        return density(u) - density(v)
    out, within = density(torch.zeros_like(u)) + math.log1p(-share), math.log(share)
    return torch.logaddexp(density(u) + within, out) - torch.logaddexp(density(v) + within, out)


def _odds(x: Tensor, sums: Tensor, share: float, mechanism: Mechanism) -> Tensor:
    """Log probability [S] of choices x [S, C], of a client who sends regrets [1, C] with probability `share`."""
    chosen = share * torch.softmax(-sums / mechanism.scale, -1) + (1 - share) / sums.shape[-1]
    return (x @ chosen.T).log().squeeze(-1)
