"""The command `plot`: figures from the folder of a run or comparison alone."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pacbayes_fl.cli.arguments import AddCommand, clients_option, names_in
from pacbayes_fl.cli.certify import tables
from pacbayes_fl.cli.output import say
from pacbayes_fl.names import apart
from pacbayes_fl.results import comparison
from pacbayes_fl.results.client_rows import GROUPS
from pacbayes_fl.results.records import Result, load


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "plot",
        "figures from the folder of a run or comparison alone",
        "pacbayes-fl plot runs/first --client poly_00,new_poly_01",
        "pacbayes-fl plot runs/first runs/second",
        "pacbayes-fl plot runs/first --style paper --width 3.25 --format pdf",
        "pacbayes-fl plot runs/three",
    )
    sub.add_argument(
        "run",
        type=Path,
        metavar="RUN",
        nargs="+",
        help="folders of finished runs or comparisons; of several also figures of all together, beside the first",
    )
    clients_option(sub, "who has predictive bands drawn (default: two of each group)")
    sub.add_argument(
        "--style",
        choices=("screen", "paper"),
        default="screen",
        help="paper: letters of 7 points, no heading (default: %(default)s)",
    )
    sub.add_argument("--width", type=float, metavar="INCHES", help="of every figure, such as 3.25 of a column")
    sub.add_argument(
        "--format", default="png,svg", metavar="A,B", help="file endings, such as pdf (default: %(default)s)"
    )


def act(options: argparse.Namespace) -> None:
    """Draw the figures and print their paths.

    Args:
        options: as parsed.
    """
    from pacbayes_fl import plots

    formats, look = names_in(options.format), plots.Look(options.style, options.width)
    result: list[Result] = []
    folders = _once(options.run)
    for folder in folders:
        if comparison.is_comparison(folder):
            runs: list[Result] = comparison.load(folder)
            written = plots.save_joint(runs, folder / "figures", formats, look)
        else:
            runs = [load(folder)]
            written = _plot_run(runs[0], folder, options)
        for path in written:
            say(str(path))
        result += runs
    if len(folders) > 1:
        for path in plots.save_joint(result, folders[0].parent / "figures", formats, look):
            say(str(path))


def _once(given: Sequence[Path]) -> list[Path]:
    """Leave out folders that are given again, in whatever words: they are no further seeds."""
    folders: dict[Path, Path] = {}
    for folder in given:
        if folder.resolve() in folders:
            say(f"warning: {folder} is given twice, and drawn once", file=sys.stderr)
        folders.setdefault(folder.resolve(), folder)
    return [*folders.values()]


def _plot_run(result: Result, folder: Path, options: argparse.Namespace) -> list[Path]:
    """Draw a run and its certificates, and remove figures of tables that are stale by now, or gone."""
    from pacbayes_fl import plots

    formats, look = names_in(options.format), plots.Look(options.style, options.width)
    clients = apart(options.client, {name for group in GROUPS for name in result.rows.names(group)})
    written = plots.save_all(result, folder / "figures", formats, clients or None, look)
    certified = tables(folder)
    current = {f"certificates-{table.stem}" for table in certified}
    for path in (folder / "figures").glob("certificates-*"):
        if path.stem not in current:
            path.unlink()
    return [*written, *plots.save_certificates(certified, folder / "figures", formats, look)]
