"""The command `show`: the table of a finished run or comparison."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from pacbayes_fl.cli.arguments import AddCommand, json_option
from pacbayes_fl.cli.certify import tables
from pacbayes_fl.cli.output import print_certificates, print_comparison, print_table, say
from pacbayes_fl.results import comparison
from pacbayes_fl.results.records import load
from pacbayes_fl.results.updates import since


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "show",
        "the finished run's table, or the comparison's",
        "pacbayes-fl show runs/first --json",
        "pacbayes-fl show runs/three",
    )
    sub.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run or comparison")
    json_option(
        sub,
        "the table, as metrics.json and compare.json have it",
        *("study", "method", "seed", "task", "round", "groups", "or, of a comparison, study", "cells", "runs"),
    )


def act(options: argparse.Namespace) -> None:
    """Print the table, with the certificates of the run, or the file behind it.

    Args:
        options: as parsed.
    """
    if comparison.is_comparison(options.run):
        results = comparison.load(options.run)
        if options.json:
            print(json.dumps(json.loads((options.run / comparison.FILE).read_text("utf-8")), indent=1))
        else:
            print_comparison(results)
        return
    result = load(options.run)
    if options.json:
        print(json.dumps(result.summary(), indent=1))
    else:
        print_table(result)
        for table in tables(options.run):
            print_certificates(table)
        if (later := since(options.run)) is not None:
            say(f"updated: predictions use {later}; scores are without them, certificates too but for --later")
