"""The page "papers to code": functions become links to the API."""

from __future__ import annotations

import re
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "papers.md"
_NAME = re.compile(r"`(pacbayes_fl(?:\.\w+)+)`")
_TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def pages() -> dict[str, str]:
    """Write the page.

    Returns:
        Markdown by path.
    """
    text = SOURCE.read_text(encoding="utf-8")
    return {"papers.md": _NAME.sub(lambda found: f"{{py:obj}}`{_last(found[1])} <{found[1]}>`", text)}


def named(text: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Take what the page names out of its text.

    Args:
        text: of the page.

    Returns:
        Dotted names of functions, and tests as (file, name), the name "" for a whole file.
    """
    return _NAME.findall(text), _TEST.findall(text)


def _last(dotted: str) -> str:
    """The name, with its class or module."""
    return ".".join(dotted.split(".")[-2:])
