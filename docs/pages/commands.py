"""The page of all commands, from the argument parser."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from docs.pages.records import text
from pacbayes_fl.cli.parser import parser

_HEAD = """# Commands

Exit code 0: done, 1: failed in a named way, in one line, 2: wrong usage, 130: stopped, state saved. Every
command that prints a table prints it as one JSON document with `--json`. A run can be killed at any moment; `--resume`
ends bit-equal to an uninterrupted run.
`STUDY` is a TOML file or the name of a bundled study (`pacbayes-fl list studies`).
"""


def pages() -> dict[str, str]:
    """Write the page.

    Returns:
        Markdown by path.
    """
    return {"commands.md": "\n\n".join([_HEAD, *(_section(name, sub) for name, sub in commands(parser()))]) + "\n"}


def commands(main: argparse.ArgumentParser, before: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Go through all commands, those of commands among them.

    Args:
        main: a parser.
        before: the command that it is of.

    Yields:
        Names such as "node check", with their parsers.
    """
    for action in main._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield f"{before}{name}", sub
                yield from commands(sub, f"{before}{name} ")


def _section(name: str, sub: argparse.ArgumentParser) -> str:
    usage = re.sub(r"\s+", " ", sub.format_usage().removeprefix("usage: ")).strip()
    arguments = [one for one in sub._actions if not isinstance(one, argparse._SubParsersAction | argparse._HelpAction)]
    rows = [f"| {_called(one)} | {_default(one)} | {text(_said(one, sub))} |" for one in arguments]
    table = ["| argument | default | what it is |", "|---|---|---|", *rows]
    examples = getattr(sub, "examples", ())
    return "\n".join(
        [
            f"## `{name}`\n",
            f"{text(sub.description or '')}.\n",
            f"```text\n{usage}\n```\n",
            *(table if rows else ()),
            *(["", "```sh", *examples, "```"] if examples else []),
        ]
    )


def _called(action: argparse.Action) -> str:
    value = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper())
    value = value if isinstance(value, str) else " ".join(value)
    if not action.option_strings:
        return f"`{value}`"
    shown = "" if action.nargs == 0 else f" {value}"
    return ", ".join(f"`{flag}{shown}`" for flag in action.option_strings).replace("|", r"\|")


def _default(action: argparse.Action) -> str:
    plain = action.default not in (None, False, argparse.SUPPRESS, [], ())
    return f"`{action.default}`" if plain and action.option_strings else ""


def _said(action: argparse.Action, sub: argparse.ArgumentParser) -> str:
    given = {key: value for key, value in vars(action).items() if value is not argparse.SUPPRESS}
    return (action.help or "") % {**given, "prog": sub.prog}
