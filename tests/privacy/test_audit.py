"""The worst-pair audit: how much two neighbours can be told apart, measured, against what is claimed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from pacbayes_fl.privacy.accounting import Budget, noise_multiplier
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism, clip, noisy_mean

RELEASES = 50_000
ONE = Cohorts(clients=1)
ANY = Cohorts(clients=1, neighbours="replace")


def pair(mechanism: Mechanism, cohorts: Cohorts, direction: Tensor) -> tuple[Tensor, Tensor]:
    """Two neighbours as far apart as the clip lets them be, and a thousand times that before it."""
    here = clip(1e3 * direction[None], mechanism)
    there = clip((-1e3 if cohorts.neighbours == "replace" else 0.0) * direction[None], mechanism)
    return here, there


def told_apart(x: Tensor, u: Tensor, v: Tensor, mechanism: Mechanism) -> Tensor:
    """Log likelihood ratio of one neighbour against the other, up to a factor: the best test there is."""
    if mechanism.kind == "gaussian":
        return (x * (u - v)).sum(1)
    order = 2 if mechanism.kind == "knorm" else 1
    near, far = ((x - centre).abs().pow(order).sum(1).pow(1 / order) for centre in (u, v))
    return ((far - near) / mechanism.scale).mul(1e9).round()  # of its atoms the last bits differ by chance


def lower_bound(
    mechanism: Mechanism, cohorts: Cohorts, direction: Tensor, delta: float = 0.0, releases: int = RELEASES
) -> float:
    """Epsilon that 95 % Clopper-Pearson intervals leave no doubt of: ln((P(O) - delta) / Q(O)) of the best O."""
    u, v = pair(mechanism, cohorts, direction)
    scores = []
    for seed, centre in enumerate((u, v)):
        generator = torch.Generator().manual_seed(seed)
        scores.append(told_apart(noisy_mean(centre, mechanism, cohorts, generator, releases), u, v, mechanism))
    (p_train, p_test), (q_train, q_test) = (score.chunk(2) for score in scores)

    def bound(p: Tensor, q: Tensor, threshold: Tensor) -> float:
        hits, alarms, of = int((p >= threshold).sum()), int((q >= threshold).sum()), len(p)
        low = float(stats.beta.ppf(0.025, hits, of - hits + 1)) if hits else 0.0
        high = float(stats.beta.ppf(0.975, alarms + 1, of - alarms)) if alarms < of else 1.0
        return math.log((low - delta) / high) if low > delta else -math.inf

    thresholds = torch.quantile(p_train, torch.linspace(0.02, 0.98, 25, dtype=torch.float64))
    best = max(thresholds, key=lambda threshold: bound(p_train, q_train, threshold))
    return bound(p_test, q_test, best)


SPREAD = torch.full((100,), 0.1, dtype=torch.float64)
LONE = torch.eye(100, dtype=torch.float64)[0]


@pytest.mark.parametrize(("cohorts", "measured"), [(ANY, 4.95), (ONE, 2.82)])
def test_the_claim_of_algorithm_3_is_caught(cohorts: Cohorts, measured: float) -> None:
    """D = 100, T = 1, claimed epsilon 1; true pure epsilon 20 and 10."""
    bound = lower_bound(Mechanism.algorithm_3(1.0, epsilon=1.0, rounds=1), cohorts, SPREAD)
    assert bound == pytest.approx(measured, abs=0.6)
    assert bound > 2


@pytest.mark.parametrize("cohorts", [ANY, ONE], ids=["replace", "add-or-remove"])
@pytest.mark.parametrize("direction", [LONE, SPREAD], ids=["one coordinate", "all coordinates"])
@pytest.mark.parametrize("kind", ["laplace", "knorm", "gaussian"])
def test_the_other_mechanisms_keep_theirs(kind: Any, cohorts: Cohorts, direction: Tensor) -> None:
    delta = 1e-3 if kind == "gaussian" else 0.0
    method = "zcdp" if delta else "pure"
    multiplier = noise_multiplier(kind, Budget(1.0, delta, method), 1, cohorts)
    assert lower_bound(Mechanism(kind, 1.0, multiplier), cohorts, direction, delta, RELEASES // 3) <= 1


def test_the_audit_nearly_reaches_a_tight_claim() -> None:
    multiplier = noise_multiplier("laplace", Budget(1.0, 0.0), 1, ONE)
    assert 0.9 < lower_bound(Mechanism("laplace", 1.0, multiplier), ONE, LONE) <= 1


@pytest.mark.parametrize("kind", ["laplace", "knorm", "gaussian"])
def test_too_little_noise_is_caught(kind: Any) -> None:
    """Noise for add-or-remove under the name of replace, and a third of that where it is Gaussian: tails are rare."""
    delta = 1e-3 if kind == "gaussian" else 0.0
    right = noise_multiplier(kind, Budget(1.0, delta, "zcdp" if delta else "pure"), 1, ANY)
    wrong = Mechanism(kind, 1.0, right / (6 if kind == "gaussian" else 2))
    direction = LONE if kind != "knorm" else torch.ones(1, dtype=torch.float64)
    assert lower_bound(wrong, ANY, direction, delta) > 1
