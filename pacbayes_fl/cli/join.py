"""The command `join`: a client that never trained personalises and predicts."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from pacbayes_fl.cli.arguments import AddCommand, json_option
from pacbayes_fl.cli.output import print_predictions

if TYPE_CHECKING:
    from pacbayes_fl.study.predict import AnyPrediction


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "join",
        "a client that never trained personalises and predicts",
        "pacbayes-fl join runs/first --data newcomer.csv",
        "pacbayes-fl join released --data newcomer.csv",
    )
    sub.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run, or of a release of one")
    sub.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="FILE",
        help="CSV or Parquet, rows without target are predicted; images: a folder CLIENT/CLASS/*.png, "
        "files in no folder of a class are predicted, or an .npz with x, y (-1: predict) and client",
    )
    json_option(sub, "CSV, by client", "mean", "std", "lower", "upper", "round", "or label", "probability", "entropy")


def act(options: argparse.Namespace) -> None:
    """Personalise every client of the file, and print its predictions.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.predict import joined
    from pacbayes_fl.study.release import Served, is_release, open_release
    from pacbayes_fl.study.run import open_run

    known = open_release(options.run) if is_release(options.run) else open_run(options.run)
    at = known.round if isinstance(known, Served) else known.state.round
    about = (known.schema if isinstance(known, Served) else known.dataset).provenance
    sound: list[AnyPrediction] = []
    try:
        for one in joined(known, options.data):
            sound.append(one)
    finally:  # what is known of the others is printed before one client's error is
        if sound:
            print_predictions(sound, options.json, at, about.get("class_names", ()))
