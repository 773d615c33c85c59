"""Several processes that run one study together, as torchrun starts them: who has which clients, and what they tell.

Every process has the same study, draws the same cohorts and takes the same server steps; clients are dealt among them.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from pacbayes_fl.errors import DeployError
from pacbayes_fl.federation.stop import StopSignal

_RESUME: Final = "the folder holds the last saved round: go on with --resume, with any number of processes"
_LONGEST: Final = timedelta(days=7)  # that one process may train or choose while the others wait
_MEETING: Final = timedelta(minutes=5)  # in which all processes have to come
_GRACE: Final = 2.0  # seconds in which whoever ends can say why
_SPIN: Final = 2e-3  # seconds of waiting without sleep
_STOPPED: Final = "it was stopped"

Value = TypeVar("Value")


class Ranks:
    """The processes of a run, seen from one of them.

    Args:
        rank: number of this one, from 0.
        world: how many there are.
        device: on which they exchange tensors.
        store: where they leave short texts for one another.
    """

    def __init__(self, rank: int, world: int, device: torch.device, store: Any) -> None:
        """Say who this is, so that the others can find out what became of it."""
        self.rank, self.world, self.device, self._store = rank, world, device, store
        self.stopping = False
        self.signal: StopSignal | None = None
        store.set(f"process/{rank}", f"{socket.gethostname()} {os.getpid()}")
        # Read at once, when each has come: torchrun's store may end before a process that torchrun stops.
        self._processes = [bytes(store.get(f"process/{other}")).decode() for other in range(world)]

    @property
    def first(self) -> bool:
        """Whether this process prints and writes the run folder."""
        return self.rank == 0

    def deal(self, sizes: Sequence[int]) -> list[int]:
        """Say which process has which client, for the whole run: clients of all sizes are dealt like cards.

        Args:
            sizes: rows of every client [K].

        Returns:
            Number of each client's process [K].
        """
        owner = [0] * len(sizes)
        for at, k in enumerate(sorted(range(len(sizes)), key=lambda k: (sizes[k], k))):
            lap, place = divmod(at, self.world)
            owner[k] = self.world - 1 - place if lap % 2 else place  # there and back: nobody always has the larger ones
        return owner

    def own(self, sizes: Sequence[int]) -> list[int]:
        """Positions of the clients of this process, see `deal`."""
        return [k for k, owner in enumerate(self.deal(sizes)) if owner == self.rank]

    def total(self, numbers: Tensor) -> Tensor:
        """Add the numbers of all processes, and find out whether one of them was asked to stop.

        Args:
            numbers: int64 [n], as many in every process.

        Returns:
            The sums [n], in the memory that was given.

        Raises:
            DeployError: when a process has ended.
        """
        asked = torch.tensor([int(self.signal is not None and self.signal.requested)], device=self.device)
        joined = torch.cat((asked, numbers.to(self.device)))
        work = self._guarded(lambda: dist.all_reduce(joined, async_op=True))
        self._guarded(lambda: self._wait(work))
        self.stopping = self.stopping or bool(joined[0] > 0)
        return joined[1:].to(numbers.device)

    def share(self, value: Value) -> list[Value]:
        """Give what every process has, in their order.

        Args:
            value: of this one; anything that can be pickled.

        Returns:
            Those of all processes.

        Raises:
            DeployError: when a process has ended.
        """
        values: list[Any] = [None] * self.world
        self._guarded(lambda: dist.all_gather_object(values, value))
        return values

    def gather(self, value: Value) -> list[Value]:
        """Give the first process what every process has; the others get nothing.

        Args:
            value: of this one; anything that can be pickled.

        Returns:
            Those of all processes, in their order; none but at the first.

        Raises:
            DeployError: when a process has ended.
        """
        values: list[Any] | None = [None] * self.world if self.first else None
        self._guarded(lambda: dist.gather_object(value, values))
        return values or []

    def of_first(self, make: Callable[[], Value]) -> Value:
        """Let the first process make something, and give it to all.

        Args:
            make: called there alone; its result can be pickled.

        Returns:
            The result.

        Raises:
            DeployError: when a process has ended.
        """
        values: list[Any] = [make() if self.first else None]
        self._guarded(lambda: dist.broadcast_object_list(values))
        result: Value = values[0]
        return result

    def first_then(self, make: Callable[[], Value]) -> Value:
        """Do something in every process, in the first one before the others: they find what it has put in order.

        Args:
            make: reads the run folder.

        Returns:
            The result of this process.

        Raises:
            DeployError: when a process has ended.
        """
        if self.first:
            result = make()
            self.share(None)
            return result
        self.share(None)
        return make()

    def say_end(self, text: str) -> None:
        """Leave word of why this process ends; where nobody can be told any more, nobody is.

        Args:
            text: its error, in one line.
        """
        with suppress(Exception):
            self._store.set(f"ended/{self.rank}", text)

    def lost(self, wait: float = _GRACE, *, stopped: bool = False) -> DeployError | None:
        """Find out which process has ended, and why.

        Args:
            wait: seconds that whoever has ended may take to say so.
            stopped: whether this one was stopped; others that were stopped too are then nobody's loss.

        Returns:
            The error that this one ends with; None where all others are there.
        """
        until = time.monotonic() + wait
        while True:
            for rank in (rank for rank in range(self.world) if rank != self.rank):
                if (text := self._word(f"ended/{rank}")) is not None:
                    if stopped and text == _STOPPED:
                        continue
                    return DeployError(f"process {rank} of {self.world} has ended: {text}", hint=_RESUME)
                if self._gone(rank):
                    what = f"process {rank} of {self.world} is gone without a word: it was killed, or out of memory"
                    return DeployError(what, hint=_RESUME)
            if time.monotonic() > until:
                return None
            time.sleep(0.05)

    def _word(self, key: str) -> str | None:
        try:
            return bytes(self._store.get(key)).decode() if self._store.check([key]) else None
        except RuntimeError:  # the store was torchrun's, and is gone
            return None

    def _gone(self, rank: int) -> bool:
        """Whether a process of this machine has left without a word: no such process, or one that is dead."""
        host, _, number = self._processes[rank].rpartition(" ")
        if host != socket.gethostname():
            return False
        try:
            os.kill(int(number), 0)
            with open(f"/proc/{number}/stat", encoding="utf-8", errors="replace") as file:
                return file.read().rpartition(")")[2].split()[0] in "ZX"
        except ProcessLookupError:
            return True
        except OSError:  # no /proc, or not ours to ask
            return False

    def _wait(self, work: Any) -> None:
        """Wait for a sum; where a process has ended meanwhile, NCCL alone would wait for good."""
        begun = asked = time.monotonic()
        while not work.is_completed():
            now = time.monotonic()
            if now - begun > _SPIN:
                time.sleep(2e-4 if now - begun < 1 else 1e-2)
            if now - asked > 1:
                asked = now
                if (error := self.lost(0)) is not None:
                    raise error
        work.wait()

    def _guarded(self, work: Callable[[], Value]) -> Value:
        """Do what needs all processes, and name the one that has ended."""
        try:
            return work()
        except RuntimeError as error:
            lost = self.lost()
            if lost is None:
                lost = DeployError(f"the other {self.world - 1} processes cannot be reached: {error}", hint=_RESUME)
            raise lost from error


def started() -> bool:
    """Whether torchrun has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ and "MASTER_ADDR" in os.environ


@contextmanager
def opened() -> Iterator[Ranks | None]:
    """Meet the other processes that torchrun has started.

    Each takes a GPU of its machine where there are as many, and they exchange by NCCL; otherwise by gloo.

    Yields:
        The processes; None where there is this one alone.

    Raises:
        DeployError: when they do not meet, or another one has ended while this one was stopped.
    """
    if not started():
        yield None
        return
    here, local = int(os.environ.get("LOCAL_WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus:
        torch.cuda.set_device(local % gpus)
    own_gpu = gpus >= here and dist.is_nccl_available()
    try:
        store, rank, world = next(rendezvous("env://", timeout=_MEETING))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if own_gpu else "gloo", store=store, rank=rank, world_size=world, timeout=_LONGEST
        )
    except (RuntimeError, ValueError) as error:
        raise DeployError(f"the processes do not meet: {error}", hint="start them with torchrun") from error
    device = torch.device("cuda", local) if own_gpu else torch.device("cpu")
    ranks = Ranks(rank, world, device, store)
    try:
        with last_words(ranks):
            yield ranks
    finally:
        with suppress(Exception):
            dist.destroy_process_group()


@contextmanager
def last_words(ranks: Ranks) -> Iterator[None]:
    """Leave word of why this process ends, and name the one whose end has stopped it.

    Args:
        ranks: the processes.

    Raises:
        DeployError: when this one was stopped because another has ended.
    """
    try:
        yield
    except KeyboardInterrupt as error:  # torchrun stops the others when one has ended, even in a round's common stop
        ranks.say_end(_STOPPED)
        if (lost := ranks.lost(0 if ranks.stopping else _GRACE, stopped=True)) is not None:
            raise lost from error
        raise
    except Exception as error:
        ranks.say_end(f"{type(error).__name__}: {error}" if not isinstance(error, DeployError) else str(error))
        raise
