"""Image files of a user: one size and one number of channels for all, and an error that names the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from pacbayes_fl.data import memory
from pacbayes_fl.errors import DataError

if TYPE_CHECKING:  # imported where files are read
    from PIL.Image import Image
    from torch import Tensor

SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".tif", ".tiff", ".pgm", ".ppm")
"""How the names of image files end."""

Colour = Literal["grey", "rgb"]

_PER_PIXEL: Final = 5  # bytes: one as it is read, four as it is learned from
_ORIENTATION: Final = 0x0112  # of EXIF: 5 to 8 lie on their side
_MODES: Final = MappingProxyType(
    dict.fromkeys(("1", "L", "LA"), "grey") | dict.fromkeys(("P", "RGB", "RGBA", "CMYK", "YCbCr"), "rgb")
)


class Look(NamedTuple):
    """What all images are brought to.

    Args:
        size: side in pixels of the square that is cut from the middle of each image and resized; None takes them as
            they are, if they are of one size.
        colour: "grey" for one channel or "rgb" for three; None takes them as they are, if they are alike.
    """

    size: int | None = None
    colour: Colour | None = None


def read(paths: Sequence[Path], look: Look, shape: tuple[int, ...] | None = None) -> Tensor:
    """Read image files; photographs lying on their side by EXIF are turned, transparency is dropped.

    Args:
        paths: of the R files.
        look: what they are brought to.
        shape: (channels, H, W) that all have then; that of the first when None.

    Returns:
        Pixels [R, channels, H, W], uint8.

    Raises:
        DataError: naming a file that cannot be read, has more than 8 bits a channel, or another size or colour than all
            must have.
    """
    import numpy as np
    import torch
    from PIL import Image, ImageOps

    shapes = [_shape(path) for path in paths]
    if shape is not None:
        _require(paths, shapes, look, shape)
    sizes, colours = [shape[:2] for shape in shapes], [shape[2] for shape in shapes]
    if look.size is None and (odd := _other(sizes)) is not None:
        one, two = (f"{paths[i]} is {sizes[i][0]} x {sizes[i][1]} pixels" for i in (0, odd))
        raise DataError(f"images must be of one size: {one}, {two}", hint="data.options.size = 32 makes all 32 x 32")
    if look.colour is None and (odd := _other(colours)) is not None:
        what = f"images must be all grey or all coloured: {paths[0]} is {colours[0]}, {paths[odd]} is {colours[odd]}"
        raise DataError(what, hint="data.options.colour = 'grey' or 'rgb' makes them alike")
    height, width = sizes[0] if look.size is None else (look.size, look.size)
    mode = "L" if (look.colour or colours[0]) == "grey" else "RGB"
    channels = len(mode)
    what = f"{len(paths)} images of {channels} x {height} x {width}"
    memory.require(_PER_PIXEL * len(paths) * channels * height * width, what, "a smaller data.options.size", DataError)
    result = torch.empty(len(paths), channels, height, width, dtype=torch.uint8)
    for row, path in enumerate(paths):
        with _opened(path) as image:
            upright = ImageOps.exif_transpose(image).convert(mode)
            if upright.size != (width, height):
                upright = _middle(upright).resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.array(upright, dtype=np.uint8).reshape(height, width, channels)
        result[row] = torch.from_numpy(pixels).permute(2, 0, 1)
    return result


def misfit(where: str, wanted: Sequence[int], got: Sequence[int]) -> DataError:
    """Say that images are of another shape than a run's.

    Args:
        where: the file.
        wanted: channels, height and width of the run's images.
        got: of these.

    Returns:
        The error.
    """
    run, own = (" x ".join(map(str, shape)) for shape in (wanted, got))
    what = f"{where}: images of the run are {run} (channels x height x width), got {own}"
    hint = "save it as those are; a run trained on files with data.options.size and colour brings others to these"
    return DataError(what, hint=hint)


def _require(
    paths: Sequence[Path], shapes: Sequence[tuple[int, int, str]], look: Look, wanted: tuple[int, ...]
) -> None:
    """Refuse files of another shape, as far as they are not brought to it."""
    for path, (height, width, colour) in zip(paths, shapes, strict=True):
        channels = (1 if colour == "grey" else 3) if look.colour is None else wanted[0]
        got = (channels, *((height, width) if look.size is None else wanted[1:]))
        if got != wanted:
            raise misfit(str(path), wanted, got)


def _shape(path: Path) -> tuple[int, int, str]:
    """Height, width and colour of a file, from its head alone."""
    with _opened(path) as image:
        width, height = image.size
        if image.getexif().get(_ORIENTATION, 1) > 4:
            width, height = height, width
        if image.mode not in _MODES:
            what = f"{path} holds pixels of the kind {image.mode}, not of 8 bits a channel"
            raise DataError(what, hint="save it as a grey or RGB image of 8 bits")
        return height, width, _MODES[image.mode]


def _middle(image: Image) -> Image:
    """Cut the largest square out of the middle."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return image.crop((left, top, left + side, top + side))


@contextmanager
def _opened(path: Path) -> Iterator[Image]:
    from PIL import Image

    try:
        with Image.open(path) as image:
            yield image
    except DataError:
        raise
    except Exception as error:  # whatever Pillow meets in a damaged file
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path} cannot be read as an image: {text}", hint="is it damaged, or no image?") from error


def _other(values: Sequence[object]) -> int | None:
    """Position of the first value that is not the first one."""
    return next((i for i, value in enumerate(values) if value != values[0]), None)
