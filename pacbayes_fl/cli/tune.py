"""The command `tune`: choose hyper-parameters on held-out blocks of training rows."""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pacbayes_fl.cli.arguments import AddCommand, assignments, json_option, methods_option, names_in, study_options
from pacbayes_fl.cli.output import say
from pacbayes_fl.errors import StudyError, one_line
from pacbayes_fl.files import fresh_folder
from pacbayes_fl.names import to_folder
from pacbayes_fl.results.folder import write_atomic
from pacbayes_fl.results.metrics import headlines, search_scores

if TYPE_CHECKING:
    from pacbayes_fl.study.search.trials import Trial


def arguments(command: AddCommand) -> None:
    """Add the command to the parser.

    Args:
        command: adds a command with its line of help and its examples.
    """
    sub = command(
        "tune",
        "choose hyper-parameters by k-fold inside clients on training rows",
        "pacbayes-fl tune polynomial --methods pac-pfl,pfedgp --budget 30 --out best.toml",
        "pacbayes-fl run best.toml",
    )
    study_options(sub)
    methods_option(sub)
    sub.add_argument(
        "--budget", type=int, default=20, metavar="N", help="configurations per method (default: %(default)s)"
    )
    sub.add_argument(
        "--folds", type=int, default=5, metavar="K", help="blocks of each client's rows (default: %(default)s)"
    )
    scores = {task: search_scores(task) for task in headlines()}
    defaults = ", ".join(f"{names[0]} of {task}" for task, names in scores.items())
    sub.add_argument(
        "--score",
        choices=[name for names in scores.values() for name in names],
        help=f"what is to be small on held-out blocks (default: {defaults})",
    )
    sub.add_argument("--out", type=Path, metavar="FILE", help="study to write (default: STUDY-tuned.toml)")
    sub.add_argument("--resume", action="store_true", help="go on with the search of which --out has the trials so far")
    json_option(sub, "lines", "study", "methods")


def act(options: argparse.Namespace) -> None:
    """Search, and write the study with the chosen values.

    Args:
        options: as parsed.
    """
    from pacbayes_fl.study.file import Study
    from pacbayes_fl.study.search import tune

    tune.check(options.budget, options.folds, options.score)
    sets = assignments(options)
    names = names_in(options.methods) or [Study.from_toml(options.study, sets).method.name]
    names = _tunable(options, list(dict.fromkeys(names)), sets)
    out = _target(options)
    with fresh_folder(out.parent):  # now, and not after hours of search
        _search(options, names, sets, out)


def _target(options: argparse.Namespace) -> Path:
    """Say where a search writes its study: it replaces nothing but what an earlier search has written there."""
    out: Path = options.out or Path(f"{to_folder(Path(options.study).stem)}-tuned.toml")
    if out.suffix != ".toml":
        raise StudyError(f"tune writes a study, and {out} does not end in .toml", hint="choose another --out")
    known = out.with_suffix(".search.json").exists() and not out.is_dir()
    if out.exists() and (not known or (Path(options.study).exists() and out.samefile(options.study))):
        what = "the study that is tuned" if known else "there already, and no search has written it"
        raise StudyError(f"{out} is {what}: it would be written over", hint="choose another --out")
    return out


def _search(options: argparse.Namespace, names: Sequence[str], sets: Sequence[str], out: Path) -> None:
    """Search configurations of methods, one after another, and write down what was chosen after each."""
    from pacbayes_fl.study.file import Study
    from pacbayes_fl.study.search import tune
    from pacbayes_fl.study.search.trials import Trials

    asked = tune.asked(options.study, names, options.folds, options.score, sets, options.budget)
    log = Trials(out.with_suffix(".search.json"), asked, options.resume)
    options.stopped = "go on with --resume" if len(log) else "no method was finished"
    chosen: dict[str, Trial] = {}
    every: dict[str, list[Trial]] = {}
    written = False

    def on_event(number: int, trial: Trial) -> None:
        if not written:
            options.stopped = "go on with --resume"
        if not options.quiet:
            values = ", ".join(f"{key}={value}" for key, value in trial.values.items()) or "the study's own values"
            outcome = trial.failure or _scores(trial)
            say(f"{name} {number + 1}/{options.budget}: {outcome} {values}", file=sys.stderr)

    try:
        for name in names:
            limits = {"budget": options.budget, "folds": options.folds, "score": options.score}
            chosen[name], every[name] = tune.tune(options.study, name, **limits, sets=sets, on_trial=on_event, log=log)
            _write_tuned(options, chosen, every, out)  # now: a later method may fail or be stopped
            written, options.stopped = True, f"the methods that were finished are in {out}; go on with --resume"
            if not options.json:
                say(f"{name}: {_scores(chosen[name])} {dict(chosen[name].values)}", flush=True)
        log.finish()
    except StudyError:  # of a search of which no configuration could be trained
        log.discard_failed()
        raise
    finally:
        if written and options.json:
            found = {name: {"values": dict(one.values), "scores": _finite(one.scores)} for name, one in chosen.items()}
            print(json.dumps({"study": str(out), "methods": found}, indent=1))
        elif written:
            say(f"study: {out}")
            if (own := Study.from_toml(out).method.name) not in chosen:
                other = f"--set method.name={next(iter(chosen))} runs another"
                say(f"the study's own method, {own}, was not searched: {other}")


def _tunable(options: argparse.Namespace, names: Sequence[str], sets: Sequence[str]) -> list[str]:
    """Take the methods that have something to tune; all names are checked before any search begins."""
    from pacbayes_fl.study.search import tune

    spaces = {name: tune.searched(options.study, name, sets) for name in names}
    useless = ", ".join(name for name, space in spaces.items() if not space)
    if not any(spaces.values()):
        hint = "it has no search space, which a Recipe of one's own gives as search, or --set fixes all of it"
        raise StudyError(f"nothing to tune in {useless}", hint=hint)
    if useless and not options.quiet:
        say(f"note: nothing to tune in {useless}, left out", file=sys.stderr)
    return [name for name, space in spaces.items() if space]


def _write_tuned(
    options: argparse.Namespace, chosen: Mapping[str, Trial], every: Mapping[str, Sequence[Trial]], out: Path
) -> None:
    """Write the study and all trials.

    All options that are assignments go into the study, but for --device, which says where the search ran. Who wants
    the device in the study gives it as --set federation.device=...
    """
    from pacbayes_fl.pages.search import TRIALS
    from pacbayes_fl.study.search import tune

    sets = assignments(argparse.Namespace(**{**vars(options), "device": None}))
    tune.write(options.study, chosen, out, sets, {name: len(trials) for name, trials in every.items()})
    trials = {name: [[dict(t.values), _finite(t.scores), t.failure] for t in trials] for name, trials in every.items()}
    write_atomic(out.with_suffix(TRIALS), (json.dumps(trials, indent=1) + "\n").encode())
    if tune.wants_page(options.study, sets):
        _write_page(out)


def _write_page(out: Path) -> None:
    """Write the page of the search; whatever becomes of it, the study and the trials are there."""
    from pacbayes_fl import pages

    try:
        pages.write_search(out)
    except Exception as error:
        what = one_line(f"{type(error).__name__}: {error}")
        warnings.warn(f"no page: {what} (`pacbayes-fl report {out}` writes it)", stacklevel=2)


def _scores(trial: Trial) -> str:
    return " ".join(f"{name} {value:.4f}" for name, value in trial.scores.items())


def _finite(scores: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in scores.items()}
