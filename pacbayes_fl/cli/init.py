"""The command `init`: a first study of a user's table, with every option and its meaning."""

from __future__ import annotations

import argparse
from pathlib import Path

from pacbayes_fl.cli.arguments import AddCommand
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
    sub.add_argument("--client", metavar="COLUMN", help="names of clients (default: client, or a guess)")
    sub.add_argument("--target", metavar="COLUMN", help="what is predicted (default: y, or the last column of numbers)")
    sub.add_argument("--time", metavar="COLUMN", help="times of the rows (default: the first column of dates)")
    sub.add_argument("--out", type=Path, metavar="FILE", help="study to write, new (default: the data's name, .toml)")


def act(options: argparse.Namespace) -> None:
    """Write the study, and print the roles of the columns.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.init import look, write

    out = options.out or Path(f"{to_folder(options.data.stem)}.toml")
    columns = look(options.data, options.client, options.target, options.time)
    study, remarks = write(options.data, options.method, out, columns)
    task = "labels" if study.data.task == "classification" else "numbers"
    time = f", times {columns.time!r}" if columns.time is not None else ""
    features = f"features: {', '.join(columns.features)}" if columns.features else "all others are features"
    words = f"; words: {', '.join(columns.categorical)}" if columns.categorical else ""
    gaps = "; rows that lack a value are left out" if columns.gaps else ""
    say(f"clients: column {columns.client!r}; target {columns.target!r}, {task}{time}; {features}{words}{gaps}")
    for remark in remarks:
        say(remark)
    say(f"study: {out}")
