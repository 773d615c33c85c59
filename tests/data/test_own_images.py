"""Federations of a user's own images: folders and arrays, with owners and without."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pacbayes_fl.data import image_files, images, own_images, tables
from pacbayes_fl.data.image_files import Look
from pacbayes_fl.errors import DataError, StudyError
from tests.data.small_photos import SIDE, write_clients, write_image


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of three clients with four images of two classes each, only to be read."""
    return write_clients(tmp_path_factory.mktemp("own") / "photos", ("carl", "anna", "bob"))


def parts_of(dataset: tables.Dataset, name: str) -> list[list[int]]:
    """Positions of a client's rows by part: training, test, validation."""
    told = tables.to_positions(dataset)
    own = told["owner"] == told["client_name"].tolist().index(name)
    return [sorted(told["position"][own & (told["part"] == part)].tolist()) for part in range(3)]


def test_clients_are_folders_and_hold_their_pixels(photos: Path) -> None:
    dataset = own_images.federation(photos, {"new": ["bob"], "validation_share": 0.125})
    assert (dataset.classes, dataset.feature_shape) == (2, (3, SIDE, SIDE))
    assert dataset.provenance["class_names"] == ["cat", "dog"] and dataset.provenance["source"] == "photos"
    existing, new = dataset.groups["existing"], dataset.groups["new"]
    assert existing.train.names == ("anna", "carl") and new.train.names == ("bob",)
    files = sorted(photos.rglob("*.png"))
    for group in (existing, new):
        assert group.validation is not None
        for k, name in enumerate(group.train.names):
            rows = parts_of(dataset, name)
            assert [len(part) for part in rows] == [5, 2, 1]
            assert {files[row].parts[-3] for part in rows for row in part} == {name}
            told = tables.to_positions(dataset)
            own = told["owner"] == told["client_name"].tolist().index(name)
            order = told["position"][own & (told["part"] == 0)]
            pixels = images.to_floats(image_files.read([files[row] for row in order], Look()))
            assert torch.equal(group.train.x[k], pixels)
            assert group.train.y[k].tolist() == [int(files[row].parts[-2] == "dog") for row in order]


def test_a_client_more_or_less_changes_no_other(photos: Path, tmp_path: Path) -> None:
    whole, again, other = (own_images.federation(photos, {"seed": seed}) for seed in (0, 0, 1))
    assert parts_of(whole, "carl") == parts_of(again, "carl") != parts_of(other, "carl")
    tested = {tuple(row % 8 for row in parts_of(whole, name)[1]) for name in ("anna", "bob", "carl")}
    assert len(tested) > 1  # nor are they split alike
    shutil.copytree(photos / "anna", tmp_path / "photos" / "anna")
    alone = own_images.federation(tmp_path / "photos", {})
    assert parts_of(alone, "anna") == parts_of(whole, "anna")  # she comes first in both


def test_folders_say_what_is_tested_on(tmp_path: Path) -> None:
    write_clients(tmp_path / "train", rows=3)
    write_clients(tmp_path / "test", rows=1)
    dataset = own_images.federation(tmp_path, {"validation_share": 0.2})
    assert [len(part) for part in parts_of(dataset, "bob")] == [5, 2, 1]
    assert min(parts_of(dataset, "anna")[1]) >= 12  # train/ comes first
    shutil.rmtree(tmp_path / "test" / "bob")
    with pytest.raises(DataError, match=r"client 'bob': has 0 images to be scored on, 0 for validation and 6 to learn"):
        own_images.federation(tmp_path, {})
    write_image(tmp_path / "test" / "bob" / "dgo" / "0.png")
    with pytest.raises(
        DataError, match=r"client 'bob': .*bob/dgo/0\.png: no client that trains has an image of class 'd"
    ):
        own_images.federation(tmp_path, {})
    shutil.copytree(tmp_path / "test" / "bob" / "dgo", tmp_path / "train" / "bob" / "dgo")
    with pytest.raises(DataError, match=r"client 'bob': .*bob/dgo/0\.png: no client that trains has an image"):
        own_images.federation(tmp_path, {"new": ["bob"]})
    with pytest.raises(DataError, match=r"client 'bob': .*dgo/0\.png: there is no class 'dgo' \(did you mean 'dog'"):
        own_images.federation(tmp_path, {"classes": ["dog", "cat"]})


def test_an_excluded_client_is_not_read(photos: Path, tmp_path: Path) -> None:
    """A federation without it is that of the folder, or of the rows, without it; nobody opens its files."""
    without, rest = shutil.copytree(photos, tmp_path / "photos"), shutil.copytree(photos, tmp_path / "rest" / "photos")
    (without / "bob" / "cat" / "broken.png").write_bytes(b"no image")
    shutil.rmtree(rest / "bob")
    files = sorted(photos.rglob("*.png"))
    y, client = (np.array([file.parts[at] for file in files]) for at in (-2, -3))
    split = np.where(np.arange(len(files)) % 4 == 0, "test", "train")
    own = {"x": image_files.read(files, Look()).numpy(), "y": y, "client": client, "split": split}
    np.savez(tmp_path / "all.npz", **own)
    np.savez(tmp_path / "less.npz", **{name: values[client != "bob"] for name, values in own.items()})
    for whole, less in ((without, rest), (tmp_path / "all.npz", tmp_path / "less.npz")):
        got = own_images.federation(whole, {"exclude_clients": ("bob",)}).groups["existing"]
        expected = own_images.federation(less, {}).groups["existing"]
        assert got.train.names == ("anna", "carl")
        for part, other in ((got.train, expected.train), (got.test, expected.test)):
            assert torch.equal(part.x, other.x) and torch.equal(part.y, other.y)
    for names, text in (
        (("bbo",), r"exclude_clients: .* has no client 'bbo' \(did you mean 'bob'"),
        (("anna", "bob", "carl"), "has no other client"),
    ):
        with pytest.raises(DataError, match=text):
            own_images.federation(photos, {"exclude_clients": names})
    write_image(tmp_path / "nobody" / "cat" / "0.png")
    with pytest.raises(DataError, match=r"names clients, and the images of .*nobody have none"):
        own_images.federation(tmp_path / "nobody", {"exclude_clients": ("bob",), "partition": "labels"})


def test_classes_are_numbered_as_asked(photos: Path) -> None:
    plain, turned = (own_images.federation(photos, {"classes": names}) for names in ((), ("dog", "bird", "cat")))
    assert turned.classes == 3 and turned.provenance["class_names"] == ["dog", "bird", "cat"]
    assert torch.equal(turned.groups["existing"].train.y, 2 - 2 * plain.groups["existing"].train.y)


def test_a_partition_shares_out_what_nobody_owns(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        for row in range(10):
            write_image(tmp_path / name / f"{row}.png")
    split = {"partition": "dirichlet", "alpha": 5.0, "clients": 2, "new_clients": 1, "minimum": 3}
    dataset = own_images.federation(tmp_path, split)
    told = tables.to_positions(dataset)
    assert sorted(told["position"].tolist()) == list(range(20)) and told["client_new"].tolist() == [False, False, True]
    assert dataset.provenance["options"]["partition"] == "dirichlet"
    one_of_each = {"labels_per_client": 1, "clients": 2, "train": 3, "test": 1, "validation": 0}
    labels = {"partition": "labels", "labels_per_client": 1, "clients": 2, "train": 5, "test": 2, "validation": 1}
    by_label = own_images.federation(tmp_path, labels).groups["existing"]
    assert [set(batch) for batch in by_label.train.y.tolist()] == [{0}, {1}]
    for given, text in (
        ({}, r"the images belong to nobody, and partition does not say .*\(data\.options\.partition = 'labels', 'dir"),
        ({**split, "new": ["anna"]}, "new names clients, and these images have none"),
        ({**split, "root": "x"}, "root is for published images"),
        ({**split, "alhpa": 1.0}, r"unknown key 'alhpa' \(did you mean 'alpha'"),
    ):
        with pytest.raises(StudyError, match=text):
            own_images.federation(tmp_path, given)
    with pytest.raises(DataError, match="has no writers"):
        own_images.federation(tmp_path, {"partition": "natural"})
    write_image(tmp_path / "whole" / "test" / "cat" / "a.png")
    write_image(tmp_path / "whole" / "test" / "dog" / "b.png")
    shutil.copytree(tmp_path / "cat", tmp_path / "whole" / "train" / "cat")
    shutil.copytree(tmp_path / "dog", tmp_path / "whole" / "train" / "dog")
    official = own_images.federation(tmp_path / "whole", {"partition": "labels", **one_of_each})
    assert sorted(row for name in ("client_00", "client_01") for row in parts_of(official, name)[1]) == [20, 21]


def test_arrays_of_a_file_are_the_same_images(photos: Path, tmp_path: Path) -> None:
    files = sorted(photos.rglob("*.png"))
    x = image_files.read(files, Look()).numpy()
    y, client = (np.array([file.parts[at] for file in files]) for at in (-2, -3))
    of_folder = own_images.federation(photos, {}).groups["existing"]
    for given in (
        {"x": x},
        {"x": np.moveaxis(x, 1, 3)},
        {"x": x / 255.0},
        {"x": (x - 0.4).clip(0)},
        {"x": x.astype(np.int64)},
    ):
        np.savez(tmp_path / "own.npz", **given, y=y, client=client)
        made = own_images.federation(tmp_path / "own.npz", {}).groups["existing"]
        assert torch.equal(made.train.x, of_folder.train.x) and torch.equal(made.test.y, of_folder.test.y)
    split = np.where(np.arange(len(x)) % 4 == 0, "test", "train")
    np.savez(tmp_path / "own.npz", x=x, y=7 + 3 * (y == "dog"), client=client, split=split)
    dataset = own_images.federation(tmp_path / "own.npz", {})
    assert parts_of(dataset, "anna")[1] == [0, 4] and dataset.provenance["class_names"] == ["7", "10"]
    np.savez(tmp_path / "own.npz", x=x, y=np.where(np.arange(len(x)) == 3, "", y), client=client)
    with pytest.raises(DataError, match=r"own\.npz: row 3 has no label"):
        own_images.federation(tmp_path / "own.npz", {})
    with pytest.raises(DataError, match="size and colour are for image files"):
        own_images.federation(tmp_path / "own.npz", {"size": 8})


def test_copies_are_found(tmp_path: Path) -> None:
    root = write_clients(tmp_path / "photos")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        own_images.federation(root, {})
    for row in range(1, 4):
        shutil.copy(root / "anna" / "cat" / "0.png", root / "anna" / "cat" / f"{row}.png")
    leak = r"client 'anna': .*cat/\d\.png and .*cat/\d\.png are one image, learned from and held out, the first of \d s"
    with pytest.raises(DataError, match=leak):
        own_images.federation(root, {"test_share": 0.5})
    own_images.federation(root, {"test_share": 0.5, "duplicate_rows": "allow"})
    shutil.copytree(root, tmp_path / "parts" / "train")
    write_clients(tmp_path / "parts" / "test", rows=1)
    with pytest.raises(DataError, match="are one image, learned from and held out"):  # for validation
        own_images.federation(tmp_path / "parts", {"validation_share": 0.5})
    shutil.copy(root / "bob" / "cat" / "2.png", root / "anna" / "dog" / "3.png")
    with pytest.warns(UserWarning) as seen:
        own_images.federation(root, {"duplicate_rows": "allow"})
    texts = sorted(str(one.message) for one in seen)
    assert "1 images are copies of several classes" in texts[0] and "1 images are copies of several clients" in texts[1]
    assert all("anna/dog/3.png" in text and "bob/cat/2.png" in text for text in texts)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"new": ["dora"]}, "client 'dora': it has no images, and `new` names it"),
        ({"new": ["anna", "bob", "carl"]}, "all clients are new, and one at least must"),
        ({"test_share": 0.5, "validation_share": 0.5}, "client 'anna': has 4 images to be scored on, 4 for validation"),
        ({"partition": "dirichlet"}, r"partition is for images that nobody owns, .*\(the options are size, colour, "),
        ({"clients": 2}, "clients is for images that nobody owns"),
        ({"domains": ["mnist"]}, "domains is for published images"),
        ({"size": 0}, r"\[data\] size must be at least 1, got 0"),
        ({"colour": "red"}, "colour must be"),
        ({"sise": 3}, "unknown key 'sise'"),
    ],
)
def test_options_that_cannot_be_are_named(photos: Path, given: dict[str, Any], text: str) -> None:
    with pytest.raises((DataError, StudyError), match=text):
        own_images.federation(photos, given)


def test_classes_that_look_alike_or_are_alone_are_refused(tmp_path: Path) -> None:
    write_clients(tmp_path, ("anna",), ("cat",))
    with pytest.raises(DataError, match="all images are of the class 'cat', and there must be two or more"):
        own_images.federation(tmp_path, {})
    write_image(tmp_path / "anna" / "Cat" / "0.png")
    with pytest.raises(DataError, match=r"cat/0\.png: class 'cat' differs from 'Cat' by capitals or blanks alone"):
        own_images.federation(tmp_path, {})
