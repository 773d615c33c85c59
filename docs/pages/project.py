"""Pages of what stands elsewhere in the project: the changelog, security, and faults with their tests."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
_FILES = {
    "changelog.md": "CHANGELOG.md",
    "security.md": "SECURITY.md",
    "faults.md": "tests/faults/README.md",
    "contributing.md": "CONTRIBUTING.md",
}


def pages() -> dict[str, str]:
    """Copy the pages.

    Returns:
        Markdown by path.
    """
    return {page: (ROOT / file).read_text(encoding="utf-8") for page, file in _FILES.items()}
