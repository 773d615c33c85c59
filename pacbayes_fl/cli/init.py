"""The command `init`: a first study of a user's table, with every option and its meaning."""

from __future__ import annotations

import argparse
from pathlib import Path

from pacbayes_fl.cli.arguments import AddCommand, columns_options
from pacbayes_fl.cli.output import say
from pacbayes_fl.names import to_folder


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "init",
        "write a commented study of your own table: every option with its meaning and default",
        "pacbayes-fl init --data houses.csv --method pac-pfl",
        "pacbayes-fl init --data readings.csv --client station --target power --out power.toml",
        "pacbayes-fl run houses.toml",
    )
    sub.add_argument("--data", type=Path, required=True, metavar="FILE", help="table to look at, CSV or Parquet")
    sub.add_argument("--method", default="pac-pfl", metavar="NAME", help="see `list methods` (default: %(default)s)")
    columns_options(sub)
    sub.add_argument("--out", type=Path, metavar="FILE", help="study to write, new (default: the data's name, .toml)")


def act(options: argparse.Namespace) -> None:
    """Write the study, and print the roles of the columns.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.drafting.init import look, roles, write

    out = options.out or Path(f"{to_folder(options.data.stem)}.toml")
    columns = look(options.data, options.client, options.target, options.time)
    study, remarks = write(options.data, options.method, out, columns)
    say(roles(study))
    for remark in remarks:
        say(remark)
    say(f"study: {out}")
