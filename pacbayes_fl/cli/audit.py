"""The command `audit`: a lower bound on epsilon by distinguishing games, beside the epsilon that is reported."""

from __future__ import annotations

import argparse
import json
import math

from pacbayes_fl.cli.arguments import AddCommand, json_option, sets_option
from pacbayes_fl.cli.output import say


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "audit",
        "try to tell two neighbours of a private run apart: a lower bound on epsilon beside the reported one",
        "pacbayes-fl audit runs/private",
        "pacbayes-fl audit polynomial --set privacy.epsilon=1 --games 50000",
    )
    sub.add_argument("study", metavar="STUDY", help="a private study, or the folder of a private run")
    sets_option(sub, "privacy.epsilon=1")
    sub.add_argument(
        "--games", type=int, default=20_000, metavar="N", help="with each neighbour (default: %(default)s)"
    )
    sub.add_argument("--seed", type=int, default=0, help="of the games (default: %(default)s)")
    json_option(sub, "lines", "lower", "gaussian", "reported", "delta", "confidence", "games", "releases", "holds")


def act(options: argparse.Namespace) -> None:
    """Play, and print what was shown.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.audit import audit

    result = audit(options.study, options.sets, options.games, options.seed)
    if options.json:
        reported = result.reported if math.isfinite(result.reported) else None
        print(json.dumps(result._asdict() | {"reported": reported, "holds": result.holds}))
        return
    sure = f"{result.confidence:.0%} Clopper-Pearson, {result.games} games with each of two neighbours"
    say(f"epsilon is at least {result.lower:.4g} at delta = {result.delta:.4g} ({sure}, {result.releases} releases)")
    if result.gaussian is not None:
        say(f"epsilon is at least {result.gaussian:.4g} by the trade-off of Gaussian noise (same games)")
    verdict = "nothing speaks against it" if result.holds else "WHICH DOES NOT HOLD"
    say(f"reported: epsilon = {result.reported:.4g}; {verdict}")
