"""The command `release`: the releasable part of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from pacbayes_fl.cli.arguments import AddCommand
from pacbayes_fl.cli.output import say


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "release",
        "write what may leave a run: the server's model and what joining clients need, nothing of a client",
        "pacbayes-fl release runs/private --out released",
    )
    sub.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the release: a new or empty one")
    sub.add_argument(
        "--public-scaling",
        action="store_true",
        help="say that means and deviations over all clients' rows, by which columns are scaled, are public",
    )


def act(options: argparse.Namespace) -> None:
    """Write the release.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.serving.release import release

    text = release(options.run, options.out, options.public_scaling)
    say(f"release: {text}")
    say(f"folder: {options.out}")
