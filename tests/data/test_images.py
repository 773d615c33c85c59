"""Images with labels: fingerprints, changes and scales of pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pacbayes_fl.data import image_sets, images, torchvision_ops
from pacbayes_fl.errors import DataError
from tests.data.small_images import TRAIN, small, write_idx


def test_the_fingerprint_is_of_pixels_and_labels(root: Path, tmp_path: Path) -> None:
    again, other = image_sets.read("mnist", str(root)), image_sets.read("fashion-mnist", str(root))
    assert image_sets.read("mnist", str(root)).sha256 == again.sha256 != other.sha256
    x, y = small(0)
    y[0], y[1] = y[1], (y[1] + 1) % 10
    write_idx(tmp_path / "MNIST" / "raw", "train", x[:TRAIN], y[:TRAIN])
    write_idx(tmp_path / "MNIST" / "raw", "t10k", x[TRAIN:], y[TRAIN:])
    assert image_sets.read("mnist", str(tmp_path)).sha256 != again.sha256


def test_changes_of_images(root: Path) -> None:
    x = image_sets.read("mnist", str(root)).x
    inverted, rotated = images.turned(x, "inverted"), images.turned(x, "rotated")
    np.testing.assert_array_equal(inverted.numpy(), 255 - x.numpy())
    np.testing.assert_array_equal(rotated.numpy(), np.rot90(x.numpy(), 2, axes=(2, 3)))
    assert inverted.dtype == rotated.dtype == torch.uint8
    assert torch.equal(images.turned(inverted, "inverted"), x) and torch.equal(images.turned(rotated, "rotated"), x)
    assert images.turned(x, None) is x
    with pytest.raises(DataError, match=r"no change 'invert' of images.*did you mean 'inverted'"):
        images.turned(x, "invert")


def test_pixels_are_scaled_as_torchvision_does() -> None:
    assert torchvision_ops.ensure_importable() != "absent"
    from torchvision.transforms import v2

    x = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16)
    theirs = v2.Normalize([0.5], [0.5])(v2.ToDtype(torch.float32, scale=True)(x))
    mine = images.to_floats(x)
    assert mine.dtype == torch.float32 and torch.allclose(mine, theirs, atol=1e-6)
    assert mine.min() == -1 and mine.max() == 1
