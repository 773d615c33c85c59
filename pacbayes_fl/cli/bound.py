"""The command `bound`: a certificate from numbers alone."""

from __future__ import annotations

import argparse
import json

from pacbayes_fl.cli.arguments import AddCommand, json_option
from pacbayes_fl.cli.output import say


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "bound",
        "a certificate from numbers alone",
        "pacbayes-fl bound seeger --risk 0.03 --kl 500 --n 30000 --delta 0.025 --prior split --independent",
    )
    sub.add_argument("name", metavar="NAME", help="name of a bound, see `list bounds`, or mine.py:NAME")
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
    json_option(sub, "lines", "theorem", "valid", "value", "delta", "split", "terms", "premises", "reasons")


def act(options: argparse.Namespace) -> None:
    """Print the certificate, its formula and its assumptions.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.certificates import from_numbers

    fields = from_numbers.Numbers.__dataclass_fields__
    given = {name: value for name, value in vars(options).items() if name in fields}
    numbers = from_numbers.Numbers(**given)
    certificate = from_numbers.certificate(options.name, numbers)
    if options.json:
        print(json.dumps(from_numbers.to_record(certificate), indent=1))
        return
    for line in str(certificate).splitlines():
        say(line)
    say(from_numbers.formula_text(options.name))
    say(from_numbers.assumptions_text(numbers))
