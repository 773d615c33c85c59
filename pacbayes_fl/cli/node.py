"""The command `node`: what the owner of a node's rows runs."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from pacbayes_fl.cli.arguments import AddCommand, assignments, study_options
from pacbayes_fl.cli.output import say


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "node",
        "check what a node would send, or answer a server with its rows",
        "pacbayes-fl node check houses.toml --client house_07",
        "pacbayes-fl node run houses.toml --client house_07 --folder node --socket node/socket",
    )
    sub.add_argument("action", choices=("check", "run"), help="look at the rows and say what leaves, or take part")
    study_options(sub)
    sub.add_argument("--client", action="append", default=[], metavar="NAME", help="of this node (default: all)")
    sub.add_argument("--folder", type=Path, metavar="DIR", help="in which the node keeps what it remembers")
    sub.add_argument("--socket", type=Path, metavar="PATH", help="at which Flower's ClientApp calls")
    sub.add_argument("--once", action="store_true", help="answer the one message on stdin, on stdout")


def act(options: argparse.Namespace) -> None:
    """Check, or be the node's worker.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.deploy import check_node, work_as_node
    from pacbayes_fl.study.file import Study

    study = Study.from_toml(options.study, assignments(options))
    if options.action == "check":
        for line in check_node(study, options.client):
            say(line)
        return
    options.stopped = "what the node remembers is in its folder"
    to_log = partial(say, file=sys.stderr)
    once = sys.stdin.buffer.read if options.once else None
    folder = options.folder or Path("node")
    answer = work_as_node(study, folder, options.client, options.socket, to_log, once)
    if answer is not None:
        sys.stdout.buffer.write(answer)
