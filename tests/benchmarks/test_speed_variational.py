"""The cases on variational inference, on sizes at which time means nothing: both sides agree, or nothing is timed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import speed
from benchmarks import speed_variational as cases
from benchmarks.measure import Bench
from pacbayes_fl import tensors
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods import METHODS

TINY = cases.Setting((6, 5, 3), clients=4, rows=9, minibatch=4)
WEIGHTS = 6 * 5 + 5 + 5 * 3 + 3
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


def bench(dtype: torch.dtype = torch.float64) -> Bench:
    return Bench(dtype, torch.device("cpu"), repeats=2, least=0.0)


@pytest.mark.slow
@DTYPES
def test_every_case_gives_rows(dtype: torch.dtype) -> None:
    rows = [
        *cases.variational(bench(dtype), [(TINY, ">= 12")]),
        *cases.many_clients(bench(dtype), [(TINY, 6, 2)]),
        *cases.pyro(bench(dtype), [TINY]),
        *cases.evaluation(bench(dtype), TINY, rows=7),
    ]
    assert len(rows) == 1 + 2 + 1 + 1
    for row in rows:
        assert row.low <= row.ratio <= row.high and row.ours > 0 and row.theirs > 0
    assert f"Pyro costs {100 * (rows[3].ratio - 1):+.0f} %" in rows[3].case
    assert "2 minibatches, 6 clients / 4" in rows[1].case


def test_a_clients_state_is_ten_numbers_a_weight_and_two_counts() -> None:
    kept = next(row for row in cases.many_clients(bench(torch.float32), [(TINY, 6, 2)]) if row.unit == "MB")
    exact = (10 * 4 * WEIGHTS + 2 * 8) / 1e6  # mu and rho of q, two moments of each in both Adams
    assert kept.ours == kept.theirs == pytest.approx(exact)


def test_cohorts_are_measured_against_as_many_clients_and_memory_in_a_process_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(cases, "elsewhere", lambda *task: asked.append(task) or "2.5")  # type: ignore[func-returns-value]
    time, memory, everybody = cases.cohorts(bench(torch.float32), TINY, many=10, drawn=2, steps=1, rounds=3)
    assert asked == [
        ("benchmarks.speed_variational", "2", "3", "100"),
        ("benchmarks.speed_variational", "10", "2", "1"),
    ]
    assert "of all of 10 clients" in everybody.case and everybody.ours == pytest.approx(2.5 * 2**20 / 1e6 / 10)
    assert time.unit == "ms" and time.ours > 0 and time.theirs > 0 and "a cohort of 2 of 10 clients" in time.case
    assert memory.ours == pytest.approx(2.5 * 2**20 / 1e6 / 2)
    assert memory.theirs == pytest.approx((10 * 4 * WEIGHTS + 2 * 8) / 1e6)
    assert not [*cases.cohorts(bench(torch.float64), TINY)]
    monkeypatch.setattr(cases, "PAPER", TINY)
    assert cases.peak(5, 2) >= 0 and cases.peak(5, 2, 1) >= 0


def test_the_papers_network_keeps_less_than_the_goal() -> None:
    weights = 784 * 100 + 100 + 100 * 10 + 10
    assert (10 * 4 * weights + 2 * 8) / 1e6 < 3.5
    assert cases.PAPER.sizes == (784, 100, 10) and weights == 79_510


def test_the_calls_are_the_engines() -> None:
    federation = cases.Federation.draw(TINY, bench())
    together, alone = (federation.calls(one) for one in (cases.plan(bench()), cases.one_by_one(bench())))
    assert [rows.clients for _, rows in together] == [4] and [rows.clients for _, rows in alone] == [1] * 4


def test_the_steps_are_the_recommended_presets() -> None:
    preset = METHODS["pfedbayes"].presets["recommended"]
    assert "method" not in preset  # so that the defaults are the preset
    local = cases.Federation.draw(TINY, bench()).method.local
    assert (local.steps, local.inner, local.minibatch) == (20, 1, TINY.minibatch)
    assert local == LocalInference(minibatch=TINY.minibatch)


def test_training_moves_clients_apart() -> None:
    federation = cases.Federation.draw(TINY, bench())
    q = federation.trained(cases.plan(bench())).state.clients.q
    assert not torch.equal(q.loc[0], q.loc[1]) and torch.equal(*federation.state.clients.q.loc[:2])


def _spoiled(way: Callable[..., Any], share: float) -> Callable[..., Any]:
    def spoiled(*arguments: Any) -> Any:
        result = way(*arguments)
        return result._replace(gradient=tensors.tree_map(lambda leaf: leaf * (1 + share), result.gradient))

    return spoiled


def test_a_gradient_that_differs_from_pyros_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases.elbo, "defined_gradient", _spoiled(cases.elbo.defined_gradient, 1e-11))
    with pytest.raises(SystemExit, match="slope of loc, 6-5-3, through Pyro: the two sides differ by 1"):
        next(cases.pyro(bench(torch.float32), [TINY]))


def test_a_round_that_depends_on_the_calls_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_noise(_: Bench) -> FederationPlan:
        return FederationPlan(seed=1, chunk=1, noise="generators")

    monkeypatch.setattr(cases, "one_by_one", other_noise)
    with pytest.raises(SystemExit, match="of 6-5-3 after a round: the two sides differ"):
        next(cases.variational(bench(), [(TINY, "-")]))


def test_the_command_line_knows_the_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cases.CASES.keys() < speed.CASES.keys()
    monkeypatch.setattr(speed, "CASES", {"pyro": lambda given: cases.pyro(given, [TINY])})
    speed.main(["--only", "pyro", "--dtype", "float64", "--repeats", "1", "--json", str(tmp_path / "rows.json")])
    (row,) = json.loads((tmp_path / "rows.json").read_text())
    assert row["case"].startswith("one gradient, 6-5-3 / Pyro's definition, float64")
