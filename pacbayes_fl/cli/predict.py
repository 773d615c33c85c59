"""The command `predict`: a forecast for a table, of all its clients or of some."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pacbayes_fl.cli.arguments import AddCommand, json_option
from pacbayes_fl.cli.output import say


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
    sub.add_argument(
        "--client",
        action="append",
        default=[],
        metavar="NAME",
        help="whose rows to predict, as clients.csv names it; several by commas, or said again; all when left out",
    )
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
    sub.add_argument(
        "--quantiles",
        type=_levels,
        default=(),
        metavar="Q,Q,...",
        help="levels of the quantiles, such as .05,.5,.95; by default lower and upper end of the central 95 %%",
    )
    sub.add_argument("--out", type=Path, metavar="FILE", help="write .csv or .parquet instead of printing CSV")
    json_option(sub, "CSV, by client", "mean", "std", "quantiles", "round", "or label", "probability", "entropy")


def _levels(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected levels such as .05,.5,.95, got {text!r}") from None


def act(options: argparse.Namespace) -> None:
    """Print or write the predictions for the rows of a file.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.forecast import check_out, forecast, levels_of
    from pacbayes_fl.study.later import named
    from pacbayes_fl.study.run import open_run

    levels_of(options.quantiles)  # before a run is opened
    if options.out is not None:
        check_out(options.out)
    trained = open_run(options.run)
    clients = named(trained, options.client)
    result = forecast(trained, options.data, clients, options.quantiles, options.later)
    if options.json:
        print(json.dumps(result.by_client()))
    if options.out is not None:
        result.save(options.out)
        say(f"{len(result.clients)} rows of {len(set(result.clients))} clients are in {options.out}", file=sys.stderr)
    elif not options.json:
        text = result.to_csv()  # in which nothing steers the terminal
        print(text, end="")
