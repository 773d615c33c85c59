"""The case of a whole study: what it runs, what it counts, and where."""

from __future__ import annotations

import pytest
import torch

from benchmarks import speed
from benchmarks import speed_studies as cases
from benchmarks.measure import Bench
from pacbayes_fl.study.file import Study


def bench(dtype: torch.dtype = torch.float64) -> Bench:
    return Bench(dtype, torch.device("cpu"), repeats=2, least=0.0)


def test_a_study_is_run_whole_and_its_costs_are_the_processes() -> None:
    seconds, mebibytes = cases.cost(3)
    assert seconds > 0 and mebibytes > 10
    study = Study.from_table(cases.table(7))
    assert study.data.options["clients"] == 7 and study.plan.rounds == cases.ROUNDS


def test_shares_are_of_processes_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def alone(module: str, clients: str) -> str:
        asked.append(clients)
        return f"x {float(clients) / 2} 30.0"

    monkeypatch.setattr(cases, "elsewhere", alone)
    time, memory = cases.many_clients(bench(), many=40, few=10)
    assert asked == ["40", "10", "40", "10"]
    assert (time.ours, time.theirs, time.ratio) == (500.0, 500.0, 1.0)
    assert (memory.ours, memory.theirs, memory.unit) == (30.0, 30.0, "MiB")
    assert not [*cases.many_clients(bench(torch.float32))]
    assert cases.CASES.keys() < speed.CASES.keys()
