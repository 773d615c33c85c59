"""What can be named in a study; nothing is imported here that computes."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

from pacbayes_fl.methods import METHODS
from pacbayes_fl.results import metrics, recorded
from pacbayes_fl.study import plugins

BUNDLED = Path(__file__).parent / "bundled"


def listing(what: str) -> list[tuple[str, str]]:
    """List what can be named in a study.

    Args:
        what: "methods", "data", "studies", "metrics" or "recorded", what runs record beside metrics.

    Returns:
        Names, each with a line on what it is.
    """
    if what == "methods":
        return [*METHODS.titles().items(), *plugins.METHODS.listing()]
    if what == "data":
        from pacbayes_fl.study import sources

        return sources.listing()
    if what == "metrics":
        return [*metrics.listing(), *plugins.METRICS.listing()]
    if what == "recorded":
        return recorded.listing()
    return [(file.stem, _comment(file)) for file in sorted(BUNDLED.glob("*.toml"), key=lambda file: file.stem)]


def _comment(file: Path) -> str:
    lines = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)
