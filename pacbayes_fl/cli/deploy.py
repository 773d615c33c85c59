"""The command `deploy`: run a study over Flower on this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from pacbayes_fl.cli.arguments import AddCommand, assignments, study_options
from pacbayes_fl.cli.output import progress, say


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "deploy",
        "run a study over Flower on this machine, every node in processes of its own",
        "pacbayes-fl deploy polynomial --set data.scale=client --nodes 4 --out runs/deployed",
        "pacbayes-fl deploy polynomial --set data.scale=client --nodes 4 --out runs/deployed --resume",
    )
    study_options(sub)
    sub.add_argument("--out", type=Path, required=True, metavar="DIR", help="run folder of the server")
    sub.add_argument(
        "--nodes", type=int, default=4, metavar="N", help="nodes to which clients are dealt (default: %(default)s)"
    )
    sub.add_argument("--port", type=int, metavar="P", help="of the SuperLink; SuperNodes have those after it")
    sub.add_argument(
        "--seconds", type=float, default=600.0, metavar="S", help="that a round waits (default: %(default)s)"
    )
    sub.add_argument("--resume", action="store_true", help="go on from the folder's last intact checkpoint")


def act(options: argparse.Namespace) -> None:
    """Deploy the study, and say where its folder is.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.deploy import PORT, deploy
    from pacbayes_fl.study.file import Study
    from pacbayes_fl.study.served import Waits

    study = Study.from_toml(options.study, assignments(options))
    options.stopped = "go on with --resume"
    waits, port = Waits(round=options.seconds), options.port or PORT
    with progress(f"{study.method.name} on {study.name}", study.plan.rounds, options.quiet) as on_round:
        deploy(study, options.out, options.nodes, options.resume, on_round, port, waits)
    say(f"run folder: {options.out}")
    say(f"release it to clients: pacbayes-fl release {options.out} --out DIR")
