"""What a whole study costs at many clients: data, rounds, scores, files, each run in a process of its own."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import torch

from benchmarks.measure import Bench, Row, elsewhere
from pacbayes_fl.study import run
from pacbayes_fl.study.file import Study

ROUNDS, ROWS = 5, 10


def table(clients: int) -> dict[str, object]:
    """Give a study of polynomial clients, as the bundled one has them, with few test rows and few rounds.

    Args:
        clients: existing ones; there are no new ones.

    Returns:
        The study's table.
    """
    options = {"clients": clients, "new_clients": 0, "samples": ROWS, "test_samples": ROWS}
    return {
        "name": "many",
        "data": {"source": "polynomial", "options": options},
        "method": {"name": "pac-pfl"},
        "federation": {"rounds": ROUNDS, "device": "cpu", "threads": 1},
    }


def many_clients(bench: Bench, many: int = 10_000, few: int = 1_000) -> Iterator[Row]:
    """A study of many clients against one of fewer: user seconds per client in turn, and the peak of memory."""
    if bench.dtype != torch.float64:  # studies of Gaussian processes are
        return
    pairs = [(_alone(many), _alone(few)) for _ in range(min(bench.repeats, 3))]
    shares = [(1e3 * ours[0] / many, 1e3 * theirs[0] / few) for ours, theirs in pairs]
    ratios = sorted(theirs / ours for ours, theirs in shares)
    ours, theirs = (statistics.median(column) for column in zip(*shares, strict=True))
    case = f"a study of {many} polynomial clients / {few}, {ROUNDS} rounds"
    yield Row(
        f"user time per client, {case}",
        "ms",
        ours,
        theirs,
        statistics.median(ratios),
        ratios[0],
        ratios[-1],
        "<= 3.5 ms",
    )
    memory = [max(side[1] for side in column) for column in zip(*pairs, strict=True)]
    ratio = memory[1] / memory[0]
    yield Row(f"peak memory, {case}", "MiB", memory[0], memory[1], ratio, ratio, ratio, "<= 950 MiB")


def _alone(clients: int) -> tuple[float, float]:
    seconds, mebibytes = elsewhere("benchmarks.speed_studies", str(clients)).split()[-2:]
    return float(seconds), float(mebibytes)


def cost(clients: int) -> tuple[float, float]:
    """Run a study in this process.

    Args:
        clients: of it.

    Returns:
        User seconds and the peak of resident MiB of the process, imports included.
    """
    with TemporaryDirectory() as folder:
        run.run(Study.from_table(table(clients)), Path(folder) / "run").summary()
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_maxrss / 2**10


CASES: Mapping[str, Callable[[Bench], Iterator[Row]]] = MappingProxyType({"study": many_clients})


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(*cost(int(sys.argv[1])))
