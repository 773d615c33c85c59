"""The command `certify`: bounds on the true risk of every client of a finished run."""

from __future__ import annotations

import argparse
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from pacbayes_fl.cli.arguments import AddCommand, json_option
from pacbayes_fl.cli.output import print_certificates, say, say_unfinished
from pacbayes_fl.cli.progress import progress, run_progress
from pacbayes_fl.errors import PacBayesFLError, counted
from pacbayes_fl.results.certificates import FOLDER, CertifiedRun, tables_of
from pacbayes_fl.results.rounds import RoundRecord

if TYPE_CHECKING:
    from pacbayes_fl.certificates.request import Request


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "certify",
        "bounds on the true risk of every client of a finished run",
        "pacbayes-fl certify runs/split",
        "pacbayes-fl certify runs/split --bound catoni --beta rows --delta 0.01 --jointly",
        "pacbayes-fl certify runs/split --bound one-draw --ship networks",
        "pacbayes-fl certify runs/gp --bound sub-gamma --loss normal-nll=1 --beta root --variance-factor 9e3 --scale 0",
        "pacbayes-fl certify runs/split --bound anytime --later",
        "pacbayes-fl certify runs/old --retrain",
    )
    sub.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run with [report.certify] scheme")
    sub.add_argument("--bound", metavar="NAME", help="see `list bounds` (default: the first of them)")
    sub.add_argument(
        "--delta",
        type=float,
        default=0.05,
        metavar="D",
        help="probability with which each bound may fail (default: %(default)s)",
    )
    sub.add_argument(
        "--loss",
        metavar="NAME[=VALUE]",
        help="see `list losses`, or mine.py:MyLoss (default: 0-1 of labels, 1 - exp(-e^2) of numbers)",
    )
    sub.add_argument("--beta", metavar="B", help="of bounds that need one, fixed before: a number, rows, or root")
    sub.add_argument(
        "--draws",
        type=int,
        default=1000,
        metavar="M",
        help="hypotheses that estimate a risk without closed form (default: %(default)s)",
    )
    sub.add_argument(
        "--smooth", type=float, metavar="STD", help="of a server's bound: smooth the particles (default: not at all)"
    )
    sub.add_argument(
        "--variance-factor",
        type=float,
        metavar="S2",
        help="of sub-gamma: stated, no row shows it (describe normal-nll)",
    )
    sub.add_argument("--scale", type=float, metavar="C", help="of sub-gamma, stated: 0 of a loss with a least value")
    sub.add_argument(
        "--jointly", action="store_true", help="the lines of all clients hold at once, with probability 1 - D"
    )
    sub.add_argument(
        "--tried",
        type=int,
        default=1,
        metavar="N",
        help="settings among which these rows have chosen (default: %(default)s)",
    )
    sub.add_argument(
        "--holdout",
        type=float,
        default=0.5,
        metavar="SHARE",
        help="of D for the hold-out bound on the predictor fixed before the rows, 0 for none (default: %(default)s)",
    )
    sub.add_argument(
        "--posterior",
        choices=("best", "refined"),
        default="best",
        help="least bound of the refined posterior, the prior and some between, or the refined (default: %(default)s)",
    )
    sub.add_argument(
        "--ship", type=Path, metavar="DIR", help="write the networks that --bound one-draw is on, a folder a client"
    )
    sub.add_argument(
        "--later", action="store_true", help="count rows that `update` brought; with --bound anytime at no further cost"
    )
    sub.add_argument("--retrain", action="store_true", help="first make the run that can be certified, in RUN-certify")
    json_option(sub, "the table, as its file has it", "bound", "delta", "valid", "reasons", "clients", "certificates")


def act(options: argparse.Namespace) -> None:
    """Certify the run, print the table and write it, with its figure, into the folder.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.certificates import clients as of_clients
    from pacbayes_fl.certificates import request as requests
    from pacbayes_fl.study.run import open_run

    request = requests.Request(
        options.bound or requests.DEFAULT,
        options.delta,
        requests.loss_of(options.loss),
        options.draws,
        beta=requests.beta_of(options.beta),
        posterior=options.posterior,
        holdout=options.holdout,
        jointly=options.jointly,
        tried=options.tried,
        smooth=options.smooth,
        variance_factor=options.variance_factor,
        scale=options.scale,
        later=options.later,
    )
    folder = _retrained(options, request) if options.retrain else options.run
    trained = open_run(folder)
    say_unfinished(trained)
    clients = sum(group.train.clients for group in trained.groups.values())
    with progress("certify clients", clients, options.quiet) as on_round:
        done = 0

        def on_event(more: int) -> None:
            nonlocal done
            done += more
            on_round(RoundRecord(done, done))

        table = of_clients.certify(trained, request, on_event, options.ship)
    path = table.save(folder)
    _refresh(folder)
    if options.json:
        print(path.read_text("utf-8"))
        return
    print_certificates(table)
    if "later" in table.labels:
        say(f"later rows: {table.labels['later']}")
    for written in [path, *_drawn(table, folder)]:
        say(f"file: {written}")
    if options.ship is not None:
        say(f"networks of {counted(len(table.clients), 'client')}: {options.ship}")


def tables(folder: Path) -> list[CertifiedRun]:
    """Read the certificates of a run; a line on stderr names stale ones.

    Args:
        folder: of the run.

    Returns:
        Its tables, checked.

    Raises:
        PacBayesFLError: when one was changed since it was written.
    """
    if not any((folder / FOLDER).glob("*.json")):
        return []
    from pacbayes_fl.certificates.clients import checked

    result = tables_of(folder, lambda text: say(f"warning: {text}", file=sys.stderr))
    checked(result)
    return result


def _refresh(folder: Path) -> None:
    """Let the page of the run, where it has one, show its certificates."""
    from pacbayes_fl import pages

    try:
        pages.refresh(folder)
    except PacBayesFLError as error:  # the table is written
        warnings.warn(f"report.html is as it was: {error}", stacklevel=2)


def _drawn(table: CertifiedRun, folder: Path) -> list[Path]:
    """Draw a table of certificates, where there is matplotlib and something to draw."""
    from pacbayes_fl import plots

    try:
        return plots.save_certificates([table], folder / "figures")
    except PacBayesFLError as error:
        warnings.warn(f"no figure: {error}", stacklevel=2)
        return []


def _retrained(options: argparse.Namespace, request: Request) -> Path:
    """Run the study of a folder again with rows kept for certificates, or take that run where it is finished."""
    from pacbayes_fl.certificates.retrain import certifiable, check, is_finished
    from pacbayes_fl.study.run import run

    study, folder = certifiable(options.run)
    if folder != options.run and not is_finished(study, folder):
        check(study, request)
        options.stopped = "go on with the same command"
        with run_progress(study, options.quiet) as on_round:
            run(study, folder, resume=True, on_round=on_round)
    return folder
