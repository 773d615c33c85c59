"""Sweeps against loops over single certificates, and numbers of rows against every number beside them."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from pacbayes_fl import bounds
from pacbayes_fl.bounds import (
    BOUNDS,
    MonteCarlo,
    Premises,
    Provenance,
    ZeroOne,
    laws,
    rows_needed,
    sweep,
)
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


@pytest.mark.slow
def test_only_rows_with_a_certificate_are_enough() -> None:
    """13 % of 97 rows is no number of errors; of 100 it is, and no such number below them is enough."""
    given: dict[str, Any] = {"delta": 0.05, "premises": replace(FINE, loss=ZeroOne())}
    for risk, target in ((0.13, 0.2), (0.13, 0.14), (1 / 3, 0.5), (0.0, 0.1), (0.05, 0.31)):
        n = rows_needed(target, "holdout-binomial", risk=risk, **given)
        valid = [
            k for k in range(1, n + 1) if BOUNDS["holdout-binomial"].certify({"risk": risk, "n": k}, **given).valid
        ]
        values = sweep("holdout-binomial", risk=risk, n=[float(k) for k in valid], **given).values.tolist()
        assert valid[-1] == n and values[-1] <= target and all(value > target for value in values[:-1])
    n = rows_needed(0.2, "holdout-binomial", risk=0.1234567891, **given)
    assert BOUNDS["holdout-binomial"].certify({"risk": 0.1234567891, "n": n}, **given).valid


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("seeger", {"predictor": "fixed predictor"}, "for a fixed predictor take a hold-out bound"),
        ("seeger", {"independent": False}, "the rows were not declared independent"),
        ("one-draw", {"predictor": "majority vote"}, "the bound is on one hypothesis drawn"),
        ("tandem", {"loss": bounds.LossRange("cost", 0.0, 1.0)}, "a vote has errors, and cost is no 0-1 loss"),
        (
            "holdout-binomial",
            {"loss": bounds.LossRange("cost", 0.0, 1.0)},
            "errors are counted, and cost is no 0-1 loss",
        ),
        ("gibbs", {}, r"eq. \(6\) is for the exact Gibbs posterior"),
    ],
)
def test_where_no_rows_make_a_certificate_its_reasons_are_said(name: str, change: Any, reason: str) -> None:
    numbers = {"risk": 0.1, "kl": 2.0, "log_ratio": 2.0, "tandem_risk": 0.01, "log_z": -10.0, "beta": 100.0}
    own = {key: value for key, value in numbers.items() if key in BOUNDS[name].needs}
    with pytest.raises(AssumptionError, match=f"there would be no certificate: .*{reason}"):
        rows_needed(0.6, name, delta=0.05, premises=replace(FINE, **change), **own)


@pytest.mark.parametrize("name", [name for name, bound in BOUNDS.items() if not bound.group and "n" in bound.needs])
def test_every_bound_of_the_table_is_valid_at_the_rows_that_it_needs(name: str) -> None:
    bound = BOUNDS[name]
    premises = replace(laws.premises_of(bound), loss=ZeroOne())
    numbers = {key: value.item() for key, value in laws.numbers_of(bound, 0.1, 2.0, 50, 100.0).items() if key != "n"}
    n = rows_needed(0.6, name, delta=0.05, premises=premises, **numbers)
    certificate = bound.certify({**numbers, "n": n}, 0.05, premises)
    assert certificate.valid and certificate.value.item() <= 0.6


def test_rows_are_counted_from_where_a_bound_is_defined() -> None:
    """Fewer rows than trials over draws, or than beta times the scale, are too few for these numbers."""
    drawn = MonteCarlo(100, 0.01, trials=200_000)
    n = rows_needed(0.5, "seeger", **AT, monte_carlo=drawn)
    assert n == 2000 and sweep("seeger", n=float(n), **AT, monte_carlo=drawn).values <= 0.5
    assert rows_needed(0.12, "seeger", **AT, monte_carlo=drawn) > 2000
    loss: dict[str, Any] = {"delta": 0.05, "premises": replace(FINE, loss=bounds.UnboundedLoss("nlpd"))}
    numbers = {"risk": -3.0, "kl": 2.0, "beta": 10.0, "variance_factor": 1.0, "scale": 1.0}
    n = rows_needed(-2.0, "sub-gamma", **loss, **numbers)
    around = sweep("sub-gamma", n=[n - 1.0, float(n)], **loss, **numbers).values.tolist()
    assert around[1] <= -2.0 < around[0] and n > 11
    with pytest.raises(AssumptionError, match="beta must be finite, above 0"):
        rows_needed(-2.0, "sub-gamma", **loss, **{**numbers, "beta": -1.0})


def test_one_number_in_a_tensor_or_an_array_is_no_axis() -> None:
    plain = sweep("seeger", n=1000.0, **AT).values
    for one in (torch.tensor(1000.0), np.array(1000.0), np.float32(1000.0)):
        assert torch.equal(sweep("seeger", n=one, **AT).values, plain)  # type: ignore[arg-type]


def test_an_axis_may_be_whatever_gives_numbers() -> None:
    given: dict[str, Any] = {"risk": 0.03, "kl": 5.0, "delta": 0.05, "premises": FINE}
    listed, array = sweep("seeger", n=[10.0, 100.0], **given), sweep("seeger", n=np.array([10, 100]), **given)
    assert torch.equal(listed.values, array.values)
    for axis in (pd.Series([10, 100], index=[5, 7]), (n for n in (10, 100)), {10: "few", 100: "many"}):
        assert torch.equal(listed.values, sweep("seeger", n=axis, **given).values)  # type: ignore[arg-type]


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
    wide = Premises(Provenance("split"), independent=True, loss=bounds.LossRange("l", 0.0, 10.0))
    assert rows_needed(1.5, risk=0.9, kl=1.4, delta=0.05, premises=wide) == rows_needed(0.15, **AT)
    assert rows_needed(1.0, **AT) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bound": "server", "n": [1.0]}, "'server' is none"),
        ({"bound": "seeger", "n": [1.0], "beta": 2.0}, "'seeger' has no use for beta"),
        ({"bound": "seeger", "n": []}, "n must have a value"),
        ({"bound": "seeger", "n": [0.0, 1.0]}, "n must be at least 1"),
        ({"bound": "seeger", "n": "9"}, "n must be one number, or a tensor of one a client .*, got '9'"),
        ({"bound": "seeger", "n": ["9", "x"]}, r"n must be numbers, got \['9', 'x'\]"),
        ({"bound": "catoni", "n": [9.0], "beta": "cells"}, "beta must be a number, 'rows' or 'root'"),
    ],
)
def test_what_is_no_sweep_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(AssumptionError, match=message):
        sweep(given.pop("bound"), **{**AT, **given})


def test_a_bound_whose_estimates_cost_more_with_more_rows_has_a_least_number_of_them() -> None:
    """Estimates of `anytime` have a share of delta that falls with n: .61 at 10^12 rows, and .5 at a few hundred."""
    drawn = MonteCarlo(100, 0.01)
    n = rows_needed(0.5, "anytime", **AT, monte_carlo=drawn)
    by_rows = sweep("anytime", n=[float(each) for each in range(1, n + 1)], **AT, monte_carlo=drawn).values
    assert by_rows[-1] <= 0.5 < by_rows[:-1].min() and sweep("anytime", n=1e12, **AT, monte_carlo=drawn).values > 0.5
    with pytest.raises(
        AssumptionError, match=r"no number of rows gives 0\.15: with 10\^12 rows the bound 'anytime' is 0\."
    ):
        rows_needed(0.15, "anytime", **AT, monte_carlo=drawn)


def test_a_window_of_rows_between_two_powers_of_two_is_found() -> None:
    """Of a bound that falls and rises; doubling steps over what is enough between them."""
    given: dict[str, Any] = {"risk": 0.02, "kl": 1.0, "delta": 0.05, "premises": FINE}
    estimate = MonteCarlo(300, 0.01)
    rows = [float(n) for n in range(8192, 16385, 8)]
    values = sweep("anytime", n=rows, monte_carlo=estimate, **given).values
    least = float(values.min())
    assert least < min(values[0], values[-1])
    n = rows_needed(least, "anytime", monte_carlo=estimate, **given)
    around = sweep("anytime", n=[n - 1.0, float(n)], monte_carlo=estimate, **given).values.tolist()
    assert 8192 < n < 16384 and around[1] <= least < around[0]
    said = rf"with 10\^12 rows .*, and its least value 0\.1423\d* with {round(rows[int(values.argmin())] / 1000)}"
    with pytest.raises(AssumptionError, match=said):
        rows_needed(least - 1e-6, "anytime", monte_carlo=estimate, **given)


def test_errors_that_are_counted_up_are_more_than_their_share() -> None:
    """At the number of rows that a share of errors makes whole the bound may lie above the target by that rounding."""
    risk = 0.3333333
    target = bounds.holdout_binomial(risk, 299999, 0.05, FINE).value.item()
    n = rows_needed(target, "holdout-binomial", risk=risk, delta=0.05, premises=FINE)
    assert bounds.holdout_binomial(risk, n, 0.05, FINE).value.item() <= target
