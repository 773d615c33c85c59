"""The command `node`: what the owner of a node's rows runs."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pacbayes_fl.cli.arguments import AddCommand, assignments, study_options
from pacbayes_fl.cli.output import print_certificates, say
from pacbayes_fl.errors import PacBayesFLError

if TYPE_CHECKING:
    from pacbayes_fl.study.file import Study


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "node",
        "check what a node would send, answer a server with its rows, certify and predict with what came of it",
        "pacbayes-fl node check houses.toml --client house_07",
        "pacbayes-fl node run houses.toml --client house_07 --folder node --server fl.example.org:9092 --keys keys",
        "pacbayes-fl node run houses.toml --client house_07 --folder node --socket node/socket",
        "pacbayes-fl node certify houses.toml --client house_07 --folder node --bound seeger",
        "pacbayes-fl node predict houses.toml --folder node --release released --data next.csv",
    )
    actions = "look at the rows and say what leaves; take part; bound the clients' risks; predict"
    sub.add_argument("action", choices=("check", "run", "certify", "predict"), help=actions)
    study_options(sub)
    sub.add_argument("--client", action="append", default=[], metavar="NAME", help="of this node (default: all)")
    sub.add_argument("--folder", type=Path, metavar="DIR", help="in which the node keeps what it remembers")
    sub.add_argument("--socket", type=Path, metavar="PATH", help="run: at which Flower's ClientApp calls")
    sub.add_argument(
        "--server", metavar="HOST:PORT", help="run: join this SuperLink, with a SuperNode beside the worker"
    )
    sub.add_argument("--keys", type=Path, metavar="DIR", help="run: the node's keys, as make_keys.py writes them")
    sub.add_argument("--once", action="store_true", help="run: answer the one message on stdin, on stdout")
    text = "certify and predict: a model that was released, in place of what came of the node's own run"
    sub.add_argument("--release", type=Path, metavar="DIR", help=text)
    sub.add_argument("--bound", metavar="NAME", help="certify: see `list bounds` (default: the first of them)")
    sub.add_argument("--delta", type=float, default=0.05, metavar="D", help="certify: chance (default: %(default)s)")
    sub.add_argument("--data", type=Path, metavar="FILE", help="predict: the rows, as `predict` takes them")
    sub.add_argument("--out", type=Path, metavar="FILE", help="predict: write .csv or .parquet instead of printing CSV")


def act(options: argparse.Namespace) -> None:
    """Check, be the node's worker, certify or predict.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.errors import DeployError
    from pacbayes_fl.study.deployment.deploy import check_node, work_as_node
    from pacbayes_fl.study.file import Study

    study, folder = Study.from_toml(options.study, assignments(options)), options.folder or Path("node")
    if options.action == "check":
        for line in check_node(study, options.client):
            say(line)
        return
    if options.action != "run":
        _with_results(options, study, folder)
        return
    options.stopped = "what the node remembers is in its folder"
    to_log = partial(say, file=sys.stderr)
    once = sys.stdin.buffer.read if options.once else None
    if (options.server is None) != (options.keys is None):
        raise DeployError("--server and --keys go together", hint="the server's address, and the folder of your keys")
    server = None if options.server is None else (options.server, options.keys)
    made = partial(_certified, study)
    answer = work_as_node(study, folder, options.client, options.socket, to_log, once, server, made)
    if answer is not None:
        sys.stdout.buffer.write(answer)


def _certified(study: Study, folder: Path) -> None:
    """Certify a node's clients after the last round, where rows were kept for that."""
    if study.report.certify.scheme == "none":
        return
    from pacbayes_fl.certificates.clients import certify
    from pacbayes_fl.study.run import open_run

    try:
        say(f"certificates: {certify(open_run(folder)).save(folder)}", file=sys.stderr)
    except PacBayesFLError as error:
        say(f"warning: no certificates: {error}", file=sys.stderr)


def _with_results(options: argparse.Namespace, study: Study, folder: Path) -> None:
    from pacbayes_fl.errors import StudyError
    from pacbayes_fl.study.run import open_run
    from pacbayes_fl.study.serving.node_release import results_of

    if options.action == "predict" and options.data is None:
        raise StudyError("node predict needs rows", hint="--data FILE")
    path = results_of(study, folder, options.client, options.release)
    trained = open_run(path)
    if options.action == "certify":
        from pacbayes_fl.certificates.clients import certify
        from pacbayes_fl.certificates.request import DEFAULT, Request

        table = certify(trained, Request(options.bound or DEFAULT, options.delta))
        written = table.save(path)
        print_certificates(table)
        say(f"file: {written}")
        return
    from pacbayes_fl.study.serving.forecast import check_out, forecast
    from pacbayes_fl.study.serving.out_file import check_apart

    if options.out is not None:
        check_out(options.out)
        check_apart(options.out, path, options.data, Path(study.data.source))
    result = forecast(trained, options.data)
    if options.out is None:
        text = result.to_csv()
        print(text, end="")
        return
    result.save(options.out)
    say(f"{options.out}: {result.counts}", file=sys.stderr)
