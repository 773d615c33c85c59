"""The command line: arguments in, exit code out.

0: done. 1: failed in a named way, said in one line. 2: wrong usage. 130: stopped by a signal; the line says what was
kept.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from pacbayes_fl.cli import describe, init, schema
from pacbayes_fl.cli.output import (
    print_bins,
    print_cells,
    print_certificates,
    print_predictions,
    print_privacy,
    print_rows,
    print_table,
    progress,
    say,
)
from pacbayes_fl.cli.parser import parser
from pacbayes_fl.errors import DamageWarning, PacBayesFLError, StudyError, one_line
from pacbayes_fl.files import fresh_folder
from pacbayes_fl.names import to_folder
from pacbayes_fl.results import comparison
from pacbayes_fl.results.certificates import FOLDER as CERTIFICATES
from pacbayes_fl.results.certificates import CertifiedRun, tables_of
from pacbayes_fl.results.folder import write_atomic
from pacbayes_fl.results.records import Result, load
from pacbayes_fl.results.rounds import RoundRecord

if TYPE_CHECKING:
    from pacbayes_fl.certify.request import Request
    from pacbayes_fl.study.file import Study
    from pacbayes_fl.study.predict import AnyPrediction
    from pacbayes_fl.study.search.trials import Trial


_describe, _init, _schema = describe.act, init.act, schema.act


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: of the command line; `sys.argv` when None.

    Returns:
        The exit code.
    """
    options = parser().parse_args(arguments)
    action: Callable[[argparse.Namespace], None] = globals()[
        f"_{options.command}"
    ]  # one of those below, or of a module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if options.quiet else "default")
        warnings.filterwarnings(
            "ignore", module=r"(?!pacbayes_fl|__main__).*"
        )  # ours point to their caller: the script
        warnings.simplefilter("always", DamageWarning)  # also with --quiet, for results are no longer what they were
        warnings.showwarning = lambda message, *_: _tell(f"warning: {one_line(str(message))}")
        try:
            with _terminable():
                action(options)
            sys.stdout.flush()
        except KeyboardInterrupt:
            _tell("; ".join(["pacbayes-fl: stopped", *filter(None, [options.stopped])]))
            return 130
        except BrokenPipeError:  # the reader of our output has gone: nothing is wrong
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        except Exception as error:  # the last handler: whatever it is, one line
            if options.debug:
                traceback.print_exception(error)
            _tell(f"pacbayes-fl: {_told(error)}")
            return 1
    return 0


def _tell(text: str) -> None:
    """Tell whoever is still there: a terminal that was closed must not end what goes on."""
    with suppress(OSError):
        say(text, file=sys.stderr)


def _told(error: Exception) -> str:
    """Say in one line what went wrong: ours as they are, the machine's by name, and anything else is our defect."""
    if isinstance(error, PacBayesFLError):
        return str(error)
    if isinstance(error, OSError):
        return one_line(f"{error.filename or 'file'}: {error.strerror or error}")
    kind, text = type(error).__name__, f": {error}" if str(error) else ""
    starved = "can't allocate|not enough memory|out of memory"  # torch says so in a RuntimeError
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and re.search(starved, str(error))):
        return one_line(f"memory is exhausted: {kind}{text} (ask for less of what grows, such as rows or widths)")
    advice = "a defect of pacbayes-fl: run it again with --debug for the trace, and report that"
    return f"{one_line(kind + text)} ({advice})"


@contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end a command as Ctrl-C does; while a run trains, its own handler takes all."""
    if threading.current_thread() is not threading.main_thread():  # only there can a handler be set
        yield
        return

    def stop(number: int, _: object) -> None:
        if number == signal.SIGHUP:  # comes twice, from the terminal and from the shell
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    heard = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]  # nohup
    before = {each: signal.signal(each, stop) for each in heard}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, signal.SIG_DFL if handler is None else handler)


def _sets(options: argparse.Namespace) -> list[str]:
    given = {"seed": options.seed, "federation.rounds": options.rounds, "federation.device": options.device}
    return [*options.sets, *(f"{key}={value}" for key, value in given.items() if value is not None)]


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _run(options: argparse.Namespace) -> None:
    from pacbayes_fl.study.file import Study
    from pacbayes_fl.study.run import run

    study = Study.from_toml(options.study, _sets(options))
    out = options.out or _default_folder(
        Path("runs") / f"{to_folder(study.name)}-{to_folder(Path(study.method.name).name)}-seed{study.seed}",
        options.resume,
    )
    options.stopped = "go on with --resume"

    @cache
    def say_preset() -> None:
        if not options.quiet:
            _say_preset(study.method.preset, study.differences())

    with progress(f"{study.method.name} on {study.name}", study.plan.rounds, options.quiet) as on_round:

        def told(record: RoundRecord) -> None:
            say_preset()  # not before a round has ended: a study that is refused gets one line, the error
            on_round(record)

        result = run(study, out, options.resume, told)
    say_preset()  # no round was left to train
    print_table(result)
    say(f"run folder: {out}")


def _default_folder(path: Path, resume: bool) -> Path:
    """Take the first folder that holds no run, or with `resume` the last that does."""
    from pacbayes_fl.study.resuming import holds_run

    last, number = path, 1
    while holds_run(path.with_name(f"{path.name}-{number}") if number > 1 else path):
        last = path.with_name(f"{path.name}-{number}") if number > 1 else path
        number += 1
    return last if resume or number == 1 else path.with_name(f"{path.name}-{number}")


def _say_preset(preset: str, differences: dict[str, tuple[object, object]]) -> None:
    told = ", ".join(f"{key}={mine} (paper {theirs})" for key, (mine, theirs) in differences.items())
    say(f"preset {preset}; differs from paper in: {told or 'nothing'}", file=sys.stderr)


def _compare(options: argparse.Namespace) -> None:
    from pacbayes_fl.study.compare import compare, varied
    from pacbayes_fl.study.file import Study

    if options.seeds < 1:
        raise StudyError(f"--seeds must be at least 1, got {options.seeds}")
    chosen = [[f"method.name={name}"] for name in _names(options.methods)] or [[]]
    every = [[*_sets(options), *name] for name in chosen]
    key, values = _varied(options.vary)
    if key is None:
        studies = [Study.from_toml(options.study, sets) for sets in every]
    else:
        studies = [study for sets in every for study in varied(options.study, key, values, sets)]
    if options.resume and not options.out:
        raise StudyError("--resume needs the folder of the comparison", hint="give --out DIR")
    again = "go on with --resume, finished runs are read"
    options.stopped = again if options.out else "nothing was kept, for want of --out"
    runs = len(studies) * options.seeds
    with progress("runs", runs, options.quiet) as on_round:
        done = iter(range(1, runs + 1))

        def on_run(study: Study) -> None:
            on_round(RoundRecord(next(done) - 1, 0))

        found = compare(studies, options.seeds, options.out, on_run, key, options.resume)
        on_round(RoundRecord(runs, 0))
    _print_comparison(found)
    if options.out:
        say(f"folder: {options.out}")


def _print_comparison(found: Sequence[Result]) -> None:
    print_cells(comparison.table(found))
    print_bins(found)
    print_rows(found)
    print_privacy(found)


def _varied(text: str | None) -> tuple[str | None, list[str]]:
    """Take KEY=V1,V2 apart; a comma inside brackets belongs to a value, as in model.widths=[50],[50,50]."""
    if text is None:
        return None, []
    key, equals, values = text.partition("=")
    if not equals or not all(key.strip().partition(".")):
        raise StudyError(f"--vary takes KEY=V1,V2, got {text!r}", hint="such as --vary method.particles=1,2,4")
    return key.strip(), [value.strip() for value in re.findall(r"(?:\[[^\]]*\]|[^,\[])+", values) if value.strip()]


def _tune(options: argparse.Namespace) -> None:
    from pacbayes_fl.study.file import Study
    from pacbayes_fl.study.search import tune

    tune.check(options.budget, options.folds, options.score)
    sets = _sets(options)
    names = _names(options.methods) or [Study.from_toml(options.study, sets).method.name]
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
    from pacbayes_fl.study.search import tune
    from pacbayes_fl.study.search.trials import Trials

    numbers = (options.folds, options.seed or 0, options.score)
    asked = tune.asked(options.study, names, *numbers, sets, options.budget)
    log = Trials(out.with_suffix(".search.json"), asked, options.resume)
    options.stopped = "go on with --resume" if len(log) else "no method was finished"
    chosen: dict[str, Trial] = {}
    every: dict[str, list[Trial]] = {}
    written = False

    def told(number: int, trial: Trial) -> None:
        if not written:
            options.stopped = "go on with --resume"
        if not options.quiet:
            values = ", ".join(f"{key}={value}" for key, value in trial.values.items()) or "the study's own values"
            outcome = trial.failure or _scores(trial)
            say(f"{name} {number + 1}/{options.budget}: {outcome} {values}", file=sys.stderr)

    try:
        for name in names:
            chosen[name], every[name] = tune.tune(options.study, name, options.budget, *numbers, sets, told, log)
            _write_tuned(options, chosen, every, out)  # now: a later method may fail or be stopped
            written, options.stopped = True, f"the methods that were finished are in {out}; go on with --resume"
            say(f"{name}: {_scores(chosen[name])} {dict(chosen[name].values)}", flush=True)
        log.finish()
    except StudyError:  # of a search of which no configuration could be trained
        log.discard_failed()
        raise
    finally:
        if written:
            say(f"study: {out}")


def _tunable(options: argparse.Namespace, names: Sequence[str], sets: Sequence[str]) -> list[str]:
    """Take the methods that have something to tune; all names are checked before any search begins."""
    from pacbayes_fl.study.search import tune

    spaces = {name: tune.searched(options.study, name, sets) for name in names}
    useless = ", ".join(name for name, space in spaces.items() if not space)
    if not any(spaces.values()):
        raise StudyError(f"nothing to tune in {useless}", hint="it has no search space, or --set fixes all of it")
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
    from pacbayes_fl.study.search import tune

    sets = _sets(argparse.Namespace(**{**vars(options), "device": None}))
    tune.write(options.study, chosen, out, sets, {name: len(trials) for name, trials in every.items()})
    trials = {name: [[dict(t.values), _finite(t.scores), t.failure] for t in trials] for name, trials in every.items()}
    write_atomic(out.with_suffix(".trials.json"), (json.dumps(trials, indent=1) + "\n").encode())


def _scores(trial: Trial) -> str:
    return " ".join(f"{name} {value:.4f}" for name, value in trial.scores.items())


def _finite(scores: Mapping[str, float]) -> dict[str, float | None]:
    return {name: value if math.isfinite(value) else None for name, value in scores.items()}


def _list(options: argparse.Namespace) -> None:
    if options.what == "bounds":
        from pacbayes_fl.certify.from_numbers import listing
    else:
        from pacbayes_fl.study import listing as of_studies

        listing = partial(of_studies.listing, options.what)
    for name, text in listing():
        say(f"{name:20} {text}")


def _show(options: argparse.Namespace) -> None:
    if comparison.is_comparison(options.run):
        found = comparison.load(options.run)
        if options.json:
            print(json.dumps(json.loads((options.run / comparison.FILE).read_text("utf-8")), indent=1))
        else:
            _print_comparison(found)
        return
    result = load(options.run)
    if options.json:
        print(json.dumps(result.summary(), indent=1))
    else:
        print_table(result)
        for table in _tables(options.run):
            print_certificates(table)


def _tables(folder: Path) -> list[CertifiedRun]:
    """Read the certificates of a run; of what it held before it says that they are stale."""
    if not any((folder / CERTIFICATES).glob("*.json")):
        return []
    from pacbayes_fl.certify.clients import checked

    tables = tables_of(folder, lambda text: say(f"warning: {text}", file=sys.stderr))
    checked(tables)
    return tables


def _plot(options: argparse.Namespace) -> None:
    from pacbayes_fl import plots

    found: list[Result] = []
    for folder in options.run:
        if comparison.is_comparison(folder):
            runs = comparison.load(folder)
            written = plots.save_joint(runs, folder / "figures")
        else:
            runs = [load(folder)]
            written = _plot_run(runs[0], folder, _names(options.clients) or None)
        for path in written:
            say(str(path))
        found += runs
    if len(options.run) > 1:
        for path in plots.save_joint(found, options.run[0].parent / "figures"):
            say(str(path))


def _plot_run(result: Result, folder: Path, clients: Sequence[str] | None) -> list[Path]:
    """Draw a run and its certificates, and remove figures of tables that are stale by now, or gone."""
    from pacbayes_fl import plots

    written = plots.save_all(result, folder / "figures", clients=clients)
    tables = _tables(folder)
    current = {f"certificates-{table.stem}" for table in tables}
    for path in (folder / "figures").glob("certificates-*"):
        if path.stem not in current:
            path.unlink()
    return [*written, *plots.save_certificates(tables, folder / "figures")]


def _certify(options: argparse.Namespace) -> None:
    from pacbayes_fl.certify import clients as study_certify
    from pacbayes_fl.certify import request as study_certify_request
    from pacbayes_fl.study.run import open_run

    request = study_certify_request.Request(
        options.bound or study_certify_request.DEFAULT,
        options.delta,
        study_certify_request.loss_of(options.loss),
        options.draws,
        beta=study_certify_request.beta_of(options.beta),
        jointly=options.jointly,
        tried=options.tried,
        smooth=options.smooth,
    )
    folder = _retrained(options, request) if options.retrain else options.run
    trained = open_run(folder)
    clients = sum(group.train.clients for group in trained.groups.values())
    with progress("certify clients", clients, options.quiet) as on_round:
        done = 0

        def told(more: int) -> None:
            nonlocal done
            done += more
            on_round(RoundRecord(done, done))

        table = study_certify.certify(trained, request, told)
    path = table.save(folder)
    if options.json:
        print(path.read_text("utf-8"))
        return
    print_certificates(table)
    for written in [path, *_drawn(table, folder)]:
        say(f"file: {written}")


def _drawn(table: CertifiedRun, folder: Path) -> list[Path]:
    """Draw a table of certificates, where there is matplotlib and something to draw."""
    from pacbayes_fl import plots

    try:
        return plots.save_certificates([table], folder / "figures")
    except PacBayesFLError as error:
        warnings.warn(f"no figure: {error}", stacklevel=2)
        return []


def _retrained(options: argparse.Namespace, request: Request) -> Path:
    """Run the study of a folder again with rows kept for certificates, or take that run where it is finished."""
    from pacbayes_fl.certify.retrain import certifiable, check, is_finished
    from pacbayes_fl.study.run import run

    study, folder = certifiable(options.run)
    if folder != options.run and not is_finished(study, folder):
        check(study, request)
        options.stopped = "go on with the same command"
        with progress(f"{study.method.name} on {study.name}", study.plan.rounds, options.quiet) as on_round:
            run(study, folder, resume=True, on_round=on_round)
    return folder


def _bound(options: argparse.Namespace) -> None:
    from pacbayes_fl.certify import from_numbers

    fields = from_numbers.Numbers.__dataclass_fields__
    given = {name: value for name, value in vars(options).items() if name in fields}
    numbers = from_numbers.Numbers(**given)
    certificate = from_numbers.certificate(options.name, numbers)
    if options.json:
        print(json.dumps(from_numbers.to_record(certificate), indent=1))
        return
    for line in str(certificate).splitlines():
        say(line)
    say(from_numbers.formula_text(options.name))
    say(from_numbers.assumptions_text(numbers))


def _join(options: argparse.Namespace) -> None:
    from pacbayes_fl.study.predict import joined
    from pacbayes_fl.study.release import Served, is_release, open_release
    from pacbayes_fl.study.run import open_run

    known = open_release(options.run) if is_release(options.run) else open_run(options.run)
    at = known.round if isinstance(known, Served) else known.state.round
    sound: list[AnyPrediction] = []
    try:
        for one in joined(known, options.data):
            sound.append(one)
    finally:  # what is known of the others is printed before one client's error is
        if sound:
            print_predictions(sound, options.json, at)


def _release(options: argparse.Namespace) -> None:
    from pacbayes_fl.study.release import release

    words = release(options.run, options.out, options.public_scaling)
    say(f"release: {words}")
    say(f"folder: {options.out}")


def _predict(options: argparse.Namespace) -> None:
    from pacbayes_fl.study.predict import predict
    from pacbayes_fl.study.run import open_run

    trained = open_run(options.run)
    found = predict(trained, options.client, options.data, options.later)
    print_predictions([found], options.json, trained.state.round)
