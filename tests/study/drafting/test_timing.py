"""The cost of a round is extrapolated by the powers of the rows that the times show."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pacbayes_fl.study.data import load
from pacbayes_fl.study.drafting import timing
from pacbayes_fl.study.drafting.timing import Estimate, estimate
from tests.tiny import on_csv, quick, rows, write_csv


@pytest.mark.parametrize(("power", "rows"), [(0, 1.0), (1, 9.0), (3, 700.0)])
def test_costs_of_one_power_are_found_again(power: int, rows: float) -> None:
    """Of clients of 100, 300 and 9,000 rows, timed at up to 512: c sum_k min(m_k, n)^j, to all rows."""
    sizes, cuts = [100, 300, 9000], [64, 128, 256, 512]
    seconds = [1e-7 * sum(min(m, n) ** power for m in sizes) for n in cuts]
    costs = timing._costs(cuts, seconds, sizes)
    whole = float(costs @ [sum(m**j for m in sizes) for j in range(4)])
    assert whole == pytest.approx(1e-7 * sum(m**power for m in sizes), rel=1e-6)


def test_noise_of_a_tenth_stays_within_a_third() -> None:
    random, sizes, cuts = np.random.default_rng(0), [100, 2000], [64, 128, 256, 512, 1024]
    exact = [sum(1e-3 + 1e-9 * min(m, n) ** 3 for m in sizes) for n in cuts]
    noisy = [value * (1 + 0.1 * random.normal()) for value in exact]
    whole = float(timing._costs(cuts, noisy, sizes) @ [sum(m**j for m in sizes) for j in range(4)])
    assert whole == pytest.approx(sum(1e-3 + 1e-9 * m**3 for m in sizes), rel=0.33)


@pytest.mark.parametrize("name", ["pac-pfl", "fedavg", "ridge", "pooled-ridge"])
def test_every_kind_of_method_has_a_cost_or_none(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that ticks once a look: two calls of each cut, all of equal cost, are constant in the rows."""
    study = on_csv(write_csv(tmp_path / "rows.csv", rows(sizes=(90, 140))), *quick(name), "federation.rounds=3")
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    got = estimate(study, load(study), budget=1e9)
    if name == "pooled-ridge":
        assert got is None
        return
    assert got is not None and (got.timed, got.largest) == (137, 137) and got.bytes > 0
    assert got.seconds == pytest.approx(1.0) and got.rounds == (1 if name == "ridge" else 3)


def test_it_is_said_in_units_that_people_use() -> None:
    assert str(Estimate(86.0, 3 * 2**31, 400, 512, 3000)) == (
        "about 86 seconds a round, 9.6 hours for 400 rounds; 6 GiB for the largest client "
        "(calls of up to 512 rows a client were timed)"
    )
    assert str(Estimate(0.25, 10, None, 64, 64)).startswith("about 0.25 seconds a round; 1 MiB for the largest")
