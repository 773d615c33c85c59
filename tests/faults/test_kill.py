"""A run that is killed at any moment resumes, and has lost at most the round that it was about to save."""

from __future__ import annotations

import itertools
import os
import random
import select
import signal
import struct
import time
from pathlib import Path

import pytest
import torch

from pacbayes_fl.federation.checkpoint import load, save
from pacbayes_fl.federation.lock import RunLock
from pacbayes_fl.results.rounds import RoundRecord, append_round, read_rounds, truncate_rounds

KILLS = 50


def state(number: int) -> dict[str, torch.Tensor]:
    """Return tensors of which every entry says which round it is of."""
    return {
        "server": torch.full((2_000,), float(number), dtype=torch.float64),
        "clients": torch.full((3, 500), number, dtype=torch.int64),
    }


def run(folder: Path, report: int) -> None:
    """Resume and save a round after another until killed, telling of each that is safe."""
    with RunLock(folder):
        saved = load(folder)
        start = 0 if saved is None else saved.round
        truncate_rounds(folder, start)
        for number in itertools.count(start + 1):
            append_round(folder, RoundRecord(number, 3))
            save(folder, number, state(number), {"round": number})
            os.write(report, struct.pack("q", number))
            if number % 3 == 0:  # a stop just after a regular save writes the same round again
                save(folder, number, state(number), {"round": number}, keep=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_kill_at_any_moment(tmp_path: Path) -> None:
    moments = random.Random(0)
    safe, inside, reader, report = 0, 0, *os.pipe()
    for kill in range(10 * KILLS):
        if kill >= KILLS and inside >= KILLS // 10:
            break
        child = os.fork()
        if child == 0:
            try:
                run(tmp_path, report)
            finally:
                os._exit(99)
        assert select.select([reader], [], [], 60.0)[0], "the child has saved nothing"
        begun = os.read(reader, 8)  # after its first save, so that the kill falls among saves
        time.sleep(moments.uniform(0.0, 0.06))
        os.kill(child, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
        os.set_blocking(reader, False)
        try:
            told = begun + os.read(reader, 1 << 16)
        except BlockingIOError:
            told = begun
        os.set_blocking(reader, True)
        safe = struct.unpack("q", told[-8:])[0]

        names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
        inside += any(name.endswith((".tmp", ".old")) for name in names)
        loaded = load(tmp_path)
        assert loaded is not None and loaded.warnings == ()
        assert loaded.round in (safe, safe + 1)
        assert loaded.meta == {"round": loaded.round}
        assert all((tensor == loaded.round).all() for tensor in loaded.tensors.values())
        assert [record.round for record in read_rounds(tmp_path)][: loaded.round] == [*range(1, loaded.round + 1)]
    os.close(reader)
    os.close(report)
    assert inside >= KILLS // 10, "the kills fell between saves: the test has tested nothing"
    with RunLock(tmp_path):
        assert not [path for path in (tmp_path / "checkpoints").iterdir() if path.suffix in (".tmp", ".old")]
