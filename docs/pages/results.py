"""The measured tables: whole files as pages, and for each method the rows that stand beside a paper's number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


class Table(NamedTuple):
    """A table of results.

    Args:
        file: that has it.
        heading: above it.
        head: names of the columns.
        rows: cells.
    """

    file: str
    heading: str
    head: list[str]
    rows: list[list[str]]


def pages() -> dict[str, str]:
    """Write a page for each file of results.

    Returns:
        Markdown by path.
    """
    files = sorted(BENCHMARKS.glob("RESULTS*.md"))
    result = {f"measured/{file.stem.lower()}.md": file.read_text(encoding="utf-8") for file in files}
    listed = "\n".join(Path(name).stem for name in result)
    said = "What this repository has measured, with seeds and spread, also where it is bad."
    head = f'# Measured\n\n{said} The columns "paper" are the only numbers from elsewhere.'
    return result | {"measured/index.md": f"{head}\n\n```{{toctree}}\n:maxdepth: 2\n\n{listed}\n```\n"}


def tables() -> list[Table]:
    """Read all tables of all files.

    Returns:
        The tables, in their order.
    """
    result = []
    for file in sorted(BENCHMARKS.glob("RESULTS*.md")):
        heading = ""
        block: list[str] = []
        for line in [*file.read_text(encoding="utf-8").splitlines(), ""]:
            if line.startswith("|"):
                block.append(line)
                continue
            if len(block) > 2:
                head, _, *rows = [[cell.strip() for cell in one.strip().strip("|").split("|")] for one in block]
                result.append(Table(file.stem, heading, head, rows))
            block = []
            if line.startswith("#"):
                heading = line.lstrip("# ")
    return result


def of_method(name: str) -> str:
    """Write the rows of a method that stand beside numbers of a paper.

    Args:
        name: of the method.

    Returns:
        Markdown; "" where there are none.
    """
    parts = []
    for table in tables():
        papers = [i for i, column in enumerate(table.head) if column.startswith("paper")]
        if table.head[0] != "method" or not papers:
            continue
        rows = [row for row in table.rows if re.fullmatch(rf"\**{re.escape(name)}\**(,.*| \(.*)?", row[0])]
        rows = [row for row in rows if len(row) == len(table.head)]
        said = [i for i in papers if any(row[i].strip("- ") for row in rows)]
        if said:
            keep = sorted({0, *(1 for _ in "x" if table.head[1] == "clients"), *said, *(i - 1 for i in said)})
            lines = ["| " + " | ".join(table.head[i] for i in keep) + " |", "|---" * len(keep) + "|"]
            lines += ["| " + " | ".join(row[i] for i in keep) + " |" for row in rows]
            parts.append(
                f"**{table.heading}** ([all methods](../measured/{table.file.lower()}.md)):\n\n" + "\n".join(lines)
            )
    return "\n\n".join(parts)
