"""Accounts of releases by RDP and PLD, as Google's dp-accounting computes them; it is imported when they are asked for.

dp-accounting is given noise per SENSITIVITY and asked for no neighbouring relation but where it has no account without:
under REPLACE_ONE its RDP takes a Gaussian's multiplier for noise per sensitivity, not per clip, so that noise per clip
would give the add-or-remove number.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.privacy.charges import Charge

_INTERVAL: Final = 1e-4  # of PLD's grid of losses, up to an epsilon of _FINE; coarser in proportion beyond
_FINE: Final = 20.0
_OFTEN: Final = 0.3  # share of a Poisson cohort from which on only whole orders of RDP are quick


def in_pld(charge: Charge) -> bool:
    """Whether PLD has an account of a release.

    Args:
        charge: any.

    Returns:
        False of fixed cohorts with Gaussian noise, and of kinds of noise that have no distribution of losses.
    """
    return charge.closed or (
        charge.account != "zcdp" and not (charge.account == "gaussian" and charge.cohorts.kind == "fixed")
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


def renyi(charges: Sequence[Charge]) -> Any:
    """Compose in Renyi differential privacy.

    Args:
        charges: one a release.

    Returns:
        The accountant of dp-accounting.

    Raises:
        PrivacyError: when dp-accounting is not installed.
    """
    dp, rdp, _, _ = _accounting()
    fixed = not all(map(in_pld, charges)) and any(charge.cohorts.kind == "fixed" for charge in charges)
    relation = dp.NeighboringRelation.REPLACE_ONE if fixed else dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = rdp.RdpAccountant(_orders(charges, rdp), relation)
    for charge, count in Counter(charges).items():
        accountant.compose(_event(charge, dp), count)
    return accountant


def _orders(charges: Sequence[Charge], rdp: ModuleType) -> list[float]:
    """Orders alpha: fewer only loosen a bound. dp-accounting gives up on these ones, slowly and with a warning each."""
    orders: Sequence[float] = rdp.rdp_privacy_accountant.DEFAULT_RDP_ORDERS
    shares = [c.cohorts.share for c in charges if c.account == "gaussian" and c.cohorts.kind == "poisson"]
    if not shares:
        return [*orders]
    return [order for order in orders if order >= 2 and (order == int(order) or max(shares) < _OFTEN)]


def _event(charge: Charge, dp: ModuleType) -> Any:
    cohorts = charge.cohorts
    if charge.account == "gaussian":
        event = dp.GaussianDpEvent(charge.ratio)
        if charge.closed:
            return event
        if cohorts.kind == "poisson":
            return dp.PoissonSampledDpEvent(cohorts.share, event)
        return dp.SampledWithoutReplacementDpEvent(cohorts.clients, int(cohorts.divisor), event)
    if charge.account == "laplace" and cohorts.kind == "all":
        return dp.LaplaceDpEvent(charge.ratio)
    return dp.ZCDpEvent(min(charge.zcdp, charge.pure**2 / 2))


def losses(charges: Sequence[Charge], delta: float) -> Any:
    """Compose privacy loss distributions, each an upper bound.

    The distributions are built one by one and not by dp-accounting's own accountant, which composes a pure event once
    however often it is asked to (0.6.0).

    Args:
        charges: one a release.
        delta: at which epsilon is going to be asked for: it decides how fine the distributions are.

    Returns:
        The distribution of dp-accounting.

    Raises:
        PrivacyError: when a release has no account by PLD, or dp-accounting is not installed.
    """
    _, _, pld, common = _accounting()
    if not all(map(in_pld, charges)):
        raise PrivacyError(
            "fixed cohorts with Gaussian noise, and Algorithm 3, have no account by PLD", hint="method = 'rdp'"
        )
    rough = float(renyi(charges).get_epsilon(delta))  # little noise has losses of thousands: a fine grid would be huge
    interval = _INTERVAL * max(1.0, rough / _FINE)
    total = pld.identity(value_discretization_interval=interval)
    for charge, count in Counter(charges).items():
        total = total.compose(_losses(charge, count, interval, pld, common))
    return total


def _losses(charge: Charge, count: int, interval: float, pld: ModuleType, common: ModuleType) -> Any:
    """Build the privacy loss distribution of `count` equal releases."""
    if charge.closed:  # the sum of T Gaussian releases is one with sqrt(T) less noise
        return pld.from_gaussian_mechanism(charge.ratio / math.sqrt(count), value_discretization_interval=interval)
    return _loss(charge, interval, pld, common).self_compose(count)


def _loss(charge: Charge, interval: float, pld: ModuleType, common: ModuleType) -> Any:
    """Build the privacy loss distribution of a release, only to be read."""
    share = charge.cohorts.share
    build: Callable[..., Any]
    if charge.account == "gaussian" or (charge.account == "laplace" and charge.cohorts.kind != "fixed"):
        build = pld.from_gaussian_mechanism if charge.account == "gaussian" else pld.from_laplace_mechanism
        return build(charge.ratio, sampling_prob=share, value_discretization_interval=interval)
    return pld.from_privacy_parameters(common.DifferentialPrivacyParameters(charge.pure, 0.0), interval)
