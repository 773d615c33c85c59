"""Rounds among processes: robust rules, clients that fail, everybody in every round, and methods that gather."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.ranks import Ranks
from pacbayes_fl.methods import METHODS
from pacbayes_fl.testing.scene import assert_close
from tests.forked import fork
from tests.laws.cases import from_recipe, rows_for
from tests.ranked import together
from tests.user_objects import WITHOUT_FARTHEST

pytestmark = fork

ROWS = rows_for("fedavg")
BAD = replace(ROWS, y=torch.where(torch.arange(5).unsqueeze(1) == 2, 1e300, ROWS.y))
PLANS: dict[str, tuple[Any, FederationPlan]] = {
    "everybody": (ROWS, FederationPlan(rounds=2)),
    "all train": (ROWS, FederationPlan(rounds=2, cohort=2, train="all")),
    "median": (ROWS, FederationPlan(rounds=2, aggregate="median")),
    "clipped": (ROWS, FederationPlan(rounds=2, aggregate="clipped", cohort=4)),
    "one's own": (ROWS, FederationPlan(rounds=2, aggregate=WITHOUT_FARTHEST)),
    "one by one": (ROWS, FederationPlan(rounds=2, chunk=1)),
    "one fails": (BAD, FederationPlan(rounds=1, diverges_at=None)),
}


def rounds(name: str, ranks: Ranks | None) -> tuple[list[Any], dict[str, torch.Tensor], list[str]]:
    batch, plan = PLANS[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        steps = list(
            engine.rounds(from_recipe(METHODS["fedavg"], 1, {"weighting": "uniform"}), batch, plan, ranks=ranks)
        )
    records = [(r.clients, r.dropped, r.values.get("loss"), r.steps and r.steps.whose) for r, _ in steps]
    return records, tensors.leaves(steps[-1][1].server), [str(one.message) for one in caught]


def test_three_processes_come_to_what_one_does(tmp_path: Path) -> None:
    found = together(3, tmp_path, lambda ranks: {name: rounds(name, ranks) for name in PLANS})
    for name in PLANS:
        records, server, _ = rounds(name, None)
        for process in found:
            told, own, said = process[name]
            assert_close(own, server, 1e-12)
            assert [one[:2] for one in told] == [one[:2] for one in records], name
            assert [one[3] for one in told] == [one[3] for one in records], name
            assert [one[2] for one in told] == pytest.approx([one[2] for one in records], rel=1e-12, nan_ok=True)
            gathers = any("holds those of all" in text and "MiB" in text for text in said)
            assert gathers == (name in ("median", "clipped", "one's own")), said
    assert rounds("one fails", None)[0][0][1] == ("client_02",)
