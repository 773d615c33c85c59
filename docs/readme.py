"""The table of methods of the README: `python -m docs.readme` writes it, and a test holds it to the records."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from docs.pages import methods

README: Final = Path(__file__).parents[1] / "README.md"
_TABLE: Final = re.compile(r"(<!-- python -m docs\.readme [^\n]*-->\n\n)(?:\|.*\n)+")


def with_table(text: str) -> str:
    """Put the table of methods into a README.

    Args:
        text: of the README.

    Returns:
        The text with the table of the records.
    """
    return _TABLE.sub(lambda found: f"{found[1]}{methods.short_table()}\n", text)


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
