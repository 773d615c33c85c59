"""What can be named in a study; nothing is imported here that computes."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

from pacbayes_fl.methods.titles import TITLES
from pacbayes_fl.metrics import recorded, table

BUNDLED = Path(__file__).parent / "studies"


def listing(what: str) -> list[tuple[str, str]]:
    """List what can be named in a study.

    Args:
        what: "methods", "data", "studies", "bounds", "metrics" or "recorded", what runs record beside metrics.

    Returns:
        Names, each with a line on what it is.
    """
    if what == "methods":
        return list(TITLES.items())
    if what == "data":
        from pacbayes_fl import study_sources

        return study_sources.listing()
    if what == "metrics":
        return table.listing()
    if what == "recorded":
        return recorded.listing()
    if what == "studies":
        return [(file.stem, _comment(file)) for file in sorted(BUNDLED.glob("*.toml"), key=lambda file: file.stem)]
    from pacbayes_fl import study_bound

    return study_bound.listing()


def _comment(file: Path) -> str:
    lines = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)
