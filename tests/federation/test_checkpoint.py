"""A round that was saved can be loaded, or the reader is told why not and gets the round before."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pacbayes_fl.errors import CheckpointError
from pacbayes_fl.federation import checkpoint
from pacbayes_fl.federation.checkpoint import check_study, clean, load, match_clients, save
from pacbayes_fl.federation.lock import RunLock
from pacbayes_fl.results.manifest import problems
from tests.forked import child, fork

FIXTURES = Path(__file__).parent / "fixtures"


def state(number: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(number)
    wide = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    wide[0, 0], wide[0, 1], wide[0, 2] = math.nan, -0.0, 5e-324
    return {
        "clients.q.loc": wide,
        "clients.alias": wide.view(-1),
        "clients.view": wide[:, 1],
        "clients.expanded": wide[:1].expand(3, 4),
        "server.float32": wide.float().requires_grad_(),
        "server.step": torch.tensor([number, 2**62], dtype=torch.int64),
        "server.seen": torch.tensor([True, False]),
        "server.scalar": torch.tensor(float(number)),
        "server.empty": torch.zeros(0, 3),
    }


def same(a: Tensor, b: Tensor) -> bool:
    """Compare bits, so that NaN equals itself and 0.0 is not -0.0."""
    a, b = a.detach().contiguous(), b.detach().contiguous()
    return a.dtype == b.dtype and a.shape == b.shape and a.numpy().tobytes() == b.numpy().tobytes()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_a_round_comes_back_bit_by_bit(tmp_path: Path) -> None:
    meta = {"study": {"seed": 0}, "ids": [3, 1], "ledger": {"rho": 0.1 / 3}, "limit": math.inf}
    path = save(tmp_path, 40, state(40), meta)
    loaded = load(tmp_path)
    assert loaded is not None
    assert path == tmp_path / "checkpoints" / "round_000040"
    assert (loaded.round, loaded.meta, loaded.warnings) == (40, meta, ())
    assert loaded.tensors.keys() == state(40).keys()
    for name, tensor in state(40).items():
        assert same(loaded.tensors[name], tensor), name
    assert names(tmp_path) == ["latest", "round_000040"]
    assert (tmp_path / "checkpoints" / "latest").read_text() == "round_000040\n"


def test_nothing_saved_is_none(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    assert load(tmp_path / "absent") is None
    with RunLock(tmp_path):
        assert load(tmp_path) is None


def test_only_the_newest_rounds_are_kept(tmp_path: Path) -> None:
    for number in (10, 20, 30, 40):
        save(tmp_path, number, state(number), {})
    assert names(tmp_path) == ["latest", "round_000030", "round_000040"]
    save(tmp_path, 50, state(50), {}, keep=1)
    assert names(tmp_path) == ["latest", "round_000050"]
    with pytest.raises(CheckpointError, match="keep must be at least 1"):
        save(tmp_path, 60, state(60), {}, keep=0)


def test_saving_a_round_again_replaces_it(tmp_path: Path) -> None:
    save(tmp_path, 40, state(1), {"try": 1}, keep=1)
    save(tmp_path, 40, state(2), {"try": 2}, keep=1)
    loaded = load(tmp_path)
    assert loaded is not None and loaded.meta == {"try": 2}
    assert names(tmp_path) == ["latest", "round_000040"]


def test_numbers_beyond_six_digits_are_still_in_order(tmp_path: Path) -> None:
    for number in (999_999, 1_000_000):
        save(tmp_path, number, state(1), {})
    loaded = load(tmp_path)
    assert loaded is not None and loaded.round == 1_000_000


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "state.safetensors of round 40 is damaged": lambda path: flip(path / "state.safetensors", -1),
    "state.safetensors of round 40 is damaged ": lambda path: os.truncate(path / "state.safetensors", 300),
    "state.safetensors of round 40 is damaged  ": lambda path: os.truncate(path / "state.safetensors", 0),
    "state.safetensors of round 40 is missing": lambda path: (path / "state.safetensors").unlink(),
    "state.json of round 40 is damaged": lambda path: flip(path / "state.json", 10),
    "state.json of round 40 is missing": lambda path: (path / "state.json").unlink(),
    "manifest.json of round 40 is damaged": lambda path: os.truncate(path / "manifest.json", 30),
    "manifest.json of round 40 is damaged ": lambda path: (path / "manifest.json").write_text("[]"),
    "manifest.json of round 40 is missing": lambda path: (path / "manifest.json").unlink(),
    "round 40 is missing": lambda path: shutil.rmtree(path),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_a_damaged_round_gives_way_to_the_one_before(tmp_path: Path, message: str) -> None:
    for number in (30, 40):
        save(tmp_path, number, state(number), {"round": number})
    DAMAGE[message](tmp_path / "checkpoints" / "round_000040")
    loaded = load(tmp_path)
    assert loaded is not None
    assert loaded.warnings == (f"{message.strip()}; using round 30",)
    assert (loaded.round, loaded.meta) == (30, {"round": 30})
    for name, tensor in state(30).items():
        assert same(loaded.tensors[name], tensor), name


def test_one_flipped_byte_anywhere_is_noticed(tmp_path: Path) -> None:
    """Also in the manifest, where a version of 3 instead of 1 must not pass for a checkpoint of the future."""
    save(tmp_path, 30, {"a": torch.ones(2)}, {})
    save(tmp_path, 40, {"a": torch.ones(2)}, {"b": 1})
    for path in sorted((tmp_path / "checkpoints" / "round_000040").iterdir()):
        intact = path.read_bytes()
        for place in range(len(intact)):
            flip(path, place)
            loaded = load(tmp_path)
            # a flipped bit in the blanks of the manifest may be read as the same manifest; nothing else may pass
            assert loaded is not None
            assert loaded.round == 30 or (path.name == "manifest.json" and intact[place : place + 1].isspace())
            path.write_bytes(intact)


def test_a_round_under_another_name_is_not_believed(tmp_path: Path) -> None:
    save(tmp_path, 30, state(30), {})
    shutil.copytree(tmp_path / "checkpoints" / "round_000030", tmp_path / "checkpoints" / "round_000035")
    loaded = load(tmp_path)
    assert loaded is not None and loaded.round == 30
    assert loaded.warnings == ("manifest.json of round 35 is damaged; using round 30",)


def test_all_rounds_damaged_is_an_error_that_names_each(tmp_path: Path) -> None:
    for number in (30, 40):
        path = save(tmp_path, number, state(number), {})
        flip(path / "state.safetensors", -1)
    with pytest.raises(CheckpointError, match=r"state\.safetensors of round 40 is damaged; .* of round 30 is damaged"):
        load(tmp_path)


def test_going_on_from_an_older_round_does_not_lose_it(tmp_path: Path) -> None:
    """Damaged newer rounds neither count as kept ones nor come back as the newest."""
    for number in (30, 40, 50):
        path = save(tmp_path, number, state(number), {}, keep=3)
        if number > 30:
            flip(path / "state.json", 0)
    save(tmp_path, 35, state(35), {})
    assert names(tmp_path) == ["latest", "round_000030", "round_000035"]
    loaded = load(tmp_path)
    assert loaded is not None and loaded.round == 35 and loaded.warnings == ()


def test_leftovers_are_cleaned_on_start_and_not_by_readers(tmp_path: Path) -> None:
    path = save(tmp_path, 30, state(30), {})
    shutil.copytree(path, path.with_name("round_000040.tmp"))
    (path.parent / "latest.tmp").write_text("round_0")
    path.rename(path.with_suffix(".old"))  # killed between the two renames
    loaded = load(tmp_path)
    assert loaded is not None and loaded.round == 30 and loaded.warnings == ()
    assert "round_000040.tmp" in names(tmp_path)
    with RunLock(tmp_path):
        assert names(tmp_path) == ["latest", "round_000030"]
    shutil.copytree(path, path.with_suffix(".old"))  # killed after them
    clean(tmp_path)
    assert names(tmp_path) == ["latest", "round_000030"]


def test_the_first_format_still_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load(FIXTURES / "format_1")
    assert loaded is not None
    assert (loaded.round, loaded.warnings) == (3, ())
    assert loaded.meta == {"study": {"method": {"name": "pac_pfl"}, "seed": 0}, "ids": [0, 1]}
    expected = {
        "server.particles": torch.tensor([[0.1, -2.0], [1e-300, 3.5]], dtype=torch.float64),
        "server.float32": torch.tensor([0.1], dtype=torch.float32),
        "clients.step": torch.tensor([7, 8], dtype=torch.int64),
        "clients.seen": torch.tensor([True, False]),
    }
    assert loaded.tensors.keys() == expected.keys()
    assert all(same(loaded.tensors[name], tensor) for name, tensor in expected.items())


def test_an_older_format_is_migrated_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "FORMAT_VERSION", 3)
    monkeypatch.setattr(checkpoint, "_MIGRATIONS", {})
    with pytest.raises(CheckpointError, match="has checkpoint format 1, which 3 cannot read"):
        load(FIXTURES / "format_1")
    steps = {
        1: lambda tensors, meta: ({f"new.{name}": tensor for name, tensor in tensors.items()}, meta),
        2: lambda tensors, meta: (tensors, meta | {"migrated": True}),
    }
    monkeypatch.setattr(checkpoint, "_MIGRATIONS", steps)
    loaded = load(FIXTURES / "format_1")
    assert loaded is not None and loaded.meta["migrated"] and "new.clients.step" in loaded.tensors


def test_a_newer_format_is_refused_with_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 30, state(30), {})
    monkeypatch.setattr(checkpoint, "_WHOLE", 3)
    save(tmp_path, 40, state(40), {})
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match=r"format 3, this pacbayes_fl reads formats up to 2 .*update"):
        load(tmp_path)


def test_meta_that_is_not_json_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="meta must be JSON"):
        save(tmp_path, 1, {}, {"path": tmp_path})
    assert list(tmp_path.iterdir()) == []


@fork
@pytest.mark.parametrize("saved_before", [(), (30,), (30, 40)])
def test_a_full_disk_leaves_the_last_round_and_no_half(tmp_path: Path, saved_before: tuple[int, ...]) -> None:
    for number in saved_before:
        save(tmp_path, number, state(number), {})
    before = names(tmp_path) if saved_before else []
    left = f"round {saved_before[-1]} on disk is intact" if saved_before else "nothing is on disk"

    def work() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        try:
            save(tmp_path, 40, {"big": torch.zeros(20_000, dtype=torch.float64)}, {})
        except CheckpointError as error:
            (tmp_path / "message").write_text(str(error))
            return 7
        return 0

    assert os.waitstatus_to_exitcode(child(work)) == 7
    message = (tmp_path / "message").read_text()
    assert "no space left writing" in message
    assert f"round 40 is in memory, {left}" in message
    assert names(tmp_path) == before
    loaded = load(tmp_path)
    assert (loaded.round if loaded else None) == (saved_before[-1] if saved_before else None)


@pytest.mark.parametrize("fails_at", range(10))
def test_a_failing_sync_at_any_step_leaves_a_round_that_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """The disk fills at each sync in turn, while round 40 is saved over an older round 40."""
    save(tmp_path, 30, state(30), {})
    save(tmp_path, 40, state(40), {"try": 1})
    calls = iter(range(100))
    sync = os.fsync

    def full(handle: int) -> None:
        if next(calls) == fails_at:
            raise OSError(28, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    # the manifest and its folder; three files, their folder, the folder of rounds, the pointer and its folder
    if fails_at < 9:
        with pytest.raises(CheckpointError, match=r"no space left writing .*; round 40 is in memory, round 40 on disk"):
            save(tmp_path, 40, state(40), {"try": 2})
    else:
        save(tmp_path, 40, state(40), {"try": 2})
    loaded = load(tmp_path)
    assert loaded is not None and loaded.round == 40 and loaded.warnings == ()
    assert loaded.meta == {"try": 1 if fails_at < 6 else 2}
    assert names(tmp_path) == ["latest", "round_000030", "round_000040"]
    assert problems(tmp_path) == {}


def test_another_failure_is_told_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file is in the way")
    with pytest.raises(
        CheckpointError, match=r"cannot write .*round_000001.*; round 1 is in memory, nothing is on disk"
    ):
        save(tmp_path, 1, state(1), {})


STUDY = {"method": {"particles": 4, "lengthscale": None}, "federation": {"rounds": 10, "cohort": (1, 2)}, "out": "a"}


def test_the_same_study_may_go_on_longer_and_elsewhere() -> None:
    longer = {**STUDY, "federation": {"rounds": 20, "cohort": [1, 2]}, "out": "b", "device": "cuda"}
    check_study(json.loads(json.dumps(STUDY)), longer)
    check_study({"a": 1, "b": math.nan}, {"a": 1.0, "b": math.nan})
    check_study({}, {})


def test_another_study_is_refused_with_the_difference() -> None:
    other = {"method": {"particles": 8}, "federation": {"rounds": 20, "cohort": [1, 2]}, "seed": 1}
    with pytest.raises(CheckpointError) as caught:
        check_study(STUDY, other)
    text = str(caught.value)
    assert "method.particles: saved 4, now 8" in text
    assert "method.lengthscale: saved null, now nothing" in text
    assert "seed: saved nothing, now 1" in text
    assert "rounds" not in text and "cohort" not in text and "out:" not in text


def test_what_may_change_is_a_choice() -> None:
    with pytest.raises(CheckpointError, match=r"federation\.rounds: saved 1, now 2"):
        check_study({"federation": {"rounds": 1}}, {"federation": {"rounds": 2}}, may_change=("report",))
    check_study({"report": {"draws": 1}}, {"report": {"draws": 2}}, may_change=("report",))
    with pytest.raises(CheckpointError, match="background"):  # ends with a name that may change, and is another key
        check_study({"background": 1}, {"background": 2}, may_change=("ground",))


@settings(deadline=None)
@given(st.permutations(range(7)), st.permutations(range(10)), st.integers(0, 7), st.integers(0, 10))
def test_clients_are_matched_by_id(saved_ids: list[int], ids: list[int], n_saved: int, n_now: int) -> None:
    saved_ids, ids = saved_ids[:n_saved], ids[:n_now]
    match = match_clients(saved_ids, ids)
    both = [number for number in ids if number in saved_ids]
    assert [ids[place] for place in match.target] == both
    assert [saved_ids[place] for place in match.source.tolist()] == both


def test_two_clients_of_one_id_are_refused() -> None:
    with pytest.raises(CheckpointError, match=r"saved clients .* got 3 twice"):
        match_clients([3, 1, 3], [1])
    with pytest.raises(CheckpointError, match=r"present clients .* got 1 twice"):
        match_clients([3], [1, 1])
