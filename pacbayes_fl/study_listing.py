"""What can be named in a study; nothing is imported here that computes."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

from pacbayes_fl.methods.titles import TITLES

BUNDLED = Path(__file__).parent / "studies"


def listing(what: str) -> list[tuple[str, str]]:
    """List what can be named in a study.

    Args:
        what: "methods", "data", "studies" or "bounds".

    Returns:
        Names, each with a line on what it is.
    """
    if what == "methods":
        return list(TITLES.items())
    if what == "data":
        return [
            ("polynomial", "two modes of polynomials (PAC-PFL 8.5.2)"),
            ("pv-ew", "PV generation of houses facing east or west (8.5.1)"),
            ("pv-s", "PV generation of houses facing south (8.5.1)"),
            ("mnist", "handwritten digits, 28 x 28, 10 classes; shared out by labels or Dirichlet shares"),
            ("fashion-mnist", "articles of clothing, 28 x 28, 10 classes"),
            ("cifar10", "colour photographs, 32 x 32, 10 classes"),
            ("femnist", "handwritten characters by writer (LEAF), 28 x 28, 62 classes or the 10 digits"),
            ("NAME-inverted", "the same images in negative, a second domain; also NAME-rotated, by 180 degrees"),
            ("FILE.npz", "what data_gen wrote"),
            (
                "FILE.csv",
                "your own rows: a client column, the target y, features; optional columns split, group and data.time",
            ),
            ("FILE.parquet", "the same; with task = 'classification' in [data] the targets are labels 0, 1, 2, ..."),
        ]
    if what == "studies":
        return [(file.stem, _comment(file)) for file in sorted(BUNDLED.glob("*.toml"), key=lambda file: file.stem)]
    from pacbayes_fl import study_bound

    return study_bound.listing()


def _comment(file: Path) -> str:
    lines = takewhile(lambda line: line.startswith("#"), file.read_text(encoding="utf-8").splitlines())
    return " ".join(line.removeprefix("#").strip() for line in lines)
