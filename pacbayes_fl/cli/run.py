"""The command `run`: train, print the table and write the run folder."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from pacbayes_fl.cli.arguments import AddCommand, assignments, json_option, study_options
from pacbayes_fl.cli.output import print_table, say
from pacbayes_fl.cli.progress import run_progress
from pacbayes_fl.names import to_folder
from pacbayes_fl.results.rounds import RoundRecord


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "run",
        "train, print the table and write the run folder",
        "pacbayes-fl run polynomial --out runs/first",
        "pacbayes-fl run polynomial --out runs/first --resume",
        "pacbayes-fl run houses.toml --set method.name=pfedgp --set federation.rounds=100",
    )
    study_options(sub)
    sub.add_argument("--out", type=Path, metavar="DIR", help="run folder (default: runs/NAME-METHOD-seedN)")
    sub.add_argument("--resume", action="store_true", help="go on from the folder's last intact checkpoint")
    json_option(sub, "the table", "study", "method", "seed", "task", "round", "groups", "folder")


def act(options: argparse.Namespace) -> None:
    """Train the study, or go on with its run: in every process, where torchrun has started several.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.file import Study
    from pacbayes_fl.study.run import run
    from pacbayes_fl.study.storage.rank_folder import opened

    with opened() as ranks, _silent(options, ranks is not None and not ranks.first):
        study = Study.from_toml(options.study, assignments(options))

        def chosen() -> Path:
            usual = f"{to_folder(study.name)}-{to_folder(Path(study.method.name).name)}-seed{study.seed}"
            return options.out or _default_folder(Path("runs") / usual, options.resume)

        out = chosen() if ranks is None else ranks.of_first(chosen)
        options.stopped = "go on with --resume"

        @cache
        def say_preset() -> None:
            if not options.quiet:
                _say_preset(study.method.preset, study.differences())

        with run_progress(study, options.quiet) as on_round:

            def on_event(record: RoundRecord) -> None:
                say_preset()  # not before a round has ended: a study that is refused gets one line, the error
                on_round(record)

            result = run(study, out, options.resume, on_event, ranks=ranks)
        say_preset()  # no round was left to train
        if options.json:
            print(json.dumps(result.summary() | {"folder": str(out)}, indent=1))
            return
        print_table(result)
        say(f"run folder: {out}")


@contextmanager
def _silent(options: argparse.Namespace, silent: bool) -> Iterator[None]:
    """Say nothing to the end of a process that is not the first, which learns of its error."""
    if not silent:
        yield
        return
    options.quiet = True
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1,) if options.debug else (1, 2):
        os.dup2(null, stream)
    yield


def _default_folder(path: Path, resume: bool) -> Path:
    """Take the first folder that holds no run, or with `resume` the last that does."""
    from pacbayes_fl.study.storage.resuming import holds_run

    last, number = path, 1
    while holds_run(path.with_name(f"{path.name}-{number}") if number > 1 else path):
        last = path.with_name(f"{path.name}-{number}") if number > 1 else path
        number += 1
    return last if resume or number == 1 else path.with_name(f"{path.name}-{number}")


def _say_preset(preset: str, differences: dict[str, tuple[object, object]]) -> None:
    text = ", ".join(f"{key}={value} (paper {published})" for key, (value, published) in differences.items())
    say(f"preset {preset}; differs from paper in: {text or 'nothing'}", file=sys.stderr)
