"""Arrays in files are those in memory, and only what is looked at takes memory."""

from __future__ import annotations

import numpy as np
import pytest

from data_gen import rooms
from data_gen.polynomial import PolynomialConfig, generate


def pages_of_file() -> int:
    """Memory of this process that is mapped from files, in bytes."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("RssFile"))


def test_a_large_array_is_in_a_file_and_released() -> None:
    array = rooms.zeros(rooms.LARGE // 8, np.float64)
    assert not array.any() and rooms.zeros(3, np.int64).tolist() == [0, 0, 0]
    rooms.release(array)
    before = pages_of_file()
    array[:] = np.arange(len(array))
    assert pages_of_file() - before >= 0.9 * rooms.LARGE
    for own in rooms.blocks(array[:, None]):
        assert array[own].tolist() == list(range(own.start, own.stop))
    assert pages_of_file() - before < 0.1 * rooms.LARGE


def test_a_full_disk_leaves_it_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    array = rooms.zeros(rooms.LARGE, np.uint8)
    assert array.flags.owndata and not array.any()


def test_data_in_files_are_those_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    config = PolynomialConfig(clients=5, new_clients=2, samples=3, test_samples=4)
    memory = generate(config)
    monkeypatch.setattr(rooms, "LARGE", 1)
    monkeypatch.setattr(rooms, "ROWS", 3)
    files = generate(config)
    assert files.manifest == memory.manifest and not files.x.flags.owndata
    assert all(np.array_equal(files.arrays[name], array) for name, array in memory.arrays.items())
