"""Predictions in standardised units and in the data's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.study.data import load
from pacbayes_fl.study.evaluate.units import raw_scored_rows, scored_rows, units_of
from pacbayes_fl.study.prepare import prepare
from tests.tiny import on_csv, rows, tiny, write_csv


@pytest.mark.parametrize("raw_units", [False, True])
def test_units_there_and_back(tmp_path: Path, raw_units: bool) -> None:
    dataset = load(on_csv(write_csv(tmp_path / "rows.csv", rows())))
    group = prepare(tiny(f"data.scale={'none' if raw_units else 'client'}"), dataset)[1]["existing"]
    index = torch.tensor([3, 1])
    ones = torch.ones(2, 1, 3, dtype=torch.float64)
    given = NormalMixture(torch.zeros(2, 1, dtype=torch.float64), ones, 4.0 * ones)
    standard, own, unit = units_of(given, group, index)
    assert unit.tolist() == [1.0, 1.0]
    loc, std = group.units.y_mean[index].unsqueeze(1), group.units.y_std[index].unsqueeze(1)
    assert (own if raw_units else standard) is given
    torch.testing.assert_close(own.mean, loc + std * standard.mean)
    torch.testing.assert_close(own.variance, std.square() * standard.variance)


def test_scored_rows_leave_out_the_padding_of_longer_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, table = dict[str, int](), list[dict[str, object]]()
    for row in rows():  # three test rows of one client, one of each other
        first = seen.setdefault(name := str(row["client"]), 0) == 0
        seen[name] += row["split"] == "test"
        if first or name == "existing_0":
            table.append(row)
    group = prepare(tiny(), load(on_csv(write_csv(tmp_path / "rows.csv", table))))[1]["existing"]
    index = torch.tensor([3, 1])
    whole, raw = scored_rows(group, index), raw_scored_rows(group, index)
    assert whole.mask.tolist() == raw.mask.tolist() == [[True, False, False]] * 2
    monkeypatch.setattr("pacbayes_fl.data.padding.LEAST", 1)
    monkeypatch.setattr("pacbayes_fl.data.padding.WIDTH", 1)
    for found, padded in ((scored_rows(group, index), whole), (raw_scored_rows(group, index), raw)):
        assert found.mask.shape == (2, 1) and torch.equal(found.x, padded.x[:, :1]) and found.names == padded.names
    assert torch.equal(scored_rows(group, torch.tensor([1, 0])).x, group.test.x[[1, 0]])
