"""Folders that leave a run are read as they were written, or not at all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from pacbayes_fl.errors import CheckpointError, StudyError
from pacbayes_fl.results import sealed

KIND = sealed.Kind("gift", "gift.json", 3, "wrap it again")


def test_what_is_written_is_read_and_the_sign_has_the_checksums_of_all(tmp_path: Path) -> None:
    files = {"a": b"", "b.bin": bytes(range(256))}
    sealed.write(tmp_path / "out", KIND, {"for": "Zoë", "half": 0.5, "none": None}, files)
    about, again = sealed.read(tmp_path / "out", KIND)
    assert (about["for"], about["half"], about["none"], about["format_version"], again) == ("Zoë", 0.5, None, 3, files)
    assert about["sha256"] == {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def test_every_changed_byte_is_refused(tmp_path: Path) -> None:
    sealed.write(tmp_path / "out", KIND, {"for": "Zoë"}, {"b.bin": b"four"})
    for file in (tmp_path / "out").iterdir():
        good = file.read_bytes()
        for at in range(len(good)):
            file.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
            with pytest.raises(CheckpointError, match=rf"{file.name} is damaged.*wrap it again"):
                sealed.read(tmp_path / "out", KIND)
        file.write_bytes(good + b" ")
        with pytest.raises(CheckpointError, match=rf"{file.name} is damaged"):
            sealed.read(tmp_path / "out", KIND)
        file.write_bytes(good)
    (tmp_path / "out" / "b.bin").unlink()
    with pytest.raises(CheckpointError, match=r"b.bin is missing"):
        sealed.read(tmp_path / "out", KIND)


def test_other_kinds_and_formats_are_named(tmp_path: Path) -> None:
    sealed.write(tmp_path / "out", KIND._replace(version=4), {}, {})
    with pytest.raises(CheckpointError, match=r"gift format 4, this pacbayes_fl reads 3 \(update pacbayes_fl\)"):
        sealed.read(tmp_path / "out", KIND)
    with pytest.raises(StudyError, match=r"is not a box: box.json is missing"):
        sealed.read(tmp_path / "out", KIND._replace(name="box", sign="box.json"))
    (tmp_path / "out" / "gift.json").write_text(json.dumps([1]))
    with pytest.raises(CheckpointError, match=r"gift.json is damaged"):
        sealed.read(tmp_path / "out", KIND)


def test_a_new_folder_is_empty_and_outside_of_the_run(tmp_path: Path) -> None:
    sealed.check_new(tmp_path / "new", tmp_path / "run", KIND)
    sealed.check_new(tmp_path, None, KIND)
    (tmp_path / "file").touch()
    for full in (tmp_path, tmp_path / "file"):
        with pytest.raises(StudyError, match=r"is not empty, and a gift is written.*another --to"):
            sealed.check_new(full, None, KIND, "--to")
    with pytest.raises(StudyError, match=r"sub is inside of the run"):
        sealed.check_new(tmp_path / "run" / "sub", tmp_path / "run", KIND)
