"""Composition of releases by the tightest available accounting: in closed form, or by RDP and PLD (`numerical`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal, get_args

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.privacy.charges import (
    Charge,
    checked,
    gaussian_delta,
    gaussian_epsilon,
    pure_epsilon,
    zcdp,
    zcdp_epsilon,
)
from pacbayes_fl.privacy.mechanisms import Cohorts
from pacbayes_fl.privacy.numerical import in_pld, losses, renyi

Method = Literal["auto", "pure", "zcdp", "rdp", "pld"]

_SLACK: Final = 1 + 1e-9  # T equal shares of a budget may sum to a last bit more than it
_LAST_BITS: Final = 1 + 1e-14  # so that the sum of T rounds is not a last bit more than the budget
_HOPELESS: Final = 1e9  # times the budget: a number where epsilon is infinite
_PRECISION: Final = 1e-3  # relative, of a searched multiplier; from the safe side


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

    Example:
        >>> from pacbayes_fl.privacy.accounting import epsilon
        >>> from pacbayes_fl.privacy.charges import Charge
        >>> from pacbayes_fl.privacy.mechanisms import Cohorts
        >>> rounds = [Charge("gaussian", 20.0, 1, Cohorts(100))] * 100
        >>> round(epsilon(rounds, 1e-3), 3)
        1.352
    """
    charges = _check(charges, delta, method)
    if not charges:
        return 0.0
    pure = pure_epsilon(charges)
    if method == "pure" or delta == 0:
        return pure
    if method == "zcdp":
        return zcdp_epsilon(charges, delta)
    bounds = [_without_chance(charges, pure, gaussian_epsilon, delta)] if method == "auto" else []
    if method == "auto" and all(charge.closed for charge in charges):
        return bounds[0]
    if method in ("auto", "rdp"):
        bounds.append(float(renyi(charges).get_epsilon(delta)))
    if method == "pld" or (method == "auto" and all(map(in_pld, charges))):
        bounds.append(_by_pld(charges, delta, method, lambda result: result.get_epsilon_for_delta(delta)))
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

    Example:
        >>> from pacbayes_fl.privacy.accounting import delta, epsilon
        >>> from pacbayes_fl.privacy.charges import Charge
        >>> from pacbayes_fl.privacy.mechanisms import Cohorts
        >>> rounds = [Charge("gaussian", 20.0, 1, Cohorts(100))] * 100
        >>> round(epsilon(rounds, delta(rounds, 1.0)), 3)  # the inverse of each other
        1.0
    """
    if not epsilon >= 0:
        raise PrivacyError(f"epsilon must be at least 0, got {epsilon}")
    charges = _check(charges, 0.0, method)
    if not charges:
        return 0.0
    total = pure_epsilon(charges)
    pure = 0.0 if epsilon >= total else -math.expm1(epsilon - total) / (1 + math.exp(-total))
    if method == "pure":
        return pure
    if method == "zcdp":
        rho = zcdp(charges)
        return math.exp(-((epsilon - rho) ** 2) / (4 * rho)) if epsilon > rho else 1.0
    bounds = [_without_chance(charges, pure, gaussian_delta, epsilon)] if method == "auto" else []
    if method == "auto" and all(charge.closed for charge in charges):
        return bounds[0]
    if method in ("auto", "rdp"):
        bounds.append(float(renyi(charges).get_delta(epsilon)))
    if method == "pld" or (method == "auto" and all(map(in_pld, charges))):
        bounds.append(_by_pld(charges, 1e-12, method, lambda result: result.get_delta_for_epsilon(epsilon)))
    return min(bounds)


@dataclass(frozen=True)
class Budget:
    """Privacy budget of all releases of a federation together.

    Args:
        epsilon: above 0.
        delta: 0 for pure privacy, and below 1 / N.
        method: of accounting.

    Raises:
        PrivacyError: when epsilon or delta is out of its range, or the method is unknown.

    Example:
        >>> from pacbayes_fl.privacy.accounting import Budget
        >>> from pacbayes_fl.privacy.charges import Charge
        >>> from pacbayes_fl.privacy.mechanisms import Cohorts
        >>> budget, one = Budget(1.0, 1e-3), Charge("gaussian", 20.0, 1, Cohorts(100))
        >>> budget.allows([one] * 10), budget.allows([one] * 100)
        (True, False)
    """

    epsilon: float
    delta: float
    method: Method = "auto"

    def __post_init__(self) -> None:
        """Check the ranges."""
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
        quick = self.method == "auto" and self.delta > 0 and any(not charge.closed for charge in charges)
        if quick and epsilon(charges, self.delta, "rdp") <= self.epsilon:  # PLD would only find less, and takes longer
            return True
        return epsilon(charges, self.delta, self.method) <= self.epsilon * _SLACK


def rounds_within(charge: Charge, budget: Budget, spent: Sequence[Charge] = (), most: int = 10_000) -> int:
    """Count the releases that a budget still allows.

    Args:
        charge: of each of them.
        budget: for all together.
        spent: earlier charges.
        most: where to stop counting.

    Returns:
        The largest number up to `most`, possibly 0.

    Raises:
        PrivacyError: as `epsilon`.

    Example:
        >>> from pacbayes_fl.privacy.accounting import Budget, rounds_within
        >>> from pacbayes_fl.privacy.charges import Charge
        >>> from pacbayes_fl.privacy.mechanisms import Cohorts
        >>> rounds_within(Charge("laplace", 10.0, 1, Cohorts(100)), Budget(1.0, 0.0, "pure"))  # ten of epsilon 1 / 10
        10
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


def noise_multiplier(
    kind: str,
    budget: Budget,
    rounds: int,
    cohorts: Cohorts,
    coordinates: int = 1,
    beside: Sequence[Charge] = (),
) -> float:
    """Find the least noise that keeps a number of rounds within a budget.

    With delta = 0 in closed form: scale T Delta_1 / epsilon without chance in the cohorts; otherwise by a search, and
    at most 0.1 % above the least.

    Args:
        kind: of the mechanism.
        budget: for all rounds.
        rounds: T.
        cohorts: who takes part.
        coordinates: D, which only Algorithm 3 depends on.
        beside: releases outside of these rounds that the same budget pays for.

    Returns:
        The noise's scale on the sum per clip.

    Raises:
        PrivacyError: as `epsilon`, and when no noise keeps the budget.

    Example:
        >>> from pacbayes_fl.privacy.accounting import Budget, noise_multiplier
        >>> from pacbayes_fl.privacy.mechanisms import Cohorts
        >>> round(noise_multiplier("gaussian", Budget(5.0, 1e-3), 100, Cohorts(100)), 2)
        6.9
    """
    if rounds < 1:
        raise PrivacyError(f"rounds must be at least 1, got {rounds}")
    try:
        return _least_noise(kind, budget, rounds, cohorts, coordinates, beside)
    except (ValueError, ArithmeticError) as error:  # of an account far from what anybody asks for
        what = (
            f"no noise can be found for {rounds} rounds within epsilon = {budget.epsilon:g}, delta = {budget.delta:g}"
        )
        raise PrivacyError(f"{what}: {error}", hint="ask for numbers that are less extreme") from error


def _least_noise(
    kind: str, budget: Budget, rounds: int, cohorts: Cohorts, coordinates: int, beside: Sequence[Charge]
) -> float:
    """Search for what `noise_multiplier` gives."""
    if budget.delta == 0 or budget.method == "pure":
        worst = cohorts.sensitivity * Charge(kind, 1.0, coordinates, cohorts).worst
        if worst == math.inf:
            raise PrivacyError("Gaussian noise has no pure epsilon", hint="give a delta, or use laplace or knorm")
        shares = len(checked([Charge(kind, 1.0, coordinates, cohorts)] * rounds))
        step = (budget.epsilon - pure_epsilon(beside)) / shares
        if not step > 0:
            raise PrivacyError(f"other releases take all of epsilon = {budget.epsilon:g}, and leave none for rounds")
        exact = worst / (step + math.log(math.exp(-step) - math.expm1(-step) / cohorts.share))
        return exact * _LAST_BITS

    @cache
    def excess(logarithm: float) -> float:
        charge = Charge(kind, math.exp(logarithm), coordinates, cohorts)
        charges = checked([*beside, *[charge] * rounds])
        return min(epsilon(charges, budget.delta, budget.method) / budget.epsilon - 1, _HOPELESS)

    low = high = math.log(cohorts.sensitivity * math.sqrt(rounds) / budget.epsilon)
    while excess(high) > 0:
        low, high = high, high + math.log(2)
        if high > math.log(1e12):
            raise PrivacyError(f"no noise keeps {rounds} rounds within epsilon = {budget.epsilon:g}")
    while low > math.log(1e-6) and excess(low) <= 0:
        low, high = low - math.log(2), low
    if excess(low) > 0:  # smooth in between
        from scipy.optimize import brentq  # a third of a second, which only private runs take

        result = brentq(excess, low, high, xtol=_PRECISION / 2) + _PRECISION / 2
        high = result if excess(result) <= 0 else high
    return math.exp(high)


def _check(charges: Sequence[Charge], delta: float, method: str) -> Sequence[Charge]:
    if method not in get_args(Method):
        raise PrivacyError(f"method must be one of {', '.join(get_args(Method))}, got {method!r}")
    if not 0 <= delta < 1:
        raise PrivacyError(f"delta must be in [0, 1), got {delta}")
    charges = checked(charges)
    clients = max((charge.cohorts.clients for charge in charges), default=1)
    if delta * clients >= 1:
        what = f"delta must be below 1 / N = {1 / clients:.3g}, got {delta:g}"
        raise PrivacyError(what, hint="with more, publishing one client at random would count as private")
    return charges


def _without_chance(
    charges: Sequence[Charge], pure: float, exact: Callable[[Sequence[Charge], float], float], at: float
) -> float:
    """Take the account of Gaussian noise whose cohorts are known, which is also one of secret ones; `pure` of others.

    Subsampling has accounts that are worse than none where nearly everybody takes part.
    """
    return exact(charges, at) if all(charge.account == "gaussian" for charge in charges) else pure


def _by_pld(charges: Sequence[Charge], delta: float, method: Method, read: Callable[[Any], float]) -> float:
    """Read a number off the distributions; there is none where noise is so little that its losses leave the doubles."""
    try:
        return float(read(losses(charges, delta)))
    except OverflowError as error:
        if method == "auto":  # RDP has one
            return math.inf
        least = min(charge.ratio for charge in charges)
        what = f"noise of {least:.3g} per sensitivity has no account by PLD: its epsilon is too large for a double"
        raise PrivacyError(what, hint="method = 'rdp', or a smaller epsilon") from error
