"""The command `update`: clients of a run learn from rows that came after its training."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pacbayes_fl.cli.arguments import AddCommand, clients_option, json_option
from pacbayes_fl.cli.layout import fitted, room
from pacbayes_fl.cli.output import say, say_unfinished


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "update",
        "clients learn from rows that came after the training, and all later predictions use them",
        "pacbayes-fl update runs/first --data december.csv",
        "pacbayes-fl update runs/first --data house_05.csv --client house_05 --json",
    )
    sub.add_argument("run", type=Path, metavar="RUN", help="folder of a run; scores and certificates stay as they are")
    sub.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="FILE",
        help="CSV or Parquet with the client column, the run's features and the target; rows that are known are "
        "counted and left out; images: .npz",
    )
    clients_option(sub, "whose rows to take (default: all)")
    json_option(sub, "the table", "update", "clients")


def act(options: argparse.Namespace) -> None:
    """Update the run, and print what the table held.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.run import open_run
    from pacbayes_fl.study.serving.arrivals import named
    from pacbayes_fl.study.serving.updates import update

    trained = open_run(options.run)
    say_unfinished(trained)
    result = update(trained, options.data, named(trained, options.client))
    counts = {name: one._asdict() for name, one in result.found.items()}
    if options.json:
        print(json.dumps({"update": result.number, "clients": counts}))
        return
    head = ["client", "new", "repeats", "near-twins"]
    lines = [[name, *(str(number) for number in one.values())] for name, one in counts.items()]
    for line in fitted([head, *lines], (0,), room(), right=(1, 2, 3)):
        say(line)
    if result.number is None:
        say("no row is new: nothing has changed")
        return
    new = sum(one.new for one in result.found.values())
    what = "the run's scores and certificates have none of them (certify --later counts them)"
    say(f"update {result.number}: predictions use {new} more rows; {what}")
