"""Sweeps against loops over single certificates, and numbers of rows against every number beside them."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from pacbayes_fl.bounds import BOUNDS, LossRange, MonteCarlo, Premises, Provenance, rows_needed, sweep
from pacbayes_fl.errors import AssumptionError

FINE = Premises(Provenance("split"), independent=True)
AT: dict[str, Any] = {"risk": 0.09, "kl": 1.4, "delta": 0.05, "premises": FINE}


@pytest.mark.parametrize("name", ["seeger", "catoni"])
def test_a_sweep_is_a_loop(name: str) -> None:
    beta = {"beta": "root"} if name == "catoni" else {}
    axes = {"n": [1e2, 1e4], "risk": (0.1, 0.0, 0.3), "delta": torch.tensor([0.1, 0.01]).double()}
    table = sweep(name, kl=3.0, premises=FINE, monte_carlo=MonteCarlo(500, 0.004), **axes, **beta)  # type: ignore[arg-type]
    assert list(table.axes) == ["n", "risk", "delta"] and table.values.shape == (2, 3, 2) and table.certificate.valid
    for row, (n, risk, delta) in zip(table.rows(), product(*table.axes.values()), strict=True):
        numbers = {"n": n, "risk": risk, "kl": 3.0, "beta": math.sqrt(n)}
        one = BOUNDS[name].certify(numbers, delta, FINE, MonteCarlo(500, 0.004)).value.item()
        assert row == {"n": n, "risk": risk, "delta": delta, "bound": pytest.approx(one, rel=1e-12)}
    assert table.values[1, 2, 0].item() == table.rows()[10]["bound"]


def test_without_an_axis_it_is_one_point() -> None:
    table = sweep("seeger", n=50, **AT)
    assert table.values.shape == () and [*table.rows()[0]] == ["bound"]


@pytest.mark.parametrize(
    ("name", "more"),
    [("seeger", {}), ("pbb-quadratic", {}), ("catoni", {"beta": "rows"}), ("alquier", {"beta": 100.0})],
)
@pytest.mark.parametrize("target", [0.3, 0.17])
def test_that_many_rows_are_enough_and_one_less_is_not(name: str, more: dict[str, Any], target: float) -> None:
    n = rows_needed(target, name, **AT, **more)
    around = sweep(name, n=[n - 1.0, float(n)], **AT, **more).values.tolist()
    assert around[1] <= target < around[0]


def test_an_axis_may_be_an_array() -> None:
    given: dict[str, Any] = {"risk": 0.03, "kl": 5.0, "delta": 0.05, "premises": FINE}
    listed, array = sweep("seeger", n=[10.0, 100.0], **given), sweep("seeger", n=np.array([10, 100]), **given)
    assert torch.equal(listed.values, array.values)


def test_rows_of_which_a_bound_does_not_fall_or_that_are_given_are_refused() -> None:
    given: dict[str, Any] = {"risk": 0.1, "kl": 5.0, "beta": 100.0, "delta": 0.05}
    grows = Premises(Provenance("row-level DP", epsilon=0.1), independent=True)
    with pytest.raises(AssumptionError, match="costs the more, the more there are"):
        rows_needed(0.268, "theorem-3.2", premises=grows, **given)
    known = Premises(Provenance("row-level DP", epsilon=0.1, rows=50), independent=True)
    assert rows_needed(0.5, "theorem-3.2", premises=known, **given) > 1
    for name in ("n", "beta"):
        with pytest.raises(AssumptionError, match=f"do not depend on {name}"):
            rows_needed(0.3, risk=0.1, kl=1.0, delta=0.05, premises=FINE, **{name: 5.0})


def test_targets_out_of_reach_are_refused_with_what_there_is() -> None:
    with pytest.raises(AssumptionError, match=r"no number of rows gives 0\.09: with 10\^12 rows .* is 0\.09000"):
        rows_needed(0.09, **AT)
    with pytest.raises(AssumptionError, match="target must be finite, at least 0 and at most 1"):
        rows_needed(1.5, **AT)
    wide = Premises(Provenance("split"), independent=True, loss=LossRange("l", 0.0, 10.0))
    assert rows_needed(1.5, risk=0.9, kl=1.4, delta=0.05, premises=wide) == rows_needed(0.15, **AT)
    assert rows_needed(1.0, **AT) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bound": "server", "n": [1.0]}, "'server' is none"),
        ({"bound": "seeger", "n": [1.0], "beta": 2.0}, "'seeger' has no use for beta"),
        ({"bound": "seeger", "n": []}, "n must have a value"),
        ({"bound": "seeger", "n": [0.0, 1.0]}, "n must be at least 1"),
        ({"bound": "catoni", "n": [9.0], "beta": "cells"}, "beta must be a number, 'rows' or 'root'"),
    ],
)
def test_what_is_no_sweep_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(AssumptionError, match=message):
        sweep(given.pop("bound"), **{**AT, **given})
