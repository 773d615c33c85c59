"""Our numbers beside the paper's: `python -m benchmarks.tables FOLDER ...`, folders of `pacbayes-fl compare --out`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).parent / "reference"
METRICS = ("rsmse", "ce")


def published(reference: Mapping[str, Any], study: str, method: str, group: str) -> tuple[float, float] | None:
    """Look a row of a paper's table up.

    Args:
        reference: a file of `reference/`.
        study: name of our study; a suffix such as "-bern", which says where the weather is from, is not the paper's.
        method: its name.
        group: "existing" or "new".

    Returns:
        RSMSE and CE, or None where the paper has no such cell.
    """
    cells = reference["rows"].get(method, {}).get(group, {})
    found = next((cells[name] for name in sorted(cells, key=len, reverse=True) if study.startswith(name)), None)
    return None if found is None else (found[0], found[1])


def markdown(summary: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """Write one study's table.

    Args:
        summary: `compare.json`.
        reference: a file of `reference/`.

    Returns:
        Markdown: a row per method and group, our mean with its 95 % interval, and the paper's.
    """
    cells = {(cell["method"], cell["group"], cell["metric"]): cell for cell in summary["cells"]}
    lines = [
        f"### {summary['study']}, {max(cell['seeds'] for cell in cells.values())} seeds",
        "",
        "| method | clients | RSMSE [95 %] | paper | CE [95 %] | paper | NLPD | CRPS |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for method, group in dict.fromkeys((method, group) for method, group, _ in cells):
        theirs = published(reference, summary["study"], method, group)
        row = [method, group]
        for position, metric in enumerate(METRICS):
            cell = cells.get((method, group, metric))
            row.append("-" if cell is None else f"{cell['mean']:.3f} [{cell['low']:.3f}, {cell['high']:.3f}]")
            row.append("-" if theirs is None else f"{theirs[position]:.2f}")
        for metric in ("nlpd", "crps"):
            cell = cells.get((method, group, metric))
            row.append("-" if cell is None else f"{cell['mean']:.3f}")
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables of some comparisons.

    Args:
        arguments: of the command line; `sys.argv` when None.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="+", type=Path)
    parser.add_argument("--reference", type=Path, default=REFERENCE / "pac_pfl_table6.json")
    options = parser.parse_args(arguments)
    reference = json.loads(options.reference.read_text(encoding="utf-8"))
    for folder in options.folder:
        print(markdown(json.loads((folder / "compare.json").read_text(encoding="utf-8")), reference))


if __name__ == "__main__":
    main()
