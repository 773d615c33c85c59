"""How two ways to compute the same are measured: in turn, in one process, after their numbers were compared."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.results.rounds import RoundRecord

SEED = 0
SETTINGS = MappingProxyType(
    {
        "MALLOC_MMAP_THRESHOLD_": "8589934592",
        "MALLOC_TRIM_THRESHOLD_": "17179869184",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }
)
"""Of the environment, read when a process starts."""
Rounds = Iterator[tuple[RoundRecord, FederationState]]


@dataclass(frozen=True)
class Row:
    """One line of the table: both sides in `unit`, their ratio (theirs / ours) pair by pair, and what it should be."""

    case: str
    unit: str
    ours: float
    theirs: float
    ratio: float
    low: float
    high: float
    goal: str


@dataclass(frozen=True)
class Bench:
    """How to measure: numbers of `dtype` on `device`, in `repeats` pairs of at least `least` seconds a side."""

    dtype: torch.dtype
    device: torch.device
    repeats: int
    least: float = 0.02

    def run(self, call: Callable[[], object], times: int = 1) -> float:
        """Measure seconds per call."""
        begun = time.perf_counter()
        for _ in range(times):
            call()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begun) / times

    def pair(self, case: str, ours: Callable[[], object], theirs: Callable[[], object], goal: str) -> Row:
        """Measure both in turn, warm; a ratio above 1 says that ours is the faster."""
        sides = [(call, max(1, int(self.least / min(self.run(call), self.run(call))))) for call in (ours, theirs)]
        pairs = [[self.run(*side) for side in sides] for _ in range(self.repeats)]
        ratios = [second / first for first, second in pairs]
        ours_ms, theirs_ms = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
        middle = statistics.median(ratios)
        return Row(f"{case}, {self.name}", "ms", ours_ms, theirs_ms, middle, min(ratios), max(ratios), goal)

    @property
    def name(self) -> str:
        """The dtype as it is written in tables."""
        return str(self.dtype).removeprefix("torch.")

    def same(self, what: str, ours: Tensor, theirs: Tensor, within: float | None = None) -> None:
        """Refuse to time sides that do not compute the same.

        Args:
            what: what is compared, for the message.
            ours: numbers [*].
            theirs: what they should be [*].
            within: largest difference allowed, as relative norm; that of the dtype when None.

        Raises:
            SystemExit: when they differ by more.
        """
        error = float((ours.double() - theirs.double()).norm() / theirs.double().norm())
        usual = 1e-8 if self.dtype == torch.float64 else 2e-3
        if not error <= (usual if within is None else within):
            raise SystemExit(f"{what}: the two sides differ by {error:.1e} (relative norm)")

    def shares(self, case: str, ours: tuple[int, Rounds], theirs: tuple[int, Rounds]) -> Row:
        """Measure a client's share of a round of the engine, with many clients and with few.

        Args:
            case: how the row is called.
            ours: number of clients, the larger, and their rounds, of which one has passed.
            theirs: the same with fewer clients.

        Returns:
            Milliseconds per client; a ratio below 1 says that a client among many costs more.
        """

        def share(clients: int, rounds: Rounds) -> float:
            repeats = max(1, ours[0] // clients // 20)  # more rounds where they are short
            return 1e3 * statistics.fmean(next(rounds)[0].values["seconds"] for _ in range(repeats)) / clients

        pairs = [(share(*ours), share(*theirs)) for _ in range(self.repeats)]
        ratios = sorted(few / many for many, few in pairs)
        many, few, middle = (statistics.median(column) for column in (*zip(*pairs, strict=True), ratios))
        return Row(case, "ms", many, few, middle, ratios[0], ratios[-1], ">= 0.87")


def elsewhere(module: str, *task: str) -> str:
    """Run a module in a process whose allocator gives back what is freed, so that only live tensors count as memory.

    Args:
        module: full name.
        *task: its command line.

    Returns:
        What it prints.
    """
    environment = os.environ | SETTINGS | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command, root = [sys.executable, "-m", module, *task], Path(__file__).resolve().parents[1]
    return subprocess.run(command, env=environment, cwd=root, check=True, capture_output=True, text=True).stdout


def rise(call: Callable[[], object], device: torch.device) -> float:
    """Measure by how many MiB memory rises during a call; NaN where the system does not say."""
    if device.type == "cuda":
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return (torch.cuda.max_memory_allocated() - held) / 2**20
    if not Path("/proc/self/clear_refs").exists():
        return float("nan")
    Path("/proc/self/clear_refs").write_text("5")  # the peak becomes what is held now
    held = _status("VmRSS")
    call()
    return (_status("VmHWM") - held) / 2**10


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))


def table(rows: Sequence[Row]) -> str:
    """Lay rows out as text."""
    lines = [f"{'case':<86} {'ours':>9} {'theirs':>9}      {'ratio':>5} {'min':>6} {'max':>6}  goal"]
    for row in rows:
        numbers = f"{row.ours:9.3f} {row.theirs:9.3f} {row.unit:<3} {row.ratio:6.2f} {row.low:6.2f} {row.high:6.2f}"
        lines.append(f"{row.case:<86} {numbers}  {row.goal}")
    return "\n".join(lines)


def labelled(sizes: Sequence[int], clients: int, rows: int, bench: Bench, generator: torch.Generator) -> ClientBatch:
    """Draw clients of normal inputs whose label is the largest of the first features, for a network of these sizes."""
    x = torch.randn(clients, rows, sizes[0], generator=generator, dtype=bench.dtype)
    y = x[..., : sizes[-1]].argmax(-1)
    return ClientBatch.pad(list(zip(x, y, strict=True)), dtype=bench.dtype, classes=sizes[-1]).to(bench.device)
