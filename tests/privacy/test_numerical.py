"""Accounts by RDP and PLD against the integrals that they stand for."""

from __future__ import annotations

import pytest

from pacbayes_fl.privacy import numerical
from pacbayes_fl.privacy.accounting import delta, epsilon
from pacbayes_fl.privacy.charges import Charge
from pacbayes_fl.privacy.mechanisms import Cohorts

ALL = Cohorts(clients=1000)
ANY = Cohorts(clients=1000, neighbours="replace")


def gaussian(multiplier: float, cohorts: Cohorts = ALL) -> Charge:
    return Charge("gaussian", multiplier, 100, cohorts)


@pytest.mark.parametrize(
    ("sigma", "share", "at"),
    [(1.0, 0.01, (1.71813422e-4, 8.93643908e-4, 11.2462759)), (2.0, 0.1, (2.83622827e-3, 1.37254301e-2, 1.62720230))],
)
def test_one_round_in_renyi_divergence(sigma: float, share: float, at: tuple[float, ...]) -> None:
    charge = gaussian(sigma, Cohorts(10_000, 10_000 * share, "poisson"))
    accountant = numerical.renyi([charge])
    orders = [int(round(float(order), 9)) if float(order).is_integer() else 0 for order in accountant._orders]
    assert [float(accountant._rdp[orders.index(order)]) for order in (2, 8, 32)] == pytest.approx(at, rel=1e-8)


def test_pld_grows_with_rounds_and_shrinks_with_delta_and_noise() -> None:
    poisson = Cohorts(120, 12, "poisson")
    for charge, less in (
        (gaussian(2.0, poisson), gaussian(2.5, poisson)),
        (Charge("laplace", 5.0, 9, poisson), Charge("laplace", 6.0, 9, poisson)),
        (Charge("knorm", 5.0, 9, ALL), Charge("knorm", 6.0, 9, ALL)),
    ):
        here = epsilon([charge] * 50, 1e-4, "pld")
        assert epsilon([charge] * 60, 1e-4, "pld") > here > epsilon([charge] * 50, 8e-4, "pld")
        assert here > epsilon([less] * 50, 1e-4, "pld")
        assert 0 < delta([charge] * 50, here * 1.1, "pld") < delta([charge] * 50, here, "pld") <= 1.001e-4
