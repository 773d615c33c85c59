"""The command `predict`: a forecast for a table, of all its clients or of some."""

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
        "predict",
        "predictions for a table: mean and quantiles in the data's own units, or labels",
        "pacbayes-fl predict runs/first --data next.csv --quantiles .05,.5,.95 --out forecast.csv",
        "pacbayes-fl predict runs/first --client poly_00 --data ask.csv --later since.csv --json",
    )
    sub.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    clients_option(sub, "whose rows to predict, as clients.csv names it (default: all)")
    sub.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="FILE",
        help="CSV or Parquet with the client column and the run's features, other columns are passed through; "
        "images: a folder CLIENT/*.png or an .npz",
    )
    sub.add_argument(
        "--later",
        type=Path,
        metavar="FILE",
        help="rows with targets that came after the training, for this call alone (`update` keeps them); what a client "
        "has learned from counts once",
    )
    forecast_options(sub)


def act(options: argparse.Namespace) -> None:
    """Print or write the predictions for the rows of a file.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.run import open_run
    from pacbayes_fl.study.serving.arrivals import named
    from pacbayes_fl.study.serving.forecast import forecast

    check_forecast(options)
    trained = open_run(options.run)
    say_unfinished(trained)
    clients = named(trained, options.client)
    give_forecast(forecast(trained, options.data, clients, options.quantiles, options.later), options)
