"""The first signal asks, the second one ends."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from pacbayes_fl.federation.stop import StopSignal
from tests.forked import child, fork


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_is_noted_and_the_old_handlers_return(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)]
    with StopSignal() as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested and stop.received == number
    assert [signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)] == before


@fork
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_the_process_at_once(second: signal.Signals) -> None:
    def work() -> int:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            if not stop.requested:
                return 1
            os.kill(os.getpid(), second)
            return 2

    assert os.waitstatus_to_exitcode(child(work)) == -second


def test_in_another_thread_nothing_is_caught() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with StopSignal() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]
    assert signal.getsignal(signal.SIGTERM) == before
