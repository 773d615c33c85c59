"""The command `predict`: predictions for a client of the run."""

from __future__ import annotations

import argparse
from pathlib import Path

from pacbayes_fl.cli.arguments import AddCommand
from pacbayes_fl.cli.output import print_predictions


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "predict",
        "predictions for a client of the run: mean and intervals in the data's own units, or labels",
        "pacbayes-fl predict runs/first --client poly_00 --data ask.csv",
        "pacbayes-fl predict runs/first --client poly_00 --data ask.csv --later since.csv --json",
    )
    sub.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    sub.add_argument("--client", required=True, metavar="NAME", help="a client of the run, as clients.csv names it")
    sub.add_argument(
        "--data", type=Path, required=True, metavar="FILE", help="CSV or Parquet with the run's features; images: .npz"
    )
    sub.add_argument(
        "--later",
        type=Path,
        metavar="FILE",
        help="rows with targets that came after the training; what the client has learned from counts once",
    )
    sub.add_argument("--json", action="store_true", help="print JSON by client instead of CSV")


def act(options: argparse.Namespace) -> None:
    """Print the predictions for the rows of a file.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.predict import predict
    from pacbayes_fl.study.run import open_run

    trained = open_run(options.run)
    result = predict(trained, options.client, options.data, options.later)
    print_predictions([result], options.json, trained.state.round)
