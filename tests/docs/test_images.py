"""Pages keep the room of their images: width and height are those of the file."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from docs.images import with_sizes


def test_images_have_the_size_of_their_files(tmp_path: Path) -> None:
    Image.new("RGB", (30, 20)).save(tmp_path / "a.png")
    (tmp_path / "b.svg").write_text("<svg></svg>", "utf-8")
    files = {"a.png": tmp_path / "a.png", "b.svg": tmp_path / "b.svg"}
    page = '<p>src="a.png"</p><img alt="x" src="../_images/a.png" /><img src="_images/b.svg" /><img src="other.png" />'
    sized = page.replace("<img alt", '<img width="30" height="20" alt')
    assert with_sizes(page, files) == sized
    assert with_sizes(sized, files) == sized
