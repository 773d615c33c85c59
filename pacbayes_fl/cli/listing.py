"""The command `list`: the names that a study can use."""

from __future__ import annotations

import argparse
import json
from functools import partial
from itertools import zip_longest
from textwrap import wrap
from typing import Final

from pacbayes_fl.cli.arguments import AddCommand, json_option
from pacbayes_fl.cli.layout import room
from pacbayes_fl.cli.output import say

LISTED: Final = (
    *("methods", "models", "families", "data", "partitions", "studies", "bounds", "losses", "metrics"),
    *("recorded", "mechanisms", "aggregations"),
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
    json_option(sub, "lines", "name", "text")


def act(options: argparse.Namespace) -> None:
    """Print names, with a line on each.

    Args:
        options: as parsed.
    """
    if options.what == "bounds":
        from pacbayes_fl.certificates.from_numbers import listing
    elif options.what == "losses":
        from pacbayes_fl.certificates.request import listing
    else:
        from pacbayes_fl.study.config import listing as of_studies

        listing = partial(of_studies.listing, options.what)
    known = listing()
    if options.json:
        print(json.dumps([{"name": name, "text": text} for name, text in known], indent=1))
        return
    columns, wide = room(), max([20, *(len(name) for name, _ in known)])
    for name, text in known:
        lines = [text] if columns is None else wrap(text, max(columns - wide - 1, 20)) or [""]
        for title, line in zip_longest([name], lines, fillvalue=""):
            say(f"{title:{wide}} {line}")
