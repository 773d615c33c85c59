"""What a folder must hold for a run to go on, and what is said of the rest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pacbayes_fl.errors import CheckpointError, DamageWarning, DataError, StudyError
from pacbayes_fl.federation import checkpoint, lock
from pacbayes_fl.results import manifest
from pacbayes_fl.study.storage.resuming import holds_run, newest_round, recall
from tests.tiny import ROUNDS, spoiled, tiny


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def test_an_empty_folder_holds_no_run(tmp_path: Path) -> None:
    assert not holds_run(tmp_path) and not holds_run(tmp_path / "absent")
    with lock.RunLock(tmp_path / "new"):
        assert not holds_run(tmp_path / "new")
    result = recall(tiny(), tmp_path, resume=True)
    assert result.study == tiny() and result.saved is None and result.fell_back == () and result.notes == {}


@pytest.mark.parametrize("lost", ["study.toml", "trained.json", "checkpoints", "metrics.json"])
def test_what_is_left_of_a_run_is_still_one(folder: Path, lost: str) -> None:
    shutil.rmtree(folder / lost) if lost == "checkpoints" else (folder / lost).unlink()
    assert holds_run(folder)
    with pytest.raises(StudyError, match="holds a run already"):
        recall(tiny(), folder, resume=False)


def test_a_whole_run_goes_on_without_a_word(folder: Path, recwarn: pytest.WarningsRecorder) -> None:
    result = recall(tiny(), folder, resume=True)
    assert result.saved is not None and result.saved.round == ROUNDS and result.fell_back == ()
    assert not [one for one in recwarn if issubclass(one.category, DamageWarning)]


@pytest.mark.parametrize("what", ["middle byte flipped", "cut short", "emptied", "gone"])
@pytest.mark.parametrize("name", ["data.npz", "trained.json", "rounds.jsonl"])
def test_what_cannot_be_written_again_ends_it_everywhere(folder: Path, name: str, what: str) -> None:
    bad = spoiled((folder / name).read_bytes())[what]
    (folder / name).unlink() if bad is None else (folder / name).write_bytes(bad)
    for work in (lambda: recall(tiny(), folder, resume=True), lambda: newest_round(folder)):
        with pytest.raises(DataError, match=rf"{name} is (damaged or was edited|missing): it holds .*another --out"):
            work()


def test_damaged_rounds_are_remembered_by_the_rounds_that_follow(folder: Path) -> None:
    path = folder / "checkpoints" / f"round_{ROUNDS:06d}" / "state.json"
    path.write_bytes(b"{}")
    text = f"state.json of round {ROUNDS} is damaged; using round 8"
    with pytest.warns(DamageWarning, match=text):
        saved, fell_back = newest_round(folder)
    assert fell_back == (text,)
    checkpoint.save(folder, 9, saved.tensors, {**saved.meta, "fell_back": list(fell_back)})
    assert newest_round(folder)[1] == (text,)


def test_all_rounds_gone_is_no_new_start(folder: Path) -> None:
    shutil.rmtree(folder / "checkpoints")
    for work in (lambda: recall(tiny(), folder, resume=True), lambda: newest_round(folder)):
        with pytest.raises(CheckpointError, match="checkpoints is missing: it holds the state"):
            work()
    manifest.adopt(folder)
    with pytest.raises(CheckpointError, match="holds no saved round"):
        newest_round(folder)


def test_the_way_out_is_to_take_the_files_as_they_are(folder: Path) -> None:
    (folder / "clients.csv").write_text("id,group,name,m\n")
    (folder / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"manifest\.json is missing"):
        newest_round(folder)
    with pytest.warns(DamageWarning, match=r"manifest\.json is missing: the files of the run are taken as they are"):
        recall(tiny(), folder, resume=True)
    assert manifest.problems(folder) == {}
    newest_round(folder)
