"""How much memory there is, and what has no room in it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from pacbayes_fl.data import memory
from pacbayes_fl.errors import DataError, StudyError


def test_there_is_no_more_than_the_machine_has() -> None:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total = int(lines["MemTotal"].split()[0]) * 1024
    assert 0 < memory.available() <= total
    assert os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") == total


def test_a_limit_on_the_process_counts_less_what_it_has() -> None:
    """In a process of its own, with 2 GiB of address space."""
    code = (
        "import resource; from pacbayes_fl.data import memory;"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 31, resource.RLIM_INFINITY)); print(memory.available())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 0 < int(out) < 1 << 31


def test_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "_GROUP", group)
    free = memory.available()
    group.write_text("max\n")
    assert memory.available() == free
    group.write_text("1000000\n")
    assert memory.available() == 1000000
    with pytest.raises(StudyError) as caught:
        memory.require(500_001, "a thing", "lower it")
    told = "a thing takes 500 kB, and the limit is 500 kB, half of the 1 MB of memory that there is (lower it)"
    assert str(caught.value) == told
    memory.require(500_000, "a thing")
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def test_a_limit_of_ones_own_and_the_kind_of_error() -> None:
    memory.require(10, "a file", limit=10)
    with pytest.raises(DataError, match=r"a file takes 11 bytes, and the limit is 10 bytes, for such a file"):
        memory.require(11, "a file", kind=DataError, limit=10)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (123456, "123 kB"),
        (2 * 10**9, "2 GB"),
        (7 * 10**15, "7e+03 TB"),
    ],
)
def test_sizes_in_words(size: int, text: str) -> None:
    assert memory.shown(size) == text
