"""The command `compare`: several methods on one study."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pacbayes_fl.cli.arguments import AddCommand, assignments, json_option, methods_option, names_in, study_options
from pacbayes_fl.cli.output import print_comparison, say
from pacbayes_fl.cli.progress import runs_progress
from pacbayes_fl.errors import StudyError

if TYPE_CHECKING:
    from pacbayes_fl.results.records import Result


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "compare",
        "several methods on one study: a table with 95 % intervals",
        "pacbayes-fl compare polynomial --methods pac-pfl,pfedgp,ridge --seeds 3 --out runs/three",
        "pacbayes-fl compare polynomial --vary method.particles=1,2,4 --out runs/particles",
        "pacbayes-fl show runs/particles",
    )
    study_options(sub)
    methods_option(sub)
    sub.add_argument("--vary", metavar="KEY=V1,V2", help="each method once per value, such as method.particles=1,2,4")
    sub.add_argument("--seeds", type=int, default=1, metavar="N", help="runs of each method (default: %(default)s)")
    sub.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of the comparison and its runs (default: nothing is written)"
    )
    sub.add_argument("--resume", action="store_true", help="go on with the very comparison that --out holds")
    json_option(sub, "the table, as compare.json has it", "study", "cells", "runs")


def act(options: argparse.Namespace) -> None:
    """Train every method at every value and seed, and print one table.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.compare import compare, varied
    from pacbayes_fl.study.file import Study

    if options.seeds < 1:
        raise StudyError(f"--seeds must be at least 1, got {options.seeds}")
    chosen = [[f"method.name={name}"] for name in names_in(options.methods)] or [[]]
    every = [[*assignments(options), *name] for name in chosen]
    key, values = _varied(options.vary)
    if key is None:
        studies = [Study.from_toml(options.study, sets) for sets in every]
    else:
        studies = [study for sets in every for study in varied(options.study, key, values, sets)]
    if options.resume and not options.out:
        raise StudyError("--resume needs the folder of the comparison", hint="give --out DIR")
    again = "go on with --resume, finished runs are read"
    options.stopped = again if options.out else "nothing was kept, for want of --out"
    with runs_progress(len(studies) * options.seeds, options.quiet) as on_run:
        finished: list[Result] = []
        try:
            compare(studies, options.seeds, options.out, on_run, key, options.resume, finished.append)
        except Exception:  # whatever it is: the other runs have taken their time, and are told before it
            if finished:
                _show(finished, options)
            raise
    _show(finished, options)


def _show(results: Sequence[Result], options: argparse.Namespace) -> None:
    """Print the table of the runs that are finished."""
    from pacbayes_fl.study.compare import summary

    if options.json:
        print(json.dumps(summary(results, options.out), indent=1))
        return
    print_comparison(results)
    if options.out:
        say(f"folder: {options.out}")


def _varied(text: str | None) -> tuple[str | None, list[str]]:
    """Take KEY=V1,V2 apart; a comma inside brackets belongs to a value, as in model.widths=[50],[50,50]."""
    if text is None:
        return None, []
    key, equals, values = text.partition("=")
    if not equals or not all(key.strip().partition(".")):
        raise StudyError(f"--vary takes KEY=V1,V2, got {text!r}", hint="such as --vary method.particles=1,2,4")
    return key.strip(), [value.strip() for value in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", values) if value.strip()]
