"""What releases cost: closed forms where there are any, RDP and PLD by Google's dp-accounting elsewhere.

A `Charge` says everything about one release that its cost depends on. All functions take any sequence of charges, of
which equal ones are composed together; they must hide the same change of the federation.

dp-accounting is imported when RDP or PLD is asked for. It is given noise per SENSITIVITY and asked for no neighbouring
relation but where it has no account without: under REPLACE_ONE its RDP takes a Gaussian's multiplier for noise per
sensitivity, not per clip, so that noise per clip would give the add-or-remove number.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple, get_args

from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.privacy.mechanisms import Cohorts, Kind, Mechanism
from pacbayes_fl.results.certificates import rounded_up
from pacbayes_fl.results.records import SIMULATED_EPSILON

Method = Literal["auto", "pure", "zcdp", "rdp", "pld"]

_INTERVAL: Final = 1e-4  # of PLD's grid of losses, up to an epsilon of _FINE; coarser in proportion beyond
_FINE: Final = 20.0
_OFTEN: Final = 0.3  # share of a Poisson cohort from which on only whole orders of RDP are quick
_SLACK: Final = 1 + 1e-9  # T equal shares of a budget may sum to a last bit more than it
_LAST_BITS: Final = 1 + 1e-14  # so that the sum of T rounds is not a last bit more than the budget
_HOPELESS: Final = 1e9  # times the budget: a number where epsilon is infinite
_PRECISION: Final = 1e-3  # relative, of a searched multiplier; from the safe side


@dataclass(frozen=True)
class Charge:
    """One release, as far as its cost depends on it.

    Args:
        kind: of the mechanism.
        multiplier: the noise's scale on the sum per clip.
        coordinates: D, the length of a message.
        cohorts: who takes part.
    """

    kind: Kind
    multiplier: float
    coordinates: int
    cohorts: Cohorts

    @classmethod
    def of(cls, mechanism: Mechanism, cohorts: Cohorts, coordinates: int) -> Charge:
        """Say what one release of a mechanism costs.

        Args:
            mechanism: the clip and the noise.
            cohorts: who takes part.
            coordinates: D, the length of a message.

        Returns:
            The charge.
        """
        return cls(mechanism.kind, mechanism.multiplier, coordinates, cohorts)

    @property
    def ratio(self) -> float:
        """Noise scale per sensitivity."""
        return self.multiplier / self.cohorts.sensitivity

    @property
    def pure(self) -> float:
        """Pure epsilon of the release; infinite for Gaussian noise.

        ln(1 + q (e^x - 1)) with x = sensitivity / scale; for Algorithm 3 x is sqrt(D) times that, since product Laplace
        noise hides L1 distances and |u|_1 may be sqrt(D) |u|_2.
        """
        if self.kind == "gaussian":
            return math.inf
        step = self._worst / self.ratio
        share = self.cohorts.share
        return step if share == 1 else step + math.log(share + (1 - share) * math.exp(-step))

    @property
    def zcdp(self) -> float:
        """Rho of the release, without gain from chance: (sensitivity / scale)^2 / 2 whatever the kind and D."""
        return 0.5 / self.ratio**2

    @property
    def _worst(self) -> float:
        return math.sqrt(self.coordinates) if self.kind == "paper_algorithm_3" else 1.0


def pure_epsilon(charges: Sequence[Charge]) -> float:
    """Add up pure epsilons (basic composition).

    Args:
        charges: one a release.

    Returns:
        Epsilon with delta = 0; infinite where noise is Gaussian.
    """
    return math.fsum(charge.pure for charge in _checked(charges))


def zcdp(charges: Sequence[Charge]) -> float:
    """Add up zero-concentrated privacy.

    Gaussian noise: rho = Delta_2^2 / (2 sigma^2). Product Laplace noise of scale s: every coordinate is
    (Delta_j / s)^2 / 2, together (Delta_2 / s)^2 / 2 whatever D is. Pure epsilon: epsilon^2 / 2.
    (Bun and Steinke 2016, Propositions 1.4, 1.6, 1.7)

    Args:
        charges: one a release.

    Returns:
        rho.
    """
    return math.fsum(charge.zcdp for charge in _checked(charges))


def epsilon(charges: Sequence[Charge], delta: float, method: Method = "auto") -> float:
    """Find the smallest epsilon for which the releases together are shown to be (epsilon, delta)-DP.

    "zcdp" is rho + 2 sqrt(rho ln(1 / delta)). "auto" is exact in closed form for Gaussian noise without chance (Balle
    and Wang 2018, Theorem 8), and otherwise the smallest of pure epsilon, RDP, PLD, and what Gaussian noise gives
    without chance; PLD has no account of fixed cohorts with Gaussian noise, nor of Algorithm 3.

    Args:
        charges: one a release.
        delta: 0 for pure privacy, and below 1 / N: an epsilon with more would let one client be published whole.
        method: of accounting.

    Returns:
        Epsilon, 0 without charges, infinite where the method shows nothing.

    Raises:
        PrivacyError: when delta is too large, charges do not go together, the method has no account of them, or
            dp-accounting is asked for and not installed.
    """
    _check(charges, delta, method)
    if not charges:
        return 0.0
    pure = pure_epsilon(charges)
    if method == "pure" or delta == 0:
        return pure
    if method == "zcdp":
        return _zcdp_epsilon(charges, delta)
    bounds = [_without_chance(charges, pure, _gaussian_epsilon, delta)] if method == "auto" else []
    if method == "auto" and all(map(_closed, charges)):
        return bounds[0]
    if method in ("auto", "rdp"):
        bounds.append(float(_rdp(charges).get_epsilon(delta)))
    if method == "pld" or (method == "auto" and all(map(_in_pld, charges))):
        bounds.append(_by_pld(charges, delta, method, lambda losses: losses.get_epsilon_for_delta(delta)))
    return min(bounds)


def delta(charges: Sequence[Charge], epsilon: float, method: Method = "auto") -> float:
    """Find the smallest delta for which the releases together are shown to be (epsilon, delta)-DP.

    "pure" is that of randomised response, the least private of all mechanisms with that pure epsilon: 0 above it.

    Args:
        charges: one a release.
        epsilon: at least 0.
        method: of accounting.

    Returns:
        Delta in [0, 1].

    Raises:
        PrivacyError: as `epsilon`.
    """
    if not epsilon >= 0:
        raise PrivacyError(f"epsilon must be at least 0, got {epsilon}")
    _check(charges, 0.0, method)
    if not charges:
        return 0.0
    total = pure_epsilon(charges)
    pure = 0.0 if epsilon >= total else -math.expm1(epsilon - total) / (1 + math.exp(-total))
    if method == "pure":
        return pure
    if method == "zcdp":
        rho = zcdp(charges)
        return math.exp(-((epsilon - rho) ** 2) / (4 * rho)) if epsilon > rho else 1.0
    bounds = [_without_chance(charges, pure, _gaussian_delta, epsilon)] if method == "auto" else []
    if method == "auto" and all(map(_closed, charges)):
        return bounds[0]
    if method in ("auto", "rdp"):
        bounds.append(float(_rdp(charges).get_delta(epsilon)))
    if method == "pld" or (method == "auto" and all(map(_in_pld, charges))):
        bounds.append(_by_pld(charges, 1e-12, method, lambda losses: losses.get_delta_for_epsilon(epsilon)))
    return min(bounds)


@dataclass(frozen=True)
class Budget:
    """What all releases of a federation together may cost.

    Args:
        epsilon: above 0.
        delta: 0 for pure privacy, and below 1 / N.
        method: of accounting.

    Raises:
        PrivacyError: when epsilon or delta means nothing, or the method is unknown.
    """

    epsilon: float
    delta: float
    method: Method = "auto"

    def __post_init__(self) -> None:
        """Refuse budgets that mean nothing."""
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise PrivacyError(f"epsilon must be positive and finite, got {self.epsilon}")
        _check((), self.delta, self.method)

    def allows(self, charges: Sequence[Charge]) -> bool:
        """Whether the charges together stay within the budget.

        Args:
            charges: one a release.

        Returns:
            True where they do.
        """
        quick = self.method == "auto" and self.delta > 0 and any(not _closed(charge) for charge in charges)
        if quick and epsilon(charges, self.delta, "rdp") <= self.epsilon:  # PLD would only find less, and takes longer
            return True
        return epsilon(charges, self.delta, self.method) <= self.epsilon * _SLACK


def rounds_within(charge: Charge, budget: Budget, spent: Sequence[Charge] = (), most: int = 10_000) -> int:
    """Count the releases that a budget still allows.

    Args:
        charge: of each of them.
        budget: for all together.
        spent: charges of before.
        most: where to stop counting.

    Returns:
        The largest number up to `most`, possibly 0.

    Raises:
        PrivacyError: as `epsilon`.
    """

    def fits(count: int) -> bool:
        return budget.allows([*spent, *[charge] * count])

    if fits(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def noise_multiplier(kind: Kind, budget: Budget, rounds: int, cohorts: Cohorts, coordinates: int = 1) -> float:
    """Find the least noise that keeps a number of rounds within a budget.

    With delta = 0 in closed form: scale T Delta_1 / epsilon without chance in the cohorts; otherwise by a search, and
    at most 0.1 % above the least.

    Args:
        kind: of the mechanism.
        budget: for all rounds.
        rounds: T.
        cohorts: who takes part.
        coordinates: D, which only Algorithm 3 depends on.

    Returns:
        The noise's scale on the sum per clip.

    Raises:
        PrivacyError: as `epsilon`, and when no noise keeps the budget.
    """
    if rounds < 1:
        raise PrivacyError(f"rounds must be at least 1, got {rounds}")
    try:
        return _least_noise(kind, budget, rounds, cohorts, coordinates)
    except (ValueError, ArithmeticError) as error:  # of an account far from what anybody asks for
        what = (
            f"no noise can be found for {rounds} rounds within epsilon = {budget.epsilon:g}, delta = {budget.delta:g}"
        )
        raise PrivacyError(f"{what}: {error}", hint="ask for numbers that are less extreme") from error


def _least_noise(kind: Kind, budget: Budget, rounds: int, cohorts: Cohorts, coordinates: int) -> float:
    """Search for what `noise_multiplier` gives."""
    if budget.delta == 0 or budget.method == "pure":
        if kind == "gaussian":
            raise PrivacyError("Gaussian noise has no pure epsilon", hint="give a delta, or use laplace or knorm")
        worst = cohorts.sensitivity * Charge(kind, 1.0, coordinates, cohorts)._worst
        step = budget.epsilon / rounds
        exact = worst / (step + math.log(math.exp(-step) - math.expm1(-step) / cohorts.share))
        return exact * _LAST_BITS

    @cache
    def excess(logarithm: float) -> float:
        charge = Charge(kind, math.exp(logarithm), coordinates, cohorts)
        return min(epsilon([charge] * rounds, budget.delta, budget.method) / budget.epsilon - 1, _HOPELESS)

    low = high = math.log(cohorts.sensitivity * math.sqrt(rounds) / budget.epsilon)
    while excess(high) > 0:
        low, high = high, high + math.log(2)
        if high > math.log(1e12):
            raise PrivacyError(f"no noise keeps {rounds} rounds within epsilon = {budget.epsilon:g}")
    while low > math.log(1e-6) and excess(low) <= 0:
        low, high = low - math.log(2), low
    if excess(low) > 0:  # smooth in between
        found = brentq(excess, low, high, xtol=_PRECISION / 2) + _PRECISION / 2
        high = found if excess(found) <= 0 else high
    return math.exp(high)


class Replacement(NamedTuple):
    """A guarantee for one client whose whole data are replaced by any other.

    Args:
        epsilon: with `delta`.
        delta: 0 where epsilon is pure.
    """

    epsilon: float
    delta: float

    def nats(self, at: float) -> float:
        """Say what it costs a bound on that client (`bounds.client_privacy`).

        epsilon + ln(at / (at - delta))

        Args:
            at: probability with which the bound may fail.

        Returns:
            Nats; infinite where `at` is not above delta.
        """
        return self.epsilon - math.log1p(-self.delta / at) if self.delta < at else math.inf


def replacement(charges: Sequence[Charge], at: float) -> Replacement:
    """Choose, of all guarantees that releases give to a client whose data are replaced, the one a bound pays least for.

    Every point of the trade-off curve holds, and which one is chosen depends on nothing but the charges and `at`. A
    client that is replaced moves the sum by two clips, whoever takes part. Poisson cohorts are accounted for clients
    that send zeros instead, of which a replacement is two: (epsilon, delta) for each is (2 epsilon, (1 + e^epsilon)
    delta) for both (Dwork and Roth 2014, Theorem 2.2). What fixed cohorts gain from chance is left out.

    Args:
        charges: one a release.
        at: probability with which the bound may fail.

    Returns:
        The guarantee; (0, 0) without charges.

    Raises:
        PrivacyError: when charges do not go together or `at` is no probability.
    """
    if not 0 < at < 1:
        raise PrivacyError(f"a bound fails with a probability strictly between 0 and 1, got {at}")
    if not _checked(charges):
        return Replacement(0.0, 0.0)
    known = [replace(c, cohorts=replace(c.cohorts, kind="all", neighbours="replace")) for c in charges]
    found = [Replacement(pure_epsilon(known), 0.0)]
    spent = [at * 2.0 ** (-step / 4) for step in range(1, 160)]
    if all(charge.kind == "gaussian" for charge in charges):
        found += [Replacement(_gaussian_epsilon(known, each), each) for each in spent]
    else:
        found += [Replacement(_zcdp_epsilon(known, each), each) for each in spent]
    if not all(map(_closed, known)):
        found += _by_distribution(known, spent)
    if all(charge.cohorts.kind == "poisson" for charge in charges):
        steps = _by_distribution(charges, spent)
        found += [Replacement(2 * e, (1 + math.exp(min(e, 700.0))) * delta) for e, delta in steps]
    return min(found, key=lambda one: one.nats(at))


def _by_distribution(charges: Sequence[Charge], spent: Sequence[float]) -> list[Replacement]:
    """Take points of the trade-off curve by RDP and PLD; none without dp-accounting or a number in the doubles."""
    found: list[Replacement] = []
    try:
        renyi = _rdp(charges)
        found += [Replacement(float(renyi.get_epsilon(each)), each) for each in spent]
        if all(map(_in_pld, charges)):
            losses = _pld(charges, spent[len(spent) // 4])
            found += [Replacement(float(losses.get_epsilon_for_delta(each)), each) for each in spent[::4]]
    except (PrivacyError, OverflowError):  # what was found without them holds all the same
        return found
    return found


class Statement(NamedTuple):
    """What may be said of releases.

    Args:
        pure: epsilon with delta = 0, where anybody may know who took part; infinite for Gaussian noise.
        rho: of zCDP.
        epsilon: with `delta`, by the best account there is.
        delta: the one asked for.
        secret: whether `epsilon` needs that nobody knows who took part.
        simulated: whether the noise comes from a seed, so that nothing is hidden from whoever knows it.
    """

    pure: float
    rho: float
    epsilon: float
    delta: float
    secret: bool = False
    simulated: bool = False

    def __str__(self) -> str:
        """Say it in one line, no number less than it is; of a simulation what would hold if its noise were secret."""
        if self.simulated:
            return f"{SIMULATED_EPSILON} = {rounded(self.epsilon)} at delta = {rounded(self.delta)}"
        said = f"({rounded(self.epsilon)}, {rounded(self.delta)})-DP; {rounded(self.rho)}-zCDP"
        if not math.isfinite(self.pure) or (self.delta == 0 and not self.secret):  # there is none, or it is epsilon
            return said
        return f"{said}; pure epsilon = {rounded(self.pure)}" + " where the cohorts are known" * self.secret


def statement(charges: Sequence[Charge], delta: float) -> Statement:
    """Say what releases give: for Algorithm 3 rho = 2 epsilon^2 / T and pure 2 sqrt(D) epsilon, not what it prints.

    Args:
        charges: one a release.
        delta: below 1 / N; above 0 where noise is Gaussian, since its epsilon is infinite otherwise.

    Returns:
        The numbers; without gain from chance but for `epsilon`.

    Raises:
        PrivacyError: as `epsilon`.
    """
    known = math.fsum(charge._worst / charge.ratio if charge.kind != "gaussian" else math.inf for charge in charges)
    secret = any(charge.cohorts.share < 1 for charge in charges)
    return Statement(known, zcdp(charges), epsilon(charges, delta), delta, secret)


def rounded(value: float) -> str:
    """Write what a guarantee costs in four digits, never as less than it is.

    Args:
        value: epsilon, delta or rho.

    Returns:
        Text that reads back as the value or as more.
    """
    text = f"{value:.4g}"
    return text if float(text) >= value else f"{float(rounded_up(value)):.4g}"


def _checked(charges: Sequence[Charge]) -> Sequence[Charge]:
    """Refuse charges that hide different changes: their sum would hide neither."""
    if len({charge.cohorts.neighbours for charge in charges}) > 1:
        raise PrivacyError("all releases must hide the same change, got add-or-remove beside replace")
    return charges


def _check(charges: Sequence[Charge], delta: float, method: str) -> None:
    if method not in get_args(Method):
        raise PrivacyError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    if not 0 <= delta < 1:
        raise PrivacyError(f"delta must be in [0, 1), got {delta}")
    clients = max((charge.cohorts.clients for charge in _checked(charges)), default=1)
    if delta * clients >= 1:
        what = f"delta must be below 1 / N = {1 / clients:.3g}, got {delta:g}"
        raise PrivacyError(what, hint="with more, publishing one client at random would count as private")


def _closed(charge: Charge) -> bool:
    return charge.kind == "gaussian" and charge.cohorts.share == 1


def _without_chance(
    charges: Sequence[Charge], pure: float, exact: Callable[[Sequence[Charge], float], float], at: float
) -> float:
    """Take the account of Gaussian noise whose cohorts are known, which is also one of secret ones; `pure` of others.

    Subsampling has accounts that are worse than none where nearly everybody takes part.
    """
    return exact(charges, at) if all(charge.kind == "gaussian" for charge in charges) else pure


def _gaussian_delta(charges: Sequence[Charge], epsilon: float) -> float:
    """Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu) with mu^2 = sum (sensitivity / sigma)^2."""
    mu = math.sqrt(2 * zcdp(charges))
    far, near = ndtr(mu / 2 - epsilon / mu), log_ndtr(-mu / 2 - epsilon / mu)
    return max(0.0, float(far - math.exp(epsilon + near)))


def _zcdp_epsilon(charges: Sequence[Charge], delta: float) -> float:
    rho = zcdp(charges)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def _gaussian_epsilon(charges: Sequence[Charge], delta: float) -> float:
    if _gaussian_delta(charges, 0.0) <= delta:
        return 0.0
    above = 1 + _zcdp_epsilon(charges, delta)
    return float(brentq(lambda at: _gaussian_delta(charges, at) - delta, 0.0, above, xtol=1e-12))


def _in_pld(charge: Charge) -> bool:
    return _closed(charge) or (
        charge.kind != "paper_algorithm_3" and not (charge.kind == "gaussian" and charge.cohorts.kind == "fixed")
    )


def _accounting() -> tuple[ModuleType, ModuleType, ModuleType, ModuleType]:
    """Import dp-accounting: events, RDP, and PLD with what it needs."""
    try:
        import dp_accounting
        from dp_accounting import rdp
        from dp_accounting.pld import common, privacy_loss_distribution
    except ImportError as error:
        what = "accounting by RDP and PLD needs dp-accounting, which is not installed"
        raise PrivacyError(what, hint="pip install 'pacbayes_fl[privacy]', or method = 'zcdp' or 'pure'") from error
    return dp_accounting, rdp, privacy_loss_distribution, common


def _rdp(charges: Sequence[Charge]) -> Any:
    """Compose in Renyi differential privacy."""
    dp, rdp, _, _ = _accounting()
    fixed = not all(map(_in_pld, charges)) and any(charge.cohorts.kind == "fixed" for charge in charges)
    relation = dp.NeighboringRelation.REPLACE_ONE if fixed else dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = rdp.RdpAccountant(_orders(charges, rdp), relation)
    for charge, count in Counter(charges).items():
        accountant.compose(_event(charge, dp), count)
    return accountant


def _orders(charges: Sequence[Charge], rdp: ModuleType) -> list[float]:
    """Orders alpha: fewer only loosen a bound. dp-accounting gives up on these ones, slowly and with a warning each."""
    orders: Sequence[float] = rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS
    shares = [c.cohorts.share for c in charges if c.kind == "gaussian" and c.cohorts.kind == "poisson"]
    if not shares:
        return [*orders]
    return [order for order in orders if order >= 2 and (order == int(order) or max(shares) < _OFTEN)]


def _event(charge: Charge, dp: ModuleType) -> Any:
    cohorts = charge.cohorts
    if charge.kind == "gaussian":
        event = dp.GaussianDpEvent(charge.ratio)
        if _closed(charge):
            return event
        if cohorts.kind == "poisson":
            return dp.PoissonSampledDpEvent(cohorts.share, event)
        return dp.SampledWithoutReplacementDpEvent(cohorts.clients, int(cohorts.divisor), event)
    if charge.kind == "laplace" and cohorts.kind == "all":
        return dp.LaplaceDpEvent(charge.ratio)
    return dp.ZCDpEvent(min(charge.zcdp, charge.pure**2 / 2))


def _by_pld(charges: Sequence[Charge], delta: float, method: Method, read: Callable[[Any], float]) -> float:
    """Read a number off the distributions; there is none where noise is so little that its losses leave the doubles."""
    try:
        return float(read(_pld(charges, delta)))
    except OverflowError as error:
        if method == "auto":  # RDP has one
            return math.inf
        least = min(charge.ratio for charge in charges)
        what = f"noise of {least:.3g} per sensitivity has no account by PLD: its epsilon is too large for a double"
        raise PrivacyError(what, hint="method = 'rdp', or a smaller epsilon") from error


def _pld(charges: Sequence[Charge], delta: float) -> Any:
    """Compose privacy loss distributions, each an upper bound.

    The distributions are built one by one and not by dp-accounting's own accountant, which composes a pure event once
    however often it is asked to (0.6.0).
    """
    _, _, pld, common = _accounting()
    if not all(map(_in_pld, charges)):
        raise PrivacyError(
            "fixed cohorts with Gaussian noise, and Algorithm 3, have no account by PLD", hint="method = 'rdp'"
        )
    rough = float(_rdp(charges).get_epsilon(delta))  # little noise has losses of thousands: a fine grid would be huge
    interval = _INTERVAL * max(1.0, rough / _FINE)
    total = pld.identity(value_discretization_interval=interval)
    for charge, count in Counter(charges).items():
        total = total.compose(_losses(charge, count, interval, pld, common))
    return total


def _losses(charge: Charge, count: int, interval: float, pld: ModuleType, common: ModuleType) -> Any:
    """Build the privacy loss distribution of `count` equal releases."""
    share = charge.cohorts.share
    build: Callable[..., Any]
    if _closed(charge):  # the sum of T Gaussian releases is one with sqrt(T) less noise
        return pld.from_gaussian_mechanism(charge.ratio / math.sqrt(count), value_discretization_interval=interval)
    if charge.kind == "gaussian" or (charge.kind == "laplace" and charge.cohorts.kind != "fixed"):
        build = pld.from_gaussian_mechanism if charge.kind == "gaussian" else pld.from_laplace_mechanism
        one = build(charge.ratio, sampling_prob=share, value_discretization_interval=interval)
    else:
        one = pld.from_privacy_parameters(common.DifferentialPrivacyParameters(charge.pure, 0.0), interval)
    return one.self_compose(count)
