"""Points of a learning curve, from clients in one place or in several."""

from __future__ import annotations

import math

import pytest
import torch

from pacbayes_fl.study.evaluate import points
from pacbayes_fl.study.file import Study


def test_sums_of_parts_have_the_mean_of_the_whole() -> None:
    scores = torch.tensor([0.5, torch.nan, 2.0, 1.25, 7.0], dtype=torch.float64)
    parts = [{"rsmse": points._total(scores[a:b])} for a, b in ((0, 2), (2, 3), (3, 5))]
    assert points.means(parts) == {"rsmse": pytest.approx(float(scores.nanmean())), "unscored": 1.0}
    assert points.means([{"pm.accuracy": points._total(scores)}]).keys() == {"pm.accuracy"}
    none = points.means([{"rsmse": points._total(scores[1:2])}])
    assert math.isnan(none["rsmse"]) and none["unscored"] == 1
    assert points.means([]) == {}


def test_a_tenth_of_the_rounds_has_a_point() -> None:
    usual = Study.from_toml("polynomial", ["federation.rounds=20"])
    asked = Study.from_toml("polynomial", ["report.evaluate_every=3"])
    assert [t for t in range(1, 8) if points.is_due(usual, t)] == [2, 4, 6]
    assert [t for t in range(1, 8) if points.is_due(asked, t)] == [3, 6]
