"""The command `check`: what a table holds and what a round of it costs, before anything is run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from textwrap import wrap

from pacbayes_fl.cli.arguments import AddCommand, columns_options, json_option, sets_option
from pacbayes_fl.cli.layout import room
from pacbayes_fl.cli.output import say


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "check",
        "look at your own table: lengths, gaps, repeats, constants, outliers, and what a round costs",
        "pacbayes-fl check houses.csv",
        "pacbayes-fl check readings.csv --client station --target power --method pfedbayes",
        "pacbayes-fl check houses.csv --study my-houses.toml --json",
    )
    sub.add_argument("data", type=Path, metavar="FILE", help="table to look at, CSV or Parquet")
    sub.add_argument("--study", metavar="STUDY", help="whose [data] says what the columns are (default: a guess)")
    sub.add_argument("--method", metavar="NAME", help="whose round is timed (default: the study's, or pac-pfl)")
    columns_options(sub)
    sets_option(sub, "data.missing=drop")
    sub.add_argument("--no-cost", action="store_true", help="do not time a round")
    json_option(sub, "lines", "findings", "refused", "cost")


def act(options: argparse.Namespace) -> None:
    """Look at the table, and print what there is.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.drafting.init import look, roles
    from pacbayes_fl.study.drafting.table_check import check, study_of
    from pacbayes_fl.study.file import Study

    if options.study is None:
        columns = look(options.data, options.client, options.target, options.time)
        study = study_of(options.data, columns, options.method or "pac-pfl", options.sets)
        head, remarks = [roles(study)], columns.remarks if study.data.features == columns.features else ()
    else:
        given = {"data.client": options.client, "data.target": options.target, "data.time": options.time}
        given["method.name"] = options.method
        named = [f"{key}={value}" for key, value in given.items() if value is not None]
        study, head, remarks = Study.from_toml(options.study, [*options.sets, *named]), [], ()
    result = check(options.data, study, not options.no_cost, remarks)
    if options.json:
        print(json.dumps(result.to_json()))
        return
    for line in [*head, *result.lines()]:
        indent = "    " if not line.startswith(" ") else "      "
        for part in wrap(line, room() or 10**6, subsequent_indent=indent, drop_whitespace=True) or [""]:
            say(part)
