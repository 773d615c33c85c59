"""What a measurement makes of the times that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from benchmarks import measure
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.results.rounds import RoundRecord

BENCH = measure.Bench(torch.float64, torch.device("cpu"), repeats=3, least=0.0)


def test_sides_that_differ_are_not_timed() -> None:
    one = torch.ones(3, dtype=torch.float64)
    BENCH.same("ones", one, one + 1e-9)
    with pytest.raises(SystemExit, match="differ by 1"):
        BENCH.same("ones", one, one + 1e-7)
    with pytest.raises(SystemExit, match="differ by nan"):
        BENCH.same("ones", one, one * torch.nan)


def test_a_case_may_ask_for_closer_agreement() -> None:
    one, count = torch.ones(3, dtype=torch.float64), torch.tensor([20, 20])
    BENCH.same("steps", count, count, 1e-12)
    with pytest.raises(SystemExit, match="differ by 1"):
        BENCH.same("ones", one, one + 1e-9, 1e-10)
    replace(BENCH, dtype=torch.float32).same("ones", one, one + 1e-3)


def rounds(*seconds: float) -> Iterator[tuple[RoundRecord, FederationState]]:
    for t, value in enumerate(seconds):
        yield RoundRecord(t, 1, (), {"seconds": value}), FederationState((), (), t)


def test_a_clients_share_is_the_time_of_a_round_over_its_clients() -> None:
    # 200 clients in 4, 6 and 5 s: 20, 30 and 25 ms each; 5 clients in 0.05, 0.15 and 0.15 s, the mean of two rounds
    few = rounds(0.04, 0.06, 0.1, 0.2, 0.15, 0.15)
    row = BENCH.shares("share", (200, rounds(4.0, 6.0, 5.0)), (5, few))
    assert (row.ours, row.theirs) == pytest.approx((25.0, 30.0))
    assert (row.low, row.ratio, row.high) == pytest.approx((0.5, 1.0, 1.2))


def test_a_table_has_a_line_for_every_row() -> None:
    row = measure.Row("case", "ms", 1.0, 2.0, 2.0, 1.5, 2.5, ">= 1")
    assert len(measure.table([row, row]).splitlines()) == 3


def test_a_process_of_its_own_runs_a_module() -> None:
    assert "Explicit is better than implicit." in measure.elsewhere("this").splitlines()
