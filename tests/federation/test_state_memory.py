"""Rows of clients' states: used again when nobody's state is in them, and a file for states that were superseded."""

from __future__ import annotations

import gc
import os
import resource
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl.errors import ShapeError
from pacbayes_fl.federation import state_memory
from pacbayes_fl.federation.client_states import Kept
from pacbayes_fl.federation.state_memory import Place, Shelves
from tests.laws.cases import bits

RANDOM = torch.Generator().manual_seed(0)


def block(of: float, many: int = 3) -> dict[str, Tensor]:
    """States of every dtype and shape, without an element too."""
    return {
        "a": torch.randn(many, 5, 7, generator=RANDOM, dtype=torch.float64) + of,
        "b": torch.arange(many) + int(of),
        "c": torch.randn(many, 1, generator=RANDOM)[:, :0],
        "d": torch.randn(7, many, generator=RANDOM).T,
        "e": torch.arange(many) % 2 == 0,
        "f": torch.randn(many, 3, generator=RANDOM).half(),
    }


def read(places: list[Place]) -> Any:
    """All states, one by one."""
    rows = []
    for place in places:
        into = place.room(1)
        Place.copy([place], into)
        rows.append(into)
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize(("large", "memory"), [(0, 2**28), (0, 0), (2**22, 0)], ids=["pages", "pages of files", "heap"])
def test_rows_are_used_again_and_nothing_that_was_given_changes(
    large: int, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred rounds take the room of two."""
    monkeypatch.setattr(state_memory, "_LARGE", large)
    monkeypatch.setattr(state_memory, "_MEMORY", memory)
    monkeypatch.setattr(state_memory, "_SHELF", 0)
    gc.collect()  # what other tests left is told of by a traceback, which would hold rows of the step it fell into
    kept = Kept(4, lambda positions: block(-1.0, len(positions)))
    given, kept_then, known = [], kept, {}
    for number in range(100):
        new = block(number)
        kept = kept.after([([0, 3, 2], new)])
        one, some = kept.select([3]), kept.select([2, 0, 3])
        picked = {name: leaf[[2, 0, 1]] for name, leaf in new.items()}
        assert bits(some) == bits(picked)
        given.append((one, bits({name: leaf[1:2] for name, leaf in new.items()})))
        if number == 7:
            kept_then, known = kept, bits(new)
    size = sum(leaf.nbytes for leaf in block(0).values()) // 3
    assert kept.shelves.bytes <= 9 * size  # of the round before, of this one, and of the one that somebody holds
    assert all(bits(one) == numbers for one, numbers in given)
    assert bits(kept_then.select([0, 3, 2])) == known and bits(kept_then.gathered([2, 0])) == {
        name: numbers for name, numbers in bits(kept_then.select([2, 0])).items()
    }
    in_memory = any(place.bytes for place in kept._at.values() if isinstance(place, Place))
    assert in_memory == (memory > 0 or large > 0)


def anonymous() -> int:
    """Memory of this process that is no file's, in bytes."""
    with open("/proc/self/status", encoding="utf-8") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith("RssAnon"))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="what memory is a file's is told on Linux alone")
def test_states_beyond_a_limit_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 128 MiB of states those of the limit alone are in memory."""
    monkeypatch.setattr(state_memory, "_MEMORY", 2**25)
    monkeypatch.setattr(state_memory, "_SHELF", 2**23)
    kept, before = Kept(64, lambda positions: block(-1.0, len(positions))), anonymous()
    for k in range(64):
        kept = kept.after([([k], {"x": torch.full((1, 2**18), float(k), dtype=torch.float64)})])
    assert anonymous() - before < 2**26 and kept.shelves.bytes >= 2**27
    assert [float(kept.select([k])["x"][0, -1]) for k in range(64)] == list(range(64))


@pytest.mark.parametrize("stage", [1, 2**22], ids=["one by one", "together"])
def test_states_of_every_dtype_go_to_the_file_and_come_back(stage: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_memory, "_STAGE", stage)
    mine, states = Shelves(), [block(number, 5) for number in range(4)]
    places = [mine.put(one) for one in states]
    for some in (places[0], places[2][1:4], places[3]):
        Place.to_file(some)
    assert [place.bytes > 0 for place in places[2]] == [True, False, False, False, True]
    assert [bits(read(some)) for some in places] == [bits(one) for one in states]
    into = places[0][0].room(5)
    Place.copy(places[0], into)
    assert bits(into) == bits(states[0])
    size = mine.in_file
    del places[0]
    again = mine.put(block(9, 4))
    Place.to_file(again)
    assert mine.in_file == size, "regions of states that nobody refers to are used again"


def nameless() -> list[int]:
    """Open files of the process that were removed."""
    result = []
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the list itself was one of them
            name = os.readlink(f"/proc/self/fd/{number}")
            result += [int(number)] if "test_the_file_is" in name and name.endswith("(deleted)") else []
    return result


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open files are listed on Linux alone")
def test_the_file_is_its_owners_alone_and_in_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    mine = Shelves()
    places = mine.put(block(1))
    assert not mine.in_file and not nameless()
    Place.to_file(places)
    assert list(tmp_path.iterdir()) == []
    (result,) = nameless()
    about = os.fstat(result)
    assert stat.S_IMODE(about.st_mode) == 0o600 and about.st_nlink == 0 and about.st_size == mine.in_file
    del places, mine
    assert not nameless(), "closed with the federation"


@contextmanager
def short_disk() -> Iterator[None]:
    """No file may grow beyond 2,000 bytes: no fixture, as a log of the tests is a file too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_states_stay_in_memory_where_the_disk_is_full() -> None:
    mine, states = Shelves(), [block(number, 5) for number in range(3)]
    places = [mine.put(one) for one in states]
    with short_disk():
        Place.to_file(places[0])
        with pytest.warns(UserWarning, match=r"no room on the disk for clients' states .* TMPDIR names another folder"):
            Place.to_file(places[1])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Place.to_file(places[2])
    assert [[place.bytes > 0 for place in some] for some in places] == [[False] * 5, [True] * 5, [True] * 5]
    assert [bits(read(some)) for some in places] == [bits(one) for one in states]


def test_states_of_another_form_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"states of \[3, 2\] torch.float32 beside \[3, 1\] torch.float32"):
        state_memory.copy_rows({"a": torch.zeros(3, 2)}, [0, 1, 2], {"a": torch.zeros(3, 1)})
