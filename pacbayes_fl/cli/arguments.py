"""Arguments of several commands, and their meaning."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Protocol


class AddCommand(Protocol):
    """Adds a command to the parser."""

    def __call__(self, name: str, text: str, *examples: str) -> argparse.ArgumentParser:
        """Add the command `name` with a line of help and examples, each a line that can be run."""


def sets_option(sub: argparse.ArgumentParser, example: str) -> None:
    """Add the option that assigns to values of a study.

    Args:
        sub: the parser of the command.
        example: an assignment for the help.
    """
    sub.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="sets",
        help=f"change a value of the study, such as {example}; may be repeated",
    )


def study_options(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of every command on a study: the study and assignments to its values.

    Args:
        sub: the parser of the command.
    """
    sub.add_argument("study", metavar="STUDY", help="a TOML file or the name of a bundled study (see `list studies`)")
    sets_option(sub, "method.tau=0.5")
    sub.add_argument("--seed", type=int, metavar="N", help="seed of every random draw (default: the study's)")
    sub.add_argument("--rounds", type=int, metavar="N", help="rounds of the federation (default: the study's)")
    sub.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), help="where to compute (default: the study's, usually auto)"
    )


def columns_options(sub: argparse.ArgumentParser) -> None:
    """Add the options that name the columns of a table: `--client`, `--target` and `--time`.

    Args:
        sub: the parser of the command.
    """
    sub.add_argument("--client", metavar="COLUMN", help="names of clients (default: client, or a guess)")
    sub.add_argument("--target", metavar="COLUMN", help="what is predicted (default: y, or the last column of numbers)")
    sub.add_argument("--time", metavar="COLUMN", help="times of the rows (default: the first column of dates)")


def clients_option(sub: argparse.ArgumentParser, whose: str) -> None:
    """Add `--client`, which names some.

    Args:
        sub: the parser of the command.
        whose: what is done with those that are named, and what without any.
    """
    text = f"{whose}; several by commas, or said again"
    sub.add_argument("--client", action="append", default=[], metavar="NAME", help=text)


def methods_option(sub: argparse.ArgumentParser) -> None:
    """Add `--methods`.

    Args:
        sub: the parser of the command.
    """
    names = "names of methods, see `list methods` (default: the study's own)"
    sub.add_argument("--methods", default="", metavar="A,B,C", help=names)


def json_option(sub: argparse.ArgumentParser, instead: str, *keys: str) -> None:
    """Add `--json`, which prints one JSON document to stdout and nothing else.

    Args:
        sub: the parser of the command.
        instead: what is printed otherwise.
        *keys: of the document, or of each of its entries, as the help says them.
    """
    sub.add_argument("--json", action="store_true", help=f"print JSON instead of {instead}: {', '.join(keys)}")
    sub.set_defaults(json_keys=keys)


def forecast_options(sub: argparse.ArgumentParser) -> None:
    """Add what commands have that predict a table: `--quantiles`, `--out` and `--json`.

    Args:
        sub: the parser of the command.
    """
    sub.add_argument(
        "--quantiles",
        type=_levels,
        default=(),
        metavar="Q,Q,...",
        help="levels of the quantiles, such as .05,.5,.95; by default lower and upper end of the central 95 %%",
    )
    sub.add_argument("--out", type=Path, metavar="FILE", help="write .csv or .parquet instead of printing CSV")
    classes = ("or label", "probability", "entropy", "probability_CLASS")
    json_option(sub, "CSV, by client", "mean", "std", "quantiles", "round", *classes)


def _levels(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected levels such as .05,.5,.95, got {text!r}") from None


def assignments(options: argparse.Namespace) -> list[str]:
    """Return the assignments to values of the study that a command line makes.

    Args:
        options: as parsed.

    Returns:
        KEY=VALUE, those of --set first.
    """
    given = {"seed": options.seed, "federation.rounds": options.rounds, "federation.device": options.device}
    return [*options.sets, *(f"{key}={value}" for key, value in given.items() if value is not None)]


def names_in(text: str) -> list[str]:
    """Take names apart at commas.

    Args:
        text: such as "pac-pfl, ridge".

    Returns:
        The names that are not empty.
    """
    return [name.strip() for name in text.split(",") if name.strip()]
