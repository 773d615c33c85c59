"""Small image files in folders, as a user has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

SIDE = 8


def write_image(path: Path, row: int = 0, size: tuple[int, int] = (SIDE, SIDE), mode: str = "RGB") -> Path:
    """Write an image [H, W] whose pixels are random and its own, and return its path."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng([row, *str(path).encode()]).integers(0, 256, (*size, 3)).astype(np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


def write_clients(
    root: Path, clients: Sequence[str] = ("anna", "bob"), classes: Sequence[str] = ("cat", "dog"), rows: int = 4
) -> Path:
    """Write CLIENT/CLASS/*.png, so many of each, and return their folder."""
    for client in clients:
        for name in classes:
            for row in range(rows):
                write_image(root / client / name / f"{row}.png")
    return root
