"""The command `list`: the names that a study can use."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Final

from pacbayes_fl.cli.arguments import AddCommand
from pacbayes_fl.cli.output import say

LISTED: Final = (
    *("methods", "models", "families", "data", "partitions", "studies", "bounds", "metrics"),
    *("recorded", "mechanisms"),
)
"""What `list` lists."""


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command("list", "what can be named in a study", "pacbayes-fl list methods")
    sub.add_argument(
        "what", choices=LISTED, metavar="WHAT", help=f"which names, with a line on each: {', '.join(LISTED)}"
    )


def act(options: argparse.Namespace) -> None:
    """Print names, with a line on each.

    Args:
        options: as parsed.
    """
    if options.what == "bounds":
        from pacbayes_fl.certificates.from_numbers import listing
    else:
        from pacbayes_fl.study import listing as of_studies

        listing = partial(of_studies.listing, options.what)
    for name, text in listing():
        say(f"{name:20} {text}")
