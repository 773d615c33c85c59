"""The parser of all commands; nothing is imported here that takes time."""

from __future__ import annotations

import argparse
import platform
import re
import sys
from collections.abc import Sequence
from functools import partial
from importlib import metadata
from types import MappingProxyType, ModuleType
from typing import Any, Final, NoReturn

from pacbayes_fl import __version__
from pacbayes_fl.cli import (
    audit,
    bound,
    certify,
    check,
    compare,
    deploy,
    describe,
    init,
    join,
    listing,
    node,
    plot,
    predict,
    release,
    report,
    run,
    schema,
    score,
    show,
    tune,
    update,
)
from pacbayes_fl.errors import one_line

_PACKAGES: Final = ("torch", "gpytorch", "pyro-ppl")
_NEGATIVE: Final = re.compile(r"-(\d+\.?\d*|\.\d+)[eE][+-]?\d+|-inf")
_EVERYWHERE: Final = MappingProxyType(
    {
        "--quiet": "print results only: no progress, no warnings",
        "--debug": "print where in the code a failure came from, above the line that names it",
    }
)
"""Options of every command, before its name or after it."""

COMMANDS: Final = (
    *(
        run,
        compare,
        tune,
        listing,
        show,
        plot,
        report,
        certify,
        bound,
        audit,
        join,
        release,
        predict,
        update,
        score,
        deploy,
        node,
        init,
        check,
        describe,
        schema,
    ),
)
"""The modules of the commands, in the order of the help; each has its `arguments` and what it does, `act`."""


class _Parser(argparse.ArgumentParser):
    """A parser whose help keeps the lines of examples, and whose errors cannot steer a terminal."""

    def __init__(self, *args: Any, examples: tuple[str, ...] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Take "-1e6" behind an option for its value: Python 3.11 knows negative numbers without exponent alone."""
        return super().parse_known_args(_with_numbers(sys.argv[1:] if args is None else args), namespace)

    def format_help(self) -> str:
        """Append the examples, one per line, to the help text."""
        return "\n  ".join([f"{super().format_help()}\nexamples:", *self.examples]) + "\n"

    def error(self, message: str) -> NoReturn:
        """Print the usage error, and exit with 2."""
        super().error(one_line(message))


def _with_numbers(arguments: Sequence[str]) -> list[str]:
    """Write "--option=-1e6" for an option and the negative number behind it."""
    result: list[str] = []
    for argument in arguments:
        option = result[-1] if result else ""
        if _NEGATIVE.fullmatch(argument) and option.startswith("--") and option != "--" and "=" not in option:
            result[-1] = f"{option}={argument}"
        else:
            result.append(argument)
    return result


class _Version(argparse.Action):
    """Print the versions of this package and of the packages on which numbers depend, without importing them."""

    def __init__(self, option_strings: list[str], dest: str, help: str) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        result = [f"python {platform.python_version()}"]
        for package in _PACKAGES:
            try:
                result.append(f"{package} {metadata.version(package)}")
            except metadata.PackageNotFoundError:
                result.append(f"{package} not installed")
        print(f"{parser.prog} {__version__} ({', '.join(result)})")
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
            "pacbayes-fl report runs/first --open",
            "pacbayes-fl compare polynomial --methods pac-pfl,pfedgp,ridge --seeds 3 --out runs/three",
        ),
    )
    main.add_argument("--version", action=_Version, help="print the versions of the package and of what it rests on")
    for option, text in _EVERYWHERE.items():
        main.add_argument(option, action="store_true", help=text)
    commands = main.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.arguments(partial(_command, commands, module))
    return main


def _command(
    commands: argparse._SubParsersAction[_Parser],
    module: ModuleType,
    name: str,
    text: str,
    *examples: str,
) -> _Parser:
    """Add a command with what it does, its line of help and its examples."""
    sub = commands.add_parser(name, help=text.replace("%", "%%"), description=text, examples=examples)
    sub.set_defaults(module=module, stopped="")
    for option, text in _EVERYWHERE.items():
        sub.add_argument(option, action="store_true", default=argparse.SUPPRESS, help=text)
    return sub
