"""The manifest knows every file as it was written, and takes a killed run's for what it was or was to be."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from functools import partial
from pathlib import Path
from typing import IO

import pytest

from pacbayes_fl.errors import CheckpointError, DamageWarning, DataError
from pacbayes_fl.results.folder import FILES
from pacbayes_fl.results.manifest import NAME, Print, adopt, announced, extend, problems, put, put_written, read, verify
from tests.tiny import spoiled


def test_every_file_is_listed_with_its_length_and_hash(tmp_path: Path) -> None:
    put(tmp_path, {"labels.json": b"{}", "certificates/a.json": b"[1]"})
    put(tmp_path, {"clients.csv": b"id\n"}, last=True)
    listed = json.loads((tmp_path / NAME).read_text())["files"]
    assert listed == {
        name: [len(data), hashlib.sha256(data).hexdigest(), False]
        for name, data in (("labels.json", b"{}"), ("certificates/a.json", b"[1]"), ("clients.csv", b"id\n"))
    }
    assert problems(tmp_path) == {}
    put(tmp_path, {"labels.json": None})
    assert not (tmp_path / "labels.json").exists() and problems(tmp_path) == {}


@pytest.mark.parametrize("name", [*FILES, "certificates/a.json"])
def test_any_damage_to_any_file_is_found(tmp_path: Path, name: str) -> None:
    put(tmp_path, {each: f"what {each} holds\n".encode() * 5 for each in (*FILES, "certificates/a.json")}, last=True)
    path = tmp_path / name
    good = path.read_bytes()
    for what, bad in spoiled(good).items():
        path.write_bytes(bad) if bad is not None else path.unlink()
        assert problems(tmp_path) == {name: "is missing" if bad is None else "is damaged or was edited"}, what
        path.write_bytes(good)
    path.write_bytes(good + b"more\n")
    assert list(problems(tmp_path)) == [name]


def test_what_the_run_did_not_write_is_found(tmp_path: Path) -> None:
    put(tmp_path, {"labels.json": b"{}"})
    (tmp_path / "choice.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("mine")
    assert problems(tmp_path) == {"choice.json": "was not written by this run"}


def test_a_kill_between_the_manifest_and_the_file_is_no_damage(tmp_path: Path) -> None:
    put(tmp_path, {"labels.json": b"old", "clients.csv": b"old", "metrics.json": b"old"}, last=True)
    for done in range(3):
        with pytest.raises(KeyboardInterrupt), announced(tmp_path, {"labels.json": b"new", "metrics.json": None}):
            if done > 0:
                (tmp_path / "labels.json").write_bytes(b"new")
            if done > 1:
                (tmp_path / "metrics.json").unlink()
            raise KeyboardInterrupt
        assert problems(tmp_path) == {}
    (tmp_path / "labels.json").write_bytes(b"nwe")
    assert list(problems(tmp_path)) == ["labels.json"]
    (tmp_path / "labels.json").write_bytes(b"new")
    put(tmp_path, {"clients.csv": b"new"}, last=True)  # settles what was left open
    assert read(tmp_path) is not None and set(read(tmp_path).files) == {"labels.json", "clients.csv"}  # type: ignore[union-attr]
    (tmp_path / "labels.json").write_bytes(b"old")
    assert list(problems(tmp_path)) == ["labels.json"]


def test_a_file_that_is_written_in_parts_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    put(tmp_path, {"data.npz": b"old"}, last=True)

    def ended(reason: BaseException, file: IO[bytes]) -> None:
        file.write(b"half")
        raise reason

    with pytest.raises(CheckpointError, match=r"data\.npz: No space left"):
        put_written(tmp_path, "data.npz", partial(ended, OSError(28, "No space left on device")))
    assert [path.name for path in tmp_path.glob("data*")] == ["data.npz"]
    with pytest.raises(KeyboardInterrupt):
        put_written(tmp_path, "data.npz", partial(ended, KeyboardInterrupt()))
    assert (tmp_path / "data.npz").read_bytes() == b"old" and problems(tmp_path) == {}
    put_written(tmp_path, "data.npz", lambda file: file.writelines((b"ne", b"w")))
    assert (tmp_path / "data.npz").read_bytes() == b"new" and problems(tmp_path) == {}
    (tmp_path / "data.npz").write_bytes(b"nwe")
    assert list(problems(tmp_path)) == ["data.npz"]


def test_a_growing_file_is_vouched_for_as_far_as_it_was_seen(tmp_path: Path) -> None:
    put(tmp_path, {"rounds.jsonl": b"1\n"}, grows=True)
    path = tmp_path / "rounds.jsonl"
    path.write_bytes(b"1\n2\n3")
    assert problems(tmp_path) == {}
    path.write_bytes(b"1\n4\n")
    assert problems(tmp_path) == {}  # nobody has vouched for the second line yet
    put(tmp_path, {"labels.json": b"{}"})
    path.write_bytes(b"1\n2\n")
    assert list(problems(tmp_path)) == ["rounds.jsonl"]
    put(tmp_path, {"labels.json": b"[]"})  # which takes no damaged line for good
    assert list(problems(tmp_path)) == ["rounds.jsonl"]
    path.write_bytes(b"1\n4\n5\n6")
    extend(tmp_path, "rounds.jsonl")
    assert read(tmp_path).files["rounds.jsonl"] == Print.of(b"1\n4\n5\n", grows=True)  # type: ignore[union-attr]


@pytest.mark.parametrize("place", ["start", "middle", "end"])
def test_a_damaged_manifest_is_named_and_never_taken_for_another(tmp_path: Path, place: str) -> None:
    put(tmp_path, {"labels.json": b"{}"})
    path = tmp_path / NAME
    good = path.read_bytes()
    start = {"start": 0, "middle": len(good) // 2, "end": len(good) - 12}[place]
    for at in range(start, start + 12):
        bad = bytearray(good)
        bad[at] ^= 1
        path.write_bytes(bad)
        if not good[at : at + 1].isspace():
            with pytest.raises(DataError, match=r"manifest\.json is damaged: it holds the checksums .*remove it and"):
                problems(tmp_path)
    path.unlink()
    with pytest.raises(DataError, match=r"manifest\.json is missing: it holds the checksums"):
        problems(tmp_path)
    body = json.loads(good) | {"format_version": 99}
    del body["sha256"]
    seal = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(body | {"sha256": seal}))
    with pytest.raises(DataError, match=r"has format 99, this pacbayes_fl reads formats up to 1 \(update"):
        problems(tmp_path)


def test_what_is_needed_is_refused_and_the_rest_is_said_with_what_to_do(tmp_path: Path) -> None:
    put(tmp_path, {"labels.json": b"{}", "trained.json": b"{}", "certificates/a.json": b"[1]"}, last=True)
    for name in ("labels.json", "trained.json", "certificates/a.json"):
        (tmp_path / name).write_bytes(b"[]")
    with pytest.warns(DamageWarning) as said:
        verify(tmp_path, ())
    texts = [str(one.message) for one in said]
    assert len(texts) == 3 and all("is damaged or was edited" in text for text in texts)
    with pytest.raises(DataError, match=r"labels\.json is damaged .* \(run the study with --resume: it is written"):
        verify(tmp_path, ("labels.json",))
    with pytest.raises(DataError, match=r"trained\.json is damaged .*if the change is meant, remove manifest\.json"):
        verify(tmp_path, ("trained.json",))
    (tmp_path / "trained.json").unlink()
    with pytest.raises(DataError, match=r"trained\.json is missing: it holds which .*\(restore it from a copy, or run"):
        verify(tmp_path, ("trained.json",))
    adopt(tmp_path)
    verify(tmp_path, FILES)


def _write_often(folder: Path, name: str, times: int) -> None:
    for number in range(times):
        put(folder, {name: str(number).encode()}, last=number == times - 1)


def test_two_processes_that_write_do_not_lose_one_anothers_entries(tmp_path: Path) -> None:
    put(tmp_path, {"labels.json": b"{}"})
    context = multiprocessing.get_context("fork")
    names = ("clients.csv", "certificates/a.json")
    workers = [context.Process(target=_write_often, args=(tmp_path, name, 40)) for name in names]
    for worker in workers:
        worker.start()
    seen = [problems(tmp_path) for _ in range(100)]  # who reads meanwhile never takes a change for damage
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert not any(seen)
    assert problems(tmp_path) == {}
    assert read(tmp_path).files.keys() == {"labels.json", *names}  # type: ignore[union-attr]
