"""The worst-pair audit: how much two neighbours can be told apart, measured, against what is claimed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.privacy import audit as audits
from pacbayes_fl.privacy import correlated, mechanisms
from pacbayes_fl.privacy.audit import Audit, audit
from pacbayes_fl.privacy.charges import Charge, gaussian_epsilon
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism

ONE = Cohorts(clients=1)
ANY = Cohorts(clients=1, neighbours="replace")
POISSON, FIXED = Cohorts(20, 10, "poisson"), Cohorts(20, 5, "fixed", "replace")
DELTA = 1e-3


def of(kind: str, ratio: float, rounds: int, cohorts: Cohorts, games: int = 8_000) -> Audit:
    """Audit rounds whose noise has a scale of `ratio` sensitivities."""
    charge = Charge(kind, ratio * cohorts.sensitivity, 100, cohorts)
    return audit([charge] * rounds, DELTA if kind == "gaussian" else 0.0, games)


@pytest.fixture
def halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw half of the noise that charges are for."""
    real = mechanisms.noise
    monkeypatch.setattr(mechanisms, "noise", lambda *given, **named: real(*given, **named) / 2)


@pytest.mark.parametrize(("cohorts", "measured"), [(ANY, 4.7), (ONE, 2.6)])
def test_the_claim_of_algorithm_3_is_caught(cohorts: Cohorts, measured: float) -> None:
    """D = 32 of many, T = 1, claimed epsilon 1; true pure epsilon 2 sqrt(D) and sqrt(D)."""
    mechanism = Mechanism.claimed("paper_algorithm_3", 1.0, epsilon=1.0, rounds=1)
    result = audit([Charge.of(mechanism, cohorts, 100)], 0.0, 50_000)
    assert result.lower == pytest.approx(measured, abs=0.8) and result.lower > 2
    assert result.holds and result.reported == pytest.approx(10 * cohorts.sensitivity)


@pytest.mark.law
@pytest.mark.parametrize(
    ("kind", "ratio", "rounds", "cohorts"),
    [
        *((kind, rounds, rounds, cohorts) for kind in ("laplace", "knorm") for rounds, cohorts in ((1, ONE), (4, ANY))),
        *(("gaussian", 3.0, rounds, cohorts) for rounds, cohorts in ((1, ONE), (9, ANY), (9, POISSON), (9, FIXED))),
        *((kind, 3.0, 3, POISSON) for kind in ("laplace", "exponential")),
        *(("exponential", rounds, rounds, cohorts) for rounds, cohorts in ((1, ONE), (4, ANY))),
    ],
)
def test_what_is_reported_holds(kind: str, ratio: float, rounds: int, cohorts: Cohorts) -> None:
    result = of(kind, ratio, rounds, cohorts)
    assert result.holds and 0 <= max(result.lower, result.gaussian or 0.0) <= result.reported


def test_the_audit_nearly_reaches_a_tight_claim() -> None:
    assert 0.9 < of("laplace", 1.0, 1, ONE, 50_000).lower <= 1
    assert 0.7 < of("exponential", 1.0, 1, ONE, 50_000).lower <= 1
    near = of("gaussian", 3.0, 9, ANY, 50_000)
    assert near.gaussian is not None and 0.9 < near.gaussian / near.reported <= 1 and near.lower > 1


@pytest.mark.law
@pytest.mark.parametrize(
    ("kind", "ratio", "rounds", "cohorts"),
    [
        *(("laplace", 1.0, 1, ANY), ("knorm", 1.0, 1, ONE), ("gaussian", 3.0, 1, ONE), ("gaussian", 3.0, 20, ANY)),
        ("gaussian", 3.0, 9, POISSON),
        *(("exponential", 1.0, 1, cohorts) for cohorts in (ONE, ANY)),
    ],
)
@pytest.mark.usefixtures("halved")
def test_half_of_the_noise_is_caught(kind: str, ratio: float, rounds: int, cohorts: Cohorts) -> None:
    result = of(kind, ratio, rounds, cohorts, 30_000)
    assert not result.holds and max(result.lower, result.gaussian or 0.0) > result.reported


@pytest.mark.parametrize("kind", ["gaussian", "laplace", "knorm", "exponential"])
@pytest.mark.parametrize("cohorts", [ONE, ANY, POISSON])
def test_no_noise_is_caught(kind: str, cohorts: Cohorts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a tie between what a neighbour's data leave open hide a choice without noise."""
    real = mechanisms.noise
    monkeypatch.setattr(mechanisms, "noise", lambda *given, **named: 0.0 * real(*given, **named))
    result = of(kind, 3.0, 3, cohorts, 4_000)
    assert not result.holds and result.lower > result.reported


def test_scores_are_the_log_likelihood_ratio() -> None:
    """Of scipy's densities, of a client who is drawn by chance as well."""
    x = torch.randn(50, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    u, v = torch.ones(1, 1, dtype=torch.float64), -torch.ones(1, 1, dtype=torch.float64)

    for kind, law in (("gaussian", stats.norm), ("laplace", stats.laplace), ("knorm", stats.laplace)):

        def mixture(centre: Tensor, share: float, law: Any = law) -> Any:
            return share * law.pdf(x[:, 0], float(centre), 1.5) + (1 - share) * law.pdf(x[:, 0], 0.0, 1.5)

        for share in (1.0, 0.25):
            expected = torch.from_numpy(mixture(u, share) / mixture(v, share)).log()
            torch.testing.assert_close(audits._ratio(x, u, v, Mechanism(kind, 1.0, 1.5), share), expected)


def test_the_bound_of_gaussian_trade_offs_is_that_of_its_mu() -> None:
    """At the true probabilities the bound is epsilon itself."""
    mu, threshold = 1.7, 0.4
    low, high = stats.norm.sf(threshold - mu), stats.norm.sf(threshold)
    assert audits._of_gaussian(low, high, DELTA) == pytest.approx(
        gaussian_epsilon([Charge("gaussian", 1 / mu, 1, ONE)], DELTA)
    )
    assert audits._of_gaussian(high, low, DELTA) == audits._of_gaussian(0.0, high, DELTA) == 0.0
    hits, alarms = audits._clopper_pearson(40, 3, 100, 100, 0.9)
    assert stats.binom.sf(39, 100, hits) == pytest.approx(0.05) == stats.binom.cdf(3, 100, alarms)


def test_what_cannot_be_audited_is_refused() -> None:
    charge = Charge("laplace", 1.0, 3, ONE)
    for charges, games, confidence, match in (
        ([], 1000, 0.95, "nothing was released"),
        ([charge], 10, 0.95, "at least 100 games"),
        ([charge], 1000, 1.0, "strictly between 0 and 1"),
    ):
        with pytest.raises(PrivacyError, match=match):
            audit(charges, 0.0, games, 0, confidence)
    assert math.isfinite(audit([charge], 0.0, 100).lower)


@pytest.mark.parametrize(("clients", "size", "releases"), [(24, 6, 16), (40, 1, 41)])
def test_correlated_noise_is_played_as_it_is_released(
    clients: int, size: int, releases: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The games come near the account, and are above it where noise is of one message and not of all that it moves."""
    charges = [Charge("dp-ftrl", 1.0, 40, Cohorts(clients, size, "in-order"))] * releases
    found = audit(charges, 1e-3, games=5000)
    assert found.holds and found.gaussian is not None and found.releases == releases
    assert found.gaussian > 0.65 * found.reported
    monkeypatch.setattr(correlated, "sensitivity", lambda cohorts: 1.0)
    assert not audit(charges, 1e-3, games=5000).holds
