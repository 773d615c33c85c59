"""Processes of one run: who has which client, sums that keep every bit, and what is said of one that has ended."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation import ranks
from pacbayes_fl.federation.ranks import Ranks
from tests.forked import fork
from tests.ranked import together

pytestmark = fork


def test_clients_are_dealt_so_that_everybody_has_some_of_every_size(tmp_path: Path) -> None:
    sizes = [5, 50, 7, 40, 6, 60, 8, 45, 9]

    def work(own: Ranks) -> tuple[list[int], list[int]]:
        return own.deal(sizes), own.own(sizes)

    found = together(3, tmp_path, work)
    owner = found[0][0]
    assert all(one == owner for one, _ in found)
    assert sorted(k for _, own in found for k in own) == [*range(9)]
    rows = [sum(sizes[k] for k in own) for _, own in found]
    assert [len(own) for _, own in found] == [3, 3, 3] and max(rows) < 1.5 * min(rows)


def test_more_processes_than_clients_leave_some_without(tmp_path: Path) -> None:
    assert [len(own) for own in together(3, tmp_path, lambda own: own.own([4, 4]))] == [1, 1, 0]


def test_processes_tell_one_another(tmp_path: Path) -> None:
    def work(own: Ranks) -> list[object]:
        numbers = torch.zeros(3, dtype=torch.int64)
        numbers[own.rank] = torch.tensor([-0.0, torch.nan], dtype=torch.float64).view(torch.int64)[own.rank]
        return [
            own.total(numbers).view(torch.float64).tolist(),
            own.share(own.rank + 10),
            own.gather(own.rank),
            own.of_first(lambda: "chosen"),
            own.first_then(lambda: own.rank),
            own.stopping,
        ]

    one, other = together(2, tmp_path, work)
    bits, *rest = one
    assert str(bits) == "[-0.0, nan, 0.0]" and str(other[0]) == str(bits)  # sums keep the sign of zero, and NaN
    assert rest == [[10, 11], [0, 1], "chosen", 0, False]
    assert other[1:] == [[10, 11], [], "chosen", 1, False]


class _Asked:
    requested = True


def test_all_hear_that_one_was_asked_to_stop(tmp_path: Path) -> None:
    def work(own: Ranks) -> bool:
        if own.rank == 1:
            own.signal = _Asked()  # type: ignore[assignment]
        own.total(torch.zeros(0, dtype=torch.int64))
        return own.stopping

    assert together(2, tmp_path, work) == [True, True]


@pytest.mark.parametrize(("how", "said"), [("error", "has ended: DataError: client 'a'"), ("killed", "without a word")])
def test_a_process_that_ends_is_named_by_the_others(how: str, said: str, tmp_path: Path) -> None:
    def work(own: Ranks) -> str:
        own.share(None)
        if own.rank == 1 and how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if own.rank == 1:
            own.say_end("DataError: client 'a'")
            return ""
        begun = time.monotonic()
        with pytest.raises(DeployError, match=r"process 1 of 2.*--resume") as caught:
            own.total(torch.zeros(1, dtype=torch.int64))
        assert time.monotonic() - begun < 10
        return str(caught.value)

    assert said in together(2, tmp_path, work)[0]


@pytest.mark.law
@pytest.mark.parametrize("common", [True, False], ids=["after a round", "outside of rounds"])
@pytest.mark.parametrize("killed", [True, False], ids=["one was killed", "all were stopped"])
def test_a_process_that_is_stopped_names_the_one_that_was_killed_but_none_that_was_stopped_too(
    killed: bool, common: bool, tmp_path: Path
) -> None:
    """torchrun stops the others when one is dead, which may have left its part of a round's sum behind."""

    def work(own: Ranks) -> str:
        if common:
            own.signal = _Asked()  # type: ignore[assignment]
        own.total(torch.zeros(0, dtype=torch.int64))
        if own.rank == 1 and killed:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            with ranks.last_words(own):
                time.sleep(0.5 * (own.rank == 0))
                raise KeyboardInterrupt
        except DeployError as error:
            return str(error)
        except KeyboardInterrupt:
            return "stopped"

    one, other = together(2, tmp_path, work)
    if killed:
        assert "process 1 of 2 is gone without a word" in one and "--resume" in one
    else:
        assert one == other == "stopped"


def test_who_was_killed_is_named_where_the_store_has_ended_before(tmp_path: Path) -> None:
    """It is torchrun's, which may be gone before the processes that it stops."""

    class Gone:
        def check(self, _: object) -> bool:
            raise RuntimeError("connection reset")

        def set(self, *_: object) -> None:
            raise RuntimeError("connection reset")

    def work(own: Ranks) -> str:
        own.total(torch.zeros(0, dtype=torch.int64))
        own._store = Gone()
        if own.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            with ranks.last_words(own):
                time.sleep(0.5)
                raise KeyboardInterrupt
        except DeployError as error:
            return str(error)
        except KeyboardInterrupt:
            return "stopped"

    assert "process 1 of 2 is gone without a word" in together(2, tmp_path, work)[0]


def test_one_process_alone_needs_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with ranks.opened() as found:
        assert found is None
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert not ranks.started()
