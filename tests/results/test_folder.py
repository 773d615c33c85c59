"""Files of a run folder: whole or not at all, and never at the end of a link."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pacbayes_fl.errors import CheckpointError
from pacbayes_fl.federation import checkpoint, lock
from pacbayes_fl.results.folder import FILES, refuse_links, write_atomic, write_synced
from pacbayes_fl.results.rounds import RoundRecord, append_round

LINK = "is a symbolic link .*never reached through a link"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return a file outside of the run folder that nobody may touch."""
    path = tmp_path / "victim"
    path.write_text("precious")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return an empty run folder."""
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.mark.parametrize("name", [*FILES, "run.lock", "manifest.json", "checkpoints", "certificates", "figures"])
def test_a_link_in_place_of_a_file_or_folder_is_refused_by_name(folder: Path, victim: Path, name: str) -> None:
    refuse_links(folder)
    for target in (victim, victim.parent, folder / "nowhere"):
        (folder / name).symlink_to(target)
        with pytest.raises(CheckpointError, match=f"{name} {LINK}"):
            refuse_links(folder)
        with pytest.raises(CheckpointError, match=LINK), lock.RunLock(folder):
            pass
        (folder / name).unlink()
    assert victim.read_text() == "precious" and not list(folder.iterdir())


@pytest.mark.parametrize("inner", ["checkpoints/round_000001", "checkpoints/round_000001/state.json", "figures/a.png"])
def test_links_further_in_are_refused_too(folder: Path, victim: Path, inner: str) -> None:
    (folder / inner).parent.mkdir(parents=True)
    (folder / inner).symlink_to(victim.parent)
    with pytest.raises(CheckpointError, match=LINK):
        refuse_links(folder)


def test_a_pipe_is_no_file(folder: Path) -> None:
    os.mkfifo(folder / "data.npz")
    with pytest.raises(CheckpointError, match=r"data\.npz is neither a file nor a folder"):
        refuse_links(folder)


def test_a_folder_may_be_reached_through_a_link_and_hold_what_is_not_ours(folder: Path, victim: Path) -> None:
    folder.chmod(0o700)
    (folder / "notes").symlink_to(victim)
    (folder.parent / "shortcut").symlink_to(folder)
    refuse_links(folder.parent / "shortcut")
    refuse_links(folder.parent / "absent")
    with lock.RunLock(folder.parent / "shortcut"):
        checkpoint.save(folder.parent / "shortcut", 1, {}, {})
    assert checkpoint.load(folder) is not None


WRITERS: dict[str, Callable[[Path], object]] = {
    "clients.csv": lambda path: write_atomic(path, b"new"),
    "clients.csv.tmp": lambda path: write_atomic(path.with_suffix(""), b"new"),
    "half": lambda path: write_synced(path, b"new"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_writing_replaces_a_link_and_leaves_alone_what_it_leads_to(folder: Path, victim: Path, name: str) -> None:
    """Also of one that was put there after the folder was looked through."""
    (folder / name).symlink_to(victim)
    WRITERS[name](folder / name)
    assert victim.read_text() == "precious"
    assert not any(path.is_symlink() for path in folder.iterdir())
    assert (folder / name.removesuffix(".tmp")).read_bytes() == b"new"


def test_nothing_is_added_or_locked_at_the_end_of_a_link(
    folder: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the links had been put there after the folder was looked through."""
    monkeypatch.setattr(lock, "refuse_links", lambda _: None)
    for name in ("rounds.jsonl", "run.lock"):
        (folder / name).symlink_to(victim)
        with pytest.raises(CheckpointError, match=f"{name} {LINK}"):
            append_round(folder, RoundRecord(1, 3))
            with lock.RunLock(folder):
                pass
        (folder / name).unlink()
    (folder / "checkpoints").symlink_to(victim.parent)
    with pytest.raises(CheckpointError, match=LINK):
        checkpoint.save(folder, 1, {}, {})
    assert victim.read_text() == "precious" and {path.name for path in victim.parent.iterdir()} == {"victim", "run"}
