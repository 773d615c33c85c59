"""The command `score`: how a run's predictions fare on rows that came after it."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pacbayes_fl.cli.arguments import AddCommand, clients_option, json_option
from pacbayes_fl.cli.output import print_table, say, say_unfinished
from pacbayes_fl.errors import counted


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "score",
        "the run's metrics on rows with targets that its clients have not learned from",
        "pacbayes-fl score runs/first --data truth.csv",
        "pacbayes-fl score runs/first --data truth.csv --client house_05 --out scores.csv",
    )
    sub.add_argument("run", type=Path, metavar="RUN", help="folder of a run, with its updates")
    sub.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="FILE",
        help="CSV or Parquet with the client column, the run's features and the target; images: .npz",
    )
    clients_option(sub, "whose rows to score (default: all)")
    sub.add_argument("--out", type=Path, metavar="FILE", help="also write .csv, a line per client, or .json")
    json_option(sub, "the table", "study", "method", "groups", "rows", "left_out", "clients")


def act(options: argparse.Namespace) -> None:
    """Score the run, and print the table.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.run import open_run
    from pacbayes_fl.study.serving.arrivals import named
    from pacbayes_fl.study.serving.out_file import check_apart
    from pacbayes_fl.study.serving.score import check_out, score

    if options.out is not None:
        check_out(options.out)
        check_apart(options.out, options.run, options.data)
    trained = open_run(options.run)
    say_unfinished(trained)
    result = score(trained, options.data, named(trained, options.client))
    if options.json:
        print(json.dumps(result.to_json()))
    else:
        print_table(result.result)
        say(f"scored: {counted(sum(result.rows.values()), 'row')} of {counted(len(result.rows), 'client')}")
    if options.out is not None:
        result.save(options.out)
        say(f"{options.out}: scores of {counted(len(result.rows), 'client')}", file=sys.stderr)
