"""Federations that run in no time, and clients that fail in them."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation import engine
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.pac_pfl.gp import PacPFL
from pacbayes_fl.results.rounds import RoundRecord
from tests.laws import cases
from tests.laws.cases import federation, from_recipe


def pac_pfl(d: int = 1, **options: Any) -> PacPFL:
    method = from_recipe(METHODS["pac-pfl"], d, options)
    assert isinstance(method, PacPFL)
    return method


def poison(batch: ClientBatch, *names: str) -> ClientBatch:
    """Put a NaN into one row of each named client, behind the back of `ClientBatch.pad`."""
    x = batch.x.clone()
    for name in names:
        x[batch.names.index(name), 0] = torch.nan
    return replace(batch, x=x)


def bits(tree: Any) -> Any:
    """Return the bytes of a tree, or of a whole state."""
    if isinstance(tree, FederationState):
        return cases.bits({"server": tree.server, "clients": tree.clients}), tree.round
    return cases.bits(tree)


def play(method: Any, batch: ClientBatch, plan: FederationPlan) -> list[tuple[RoundRecord, FederationState]]:
    return list(engine.rounds(method, batch, plan))


def quietly(
    method: Any, plan: FederationPlan, state: FederationState | None = None, batch: ClientBatch | None = None
) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(engine.rounds(method, batch or federation(1), plan, state))
