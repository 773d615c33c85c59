"""Progress of a command: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import count
from time import monotonic
from typing import TYPE_CHECKING, Final

from pacbayes_fl.cli.output import say
from pacbayes_fl.results.metrics import headlines
from pacbayes_fl.results.recorded import in_progress
from pacbayes_fl.results.rounds import RoundRecord

if TYPE_CHECKING:
    from pacbayes_fl.study.file import Study

OnRound = Callable[[RoundRecord], None]

_SILENCE: Final = 30.0  # seconds of a run among several, after which a line says how far it is


def run_progress(study: Study, quiet: bool) -> AbstractContextManager[OnRound]:
    """Show the rounds of a run, as `progress` does.

    Args:
        study: what is run.
        quiet: show nothing.

    Returns:
        Gives what is to be called after every round.
    """
    return progress(f"{study.method.name} on {study.name}", study.plan.rounds, quiet)


@contextmanager
def runs_progress(runs: int, quiet: bool) -> Iterator[Callable[[Study], OnRound]]:
    """Show which of several runs is made, and how far it is: in a bar on a terminal, in lines elsewhere.

    Args:
        runs: their number.
        quiet: show nothing.

    Yields:
        What is to be called before every run; it gives what is to be called after every round.
    """
    if quiet:
        yield lambda study: lambda record: None
    elif not sys.stderr.isatty():

        def line(done: int, news: Sequence[str]) -> None:
            say(" ".join([f"runs: {done}/{runs}", *news]), file=sys.stderr, flush=True)

        yield _each_run(line, _SILENCE)
        line(runs, ())
    else:
        from pacbayes_fl.cli.bar import bar

        with bar("runs", runs) as show:
            yield _each_run(show, 0.0)
            show(runs, ())


def _each_run(show: Callable[[int, Sequence[str]], None], silence: float) -> Callable[[Study], OnRound]:
    """Count runs, and tell of the rounds of each when some seconds have passed since anything was told."""
    numbers = count()

    def begin(study: Study) -> OnRound:
        done, name = next(numbers), f"{study.method.name}, seed {study.seed}"
        total, told = study.plan.rounds, monotonic()
        show(done, [name])

        def on_round(record: RoundRecord) -> None:
            nonlocal total, told
            total = _total(record, total)
            if monotonic() - told >= silence:
                show(done, [f"{name}: {_reached(record, total)}", *_progress_parts(record)])
                told = monotonic()

        return on_round

    return begin


@contextmanager
def progress(text: str, total: int, quiet: bool) -> Iterator[OnRound]:
    """Show rounds, time left and the score on a terminal; a line now and then elsewhere.

    Args:
        text: what is being done.
        total: number of rounds.
        quiet: show nothing.

    Yields:
        What is to be called after every round.
    """
    if quiet:
        yield lambda record: None
    elif not sys.stderr.isatty():

        def line(record: RoundRecord) -> None:
            nonlocal total
            total = _total(record, total)
            if record.round % max(1, total // 10) == 0 or record.round == total or record.dropped or record.undone:
                say(f"{text}: {_reached(record, total)} {_news(record)}", file=sys.stderr, flush=True)

        yield line
    else:
        from pacbayes_fl.cli.bar import bar

        with bar(text, total) as show:

            def told(record: RoundRecord) -> None:
                nonlocal total
                total = _total(record, total)
                show(record.round, _progress_parts(record) if _is_news(record) else None, total)

            yield told


def _reached(record: RoundRecord, total: int) -> str:
    return "before the first round, tried" if not record.round and record.values else f"{record.round}/{total}"


def _total(record: RoundRecord, before: int) -> int:
    """Number of rounds of a run, which may be chosen before the first."""
    return before if record.round else int(record.values.get("rounds", before))


def _is_news(record: RoundRecord) -> bool:
    scored = set(headlines().values()) & record.values.keys()
    return not record.round or bool(record.dropped or record.undone or scored)


def _progress_parts(record: RoundRecord) -> list[str]:
    """Say what is worth telling of a round, what matters most first: faults, then scores."""
    known = (*headlines().values(), *in_progress())
    names = known if record.round else record.values  # round 0: what was tried before the first
    return [*_faults(record), *(f"{name} {record.values[name]:.4g}" for name in names if name in record.values)]


def _faults(record: RoundRecord) -> list[str]:
    undone = [f"undone {len(record.undone)}, rates x {record.rates:g}"] if record.undone else []
    return [*undone, *([f"dropped {', '.join(record.dropped)}"] if record.dropped else [])]


def _news(record: RoundRecord) -> str:
    """Say the same in a line, faults last."""
    parts, faults = _progress_parts(record), _faults(record)
    return " ".join([*parts[len(faults) :], *faults])
