"""What is written is its owner's alone, from the first byte on and whatever the umask."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pacbayes_fl import files
from pacbayes_fl.errors import UNREADABLE


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mask", [0, 0o022, 0o077, 0o777], ids=oct)
def test_modes_do_not_follow_the_umask(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        files.make_folder(tmp_path / "run")
        with files.opened(tmp_path / "run" / "a", "w", encoding="utf-8") as file:
            assert mode(tmp_path / "run" / "a") == 0o600  # before anything stands in it
            file.write("secret")
        with files.opened(tmp_path / "run" / "a", "ab") as file:
            file.write(b"s")
    assert (mode(tmp_path / "run"), mode(tmp_path / "run" / "a")) == (0o700, 0o600)
    assert (tmp_path / "run" / "a").read_text() == "secrets"


def test_a_file_that_was_open_to_others_is_closed_before_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "old"
    path.write_text("before")
    path.chmod(0o666)
    with files.opened(path, "ab") as file:
        assert mode(path) == 0o600
        file.write(b" and after")
    assert path.read_text() == "before and after"


def test_folders_above_have_the_usual_modes_and_those_that_are_there_stay(tmp_path: Path) -> None:
    with umask(0o022):
        files.make_folder(tmp_path / "runs" / "one")
    assert (mode(tmp_path / "runs"), mode(tmp_path / "runs" / "one")) == (0o755, 0o700)
    files.make_folder(tmp_path / "runs")
    assert mode(tmp_path / "runs") == 0o755


def close(folder: Path) -> str:
    return files.close_folder(folder, frozenset({"lock"}), "sign")


def test_a_folder_of_ours_is_closed_with_all_that_it_holds(tmp_path: Path) -> None:
    outside, run = tmp_path / "outside", tmp_path / "run"
    outside.touch(mode=0o644)
    (run / "inner").mkdir(parents=True)
    for path in (run / "sign", run / "inner" / "rows"):
        path.touch(mode=0o644)
    (run / "link").symlink_to(outside)
    for each in (run, run / "inner"):
        each.chmod(0o755)
    assert "was open to others (mode 0755): it is its owner's alone now (mode 0700)" in close(run)
    assert {mode(path) for path in (run, run / "inner")} == {0o700}
    assert {mode(path) for path in (run / "sign", run / "inner" / "rows")} == {0o600}
    assert mode(outside) == 0o644, "links lead elsewhere"
    assert close(run) == ""


@pytest.mark.parametrize("names", [(), ("lock",)])
def test_so_is_an_empty_one(tmp_path: Path, names: tuple[str, ...]) -> None:
    folder = tmp_path / "new"
    folder.mkdir()
    folder.chmod(0o750)
    for name in names:
        (folder / name).touch()
    assert "was open to others (mode 0750)" in close(folder)
    assert mode(folder) == 0o700


def test_a_folder_with_other_files_stays_as_it_is_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "letter").touch(mode=0o644)
    assert "holds other files: it stays so" in close(folder) and "chmod 700" in close(folder)
    assert (mode(folder), mode(folder / "letter")) == (0o755, 0o644)
    assert close(tmp_path / "nowhere") == ""


def test_a_folder_that_cannot_be_closed_is_said_to_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)

    def refused(self: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refused)
    assert "cannot be closed: Operation not permitted" in close(tmp_path)


def test_a_folder_that_was_made_for_nothing_goes_again(tmp_path: Path) -> None:
    def fail(folder: Path, name: str | None) -> None:
        with pytest.raises(ZeroDivisionError), files.fresh_folder(folder):
            assert folder.is_dir() and folder.stat().st_mode & 0o777 == 0o700
            if name is not None:
                (folder / name).write_text("x")
            raise ZeroDivisionError

    fail(tmp_path / "deep" / "new", None)
    assert [*tmp_path.iterdir()] == []
    fail(tmp_path / "deep" / "new", "kept")
    assert (tmp_path / "deep" / "new" / "kept").is_file()
    (tmp_path / "mine").mkdir(mode=0o700)
    fail(tmp_path / "mine", None)
    assert (tmp_path / "mine").is_dir()
    with files.fresh_folder(tmp_path / "good"):
        pass
    assert (tmp_path / "good").is_dir()


def test_a_file_is_hashed_as_its_bytes_are(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    for data in (b"", b"abc", bytes(range(256)) * 5000):
        path.write_bytes(data)
        assert files.sha256(path) == hashlib.sha256(data).hexdigest()
    with pytest.raises(FileNotFoundError):
        files.sha256(tmp_path / "none")


def test_content_is_read_back_where_nobody_has_changed_it() -> None:
    body = {"b": [1, 2.5, None], "a": {"name": "x"}}
    text = json.dumps(files.with_checksum(body))
    assert files.verified(text) == body and set(files.with_checksum(body)) == {"a", "b", "sha256"}
    for other in (text.replace("2.5", "2.6"), text.replace("sha256", "sha255"), text[:-1], "[]", "{}"):
        with pytest.raises(UNREADABLE):
            files.verified(other)


def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path) -> None:
    (there := tmp_path / "afile").write_text("")
    for path in (there, there / "run", there / "runs" / "run"):
        with pytest.raises(NotADirectoryError, match="is a file, where a folder is to be") as caught:
            files.make_folder(path)
        assert caught.value.filename == str(there)
