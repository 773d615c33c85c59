"""Images that a user brings, by client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pacbayes_fl.data import user_images
from pacbayes_fl.errors import DataError
from tests.tiny_images import SIDE

SHAPE = (1, SIDE, SIDE)


def write_npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_images_are_read_by_client(tmp_path: Path) -> None:
    x = np.arange(4 * SIDE**2, dtype=np.uint8).reshape(4, *SHAPE)
    path = write_npz(tmp_path / "a.npz", x=x, y=np.array([3, -1, 0, 1]), client=np.array(["b", "a", "b", "a"]))
    table = user_images.read(path, SHAPE)
    assert list(table.clients) == ["b", "a"] and table.features == ("image",)
    got, y = table.clients["a"]
    torch.testing.assert_close(got, torch.from_numpy(x[[1, 3]].astype(np.float32)) / 127.5 - 1)
    assert y.isnan().tolist() == [True, False] and y[1] == 1
    floats = write_npz(tmp_path / "b.npz", x=x.astype(np.float64) / 7)
    got, y = user_images.read(floats, SHAPE, "me").clients["me"]
    torch.testing.assert_close(got, torch.from_numpy(x.astype(np.float32) / 7))
    assert y.isnan().all()
    numbers = write_npz(tmp_path / "c.npz", x=x, client=np.array([7, 7, 8, 7]))
    assert {name: len(rows[1]) for name, rows in user_images.read(numbers, SHAPE).clients.items()} == {"7": 3, "8": 1}


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"y": np.zeros(2)}, "has no array 'x'"),
        ({"x": np.zeros((2, *SHAPE))}, r"has no array 'client' \(it needs x \[R, channels, H, W\]"),
        ({"x": np.zeros((2, SIDE, SIDE)), "client": np.zeros(2)}, r"must be \[R, 1, 6, 6\], \[R\] and \[R\], got \[2,"),
        ({"x": np.zeros((2, *SHAPE)), "y": np.zeros(3), "client": np.zeros(2)}, r"got .*\[3\] and \[2\]"),
        ({"x": np.zeros((0, *SHAPE)), "client": np.zeros(0)}, r"\[R\], got \[0, 1, 6, 6\]"),
        ({"x": np.full((2, *SHAPE), "a"), "client": np.zeros(2)}, "x and y must hold numbers, got <U1"),
    ],
)
def test_images_that_cannot_be_used_are_refused(tmp_path: Path, arrays: dict[str, Any], text: str) -> None:
    with pytest.raises(DataError, match=text):
        user_images.read(write_npz(tmp_path / "a.npz", **arrays), SHAPE)


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_text("nothing")
    with pytest.raises(DataError, match=r"a\.npz is not an \.npz archive"):
        user_images.read(tmp_path / "a.npz", SHAPE)
    with pytest.raises(DataError, match="there is no file"):
        user_images.read(tmp_path / "b.npz", SHAPE)
