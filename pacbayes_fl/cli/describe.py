"""The command `describe`: the record of a name, as plain text."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING, Final

from pacbayes_fl.cli.arguments import AddCommand, json_option
from pacbayes_fl.cli.layout import fitted, room
from pacbayes_fl.cli.output import say
from pacbayes_fl.files import JsonTable

if TYPE_CHECKING:
    from pacbayes_fl.study.describe import Description, Options

WIDEST: Final = 120
"""Columns that a description takes at most."""


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "describe",
        "what is known of a method, bound, loss, metric, source of data, model, aggregation, study or table of one",
        "pacbayes-fl describe pac-pfl",
        "pacbayes-fl describe seeger",
        "pacbayes-fl describe federation",
    )
    sub.add_argument(
        "name", metavar="NAME", help="a name that `list` prints, that of a table such as federation, or mine.py:NAME"
    )
    json_option(sub, "text", "family", "name", "title", "facts", "options", "examples")


def act(options: argparse.Namespace) -> None:
    """Print the record of a name.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.describe import describe

    known = describe(options.name)
    if options.json:
        print(json.dumps([as_table(one) for one in known], indent=1))
        return
    columns = min(room() or WIDEST, WIDEST)
    for number, description in enumerate(known):
        if number:
            say("")
        for line in lines(description, columns):
            say(line)


def as_table(description: Description) -> JsonTable:
    """Bring a description to what JSON can hold.

    Args:
        description: what is known.

    Returns:
        Its fields; facts by label, and of every table of options a list of cells by the table's head, with "text".
    """
    options = {
        table.title: [dict(zip(table.head, row.cells, strict=True)) | {"text": row.text} for row in table.rows]
        for table in description.options
    }
    return description._asdict() | {"facts": dict(description.facts), "options": options}


def lines(description: Description, columns: int = WIDEST) -> Iterator[str]:
    """Lay a description out.

    Args:
        description: what is known.
        columns: that a line may take.

    Yields:
        The lines: what it is, facts, tables of options, examples.
    """
    yield from wrap(f"{description.name} ({description.family}): {description.title}", columns)
    width = max([len(label) for label, _ in description.facts], default=0)
    for label, text in description.facts:
        yield from wrap(text, columns, initial_indent=f"  {label:{width}}  ", subsequent_indent=" " * (width + 4))
    for table in description.options:
        yield ""
        yield from _table(table, columns)
    yield ""
    yield "examples"
    for example in description.examples:
        yield from _continued(example, columns)


def _table(table: Options, columns: int) -> Iterator[str]:
    """Lay options out: names and values in columns, what they are below."""
    yield table.title
    head, *rows = fitted([table.head, *(row.cells for row in table.rows)], range(len(table.head)), columns - 2)
    yield f"  {head}"
    for line, row in zip(rows, table.rows, strict=True):
        yield f"  {line}"
        yield from wrap(row.text, columns, initial_indent="      ", subsequent_indent="      ")


def _continued(example: str, columns: int) -> Iterator[str]:
    """Break a command between its words, as a shell takes it."""
    first, *words = re.findall(r"\"[^\"]*\"|'[^']*'|\S+", example)
    line = f"  {first}"
    for word in words:
        if len(line) + len(word) + 3 > columns:
            yield f"{line} \\"
            line = "     "
        line = f"{line} {word}"
    yield line
