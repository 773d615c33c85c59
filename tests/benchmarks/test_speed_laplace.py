"""The cases on FedSI, on sizes at which time means nothing: both sides agree, or nothing is timed."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from benchmarks import speed
from benchmarks import speed_laplace as cases
from benchmarks.measure import Bench
from pacbayes_fl.inference.subnetwork import LargestVariance
from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP

TINY = cases.Setting((6, 8, 3), rows=12, fraction=0.4, steps=3, minibatch=4)
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


def bench(dtype: torch.dtype = torch.float64) -> Bench:
    return Bench(dtype, torch.device("cpu"), repeats=2, least=0.0)


@pytest.mark.slow
@DTYPES
def test_every_case_gives_rows(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "memory_elsewhere", cases.memory)
    rows = [
        *cases.laplace(bench(dtype), {5: ">= 1", 12: "-"}, TINY),
        *cases.clients(bench(dtype), cases.Setting((6, 8, 3), 4, 12, 0.4, 3, 4)),
    ]
    assert [row.unit for row in rows] == [*["ms", "ms", "MiB"] * 2, "ms"]
    for row in rows:
        assert row.unit == "MiB" or (row.low <= row.ratio <= row.high and row.ours > 0 and row.theirs > 0)
    assert rows[0].case.startswith("variances of 22 weights, 6-8-3, 5 rows / laplace-torch") and rows[0].goal == ">= 1"


def test_memory_is_measured_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def alone(_: str, *task: str) -> str:
        cases.main(task)
        return capsys.readouterr().out

    monkeypatch.setattr(cases, "elsewhere", alone)
    result = cases.memory_elsewhere(TINY, bench(torch.float32), "theirs")
    assert result >= 0 or math.isnan(result)


def test_the_papers_network_has_the_goals() -> None:
    model = BayesianMLP(cases.Setting().sizes, Categorical(10))
    scene = cases.Scene.draw(cases.Setting(rows=3), bench(torch.float32))
    assert model.dim == 79_510 and scene.chosen_size == 3_925 and scene.method.choice == LargestVariance(0.05)
    assert dict(cases.ROWS) == {250: ">= 4.4", 1_000: "-", 4_500: ">= 12"}


def test_variances_that_differ_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks import peers_laplace  # takes seconds, of everybody who collects

    real = peers_laplace.Peer.variances

    def spoiled(*given: Any) -> Any:
        return 1.001 * real(*given)

    monkeypatch.setattr(peers_laplace.Peer, "variances", spoiled)
    with pytest.raises(SystemExit, match="variances after an update, 6-8-3, 12 rows: the two sides differ by 1"):
        next(cases.laplace(bench(), {12: "-"}, TINY))
    monkeypatch.setattr(cases, "_same_update", lambda *_: None)
    with pytest.raises(SystemExit, match="posterior variances, 6-8-3, 12 rows: the two sides differ by 1"):
        next(cases.laplace(bench(), {12: "-"}, TINY))


def test_the_command_line_knows_the_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert cases.CASES.keys() < speed.CASES.keys()
    cases.main(["ours", "12", "0.4", "float64", "6", "8", "3"])
    assert float(capsys.readouterr().out) >= 0
