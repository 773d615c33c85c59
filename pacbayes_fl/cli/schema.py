"""The command `schema`: the JSON Schema of a study file, for editors."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pacbayes_fl.cli.arguments import AddCommand
from pacbayes_fl.results.folder import write_atomic


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "schema",
        "the JSON Schema of a study, for completions and checks in editors",
        "pacbayes-fl schema --out study.schema.json",
    )
    sub.add_argument("--out", type=Path, metavar="FILE", help="file to write, anew each time (default: it is printed)")


def act(options: argparse.Namespace) -> None:
    """Print the schema, or write it to a file.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.config.schema import schema

    text = json.dumps(schema(), indent=1) + "\n"
    if options.out is None:
        print(text, end="")
    else:
        write_atomic(options.out, text.encode())
