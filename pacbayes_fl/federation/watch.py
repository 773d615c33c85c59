"""Records of the engine across rounds beside the states of the method: numbers and names on the host."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

from pacbayes_fl.files import JsonMapping, JsonTable
from pacbayes_fl.results.rounds import Steps
from pacbayes_fl.server.robust import WINDOW


class Watch(NamedTuple):
    """Memory of the rounds before; a checkpoint holds it, so that a resumed run goes on as if it had not been away.

    Args:
        failures: consecutive failures of clients, by name; a success removes the entry.
        since: the round in which such a row of failures began, by name.
        steps: norms of the clients' steps in the last round; None where there are none.
        halved: how often the learning rates had to be halved.
        medians: median norm of the steps of each of the last rounds, oldest first.
        usual: the largest median norm of all rounds, 0 before the first: where training comes to rest, medians fall.
        alone: the client that moved the server alone when last asked, see `guard.dominant`; None without one.
        times: for how many rounds in a row it has; rounds without it do not count.
        clip: of the next private round, where it adapts; None where it is that of the study.
    """

    failures: Mapping[str, int] = MappingProxyType({})
    steps: Steps | None = None
    halved: int = 0
    medians: tuple[float, ...] = ()
    usual: float = 0.0
    alone: str | None = None
    times: int = 0
    since: Mapping[str, int] = MappingProxyType({})
    clip: float | None = None

    def after(
        self,
        round: int,
        members: Collection[str],
        dropped: Collection[str],
        norms: Mapping[str, float],
        alone: str | None = None,
    ) -> Watch:
        """Remember a round.

        Args:
            round: its number.
            members: names of the clients that were asked.
            dropped: names of those that failed.
            norms: of the steps of the clients that moved the server, by name.
            alone: the client that alone may have moved it, if there is one.

        Returns:
            The records after it.
        """
        asked = set(members)
        absent = {name: count for name, count in self.failures.items() if name not in asked}
        failed = {name: self.failures.get(name, 0) + 1 for name in dropped}
        since = self.counted(round, {name: name not in failed for name in asked}).since
        steps = summary(norms)
        medians = self.medians if steps is None else (*self.medians, steps.median)[-WINDOW:]
        usual = self.usual if steps is None else max(self.usual, steps.median)
        times = self.times if alone is None or alone == self.alone else 0
        if alone is not None:
            times += 1
        elif self.alone is None or self.alone in norms:
            times = 0
        else:  # it was not there
            alone = self.alone
        return Watch(absent | failed, steps, self.halved, medians, usual, alone, times, since)

    def counted(self, round: int, answers: Mapping[str, bool]) -> Watch:
        """Remember whose answers count and nothing else: clients that keep their own states are told with the next one.

        Args:
            round: its number.
            answers: of the clients that were asked, whether the answer counts, by name.

        Returns:
            The records after it.
        """
        since = {name: first for name, first in self.since.items() if name not in answers}
        since |= {name: self.since.get(name, round) for name, counts in answers.items() if not counts}
        return self._replace(since=since)

    def labels(self) -> JsonTable:
        """Say what learning rates a run had to give up.

        Returns:
            "rates" in words; nothing where no round diverged.
        """
        times = self.halved
        return (
            {"rates": f"{0.5**times:g} of the study's: as often as rounds diverged, {times}, halved"} if times else {}
        )

    def to_save(self) -> JsonTable:
        """Give everything as JSON."""
        steps = None if self.steps is None else self.steps._asdict()
        rest: JsonTable = {"halved": self.halved, "medians": list(self.medians), "usual": self.usual}
        rest |= {"alone": self.alone, "times": self.times, "since": dict(self.since)}
        rest |= {} if self.clip is None else {"clip": self.clip}
        return {"failures": dict(self.failures), "steps": steps, **rest}

    @classmethod
    def from_saved(cls, saved: JsonMapping) -> Watch:
        """Read the result of `to_save`; records that an older version did not have are empty."""
        steps = saved.get("steps")
        memory, medians = None if steps is None else Steps(**steps), tuple(saved.get("medians", ()))
        halved, usual = int(saved.get("halved", 0)), float(saved.get("usual", 0.0))
        alone = saved.get("alone"), int(saved.get("times", 0)), dict(saved.get("since", {})), saved.get("clip")
        return cls(dict(saved.get("failures", {})), memory, halved, medians, usual, *alone)


def summary(norms: Mapping[str, float]) -> Steps | None:
    """Summary of a round's steps for its record.

    Args:
        norms: by the clients' names.

    Returns:
        Median, largest and whose it is, the first by name where several are equal; None without any.
    """
    if not norms:
        return None
    whose = max(sorted(norms), key=norms.__getitem__)
    return Steps(statistics.median(norms.values()), norms[whose], whose)
