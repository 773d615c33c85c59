"""The command `plot`: figures from the folder of a run or comparison alone."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from pacbayes_fl.cli.arguments import AddCommand, names_in
from pacbayes_fl.cli.certify import tables
from pacbayes_fl.cli.output import say
from pacbayes_fl.results import comparison
from pacbayes_fl.results.records import Result, load


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "plot",
        "figures from the folder of a run or comparison alone",
        "pacbayes-fl plot runs/first --clients poly_00,new_poly_01",
        "pacbayes-fl plot runs/first runs/second",
        "pacbayes-fl plot runs/three",
    )
    sub.add_argument(
        "run",
        type=Path,
        metavar="RUN",
        nargs="+",
        help="folders of finished runs or comparisons; of several also figures of all together, beside the first",
    )
    sub.add_argument(
        "--clients", default="", metavar="A,B", help="clients of the predictive bands (default: two of each group)"
    )


def act(options: argparse.Namespace) -> None:
    """Draw the figures and print their paths.

    Args:
        options: as parsed.
    """
    from pacbayes_fl import plots

    result: list[Result] = []
    for folder in options.run:
        if comparison.is_comparison(folder):
            runs: list[Result] = comparison.load(folder)
            written = plots.save_joint(runs, folder / "figures")
        else:
            runs = [load(folder)]
            written = _plot_run(runs[0], folder, names_in(options.clients) or None)
        for path in written:
            say(str(path))
        result += runs
    if len(options.run) > 1:
        for path in plots.save_joint(result, options.run[0].parent / "figures"):
            say(str(path))


def _plot_run(result: Result, folder: Path, clients: Sequence[str] | None) -> list[Path]:
    """Draw a run and its certificates, and remove figures of tables that are stale by now, or gone."""
    from pacbayes_fl import plots

    written = plots.save_all(result, folder / "figures", clients=clients)
    certified = tables(folder)
    current = {f"certificates-{table.stem}" for table in certified}
    for path in (folder / "figures").glob("certificates-*"):
        if path.stem not in current:
            path.unlink()
    return [*written, *plots.save_certificates(certified, folder / "figures")]
