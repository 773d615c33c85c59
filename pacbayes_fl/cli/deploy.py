"""The command `deploy`: run a study over Flower, on this machine or with nodes on others."""

from __future__ import annotations

import argparse
from pathlib import Path

from pacbayes_fl.cli.arguments import AddCommand, assignments, names_in, study_options
from pacbayes_fl.cli.output import say
from pacbayes_fl.cli.progress import run_progress


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "deploy",
        "run a study over Flower: on this machine, or as an app that nodes on others join",
        "pacbayes-fl deploy polynomial --nodes 4 --out runs/deployed",
        "pacbayes-fl deploy polynomial --nodes 4 --out runs/deployed --resume",
        "pacbayes-fl deploy export polynomial app --nodes 2 --address fl.example.org:9092",
        "pacbayes-fl deploy serve app --out runs/served",
    )
    study_options(sub)
    words = "after `export` the STUDY and the folder of the app that is written; after `serve` that folder"
    sub.add_argument("more", nargs="*", metavar="STUDY DIR", help=words)
    sub.add_argument("--out", type=Path, metavar="DIR", help="run folder of the server")
    sub.add_argument(
        "--nodes", type=int, default=4, metavar="N", help="nodes to which clients are dealt (default: %(default)s)"
    )
    sub.add_argument("--port", type=int, metavar="P", help="of the SuperLink here; SuperNodes have those after it")
    sub.add_argument("--address", metavar="HOST:PORT", help="of the SuperLink of an exported app, as nodes reach it")
    sub.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="NAME=A,B",
        help="a node of an exported app and its clients; may be repeated, in place of --nodes",
    )
    sub.add_argument("--resume", action="store_true", help="go on from the folder's last intact checkpoint")


def act(options: argparse.Namespace) -> None:
    """Do what the first word says; deploy the study of that name where it says nothing.

    Args:
        options: as parsed.
    """
    actions = {"export": (_export, 2), "serve": (_serve, 1)}
    action, count = actions.get(options.study, (_deploy, 0))
    if len(options.more) != count:
        from pacbayes_fl.errors import StudyError

        forms = "deploy STUDY --out DIR, deploy export STUDY DIR or deploy serve DIR --out DIR"
        given = " ".join(["deploy", options.study, *options.more])
        raise StudyError(f"the command is {forms}, got {given!r}", hint="options come after these words")
    action(options)


def _out(options: argparse.Namespace) -> Path:
    if options.out is None:
        from pacbayes_fl.errors import StudyError

        raise StudyError("a run needs a folder", hint="--out DIR")
    options.stopped = "go on with --resume"
    folder: Path = options.out
    return folder


def _deploy(options: argparse.Namespace) -> None:
    from pacbayes_fl.study.deployment.deploy import PORT, deploy
    from pacbayes_fl.study.file import Study

    out, study = _out(options), Study.from_toml(options.study, assignments(options))
    with run_progress(study, options.quiet) as on_round:
        deploy(study, out, options.nodes, options.resume, on_round, options.port or PORT)
    _told(out)


def _serve(options: argparse.Namespace) -> None:
    from pacbayes_fl.study.deployment.export import serve_app
    from pacbayes_fl.study.file import Study

    folder, out = Path(options.more[0]), _out(options)
    study = Study.from_toml(str(folder / "study.toml"))
    with run_progress(study, options.quiet) as on_round:
        serve_app(folder, out, options.resume, on_round)
    _told(out)


def _export(options: argparse.Namespace) -> None:
    from pacbayes_fl.study.deployment.deploy import PORT
    from pacbayes_fl.study.deployment.export import export
    from pacbayes_fl.study.file import Study

    study, folder = Study.from_toml(options.more[0], assignments(options)), Path(options.more[1])
    named = {}
    for text in options.node:
        name, _, clients = text.partition("=")
        named[name] = names_in(clients)
    export(study, folder, options.address or f"localhost:{PORT}", options.nodes, named)
    say(f"Flower app: {folder}")
    say(f"who starts what: {folder / 'README.md'}")


def _told(out: Path) -> None:
    say(f"run folder: {out}")
    say(f"release it to clients: pacbayes-fl release {out} --out DIR")
