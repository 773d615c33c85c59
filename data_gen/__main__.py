"""The command line: ``python -m data_gen NAME [options] --out DIR``."""

from __future__ import annotations

import argparse
import sys
import types
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from data_gen import DataGenError, generate, generators
from data_gen.generators import Generator


def parser() -> argparse.ArgumentParser:
    """Build the parser from the records; options left out keep the defaults of the configuration classes."""
    top = argparse.ArgumentParser(
        prog="python -m data_gen", description="Make federated regression data (PAC-PFL 8.5)."
    )
    names = top.add_subparsers(dest="name", required=True, metavar="NAME")
    for known in generators.GENERATORS.values():
        title = known.title.replace("%", "%%")
        sub = names.add_parser(known.name, help=title, description=title, argument_default=argparse.SUPPRESS)
        sub.add_argument("--out", required=True, help="folder to write to")
        _add_options(sub, known)
    return top


def _add_options(sub: argparse.ArgumentParser, known: Generator) -> None:
    """Add an argument for every option of a generator that is free."""
    kinds, meanings = get_type_hints(known.config), known.meanings()
    for one in fields(known.config):
        if one.name not in known.options:
            continue
        kind = kinds[one.name]
        several = get_origin(kind) is tuple
        default: Any = "none" if one.default is None else one.default
        if several:
            default = " ".join(map(str, default))
        sub.add_argument(
            f"--{one.name.replace('_', '-')}",
            type=_reader(get_args(kind)[0] if several else kind),
            nargs="+" if several else None,
            choices=get_args(kind) if get_origin(kind) is Literal else None,
            help=f"{meanings[one.name].rstrip('.')} ({default})".replace("%", "%%"),
        )


def _reader(kind: Any) -> Callable[[str], Any]:
    """Give what reads a text as a value of a type; "None" and "all" are None where the type has it."""
    choices = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else ()
    inner = next((one for one in choices or (kind,) if one in (int, float)), str)

    def read(text: str) -> Any:
        return None if type(None) in choices and text.lower() in ("all", "none") else inner(text)

    read.__name__ = inner.__name__  # what argparse calls a value that it cannot read
    return read


def main(arguments: Sequence[str] | None = None) -> int:
    """Make and write one data set; print its file, sizes and content hash.

    Args:
        arguments: of the command line; those of the process if None.

    Returns:
        0, or 2 where the data cannot be made or written (the reason goes to standard error).
    """
    options: dict[str, Any] = vars(parser().parse_args(arguments))
    name, out = options.pop("name"), options.pop("out")
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    try:
        dataset = generate(name, **options)
        path = dataset.save(out)
    except DataGenError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    sizes = dataset.manifest["sizes"]
    print(path)
    print(
        f"{sizes['clients']} clients, {sizes['new_clients']} new; {sizes['train_rows']} training and "
        f"{sizes['test_rows']} test rows of {sizes['features']} features; sha256 {dataset.sha256}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
