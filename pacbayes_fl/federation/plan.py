"""How a federation runs: rounds, cohorts, what counts as divergence, and how updates are aggregated."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pacbayes_fl import options
from pacbayes_fl.errors import StudyError
from pacbayes_fl.noise import Engine
from pacbayes_fl.options import OpenNames, option
from pacbayes_fl.server import aggregations
from pacbayes_fl.server.aggregations import AGGREGATIONS, AggregationRule


@dataclass(frozen=True)
class FederationPlan:
    """How a federation runs.

    Args:
        rounds: T.
        cohort: clients drawn per round (c of PAC-PFL's Algorithm 1), all when None.
        seed: of every random draw.
        on_bad_client: "drop" leaves a client out of a round when its update or state is not finite; "stop" raises.
        min_clients: fewer good clients in a round change nothing and raise.
        chunk: numbers that the clients of one call may hold in the hot loop (see `Method.footprint`); None for what
            suits the device: 2^20 on a CPU, whose caches they fill, and one for every 512 bytes of a GPU's memory.
        waste: clients of one call differ in size by at most this factor.
        noise: engine of the clients' random streams.
        train: who makes a client's step in a round: the drawn "cohort", as PAC-PFL, BPFed and FedSI print it and public
            code does everywhere, or "all" clients, of whom the cohort's updates enter the server while the others keep
            what they have learned (Algorithms 1-3 of pFedBayes, sFedBayes and cFedBayes), at N / c times the work.
        diverges_at: a round is undone, and all learning rates are halved, when it leaves the mean objective or the
            server's parameters beyond this multiple of the start's, or one client's step is longer than that multiple
            of the others'; None asks only for finite numbers. See `rounds`.
            In the first rounds of every bundled study (and all rounds of the polynomial ones; CIFAR-10 was not tried)
            the objective came to at most 81 times the start's, on FEMNIST, and the parameters to 1.01 times.
        aggregate: what the server makes of its clients' steps. The "mean" of the papers follows a single client
            anywhere. "clipped", the one to begin with, is the mean of steps that are no longer than `clip_multiple`
            times the running median of their norms. "median" and "trimmed" are coordinate by coordinate,
            "multi-krum" averages the steps that have the closest neighbours, "geometric-median" has the least sum of
            distances; see `server.robust`. A rule of your own is an `AggregationRule`, such as "mine.py:MY_RULE". Where
            clients differ, all but "clipped" cost accuracy without any attack, as the median moves no weight that fewer
            than half of the clients move: FedAvg loses 1 to 4 points on MNIST in two groups of labels
            (`benchmarks/RESULTS_ROBUST.md`).
        faulty: f, clients of a round that may send anything; 1 when None. "trimmed" leaves out that many on either
            side, "multi-krum" that many steps.
        average_last: share of the rounds after which the server is averaged: what clients get after the last round is
            the mean of its states after so many of the last ones, and at least one, each number by itself; rounds go on
            from the last state. 0 takes that state. Steps that do not shrink, and noise, leave the server going around
            what its states have as their mean (Polyak and Juditsky 1992). It costs no privacy.
        clip_multiple: of the running median of norms, over the last 10 rounds, at which "clipped" ends a step; 2 when
            None.

    Example:
        >>> from pacbayes_fl import FederationPlan
        >>> FederationPlan(rounds=50, cohort=8, seed=1).rounds
        50
    """

    rounds: int = option(100, low=0, symbol="T")
    cohort: int | None = option(None, low=1, symbol="c")
    seed: int = option(0, low=0, below=2**32)
    on_bad_client: Literal["drop", "stop"] = "drop"
    min_clients: int = option(1, low=1)
    chunk: int | None = option(None, low=1)
    waste: float = option(1.1, low=1)
    noise: Engine = "philox"
    train: Literal["cohort", "all"] = "cohort"
    diverges_at: float | None = option(1e3, above=1, high=math.inf, hint="'none' turns it off")
    aggregate: str | AggregationRule = option("mean", names=lambda: OpenNames(AGGREGATIONS))
    faulty: int | None = option(None, low=0, symbol="f")
    clip_multiple: float | None = option(None, above=0)
    average_last: float = option(0.0, low=0, high=1)

    def __post_init__(self) -> None:
        """Check the ranges, and that the options go together."""
        options.check(self)
        aggregations.check(self.rule, self.faulty, self.clip_multiple)
        if self.cohort is not None and self.cohort < self.min_clients:
            raise StudyError(f"cohort must be at least min_clients={self.min_clients}, got {self.cohort}")
        if self.train not in ("cohort", "all"):
            raise StudyError(f"train must be 'cohort' or 'all', got {self.train!r}")

    @cached_property
    def rule(self) -> AggregationRule:
        """The rule that `aggregate` names, which stays what it is while its file changes."""
        return aggregations.aggregation_named(self.aggregate)

    @property
    def averaged_from(self) -> int:
        """First round whose state is in the mean; one more than there are where none is."""
        return self.rounds + 1 - (max(1, round(self.average_last * self.rounds)) if self.average_last else 0)

    @property
    def suspects(self) -> int:
        """Clients of a round that may send anything; 0 where the rule promises nothing of them."""
        if self.faulty is not None:
            return self.faulty
        return aggregations.FAULTY if self.rule.robust else 0

    @property
    def multiple(self) -> float:
        """At how many running medians of norms "clipped" ends a step."""
        return aggregations.MULTIPLE if self.clip_multiple is None else self.clip_multiple
