"""Folders of images: what they say of every file, and folders that say nothing clear."""

from __future__ import annotations

from pathlib import Path

import pytest

from pacbayes_fl.data import image_folders
from pacbayes_fl.errors import DataError
from tests.data.small_photos import write_clients, write_image


def test_clients_and_classes_are_folders(tmp_path: Path) -> None:
    found = image_folders.labelled(write_clients(tmp_path / "photos"))
    assert [(one.client, one.label, one.path.name, one.test) for one in found] == [
        (client, label, f"{row}.png", None)
        for client in ("anna", "bob")
        for label in ("cat", "dog")
        for row in range(4)
    ]
    pooled = image_folders.labelled(tmp_path / "photos" / "anna")
    assert {(one.client, one.label) for one in pooled} == {("", "cat"), ("", "dog")} and len(pooled) == 8


def test_folders_may_say_what_is_tested_on(tmp_path: Path) -> None:
    write_clients(tmp_path / "train", rows=3)
    write_clients(tmp_path / "test", ("anna",), rows=1)
    found = image_folders.labelled(tmp_path)
    assert [one.test for one in found] == [False] * 12 + [True] * 2
    assert {one.client for one in found if one.test} == {"anna"}
    write_clients(tmp_path / "words", ("train", "test"))  # parts without clients
    assert {(one.client, one.label, one.test) for one in image_folders.labelled(tmp_path / "words")} == {
        ("", label, test) for label in ("cat", "dog") for test in (False, True)
    }
    write_image(tmp_path / "classes" / "train" / "a.png")  # and vehicles
    write_image(tmp_path / "classes" / "test" / "b.png")
    assert {(one.label, one.test) for one in image_folders.labelled(tmp_path / "classes")} == {
        ("train", None),
        ("test", None),
    }


def test_every_client_may_have_its_own_train_and_test(tmp_path: Path) -> None:
    """As if the two lay above the clients, file by file."""
    for part, rows in (("train", 3), ("test", 1)):
        write_clients(tmp_path / "above" / part, rows=rows)
        for client in ("anna", "bob"):
            write_clients(tmp_path / "below" / client, (part,), rows=rows)
    above, below = (image_folders.labelled(tmp_path / name) for name in ("above", "below"))
    assert [one._replace(path=Path(one.path.name)) for one in below] == [
        one._replace(path=Path(one.path.name)) for one in above
    ]
    assert below[0].path == tmp_path / "below" / "anna" / "train" / "cat" / "0.png" and below[-1].test
    asked = image_folders.to_predict(tmp_path / "below")
    assert [(one.client, one.label, one.test) for one in asked if one.label == "cat"] == [
        (client, "cat", test) for client in ("anna", "bob") for test in (True, False, False, False)
    ]
    write_image(tmp_path / "below" / "bob" / "test" / "cat" / "deep" / "0.png")
    with pytest.raises(DataError, match=r"test/cat holds images, as a class does, and the folder deep"):
        image_folders.labelled(tmp_path / "below")
    write_image(tmp_path / "below" / "carl" / "cat" / "0.png")
    with pytest.raises(DataError, match=r"client 'carl': .*below/carl holds other things than train/ and test/"):
        image_folders.labelled(tmp_path / "below")
    write_image(tmp_path / "below" / "0.png")
    with pytest.raises(DataError, match=r"below/0\.png lies in no folder of a class"):
        image_folders.labelled(tmp_path / "below")


def test_folders_that_say_nothing_clear_are_named(tmp_path: Path) -> None:
    root = write_clients(tmp_path / "photos")
    (root / "anna" / "horse").mkdir()
    with pytest.raises(DataError, match=r"client 'anna': class horse: .*photos/anna/horse has no images"):
        image_folders.labelled(root)
    write_image(root / "anna" / "horse" / "young" / "0.png")
    write_image(root / "anna" / "horse" / "0.png")
    with pytest.raises(DataError, match=r"client 'anna': class horse: .* holds a folder, young"):
        image_folders.labelled(root)
    other = write_clients(tmp_path / "other")
    write_image(other / "cat" / "0.png")
    with pytest.raises(DataError, match=r"anna/cat/0\.png lies in a folder of a client, and .*other/cat/0\.png in a"):
        image_folders.labelled(other)
    write_image(other / "cat" / "small" / "1.png")
    with pytest.raises(DataError, match=r"other/cat holds images, as a class does, and the folder small, as a client"):
        image_folders.labelled(other)
    write_image(other / "0.png")
    with pytest.raises(DataError, match=r"other/0\.png lies in no folder of a class \(it needs CLIENT/CLASS"):
        image_folders.labelled(other)
    (tmp_path / "empty" / "anna").mkdir(parents=True)
    with pytest.raises(DataError, match=r"empty/anna has no images \(delete it"):
        image_folders.labelled(tmp_path / "empty")
    (tmp_path / "empty" / "anna").rmdir()
    with pytest.raises(DataError, match=r"empty has no images \(it needs"):
        image_folders.labelled(tmp_path / "empty")
    with pytest.raises(DataError, match=r"there is no folder .*nowhere"):
        image_folders.labelled(tmp_path / "nowhere")


def test_files_that_are_no_images_are_left_out(tmp_path: Path) -> None:
    root = write_clients(tmp_path / "photos", ("anna",), rows=1)
    (root / "anna" / "cat" / ".DS_Store").touch()
    assert len(image_folders.labelled(root)) == 2
    (root / "anna" / "cat" / "raw.heic").touch()
    with pytest.warns(UserWarning, match=r"1 files in .* are no images and are left out, anna/cat/raw\.heic the first"):
        assert len(image_folders.labelled(root)) == 2


def test_files_to_predict_may_lie_as_deep_as_they_like(tmp_path: Path) -> None:
    root = write_clients(tmp_path / "photos", rows=1)
    write_image(root / "anna" / "new.png")
    found = image_folders.to_predict(root)
    assert [(one.client, one.label) for one in found] == [
        ("anna", "cat"),
        ("anna", "dog"),
        ("anna", ""),
        ("bob", "cat"),
        ("bob", "dog"),
    ]
    alone = image_folders.to_predict(root / "anna", "me")
    assert [(one.client, one.label) for one in alone] == [("me", "cat"), ("me", "dog"), ("me", "")]
    write_image(root / "whose.png")
    with pytest.raises(DataError, match=r"whose\.png lies in no folder of a client \(name the client"):
        image_folders.to_predict(root)
    (tmp_path / "empty").mkdir()
    for folder, text in (("empty", "has no images"), ("nowhere", "there is no folder")):
        with pytest.raises(DataError, match=text):
            image_folders.to_predict(tmp_path / folder)
