"""The command `join`: a client that never trained personalises and predicts."""

from __future__ import annotations

import argparse
from pathlib import Path

from pacbayes_fl.cli.arguments import AddCommand, clients_option, forecast_options
from pacbayes_fl.cli.output import check_forecast, give_forecast, say_unfinished


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "join",
        "a client that never trained personalises and predicts",
        "pacbayes-fl join runs/first --data newcomer.csv",
        "pacbayes-fl join runs/first --data all.csv --client 'house 7'",
        "pacbayes-fl join released --data newcomer.csv --quantiles .05,.5,.95 --out forecast.csv",
    )
    sub.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run, or of a release of one")
    sub.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="FILE",
        help="CSV or Parquet, rows without target are predicted, other columns are passed through; "
        "images: a folder CLIENT/CLASS/*.png, "
        "files in no folder of a class are predicted, or an .npz with x, y (-1: predict) and client",
    )
    clients_option(sub, "who of the file joins (default: all)")
    forecast_options(sub)


def act(options: argparse.Namespace) -> None:
    """Personalise every client of the file, and print or write its predictions.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.run import Trained, open_run
    from pacbayes_fl.study.serving.newcomers import newcomers
    from pacbayes_fl.study.serving.release import is_release, open_release

    check_forecast(options)
    known = open_release(options.run) if is_release(options.run) else open_run(options.run)
    if isinstance(known, Trained):
        say_unfinished(known)
    found = newcomers(known, options.data, options.quantiles, options.client)
    if found.refused is None or found.forecast.clients:  # what is known of the others comes before one client's error
        give_forecast(found.forecast, options)
    if found.refused is not None:
        raise found.refused
