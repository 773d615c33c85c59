"""What a study of many clients costs: peak memory, and CPU seconds a client of set-up, a round, evaluation and writing.

    python -m benchmarks.many_clients --clients 1000 10000 100000

Every number of clients is a process of its own, on one thread, that runs `polynomial` with a cohort of 200 for two
rounds, each of them scored on all clients, into a folder that is removed. Peak memory is VmHWM of Linux, the largest
resident memory: pages of mapped files count while they are there, and beside it stands the largest that is no file's
(RssAnon, looked at every 20 ms). CPU seconds are the process's own; imports are not counted in any stage.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pacbayes_fl.federation.player import Player
from pacbayes_fl.files import JsonTable
from pacbayes_fl.study import run as runs
from pacbayes_fl.study.file import Study

STAGES = ("set-up", "round", "evaluation", "writing")
USUAL = ("federation.cohort=200", "federation.rounds=2", "federation.threads=1", "federation.device=cpu")
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_EVERY = 0.02  # seconds between looks


def memory(name: str) -> int:
    """Read a number of the process's memory.

    Args:
        name: VmHWM or RssAnon.

    Returns:
        Bytes.
    """
    found = re.search(rf"{name}:\s+(\d+)", _STATUS.read_text("utf-8"))
    return 1024 * int(found[1]) if found else 0


@dataclass
class Clock:
    """CPU seconds and peak memory by stage; what is in no stage belongs to set-up, and after a round to writing."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(STAGES, 0.0))
    peak: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STAGES, 0))
    anonymous: int = 0
    blocks: int = 0
    stages: list[str] = field(default_factory=lambda: ["set-up"])
    since: float = field(default_factory=time.process_time)

    def switch(self, stage: str | None) -> None:
        """Enter a stage, or leave it with None."""
        now, own = time.process_time(), self.stages[-1]
        self.seconds[own], self.since = self.seconds[own] + now - self.since, now
        self.peak[own] = max(self.peak[own], memory("VmHWM"))
        _RESET.write_text("5")  # the peak is taken anew from here on
        if stage is None:
            self.stages.pop()
        else:
            self.stages.append(stage)
        if stage == "round":
            self.stages[0] = "writing"

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Count a function in a stage."""

        @functools.wraps(function)
        def inner(*given: Any, **named: Any) -> Any:
            self.switch(stage)
            try:
                return function(*given, **named)
            finally:
                self.switch(None)

        return inner

    def look(self) -> None:
        """Note the memory that is no file's, and how many small objects of Python there are."""
        self.anonymous = max(self.anonymous, memory("RssAnon"))
        self.blocks = max(self.blocks, sys.getallocatedblocks())


def measure(clients: int, sets: Sequence[str] = ()) -> JsonTable:
    """Run the study in this process, whose memory and functions are changed by it.

    Args:
        clients: their number.
        sets: assignments of the study beside `USUAL`.

    Returns:
        "clients", bytes of "peak" by stage and "anonymous", CPU "seconds" by stage, "rounds", and numbers of "blocks",
        small objects of Python beyond those before: at their peak, and "kept" while the result is there.
    """
    study = Study.from_toml("polynomial", [*USUAL, f"data.options.clients={clients}", *sets])
    gc.collect()
    before, clock, over = sys.getallocatedblocks(), Clock(), threading.Event()

    def watch() -> None:
        while not over.wait(_EVERY):
            clock.look()

    original = Player.play, runs._scored, runs.report
    Player.play = clock.timed("round", original[0])  # type: ignore[method-assign]
    runs._scored, runs.report = (clock.timed("evaluation", one) for one in original[1:])
    thread = threading.Thread(target=watch, daemon=True)
    _RESET.write_text("5")
    thread.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            result = runs.run(study, Path(folder) / "run")
            clock.switch("writing")
    finally:
        over.set()
        thread.join()
        Player.play, runs._scored, runs.report = original  # type: ignore[method-assign]
    gc.collect()
    return {
        "clients": clients,
        "rounds": len(result.rounds),
        "peak": clock.peak,
        "anonymous": clock.anonymous,
        "seconds": clock.seconds,
        "blocks": clock.blocks - before,
        "kept": sys.getallocatedblocks() - before,
    }


def apart(clients: int, sets: Sequence[str] = ()) -> JsonTable:
    """Do as `measure` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.many_clients", "--one", "--clients", str(clients)]
    for one in sets:
        command += ["--set", one]
    done = subprocess.run(command, check=True, capture_output=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    result: JsonTable = json.loads(done.stdout.decode().splitlines()[-1])
    return result


def table(found: Sequence[JsonTable]) -> str:
    """Print measurements in Markdown: MiB, and CPU milliseconds a client.

    Args:
        found: from `measure`.

    Returns:
        A line per number of clients.
    """
    lines = []
    for one in found:
        peaks = [f"{one['peak'][stage] / 2**20:.0f}" for stage in STAGES]
        times = {stage: 1000 * one["seconds"][stage] / one["clients"] for stage in STAGES}
        a_round = f"{one['seconds']['round'] / one['rounds']:.2f} s"
        whole = f"{sum(one['seconds'].values()):.0f} s, {sum(times.values()):.2f} ms"
        costs = [f"{times['set-up']:.2f}", a_round, f"{times['evaluation']:.2f}", f"{times['writing']:.2f}"]
        memories = [f"{max(one['peak'].values()) / 2**20:.0f}", f"{one['anonymous'] / 2**20:.0f}", *peaks]
        lines.append([f"{one['clients']:,}", *memories, *costs, whole])
    head = ["clients", "peak MiB", "of it no file's", *(f"in {stage}" for stage in STAGES)]
    head += ["set-up ms", "a round", "evaluation ms", "writing ms", "CPU in all, a client"]
    rows = [head, ["---:"] * len(head), *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--set", action="append", default=[], help="an assignment of the study")
    parser.add_argument("--one", action="store_true", help="measure in this process, and print JSON")
    options = parser.parse_args(arguments)
    if options.one:
        print(json.dumps(measure(options.clients[0], options.set)))
        return
    found = []
    for clients in options.clients:
        found.append(apart(clients, options.set))
        print(json.dumps(found[-1]), file=sys.stderr)
    print(table(found))


if __name__ == "__main__":
    main()
