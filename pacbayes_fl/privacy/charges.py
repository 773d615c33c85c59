"""Privacy cost of one release, in closed form.

A `Charge` says everything about one release that its cost depends on. All functions take any sequence of charges, of
which equal ones are composed together; they must hide the same change of the federation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.files import JsonMapping
from pacbayes_fl.privacy import kinds
from pacbayes_fl.privacy.kinds import Account
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism

ROUND: Final = "round"
"""What clients send in a round, as releases outside of rounds have names of their own."""


@dataclass(frozen=True)
class Charge:
    """One release, as far as its cost depends on it.

    Args:
        kind: of the mechanism.
        multiplier: the noise's scale on the sum per clip.
        coordinates: D, the length of a message.
        cohorts: who takes part.
        message: what is released, which costs nothing by itself.

    Example:
        >>> from pacbayes_fl.privacy.charges import Charge
        >>> from pacbayes_fl.privacy.mechanisms import Cohorts
        >>> one = Charge("gaussian", multiplier=20.0, coordinates=1, cohorts=Cohorts(100))
        >>> one.zcdp, one.pure  # 1 / (2 x 20^2), and no pure epsilon
        (0.00125, inf)
    """

    kind: str
    multiplier: float
    coordinates: int
    cohorts: Cohorts
    message: str = ROUND

    @classmethod
    def of(cls, mechanism: Mechanism, cohorts: Cohorts, coordinates: int) -> Charge:
        """Privacy cost of one release of a mechanism.

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
        step = self.known
        share = self.cohorts.share
        return step if share == 1 or step == math.inf else step + math.log(share + (1 - share) * math.exp(-step))

    @property
    def zcdp(self) -> float:
        """Rho of the release, without gain from chance: (sensitivity / scale)^2 / 2 for all built-in kinds."""
        return kinds.MECHANISMS[self.kind].zcdp(self.ratio)

    @property
    def account(self) -> Account:
        """Which account holds for the noise."""
        return kinds.MECHANISMS[self.kind].account

    @property
    def worst(self) -> float:
        """Pure epsilon of noise of one sensitivity; infinite for Gaussian noise."""
        return math.inf if self.account == "gaussian" else kinds.MECHANISMS[self.kind].growth(self.coordinates)

    @property
    def known(self) -> float:
        """Pure epsilon where anybody may know who took part; infinite for Gaussian noise."""
        return self.worst / self.ratio

    @property
    def closed(self) -> bool:
        """Whether its cost has a closed form: of Gaussian noise without chance."""
        return self.account == "gaussian" and self.cohorts.share == 1


def charge_of(saved: JsonMapping) -> Charge:
    """Read a charge from what `dataclasses.asdict` makes of one.

    Args:
        saved: its fields; the message may be left out where it is a round's.

    Returns:
        The charge.

    Raises:
        KeyError, TypeError, PrivacyError: when it is none.
    """
    cohorts, message = Cohorts(**saved["cohorts"]), saved.get("message", ROUND)
    return Charge(saved["kind"], saved["multiplier"], saved["coordinates"], cohorts, message)


def pure_epsilon(charges: Sequence[Charge]) -> float:
    """Add up pure epsilons (basic composition).

    Args:
        charges: one a release.

    Returns:
        Epsilon with delta = 0; infinite where noise is Gaussian.

    Example:
        >>> from pacbayes_fl.privacy.charges import Charge, pure_epsilon
        >>> from pacbayes_fl.privacy.mechanisms import Cohorts
        >>> pure_epsilon([Charge("laplace", 20.0, 1, Cohorts(100))] * 100)  # 100 / 20
        5.0
    """
    return math.fsum(charge.pure for charge in checked(charges))


def zcdp(charges: Sequence[Charge]) -> float:
    """Add up zero-concentrated privacy.

    Gaussian noise: rho = Delta_2^2 / (2 sigma^2). Product Laplace noise of scale s: every coordinate is
    (Delta_j / s)^2 / 2, together (Delta_2 / s)^2 / 2 whatever D is. Pure epsilon: epsilon^2 / 2.
    (Bun and Steinke 2016, Propositions 1.4, 1.6, 1.7)

    Args:
        charges: one a release.

    Returns:
        rho.

    Example:
        >>> from pacbayes_fl.privacy.charges import Charge, zcdp
        >>> from pacbayes_fl.privacy.mechanisms import Cohorts
        >>> rounds = [Charge("gaussian", 20.0, 1, Cohorts(100))] * 100
        >>> round(zcdp(rounds), 4)
        0.125
    """
    return math.fsum(charge.zcdp for charge in checked(charges))


def checked(charges: Sequence[Charge]) -> Sequence[Charge]:
    """Check that charges hide the same change, and count of cohorts in order what one client may have taken part in.

    n equal releases in a row whose cohorts of c follow an order of N clients meet any client at most ceil(n c / N)
    times: client i is in release s where i + j N is in [s c, s c + c) for some j >= 0, so that j N < n c. Given the
    releases before, one without a client does not depend on it, and costs it nothing (parallel composition). The result
    is that many releases with everybody in each, of every such row by itself.

    Args:
        charges: one a release, in the order in which they were made.

    Returns:
        The charges; those of cohorts in order as charges of cohorts that are known.

    Raises:
        PrivacyError: when they do not.
    """
    if len({charge.cohorts.neighbours for charge in charges}) > 1:
        raise PrivacyError("all releases must hide the same change, got add-or-remove beside replace")
    if not any(charge.cohorts.kind == "in-order" for charge in charges):
        return charges
    result = list[Charge]()
    for charge, row in groupby(charges):
        count, cohorts = len([*row]), charge.cohorts
        if cohorts.kind == "in-order":
            charge = replace(charge, cohorts=replace(cohorts, kind="all"))
            count = -(-count * int(cohorts.divisor) // cohorts.clients)
        result += [charge] * count
    return result


def zcdp_epsilon(charges: Sequence[Charge], delta: float) -> float:
    """Find epsilon from zCDP: rho + 2 sqrt(rho ln(1 / delta)).

    Args:
        charges: one a release.
        delta: above 0.

    Returns:
        Epsilon.

    Example:
        >>> from pacbayes_fl.privacy.charges import Charge, zcdp_epsilon
        >>> from pacbayes_fl.privacy.mechanisms import Cohorts
        >>> rounds = [Charge("gaussian", 20.0, 1, Cohorts(100))] * 100
        >>> round(zcdp_epsilon(rounds, 1e-3), 4)
        1.9835
    """
    rho = zcdp(charges)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def gaussian_delta(charges: Sequence[Charge], epsilon: float) -> float:
    """Find the delta of Gaussian noise without chance (Balle and Wang 2018, Theorem 8).

    Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu) with mu^2 = sum (sensitivity / sigma)^2

    Args:
        charges: one a release.
        epsilon: at least 0.

    Returns:
        Delta.

    Example:
        >>> from pacbayes_fl.privacy.charges import Charge, gaussian_delta
        >>> from pacbayes_fl.privacy.mechanisms import Cohorts
        >>> rounds = [Charge("gaussian", 20.0, 1, Cohorts(100))] * 100
        >>> round(gaussian_delta(rounds, 1.3523), 5)
        0.001
    """
    mu = math.sqrt(2 * zcdp(charges))
    from scipy.special import log_ndtr, ndtr  # a fifth of a second, which only private runs take

    far, near = ndtr(mu / 2 - epsilon / mu), log_ndtr(-mu / 2 - epsilon / mu)
    return max(0.0, float(far - math.exp(epsilon + near)))


def gaussian_epsilon(charges: Sequence[Charge], delta: float) -> float:
    """Find the epsilon of Gaussian noise without chance (Balle and Wang 2018, Theorem 8).

    Args:
        charges: one a release.
        delta: above 0.

    Returns:
        Epsilon, to 1e-12.

    Example:
        >>> from pacbayes_fl.privacy.charges import Charge, gaussian_epsilon
        >>> from pacbayes_fl.privacy.mechanisms import Cohorts
        >>> rounds = [Charge("gaussian", 20.0, 1, Cohorts(100))] * 100
        >>> round(gaussian_epsilon(rounds, 1e-3), 4)
        1.3523
    """
    if gaussian_delta(charges, 0.0) <= delta:
        return 0.0
    from scipy.optimize import brentq  # a third of a second, which only private runs take

    above = 1 + zcdp_epsilon(charges, delta)
    return float(brentq(lambda at: gaussian_delta(charges, at) - delta, 0.0, above, xtol=1e-12))
