"""The arguments of every command, with their help; nothing is imported here that takes time."""

from __future__ import annotations

import argparse
import platform
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NoReturn

from pacbayes_fl import __version__
from pacbayes_fl.cli import describe, init, schema
from pacbayes_fl.errors import one_line
from pacbayes_fl.results.metrics import headlines, search_scores

_PACKAGES: Final = ("torch", "gpytorch", "pyro-ppl")
_DEBUG: Final = "print where in the code a failure came from, above the line that names it"

LISTED: Final = (
    *("methods", "models", "data", "partitions", "studies", "bounds", "metrics", "recorded", "mechanisms"),
)
"""What `list` lists."""


class _Parser(argparse.ArgumentParser):
    """A parser whose help keeps the lines of examples, and whose errors cannot steer a terminal."""

    def __init__(self, *args: Any, examples: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_help(self) -> str:
        """Put the examples, a line each, below what argparse wraps."""
        return "\n  ".join([f"{super().format_help()}\nexamples:", *self.examples]) + "\n"

    def error(self, message: str) -> NoReturn:
        """Print what was wrong with the usage, and exit with 2."""
        super().error(one_line(message))


class _Version(argparse.Action):
    """Print the version of this package and of those that numbers depend on, without importing them."""

    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        found = [f"python {platform.python_version()}"]
        for package in _PACKAGES:
            try:
                found.append(f"{package} {metadata.version(package)}")
            except metadata.PackageNotFoundError:
                found.append(f"{package} not installed")
        print(f"{parser.prog} {__version__} ({', '.join(found)})")
        parser.exit()


def parser() -> argparse.ArgumentParser:
    """Build the parser of all commands."""
    main = _Parser(
        prog="pacbayes-fl",
        description="Bayesian personalised federated learning, with Gaussian processes and Bayesian networks.",
        examples=(
            "pacbayes-fl list studies",
            "pacbayes-fl run polynomial --rounds 50 --out runs/first",
            "pacbayes-fl show runs/first",
            "pacbayes-fl plot runs/first",
            "pacbayes-fl compare polynomial --methods pac-pfl,pfedgp,ridge --seeds 3 --out runs/three",
        ),
    )
    main.add_argument("--version", action=_Version, help="print the versions of the package and of what it rests on")
    main.add_argument("--debug", action="store_true", help=_DEBUG)
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _of_training(commands)
    _of_finished_runs(commands)
    _of_certificates(commands)
    _of_predictions(commands)
    for module in (init, describe, schema):
        module.arguments(partial(_command, commands))
    return main


def _command(commands: Any, name: str, text: str, *examples: str) -> _Parser:
    """Add a command with its line of help and its examples."""
    sub: _Parser = commands.add_parser(name, help=text.replace("%", "%%"), description=text, examples=examples)
    sub.set_defaults(stopped="")
    sub.add_argument("--quiet", action="store_true", help="print results only: no progress, no warnings")
    sub.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=_DEBUG)  # before it or after
    return sub


def _study_options(sub: _Parser) -> None:
    sub.add_argument("study", metavar="STUDY", help="a TOML file or the name of a bundled study (see `list studies`)")
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="sets",
        help="change a value of the study, such as method.tau=0.5; may be repeated",
    )
    sub.add_argument("--seed", type=int, metavar="N", help="seed of every random draw (default: the study's)")
    sub.add_argument("--rounds", type=int, metavar="N", help="rounds of the federation (default: the study's)")
    sub.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), help="where to compute (default: the study's, usually auto)"
    )


def _methods_option(sub: _Parser) -> None:
    names = "names of methods, see `list methods` (default: the study's own)"
    sub.add_argument("--methods", default="", metavar="A,B,C", help=names)


def _of_training(commands: Any) -> None:
    sub = _command(
        commands,
        "run",
        "train, print the table and write the run folder",
        "pacbayes-fl run polynomial --out runs/first",
        "pacbayes-fl run polynomial --out runs/first --resume",
        "pacbayes-fl run houses.toml --set method.name=pfedgp --set federation.rounds=100",
    )
    _study_options(sub)
    sub.add_argument("--out", type=Path, metavar="DIR", help="run folder (default: runs/NAME-METHOD-seedN)")
    sub.add_argument("--resume", action="store_true", help="go on from the folder's last intact checkpoint")

    sub = _command(
        commands,
        "compare",
        "several methods on one study: a table with 95 % intervals",
        "pacbayes-fl compare polynomial --methods pac-pfl,pfedgp,ridge --seeds 3 --out runs/three",
        "pacbayes-fl compare polynomial --vary method.particles=1,2,4 --out runs/particles",
        "pacbayes-fl show runs/particles",
    )
    _study_options(sub)
    _methods_option(sub)
    sub.add_argument("--vary", metavar="KEY=V1,V2", help="each method once per value, such as method.particles=1,2,4")
    sub.add_argument("--seeds", type=int, default=1, metavar="N", help="runs of each method (default: %(default)s)")
    sub.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of the comparison and its runs (default: nothing is written)"
    )
    sub.add_argument("--resume", action="store_true", help="go on with the very comparison that --out holds")

    sub = _command(
        commands,
        "tune",
        "choose hyper-parameters by k-fold inside clients on training rows",
        "pacbayes-fl tune polynomial --methods pac-pfl,pfedgp --budget 30 --out best.toml",
        "pacbayes-fl run best.toml",
    )
    _study_options(sub)
    _methods_option(sub)
    sub.add_argument(
        "--budget", type=int, default=20, metavar="N", help="configurations per method (default: %(default)s)"
    )
    sub.add_argument(
        "--folds", type=int, default=5, metavar="K", help="blocks of each client's rows (default: %(default)s)"
    )
    scores = {task: search_scores(task) for task in headlines()}
    defaults = ", ".join(f"{names[0]} of {task}" for task, names in scores.items())
    sub.add_argument(
        "--score",
        choices=[name for names in scores.values() for name in names],
        help=f"what is to be small on held-out blocks (default: {defaults})",
    )
    sub.add_argument("--out", type=Path, metavar="FILE", help="study to write (default: STUDY-tuned.toml)")
    sub.add_argument("--resume", action="store_true", help="go on with the search of which --out has the trials so far")


def _of_finished_runs(commands: Any) -> None:
    sub = _command(commands, "list", "what can be named in a study", "pacbayes-fl list methods")
    sub.add_argument(
        "what", choices=LISTED, metavar="WHAT", help=f"which names, with a line on each: {', '.join(LISTED)}"
    )

    sub = _command(
        commands,
        "show",
        "the finished run's table, or the comparison's",
        "pacbayes-fl show runs/first --json",
        "pacbayes-fl show runs/three",
    )
    sub.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run or comparison")
    sub.add_argument("--json", action="store_true", help="print metrics.json or compare.json instead of the table")

    sub = _command(
        commands,
        "plot",
        "figures from the folder of a run or comparison alone",
        "pacbayes-fl plot runs/first --clients poly_00,new_poly_01",
        "pacbayes-fl plot runs/first runs/second",
        "pacbayes-fl plot runs/three",
    )
    sub.add_argument(
        "run",
        type=Path,
        metavar="RUN",
        nargs="+",
        help="folders of finished runs or comparisons; of several also figures of all together, beside the first",
    )
    sub.add_argument(
        "--clients", default="", metavar="A,B", help="clients of the predictive bands (default: two of each group)"
    )


def _of_certificates(commands: Any) -> None:
    sub = _command(
        commands,
        "certify",
        "bounds on the true risk of every client of a finished run",
        "pacbayes-fl certify runs/split",
        "pacbayes-fl certify runs/split --bound catoni --beta rows --delta 0.01 --jointly",
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
        help="0-1, clipped-nll=P, clipped-square=LIMIT, ... (default: 0-1 of labels, 1 - exp(-e^2) of numbers)",
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
        "--jointly", action="store_true", help="the lines of all clients hold at once, with probability 1 - D"
    )
    sub.add_argument(
        "--tried",
        type=int,
        default=1,
        metavar="N",
        help="settings among which these rows have chosen (default: %(default)s)",
    )
    sub.add_argument("--retrain", action="store_true", help="first make the run that can be certified, in RUN-certify")
    sub.add_argument("--json", action="store_true", help="print the file of the table instead of the table")
    _bound(commands)


def _bound(commands: Any) -> None:
    sub = _command(
        commands,
        "bound",
        "a certificate from numbers alone",
        "pacbayes-fl bound seeger --risk 0.03 --kl 500 --n 30000 --delta 0.025 --prior split --independent",
    )
    sub.add_argument("name", metavar="NAME", help="name of a bound, see `list bounds`")
    for name, text in (
        ("risk", "empirical risk, in the unit of the loss"),
        ("kl", "KL divergence of the posterior from the prior, in nats"),
        ("beta", "of bounds that need one, fixed before, in 1 / unit of the loss"),
        ("log-z", "ln Z of an exact Gibbs posterior, in nats"),
        ("epsilon", "of a prior drawn with differential privacy from these rows"),
        ("prior-delta", "of such a prior, where the privacy is of whole clients (default: 0)"),
        ("draws-delta", "what of delta the estimate of the risk may fail with (default: a fifth)"),
    ):
        sub.add_argument(f"--{name}", type=float, metavar="X", help=text)
    sub.add_argument("--n", type=float, required=True, metavar="N", help="number of rows behind the empirical risk")
    sub.add_argument(
        "--delta", type=float, required=True, metavar="D", help="probability with which the bound may fail"
    )
    sub.add_argument(
        "--low", type=float, default=0.0, metavar="A", help="smallest value of the loss (default: %(default)s)"
    )
    sub.add_argument(
        "--high", type=float, default=1.0, metavar="B", help="largest value of the loss (default: %(default)s)"
    )
    sub.add_argument(
        "--draws", type=int, metavar="M", help="hypotheses behind an estimated risk (default: the risk is exact)"
    )
    sub.add_argument(
        "--tried",
        type=int,
        default=1,
        metavar="N",
        help="settings among which the rows have chosen (default: %(default)s)",
    )
    sub.add_argument("--loss", metavar="KIND", help="0-1 (for a majority vote) or convex (for averaged predictions)")
    sub.add_argument(
        "--prior",
        default="unknown",
        metavar="SOURCE",
        help="data-free, split, 'disjoint clients', 'other clients', 'client-level DP' or 'row-level DP' "
        "(default: %(default)s, which no certificate rests on)",
    )
    sub.add_argument(
        "--predictor",
        default="Gibbs",
        metavar="P",
        help="Gibbs, 'majority vote' or 'averaged prediction' (default: %(default)s)",
    )
    sub.add_argument("--independent", action="store_true", help="declare that the rows are independent draws")
    sub.add_argument("--json", action="store_true", help="print the certificate's record instead of its lines")


def _of_predictions(commands: Any) -> None:
    sub = _command(
        commands,
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
        help="CSV or Parquet, rows without target are predicted; images: .npz with x, y (-1: predict) and client",
    )
    sub.add_argument("--json", action="store_true", help="print JSON by client instead of CSV")

    sub = _command(
        commands,
        "release",
        "write what may leave a run: the server's model and what joining clients need, nothing of a client",
        "pacbayes-fl release runs/private --out released",
    )
    sub.add_argument("run", type=Path, metavar="RUN", help="folder of a finished run")
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the release: a new or empty one")
    sub.add_argument(
        "--public-scaling",
        action="store_true",
        help="say that means and deviations over all clients' rows, by which columns are scaled, are public",
    )

    sub = _command(
        commands,
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
