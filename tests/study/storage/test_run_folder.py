"""What keeps a run: a folder, or the twin of one, which keeps nothing."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch, client_id
from pacbayes_fl.errors import CheckpointError, StudyError
from pacbayes_fl.federation import checkpoint, engine, federation_state
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.results import rounds
from pacbayes_fl.results.rounds import RoundRecord
from pacbayes_fl.study import run
from pacbayes_fl.study.data import load
from pacbayes_fl.study.rows.held_rows import TrainingHistory, divide
from pacbayes_fl.study.storage import run_folder as study_folder
from pacbayes_fl.study.storage.run_folder import NoFolder, RunFolder, folder_of
from pacbayes_fl.study.storage.saved_meta import SavedMeta
from tests.laws.cases import Toy
from tests.tiny import ROUNDS, assert_same_state, tiny


def public(kind: type) -> dict[str, Any]:
    """Return the methods that a run may call, with their signatures."""
    return {
        name: inspect.signature(value)
        for name, value in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_a_run_can_do_without_a_folder_whatever_it_can_do_with_one() -> None:
    """But for `load`, which asks what a folder holds that somebody names."""
    assert public(RunFolder).keys() - public(NoFolder).keys() == {"load"}
    assert public(NoFolder) == {name: of for name, of in public(RunFolder).items() if name != "load"}
    own, other = (vars(RunFolder(Path("x"))).keys() | vars(kind).keys() for kind in (RunFolder, NoFolder))
    assert {name for name in own if not name.startswith("_")} - {"load"} <= {*other, "path", "fell_back"}
    assert (NoFolder().path, NoFolder().fell_back, NoFolder().released) == (None, (), 0)


def test_what_keeps_a_run_follows_from_its_path(tmp_path: Path) -> None:
    assert type(folder_of(None)) is NoFolder
    for path in (tmp_path, str(tmp_path)):
        assert type(folder_of(path)) is RunFolder and folder_of(path).path == tmp_path


def test_the_twin_begins_as_an_empty_folder_does(tmp_path: Path) -> None:
    dataset, keepers = load(tiny()), (NoFolder(), RunFolder(tmp_path))
    prepared = run.prepare(tiny(), dataset)
    for keeper in keepers:
        assert keeper.recall(tiny(), resume=True) == (tiny(), {})
        assert keeper.released == 0 and keeper.fell_back == ()
        assert keeper.history() == TrainingHistory()
        assert keeper.scaling(dataset) is None
        keeper.check_rows(divide(tiny("report.certify.scheme=split"), dataset))
        clients = prepared[1]["existing"].train
        state, fresh = (
            keeper.restore(prepared[0], clients, tiny()),
            federation_state.start(prepared[0], clients, tiny().plan),
        )
        assert state.round == 0 and torch.equal(state.server.particles, fresh.server.particles)
    assert [*tmp_path.iterdir()] == []
    one, other = (keeper.dataset(tiny()).groups["existing"].train for keeper in keepers)
    assert torch.equal(one.x, other.x) and torch.equal(one.y, other.y)


def test_the_twin_writes_nothing_and_nobody_asks_it_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keeper, trained = NoFolder(), run.train(tiny("federation.rounds=1"))
    with keeper.lock(), keeper.listen() as stop:
        assert not stop.requested
        keeper.append(RoundRecord(1, 4))
        keeper.save(trained.study, trained.groups["existing"].train, trained.state, None)
        keeper.finish(run.report(trained))
    assert keeper.rounds(9) == () and [*tmp_path.iterdir()] == []


def test_a_folder_gives_back_what_was_saved_there(finished: Path, tmp_path: Path) -> None:
    folder = RunFolder(finished)
    told, dataset, released = folder.load()
    assert (told, released) == (tiny(), 0)
    method, groups = run.prepare(told, dataset, shared=folder.scaling(dataset))
    state = folder.restore(method, groups["existing"].train, told)
    assert state.round == ROUNDS == len(folder.rounds(ROUNDS)) and len(folder.rounds(3)) == 3
    folder.path = tmp_path
    folder.save(told, groups["existing"].train, state, 7)
    assert_same_state(tmp_path, finished)
    saved = checkpoint.load(tmp_path)
    assert saved is not None and saved.meta["released"] == 7
    folder.append(RoundRecord(ROUNDS, 4))
    assert [record.round for record in rounds.read_rounds(tmp_path)] == [ROUNDS]


def test_a_folder_is_locked_and_no_release_is_written_into(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").lock(), pytest.raises(CheckpointError, match="in use by pid"):
        RunFolder(tmp_path / "run").lock().__enter__()
    (tmp_path / "released.json").write_text("{}")
    with pytest.raises(StudyError, match="is a release of a run, and no run is kept in it"):
        RunFolder(tmp_path).lock()


def test_a_state_that_clients_keep_is_given_back_to_its_owner() -> None:
    """Known clients get their own, whatever their place; a new one begins where the server is now."""
    drawn = torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    batch = ClientBatch.pad(
        [(one[:m, :2], one[:m, 2]) for one, m in zip(drawn, (3, 5, 4), strict=True)], ["a", "b", "c"]
    )
    method: Any = Toy(2)
    last = engine.run_rounds(method, batch, tiny().plan)
    flat = tensors.leaves({"server": last.server, "clients": last.clients})
    meta = SavedMeta({}, [client_id(name) for name in "abc"], [*"abc"])
    saved = checkpoint.Checkpoint(12, flat, meta.to_json())
    rows_of = {"a": batch.x[0, :3], "c": batch.x[2, :4], "d": batch.x[1, :5]}
    today = ClientBatch.pad([(x, x[:, 0]) for x in (rows_of["c"], rows_of["d"], rows_of["a"])], ["c", "d", "a"])
    got = study_folder._restored(method, today, tiny(), saved)
    assert isinstance(got, FederationState) and got.round == 12
    assert torch.equal(got.server.centre, last.server.centre)
    assert torch.equal(got.clients.mean[[0, 2]], last.clients.mean[[2, 0]])
    assert got.clients.seen.tolist() == [12, 0, 12]
    assert torch.equal(got.clients.mean[1], last.server.centre)
