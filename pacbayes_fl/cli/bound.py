"""The command `bound`: a certificate from numbers alone."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pacbayes_fl.cli.arguments import AddCommand, json_option
from pacbayes_fl.cli.output import say
from pacbayes_fl.errors import AssumptionError, counted
from pacbayes_fl.results.certificates import rounded_up

if TYPE_CHECKING:
    from pacbayes_fl.certificates.from_numbers import Certificate, Numbers


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "bound",
        "a certificate from numbers alone",
        "pacbayes-fl bound seeger --risk 0.03 --kl 500 --n 30000 --delta 0.025 --prior split --independent",
        "pacbayes-fl bound seeger --risk 0.03 --kl 9 --n 1e3,1e4,1e5 --delta 0.05 --prior split --independent --plot",
        "pacbayes-fl bound seeger --risk 0.03 --kl 500 --target 0.05 --delta 0.025 --prior split --independent",
    )
    sub.add_argument("name", metavar="NAME", help="name of a bound, see `list bounds`, or mine.py:NAME")
    for name, text in (
        ("risk", "empirical risk, in the unit of the loss"),
        ("kl", "KL divergence of the posterior from the prior, in nats"),
        ("variance", "of the losses over the rows, averaged over the posterior, in squared units of the loss"),
        ("beta", "of bounds that need one, fixed before, in 1 / unit of the loss"),
        ("log-z", "ln Z of an exact Gibbs posterior, in nats"),
        ("log-ratio", "ln dQ/dP at the one hypothesis that was drawn, in nats"),
        ("tandem-risk", "share of rows that two draws of the posterior both miss"),
        ("variance-factor", "s^2 of a sub-gamma loss, which is stated and not estimated, in squared units of the loss"),
        ("scale", "c of a sub-gamma loss, stated too, in the unit of the loss"),
        ("epsilon", "of a prior drawn with differential privacy from these rows"),
        ("prior-delta", "of such a prior, where the privacy is of whole clients (default: 0)"),
        ("draws-delta", "what of delta the estimate of the risk may fail with (default: a fifth)"),
    ):
        sub.add_argument(f"--{name}", type=float, metavar="X", help=text)
    rows = sub.add_mutually_exclusive_group(required=True)
    rows.add_argument(
        "--n", type=_numbers, metavar="N[,N]", help="number of rows behind the empirical risk, or several: a table"
    )
    rows.add_argument("--target", type=float, metavar="X", help="instead: how many rows a bound of at most X takes")
    sub.add_argument(
        "--plot", nargs="?", const="", metavar="FILE", help="draw the bound over several --n (default: bound-NAME.png)"
    )
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
    sub.add_argument(
        "--loss", metavar="KIND", help="0-1 (for a majority vote), convex (for averaged predictions) or unbounded"
    )
    sub.add_argument(
        "--prior",
        required=True,
        metavar="SOURCE",
        help="where the prior came from: data-free, split, 'disjoint clients', 'other clients', 'client-level DP' or "
        "'row-level DP'; 'saw the rows' and 'unknown' are no certificate's",
    )
    sub.add_argument(
        "--predictor",
        default="Gibbs",
        metavar="P",
        help="Gibbs, 'majority vote' or 'averaged prediction' (default: %(default)s)",
    )
    sub.add_argument("--independent", action="store_true", help="declare that the rows are independent draws")
    json_option(sub, "lines", "theorem", "valid", "value", "delta", "split", "terms", "premises", "reasons")


def act(options: argparse.Namespace) -> None:
    """Print the certificate, its formula and its assumptions.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.certificates import from_numbers

    fields = from_numbers.Numbers.__dataclass_fields__
    given = {name: value for name, value in vars(options).items() if name in fields and name != "n"}
    if options.plot is not None and len(options.n or ()) < 2:
        raise AssumptionError("a figure needs several numbers of rows", hint="such as --n 1e3,1e4,1e5")
    if options.target is not None:
        needed = from_numbers.rows_needed(options.name, from_numbers.Numbers(n=1.0, **given), options.target)
        if options.json:
            print(json.dumps({"target": options.target, "n": needed}))
        else:
            say(f"{counted(needed, 'row')}, all else equal")
        return
    numbers = [from_numbers.Numbers(n=n, **given) for n in options.n]
    found = [from_numbers.certificate(options.name, each) for each in numbers]
    if options.json:
        records = [from_numbers.to_record(each) for each in found]
        print(json.dumps(records if len(records) > 1 else records[0], indent=1))
    else:
        _say(options.name, numbers, found)
    if options.plot is not None:
        from pacbayes_fl import plots

        valid = [each.value.item() if each.valid else math.nan for each in found]
        path = Path(options.plot or f"bound-{from_numbers.stem(options.name)}.png")
        plots.save_bound(options.n, valid, path, found[0].theorem, numbers[0].risk)
        say(str(path), file=sys.stderr if options.json else None)


def _say(name: str, numbers: Sequence[Numbers], found: Sequence[Certificate]) -> None:
    from pacbayes_fl.certificates import from_numbers

    if len(found) == 1 or not any(each.valid for each in found):
        for line in str(found[0]).splitlines():
            say(line)
    else:
        say(f"{'n':>12}  bound")
        for each, certificate in zip(numbers, found, strict=True):
            vacuous = "  vacuous" if bool(certificate.vacuous) else ""
            value = f"{rounded_up(certificate.value.item())}{vacuous}"
            say(f"{each.n:>12g}  {value if certificate.valid else 'none: ' + '; '.join(certificate.reasons)}")
        delta = numbers[0].delta
        sure = f"{1 - delta:.6g}" if 1 - delta < 0.9999995 else f"1 - {delta:g}"
        say(f"{found[0].risk}; each with probability at least {sure} on its own")
    say(from_numbers.formula_text(name))
    say(from_numbers.assumptions_text(numbers[0]))


def _numbers(text: str) -> list[float]:
    try:
        return [float(each) for each in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers such as 1e3,1e4, got {text!r}") from None
