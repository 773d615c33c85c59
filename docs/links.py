"""Whether every link inside the built site leads to a page and to a place on it: `python -m docs.links build/docs`."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Page(HTMLParser):
    """Places and links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.places: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note where a tag leads to, and the name by which it is led to."""
        for name, value in attrs:
            if name == "id" or (name == "name" and tag == "a"):
                self.places.add(value or "")
            elif name in ("href", "src"):
                self.links.append(value or "")


def broken(site: Path) -> list[str]:
    """Find links that lead nowhere.

    Args:
        site: folder of the built pages.

    Returns:
        "PAGE: LINK" of each, sorted; links to other sites are not followed.
    """
    pages: dict[Path, _Page] = {}
    for file in sorted(site.resolve().rglob("*.html")):
        pages[file] = _Page()
        pages[file].feed(file.read_text(encoding="utf-8"))
    result = set()
    for file, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            place = unquote(parts.fragment)
            if not target.is_file() or (target in pages and place and place not in pages[target].places):
                result.add(f"{file.relative_to(site.resolve()).as_posix()}: {link}")
    return sorted(result)


if __name__ == "__main__":
    sys.exit("\n".join(["links that lead nowhere:", *found]) if (found := broken(Path(sys.argv[1]))) else 0)
