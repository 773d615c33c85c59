"""Rules by name and reference: what each needs, how a round applies one, and what one's own is refused for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import NumericalError, ShapeError, StudyError
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.plugins.references import read_again
from pacbayes_fl.server import robust
from pacbayes_fl.server.aggregations import (
    AGGREGATIONS,
    MULTIPLE,
    AggregationRule,
    Rule,
    aggregation_named,
    check,
)
from tests.user_objects import RULE, WITHOUT_FARTHEST, write

STEPS = torch.tensor([[1.0, 0.0], [2.0, 1.0], [0.0, 2.0], [1.5, 0.5], [100.0, -50.0]], dtype=torch.float64)
ALIKE = torch.ones(5, dtype=torch.float64)


def applied(rule: AggregationRule, steps: Any = STEPS, weight: Tensor = ALIKE, faulty: int = 1) -> Any:
    return Rule.of(rule, faulty, MULTIPLE, steps, weight, ())(steps, weight)


def test_the_table_has_the_rules_of_robust() -> None:
    assert [*AGGREGATIONS] == ["clipped", "mean", "median", "trimmed", "multi-krum", "geometric-median"]
    lengths = robust.norms(STEPS)
    expected = {
        "clipped": robust.clipped(STEPS, ALIKE, MULTIPLE * lengths.median()),
        "mean": STEPS.mean(0),
        "median": robust.median(STEPS, ALIKE),
        "trimmed": robust.trimmed(STEPS, ALIKE, 1),
        "multi-krum": robust.multi_krum(STEPS, ALIKE, 1),
        "geometric-median": robust.geometric_median(STEPS, ALIKE),
    }
    for name, rule in AGGREGATIONS.known.items():
        torch.testing.assert_close(applied(rule), expected[name], rtol=1e-14, atol=1e-14)
    assert [rule.needs(2) for rule in AGGREGATIONS.known.values()] == [1, 1, 5, 5, 7, 5]
    assert [name for name, rule in AGGREGATIONS.known.items() if not rule.weighted] == [
        "median",
        "trimmed",
        "multi-krum",
    ]
    assert [name for name, rule in AGGREGATIONS.known.items() if not rule.robust] == ["mean"]


@pytest.mark.parametrize("rule", [*AGGREGATIONS.known.values(), WITHOUT_FARTHEST], ids=lambda rule: rule.name)
def test_absent_clients_count_nowhere_and_leaves_are_one_vector(rule: AggregationRule) -> None:
    far = torch.full((2, 2), 1e9, dtype=torch.float64)
    more, weight = torch.cat((far, STEPS)), torch.cat((torch.zeros(2, dtype=torch.float64), ALIKE))
    torch.testing.assert_close(applied(rule, more, weight), applied(rule), rtol=1e-12, atol=1e-12)
    tree = {"a": STEPS[:, 0].float(), "b": STEPS[:, 1:].reshape(5, 1, 1)}
    got = applied(rule, tree)
    assert (got["a"].dtype, got["a"].shape, got["b"].shape) == (torch.float32, (), (1, 1))
    flat = torch.cat([leaf.flatten().double() for leaf in tensors.leaves(got).values()])
    torch.testing.assert_close(flat, applied(rule), rtol=1e-6, atol=1e-6)
    nobody = torch.zeros(5, dtype=torch.float64)
    assert applied(rule, STEPS, nobody).tolist() == [0.0, 0.0]


def test_a_rule_that_clips_joins_what_ends_at_the_running_median() -> None:
    """Of steps in one direction, of lengths 1, 2, ..., none ends beyond twice the third."""
    clipping = AggregationRule(
        "largest", "the largest", lambda steps, weight, f: steps.amax(0), robust=True, clips=True
    )
    steps = torch.tensor([[1.0], [2.0], [3.0], [4.0], [500.0]], dtype=torch.float64)
    rule = Rule.of(clipping, 1, 2.0, steps, ALIKE, ())
    assert rule(steps, ALIKE).tolist() == [6.0]
    assert rule.factor is not None and rule.factor.tolist() == [1.0, 1.0, 1.0, 1.0, 6.0 / 500.0]
    assert Rule.of(clipping, 1, 2.0, steps, ALIKE, (0.5,) * 9)(steps, ALIKE).tolist() == [1.0]  # of rounds before


def test_ones_own_gets_copies() -> None:
    def spoil(steps: Tensor, weight: Tensor, faulty: int) -> Tensor:
        result = steps.mean(0)
        steps.zero_()
        weight.zero_()
        return result

    steps, weight = STEPS.clone(), ALIKE.clone()
    assert applied(AggregationRule("spoil", "a mean", spoil), steps, weight).tolist() == STEPS.mean(0).tolist()
    assert torch.equal(steps, STEPS) and torch.equal(weight, ALIKE)


@pytest.mark.parametrize(
    ("join", "error", "said"),
    [
        (
            lambda s, w, f: s,
            ShapeError,
            r"'own' must give the step .*\[2\], got \[5, 2\] of torch.float64",
        ),
        (
            lambda s, w, f: s.mean(1),
            ShapeError,
            r"\[2\], got \[5\].*over the first dimension of the steps \[5, 2",
        ),
        (lambda s, w, f: s[0].tolist(), ShapeError, r"got \[1.0, 0.0\]"),
        (lambda s, w, f: s[0].long(), ShapeError, r"got \[2\] of torch.int64"),
        (
            lambda s, w, f: s[0] / 0.0,
            NumericalError,
            "gave 2 of 2 numbers that are not finite.*of 5 clients",
        ),
        (lambda s, w, f: None, ShapeError, "got None"),
    ],
)
def test_what_is_no_step_is_refused(join: Callable[..., Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        applied(AggregationRule("own", "one's own", join))


def test_a_record_says_what_each_field_must_be() -> None:
    good: dict[str, Any] = {"name": "own", "title": "one's own", "join": max}
    for field, value, said in (
        ("name", "", "name of an AggregationRule must be a text, got ''"),
        ("title", 3, "title of an AggregationRule must be a text, got 3"),
        ("join", "mean", "join of the AggregationRule 'own' must be a function, got 'mean'"),
        ("fewest", 3, "fewest of the AggregationRule 'own' must be a function, got 3"),
        ("weighted", 1, "weighted of the AggregationRule 'own' must be True or False, got 1"),
        ("robust", None, "robust of the AggregationRule 'own' must be True or False, got None"),
    ):
        with pytest.raises(StudyError, match=said):
            AggregationRule(**{**good, field: value})
    for number in (0, 2.5, True, math.nan):
        with pytest.raises(StudyError, match="must give a whole number of clients, at least 1"):
            AggregationRule(**good, robust=True, fewest=lambda _, n=number: n).needs(1)
    assert AggregationRule(**good).needs(7) == 1, "nothing is promised"


def test_names_and_references_lead_to_rules(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.py", RULE)
    rule = aggregation_named(f"{path}:RULE")
    assert rule.name == f"{path}:RULE" and rule.title.startswith("mean without the f steps")
    assert aggregation_named("median") is AGGREGATIONS["median"] and aggregation_named(WITHOUT_FARTHEST).robust
    with pytest.raises(StudyError, match=r"aggregate must be one of clipped, mean, .*got 'krum'"):
        aggregation_named("krum")
    with pytest.raises(StudyError, match=r"aggregate: .*:without_farthest must be a record .*AggregationRule, got"):
        aggregation_named(f"{path}:without_farthest")
    with pytest.raises(StudyError, match="a rule of one's own cannot be called 'median'"):
        aggregation_named(replace(WITHOUT_FARTHEST, name="median"))


def test_a_plan_keeps_its_rule_while_the_file_changes(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.py", RULE)
    plan = FederationPlan(aggregate=f"{path}:RULE")
    before = plan.rule
    write(tmp_path, "mine.py", "RULE = 3\n")
    read_again()  # as another study of the process does
    assert plan.rule is before
    with pytest.raises(StudyError, match=r"must be a record .*AggregationRule, got 3 of type int"):
        replace(plan, chunk=1)


@pytest.mark.parametrize("multiple", [0.0, -1.0, math.nan, math.inf])
def test_options_out_of_range_are_refused(multiple: float) -> None:
    with pytest.raises(StudyError, match=f"clip_multiple must be positive and finite, got {multiple:g}"):
        FederationPlan(aggregate="clipped", clip_multiple=multiple)
    with pytest.raises(StudyError, match="faulty must be at least 0, got -1"):
        FederationPlan(aggregate="trimmed", faulty=-1)
    with pytest.raises(StudyError, match="aggregate must be one of 'clipped', 'mean', 'median'"):
        FederationPlan(aggregate="krum")
    assert FederationPlan(aggregate="trimmed", faulty=0).suspects == 0 and FederationPlan().multiple == MULTIPLE


def test_options_without_effect_are_refused() -> None:
    half = AggregationRule("half", "half of the mean", lambda s, w, f: 0.5 * s.mean(0))
    with pytest.raises(StudyError, match="faulty = 2 clients can take the mean anywhere"):
        check(AGGREGATIONS["mean"], 2, None)
    with pytest.raises(StudyError, match="faulty = 1 is of rules that promise robustness, and half promises none"):
        check(half, 1, None)
    with pytest.raises(StudyError, match="clip_multiple = 3 is of aggregate = 'clipped', and aggregate is 'half'"):
        check(half, None, 3.0)
    check(replace(half, robust=True, clips=True), 1, 3.0)
    assert FederationPlan(aggregate=half).suspects == 0 and FederationPlan(aggregate=WITHOUT_FARTHEST).suspects == 1
