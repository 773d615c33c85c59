"""Sizes of images: a page that knows them keeps their room, so that nothing moves when they come."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_IMAGE = re.compile(r'<img(?=[^>]*\bsrc="(?P<source>[^"]+)")(?![^>]*\bwidth=)')


def with_sizes(html: str, files: Mapping[str, Path]) -> str:
    """Give every image the width and the height of its file, in pixels.

    Args:
        html: of a page.
        files: of images, by the last part of the address at which pages have them.

    Returns:
        The page; images whose file is not known, or is none with a size, and those with a width stay as they are.
    """
    from PIL import Image, UnidentifiedImageError

    def sized(match: re.Match[str]) -> str:
        path = files.get(match["source"].rpartition("/")[2])
        if path is None:
            return match[0]
        try:
            with Image.open(path) as image:
                width, height = image.size
        except UnidentifiedImageError:  # drawings in SVG
            return match[0]
        return f'{match[0]} width="{width}" height="{height}"'

    return _IMAGE.sub(sized, html)
