"""Guarantees of releases in every privacy notion, and for the replacement of a client."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.privacy.accounting import epsilon
from pacbayes_fl.privacy.charges import Charge, checked, gaussian_epsilon, pure_epsilon, zcdp, zcdp_epsilon
from pacbayes_fl.privacy.numerical import in_pld, losses, renyi
from pacbayes_fl.results.certificates import rounded_up
from pacbayes_fl.results.records import SIMULATED_EPSILON


class Replacement(NamedTuple):
    """A guarantee for one client whose whole data are replaced by any other.

    Args:
        epsilon: with `delta`.
        delta: 0 where epsilon is pure.

    Example:
        >>> import math
        >>> from pacbayes_fl.privacy.guarantees import Replacement
        >>> Replacement(epsilon=1.0, delta=0.0).nats(at=0.05)
        1.0
        >>> round(Replacement(1.0, 0.025).nats(0.05) - math.log(2), 6)  # half of the 0.05 is spent on delta
        1.0
    """

    epsilon: float
    delta: float

    def nats(self, at: float) -> float:
        """The cost for a bound on that client (`bounds.client_privacy`).

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

    Example:
        >>> from pacbayes_fl.privacy.charges import Charge
        >>> from pacbayes_fl.privacy.guarantees import replacement
        >>> from pacbayes_fl.privacy.mechanisms import Cohorts
        >>> rounds = [Charge("laplace", 20.0, 1, Cohorts(100))] * 10  # of 2 / 20 each for a client that is replaced
        >>> replacement(rounds, at=0.05).nats(0.05) < 1.0
        True
    """
    if not 0 < at < 1:
        raise PrivacyError(f"a bound fails with a probability strictly between 0 and 1, got {at}")
    charges = checked(charges)
    if not charges:
        return Replacement(0.0, 0.0)
    known = [replace(c, cohorts=replace(c.cohorts, kind="all", neighbours="replace")) for c in charges]
    result = [Replacement(pure_epsilon(known), 0.0)]
    spent = [at * 2.0 ** (-step / 4) for step in range(1, 160)]
    if all(charge.account == "gaussian" for charge in charges):
        result += [Replacement(gaussian_epsilon(known, each), each) for each in spent]
    else:
        result += [Replacement(zcdp_epsilon(known, each), each) for each in spent]
    if not all(charge.closed for charge in known):
        result += _by_distribution(known, spent)
    if all(charge.cohorts.kind == "poisson" for charge in charges):
        steps = _by_distribution(charges, spent)
        result += [Replacement(2 * e, (1 + math.exp(min(e, 700.0))) * delta) for e, delta in steps]
    return min(result, key=lambda one: one.nats(at))


def _by_distribution(charges: Sequence[Charge], spent: Sequence[float]) -> list[Replacement]:
    """Take points of the trade-off curve by RDP and PLD; none without dp-accounting or a number in the doubles."""
    result: list[Replacement] = []
    try:
        accountant = renyi(charges)
        result += [Replacement(float(accountant.get_epsilon(each)), each) for each in spent]
        if all(map(in_pld, charges)):
            distribution = losses(charges, spent[len(spent) // 4])
            result += [Replacement(float(distribution.get_epsilon_for_delta(each)), each) for each in spent[::4]]
    except (PrivacyError, OverflowError):  # what was found without them holds all the same
        return result
    return result


class Statement(NamedTuple):
    """Guarantees of releases.

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
    """Guarantees of releases: for Algorithm 3 rho = 2 epsilon^2 / T and pure 2 sqrt(D) epsilon, not the printed ones.

    Args:
        charges: one a release.
        delta: below 1 / N; above 0 where noise is Gaussian, since its epsilon is infinite otherwise.

    Returns:
        The numbers; without gain from chance but for `epsilon`.

    Raises:
        PrivacyError: as `epsilon`.
    """
    charges = checked(charges)
    known = math.fsum(charge.known for charge in charges)
    secret = any(charge.cohorts.share < 1 for charge in charges)
    return Statement(known, zcdp(charges), epsilon(charges, delta), delta, secret)


def rounded(value: float) -> str:
    """Round the cost of a guarantee up to four digits.

    Args:
        value: epsilon, delta or rho.

    Returns:
        Text that reads back as the value or as more.
    """
    return f"{float(rounded_up(value)):.4g}"
