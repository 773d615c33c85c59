"""Image files of a user: brought to one size and colour, or refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from pacbayes_fl.data import image_files, memory
from pacbayes_fl.data.image_files import Look
from pacbayes_fl.errors import DataError
from tests.data.small_photos import write_image


def test_pixels_are_those_of_the_file(tmp_path: Path) -> None:
    colour, grey = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3), np.arange(20, dtype=np.uint8).reshape(4, 5)
    Image.fromarray(colour).save(tmp_path / "colour.png")
    Image.fromarray(grey).save(tmp_path / "grey.png")
    read = image_files.read([tmp_path / "colour.png"], Look())
    assert read.dtype == torch.uint8 and torch.equal(read, torch.from_numpy(colour).permute(2, 0, 1)[None])
    assert torch.equal(image_files.read([tmp_path / "grey.png"], Look()), torch.from_numpy(grey)[None, None])
    both = image_files.read([tmp_path / "colour.png", tmp_path / "grey.png"], Look(colour="rgb"))
    assert both.shape == (2, 3, 4, 5) and torch.equal(both[1], torch.from_numpy(grey).expand(3, -1, -1))
    one = image_files.read([tmp_path / "colour.png"], Look(colour="grey"))
    luma = colour @ np.array([299, 587, 114]) / 1000  # ITU-R 601
    assert one.shape == (1, 1, 4, 5) and np.abs(one[0, 0].numpy() - luma).max() <= 1


def test_a_size_cuts_the_middle_out(tmp_path: Path) -> None:
    wide = np.zeros((4, 8), dtype=np.uint8)
    wide[:, 2:6], wide[:, 6:] = 200, 90
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert bool((image_files.read([tmp_path / "wide.png"], Look(4)) == 200).all())
    assert bool((image_files.read([tmp_path / "wide.png"], Look(2)) == 200).all())
    two = [write_image(tmp_path / "a.png", size=(9, 12)), write_image(tmp_path / "b.png", size=(30, 7))]
    assert image_files.read(two, Look(6)).shape == (2, 3, 6, 6)
    with pytest.raises(DataError, match=r"one size: .*a\.png is 9 x 12 pixels, .*b\.png is 30 x 7 pixels \(data.opt"):
        image_files.read(two, Look())


def test_a_photograph_on_its_side_is_turned(tmp_path: Path) -> None:
    upright = np.arange(6, dtype=np.uint8).reshape(2, 3) * 40
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by a quarter, clockwise
    Image.fromarray(np.rot90(upright)).save(tmp_path / "side.png", exif=exif)
    Image.fromarray(upright).save(tmp_path / "upright.png")
    read = image_files.read([tmp_path / "side.png", tmp_path / "upright.png"], Look())
    assert torch.equal(read[0], torch.from_numpy(upright)[None]) and torch.equal(read[0], read[1])


def test_files_that_cannot_be_used_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, cut = write_image(tmp_path / "good.png"), write_image(tmp_path / "cut.png")
    cut.write_bytes(cut.read_bytes()[:60])
    (tmp_path / "text.png").write_text("no image")
    for name in ("cut.png", "text.png", "none.png"):
        with pytest.raises(DataError, match=rf"{name} cannot be read as an image: .*\(is it damaged"):
            image_files.read([good, tmp_path / name], Look())
    Image.fromarray(np.full((8, 8), 7000, dtype=np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(DataError, match=r"deep\.png holds pixels of the kind I.*, not of 8 bits a channel"):
        image_files.read([good, tmp_path / "deep.png"], Look())
    grey = write_image(tmp_path / "grey.png", mode="L")
    with pytest.raises(DataError, match=r"good\.png is rgb, .*grey\.png is grey \(data\.options\.colour = 'grey' or"):
        image_files.read([good, grey], Look())
    monkeypatch.setattr(memory, "available", lambda: 1000)
    with pytest.raises(DataError, match=r"1 images of 3 x 8 x 8 takes .*\(a smaller data\.options\.size\)"):
        image_files.read([good], Look())
