"""The command line: arguments in, exit code out.

0: done. 1: failed in a named way, said in one line. 2: wrong usage. 130: stopped by a signal; the line says what was
kept.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from pacbayes_fl.cli.output import say
from pacbayes_fl.cli.parser import parser
from pacbayes_fl.errors import DamageWarning, PacBayesFLError, listed, one_line
from pacbayes_fl.study.config.plugins import blamed, forget


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: of the command line; `sys.argv` when None.

    Returns:
        The exit code.
    """
    options = parser().parse_args(arguments)
    forget()
    action: Callable[[argparse.Namespace], None] = options.module.act
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.filterwarnings(
            "ignore", module=r"(?!pacbayes_fl|__main__).*"
        )  # ours point to their caller: the script
        warnings.simplefilter("always", DamageWarning)
        warnings.showwarning = partial(_show, options.quiet)
        try:
            with _terminable():
                action(options)
            sys.stdout.flush()
        except KeyboardInterrupt:
            _report("; ".join(["pacbayes-fl: stopped", *filter(None, [options.stopped])]))
            return 130
        except BrokenPipeError:  # the reader of our output has gone: exit without an error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        except Exception as error:  # the last handler: whatever it is, one line
            if options.debug:
                traceback.print_exception(error)
            _report(f"pacbayes-fl: {_error_text(error)}")
            return 1
    return 0


def _show(quiet: bool, message: Warning | str, category: type[Warning], *_: object) -> None:
    """Print a warning; with --quiet those alone that say that results are no longer what they were."""
    if not quiet or issubclass(category, DamageWarning):
        _report(f"warning: {one_line(str(message))}")


def _report(text: str) -> None:
    """Print to stderr; a closed terminal must not end the run."""
    with suppress(OSError):
        say(text, file=sys.stderr)


def _error_text(error: Exception) -> str:
    """Describe an error in one line: those of this package as they are, others by whose they are or may be."""
    if isinstance(error, PacBayesFLError):
        return str(error)
    if isinstance(error, OSError):
        return one_line(f"{error.filename or 'file'}: {error.strerror or error}")
    kind, text = type(error).__name__, f": {error}" if str(error) else ""
    starved = "can't allocate|not enough memory|out of memory"  # torch says so in a RuntimeError
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and re.search(starved, str(error))):
        return one_line(f"memory is exhausted: {kind}{text} (ask for less of what grows, such as rows or widths)")
    place, files = blamed(error)
    if place is not None:
        return f"{one_line(f'{place}: {kind}{text}')} (code that the study brings; --debug shows the trace)"
    whose = f" or of {one_line(listed(files))}, which the study brings" if files else ""
    advice = f"a defect of pacbayes-fl{whose}: run it again with --debug for the trace, and report that"
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
