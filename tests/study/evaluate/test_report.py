"""The state in which a group of clients is scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pacbayes_fl.federation import engine
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.study.data import load
from pacbayes_fl.study.evaluate.report import state_of
from pacbayes_fl.study.prepare import prepare
from tests.laws.cases import Toy
from tests.tiny import on_csv, rows, tiny, write_csv


def test_new_clients_begin_anew_and_existing_ones_keep_their_state(tmp_path: Path) -> None:
    dataset = load(on_csv(write_csv(tmp_path / "rows.csv", rows())))
    _, groups = prepare(tiny(), dataset)
    method: Any = Toy(2)
    state = engine.run_rounds(method, groups["existing"].train, tiny().plan)
    assert state_of(method, state, "existing", groups["existing"]) is state
    fresh = state_of(method, state, "new", groups["new"])
    assert isinstance(fresh, FederationState) and fresh.round == state.round
    assert fresh.clients.seen.tolist() == [0, 0]
    assert torch.equal(fresh.clients.mean, state.server.centre.expand(2, -1))  # of the server as it is now
