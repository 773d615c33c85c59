"""Checkpoints that several processes write: whole or not at all, and read by any number of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.errors import CheckpointError
from pacbayes_fl.federation import checkpoint, engine, shards
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.federation.ranks import Ranks
from pacbayes_fl.files import JsonTable
from pacbayes_fl.methods import METHODS
from tests.forked import fork
from tests.laws.cases import from_recipe, rows_for
from tests.ranked import together

pytestmark = fork

ROWS = rows_for("pfedbayes")


def meta(saved: Sequence[int] | None) -> JsonTable:
    return {"saved": None if saved is None else list(saved)}


def last(cohort: int | None, ranks: Ranks | None) -> FederationState:
    plan = FederationPlan(rounds=1, cohort=cohort)
    return [state for _, state in engine.rounds(from_recipe(METHODS["pfedbayes"], 1), ROWS, plan, ranks=ranks)][-1]


@pytest.mark.slow
@pytest.mark.parametrize("cohort", [None, 2])
def test_each_process_saves_its_clients_and_a_reader_has_them_all(cohort: int | None, tmp_path: Path) -> None:
    def work(ranks: Ranks) -> dict[str, torch.Tensor]:
        state = last(cohort, ranks)
        shards.save(tmp_path / "run", ROWS, state, meta, ranks)
        whole = shards.whole(state, ROWS, ranks)
        return {name: leaf.clone() for name, leaf in tensors.leaves(whole.clients).items()}

    found = together(3, tmp_path / "pipes", work)
    expected = tensors.leaves(last(cohort, None).clients)
    saved = checkpoint.load(tmp_path / "run")
    assert saved is not None and saved.round == 1
    at = saved.meta["saved"] if saved.meta["saved"] is not None else [*range(5)]
    assert len(at) == (cohort or 5)
    for name, leaf in expected.items():
        assert all(torch.allclose(one[name], leaf, rtol=1e-12, atol=1e-12) for one in found), name
        assert torch.allclose(saved.tensors[f"clients.{name}"], leaf[at], rtol=1e-12, atol=1e-12), name


def test_a_damaged_part_is_found(tmp_path: Path) -> None:
    together(2, tmp_path / "pipes", lambda ranks: shards.save(tmp_path / "run", ROWS, last(None, ranks), meta, ranks))
    folder = tmp_path / "run/checkpoints/round_000001"
    assert json.loads((folder / "manifest.json").read_text())["format_version"] == 2
    part = folder / "clients_0001.safetensors"
    part.write_bytes(part.read_bytes()[:-1] + b"\xff")
    with pytest.raises(CheckpointError, match="clients_0001"):
        checkpoint.load(tmp_path / "run")


def test_where_one_cannot_write_none_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def work(ranks: Ranks) -> str:
        if ranks.rank == 1:
            monkeypatch.setattr(
                checkpoint, "write_tensors", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left"))
            )
        with pytest.raises(CheckpointError, match=r"process 1 of 2: .*No space left") as caught:
            shards.save(tmp_path / "run", ROWS, last(None, ranks), meta, ranks)
        return str(caught.value)

    assert len(together(2, tmp_path / "pipes", work)) == 2
    assert checkpoint.load(tmp_path / "run") is None
