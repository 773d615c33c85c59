"""A private round by hand: an aggregator that hides nothing, and one of any mechanism."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation import federation_state, private
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.private import PrivateAggregator
from pacbayes_fl.methods.base import AnyMethod
from pacbayes_fl.privacy.accounting import Budget
from pacbayes_fl.privacy.ledger import Ledger
from pacbayes_fl.privacy.mechanisms import Cohorts, Mechanism

HUGE = Mechanism("gaussian", 1e6, 1e-22)
"""Shortens nothing, and its noise is far below the last digit of what the tests compare."""

UNLIMITED = Budget(1e300, 0.0, "pure")


def open_private(
    method: AnyMethod,
    batch: ClientBatch,
    plan: FederationPlan,
    folder: Path,
    mechanism: Mechanism = HUGE,
    cohorts: Cohorts | None = None,
    seed: int | None = 5,
    budget: Budget = UNLIMITED,
) -> PrivateAggregator:
    """Return an aggregator whose ledger lies in a folder; everybody takes part where no cohorts are given."""
    server = federation_state.start(method, batch, plan).server
    ledger = Ledger(folder, budget)
    return private.open_private(method, server, batch, plan, mechanism, cohorts or Cohorts(batch.clients), ledger, seed)


class Free(Ledger):
    """A ledger that costs nothing, for rounds that are about something else."""

    def __init__(self) -> None:
        self.spent, self.simulated = 0, True

    def __len__(self) -> int:
        return self.spent

    def check_budget(self, charge: Any, round: int | None = None) -> None:
        assert math.isfinite(charge.multiplier)

    def kept(self, round: int) -> None:
        return None

    def position(self, charge: Any) -> int:
        return self.spent

    def invite(self, cohort: Any, halved: int = 0, undone: Any = ()) -> None:
        self.cohort = tuple(cohort)

    def spend(self, charge: Any, round: int | None = None, mean: Any = None, first: Any = None) -> int:
        self.spent += 1
        return self.spent - 1
