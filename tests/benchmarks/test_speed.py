"""The benchmark runs, on sizes at which time means nothing: both sides agree, or nothing is timed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import MappingProxyType

import pytest
import torch

from benchmarks import speed
from benchmarks.measure import Bench, Row, table

DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)


def bench(dtype: torch.dtype) -> Bench:
    return Bench(dtype, torch.device("cpu"), repeats=2, least=0.0)


@DTYPES
def test_every_case_gives_rows(dtype: torch.dtype) -> None:
    rows = [
        *speed.gradient(bench(dtype), rows=(5,), clients=3),
        *speed.ragged(bench(dtype), clients=4, smallest=2, largest=9),
        *speed.prediction(bench(dtype), rows=(5,), points=(1, 3)),
    ]
    assert len(rows) == 2 + 1 + 2
    for row in rows:
        assert row.low <= row.ratio <= row.high and row.ours > 0 and row.theirs > 0
    assert len(table(rows).splitlines()) == 1 + len(rows)


def test_scaling_measures_time_and_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def alone(_: str, *task: str) -> str:
        speed.main(task)
        return capsys.readouterr().out

    monkeypatch.setattr(speed, "elsewhere", alone)
    time, memory = speed.scaling(bench(torch.float64), few=2, many=5, rows=4)
    assert time.unit == "ms" and time.ours > 0 and time.theirs > 0
    assert memory.unit == "MiB" and (memory.ours >= 0 or math.isnan(memory.ours))


def test_the_command_line_prints_a_table_and_writes_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Row("case", "ms", 1.0, 2.0, 2.0, 1.5, 2.5, ">= 1")
    monkeypatch.setattr(speed, "CASES", MappingProxyType({"gradient": lambda _: iter([row, row])}))
    speed.main(["--only", "gradient", "--dtype", "float32", "--json", str(tmp_path / "rows.json")])
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert [entry["ratio"] for entry in json.loads((tmp_path / "rows.json").read_text())] == [2.0, 2.0]


@pytest.mark.gpu
@DTYPES
def test_the_host_never_waits_for_the_device(dtype: torch.dtype) -> None:
    speed.no_synchronisation(Bench(dtype, torch.device("cuda"), repeats=1))
