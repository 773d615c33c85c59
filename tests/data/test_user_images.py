"""Images that a user brings, by client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pacbayes_fl.data import user_images, user_tables
from pacbayes_fl.data.image_files import Look
from pacbayes_fl.errors import DataError
from tests.data.small_photos import write_image
from tests.tiny_images import SIDE

SHAPE = (1, SIDE, SIDE)


def write_npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def read(
    path: Path,
    shape: tuple[int, ...] = SHAPE,
    client: str | None = None,
    classes: tuple[str, ...] = (),
    look: Look | None = None,
) -> user_tables.Table:
    brought = user_images.to_predict(path, shape, client, look)
    return user_images.by_client(brought, user_images.numbered(brought, classes))


def test_images_are_read_by_client(tmp_path: Path) -> None:
    x = np.arange(4 * SIDE**2, dtype=np.uint8).reshape(4, *SHAPE)
    path = write_npz(tmp_path / "a.npz", x=x, y=np.array([3, -1, 0, 1]), client=np.array(["b", "a", "b", "a"]))
    table = read(path, SHAPE)
    assert list(table.clients) == ["b", "a"] and table.features == ("image",)
    got, y = table.clients["a"]
    torch.testing.assert_close(got, torch.from_numpy(x[[1, 3]].astype(np.float32)) / 127.5 - 1)
    assert y.isnan().tolist() == [True, False] and y[1] == 1
    for scale in (255.0, 1.0):  # floats in 0..1 or in 0..255
        floats = write_npz(tmp_path / "b.npz", x=x.astype(np.float64) / scale)
        got, y = read(floats, SHAPE, "me").clients["me"]
        torch.testing.assert_close(got, torch.from_numpy(x.astype(np.float32)) / 127.5 - 1)
        assert y.isnan().all()
    numbers = write_npz(tmp_path / "c.npz", x=x, client=np.array([7, 7, 8, 7]))
    assert {name: len(rows[1]) for name, rows in read(numbers, SHAPE).clients.items()} == {"7": 3, "8": 1}


ZEROS = np.zeros((2, *SHAPE))
WHO = np.zeros(2)


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"y": WHO}, "has no array 'x'"),
        ({"x": ZEROS}, r"has no array 'client' \(it needs x \[R, channels, H, W\]"),
        ({"x": ZEROS[..., :5], "client": WHO}, r"a\.npz: images of the run are 1 x 6 x 6 .*, got 1 x 6 x 5"),
        ({"x": np.zeros((2, 6)), "client": WHO}, r"x must be \[R, channels, H, W\] or \[R, H, W\], got \[2, 6\]"),
        ({"x": ZEROS, "y": np.zeros(3), "client": WHO}, r"y must be \[2\], as x has rows, got \[3\]"),
        ({"x": ZEROS, "client": np.array(["a", " "])}, "row 1 has no client"),
        ({"x": np.zeros((0, *SHAPE)), "client": np.zeros(0)}, r"has no images: x is \[0, 1, 6, 6\]"),
        ({"x": np.full((2, *SHAPE), "a"), "client": WHO}, "x must hold numbers, got <U1"),
        ({"x": np.where(np.arange(2)[:, None, None, None] == 1, np.nan, ZEROS), "client": WHO}, "row 1: a pixel is no"),
        ({"x": ZEROS - 0.5, "client": WHO}, r"pixels must be in 0\.\.255, or of floats in 0\.\.1, got -0\.5\.\.-0\.5"),
        ({"x": ZEROS.astype(np.int64) + 256, "client": WHO}, r"got 256\.\.256"),
        (
            {"x": ZEROS, "y": np.array([0, 0.5]), "client": WHO},
            "row 1: a label must be a whole number or a name, got 0.5",
        ),
        ({"x": ZEROS, "y": WHO + 1j, "client": WHO}, "y must hold whole numbers or names, got complex128"),
        (
            {"x": ZEROS, "y": np.array(["1", "cat"]), "client": WHO},
            "row 1: classes of the run are whole numbers, got 'cat'",
        ),
        ({"x": ZEROS, "client": WHO, "split": np.array(["test", "tset"])}, "row 1: split must be 'train' or 'test'"),
    ],
)
def test_images_that_cannot_be_used_are_refused(tmp_path: Path, arrays: dict[str, Any], text: str) -> None:
    with pytest.raises(DataError, match=text):
        read(write_npz(tmp_path / "a.npz", **arrays), SHAPE)


def test_colours_may_come_last_and_grey_images_without_channels(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (2, 3, SIDE, SIDE))
    for given in (x, np.moveaxis(x, 1, 3)):
        read = user_images.to_predict(write_npz(tmp_path / "a.npz", x=given), (3, SIDE, SIDE), "me").x
        assert torch.equal(read, torch.from_numpy(x.astype(np.uint8)))
    grey = user_images.to_predict(write_npz(tmp_path / "a.npz", x=x[:, 0]), SHAPE, "me").x
    assert torch.equal(grey, torch.from_numpy(x[:, :1].astype(np.uint8)))
    with pytest.warns(UserWarning, match="all pixels are 0 or 1 of 255, which is black"):
        user_images.to_predict(write_npz(tmp_path / "a.npz", x=(x > 9).astype(np.uint8)), (3, SIDE, SIDE), "me")


def test_classes_have_names(tmp_path: Path) -> None:
    x = np.full((3, *SHAPE), 7, dtype=np.uint8)
    path = write_npz(tmp_path / "a.npz", x=x, y=np.array(["dog", "", "cat"]), client=np.array(["b", "a", "b"]))
    labels = {name: y.tolist() for name, (_, y) in read(path, SHAPE, None, ("cat", "dog")).clients.items()}
    assert labels["b"] == [1, 0] and np.isnan(labels["a"]).all()
    with pytest.raises(DataError, match=r"client 'b': .*row 0: there is no class 'dog' \(did you mean 'dogs'"):
        read(path, SHAPE, None, ("cat", "dogs"))


def test_a_folder_of_files_is_read_as_the_run_sees_images(tmp_path: Path) -> None:
    write_image(tmp_path / "anna" / "a.png", size=(SIDE, SIDE))
    write_image(tmp_path / "bob" / "cat" / "b.png", size=(9, 14), mode="L")
    table = read(tmp_path, SHAPE, None, ("cat", "dog"), Look(SIDE, "grey"))
    assert {name: (tuple(x.shape), y.tolist()) for name, (x, y) in table.clients.items() if name == "bob"} == {
        "bob": ((1, *SHAPE), [0.0])
    }
    assert table.clients["anna"][1].isnan().all() and table.clients["anna"][0].abs().max() <= 1


@pytest.mark.parametrize(
    ("shape", "look", "said"),
    [
        (SHAPE, Look(), r"anna/a\.png: images of the run are 1 x 6 x 6 \(channels x height x width\), got 3 x 6 x 6"),
        (SHAPE, Look(6), r"anna/a\.png: .* 1 x 6 x 6 .*, got 3 x 6 x 6"),
        (SHAPE, Look(None, "grey"), r"bob/b\.png: .* 1 x 6 x 6 .*, got 1 x 9 x 14"),
        ((3, SIDE, SIDE), Look(), r"bob/b\.png: .* 3 x 6 x 6 .*, got 1 x 9 x 14"),
        ((3, SIDE, SIDE), Look(6), r"bob/b\.png: .* 3 x 6 x 6 .*, got 1 x 6 x 6"),
        ((1, 5, 5), Look(None, "grey"), r"anna/a\.png: .* 1 x 5 x 5 .*, got 1 x 6 x 6"),
    ],
)
def test_a_file_that_is_not_brought_to_the_run_s_shape_is_refused_by_name(
    tmp_path: Path, shape: tuple[int, ...], look: Look, said: str
) -> None:
    write_image(tmp_path / "anna" / "a.png", size=(SIDE, SIDE))
    write_image(tmp_path / "bob" / "b.png", size=(9, 14), mode="L")
    with pytest.raises(DataError, match=said + r" \(save it as those are"):
        read(tmp_path, shape, None, (), look)


def test_an_archive_of_images_is_known_from_one_of_data_gen(tmp_path: Path) -> None:
    assert user_images.holds_images(write_npz(tmp_path / "a.npz", x=ZEROS))
    assert not user_images.holds_images(write_npz(tmp_path / "b.npz", x=ZEROS, client_name=np.array(["a"])))
    (tmp_path / "c.npz").write_text("nothing")
    assert not user_images.holds_images(tmp_path / "c.npz") and not user_images.holds_images(tmp_path / "d.npz")


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_text("nothing")
    with pytest.raises(DataError, match=r"a\.npz is not an \.npz archive"):
        read(tmp_path / "a.npz", SHAPE)
    with pytest.raises(DataError, match="there is no file"):
        read(tmp_path / "b.npz", SHAPE)
