"""Two neighbours told apart by the best test there is, for mechanisms alone: the package's audit is of whole runs."""

from __future__ import annotations

import math

import torch
from scipy import stats
from torch import Tensor

from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism, clip, noisy_mean

RELEASES = 50_000


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
