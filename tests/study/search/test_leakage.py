"""No row that a trial learns from has a held-out target among its features."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pacbayes_fl.data import split, tables
from pacbayes_fl.data.layout import Layout
from pacbayes_fl.errors import DataError
from pacbayes_fl.study.search.leakage import told
from pacbayes_fl.study.search.path import BLOCKS, deal

LAYOUT = Layout(time="when", features=("wind", "lag:3", "lag:5", "lag:1 of wind"), missing="drop")


def table(path: Path, layout: Layout = LAYOUT, sizes: tuple[int, ...] = (40, 23)) -> tables.Dataset:
    """Rows whose target is their number, so that a lag says which row it is of."""
    rows = (f"c{k},{at + (at > 9)},{at % 4},{at + (at > 9)}" for k, size in enumerate(sizes) for at in range(size))
    path.write_text("\n".join(("client,when,wind,y", *rows)))
    with pytest.warns(UserWarning, match="left out"):
        return tables.read(path, layout)


def pairs(dataset: tables.Dataset, layout: Layout) -> Iterator[tuple[set[float], set[float], set[float]]]:
    """Targets held out, targets learned from, and targets in the features of the latter, by client and cut."""
    train, find = dataset.groups["existing"].train, told(dataset, layout)
    cuts = [*split.folds(train, 5, find), split.held_out(train, 5, find)]
    for part in range(BLOCKS):
        dealt = deal(dataset, 0, part, layout)
        assert dealt is not None
        cuts += [(group.train, group.test) for group in dealt.groups.values()]
    lags = [k for k, column in enumerate(dataset.features) if column.name in ("lag:3", "lag:5")]
    for rest, held in cuts:
        for k in range(rest.clients):
            x, y = rest.x[k, rest.mask[k]], rest.y[k, rest.mask[k]]
            yield {*held.y[k, held.mask[k]].tolist()}, {*y.tolist()}, {*x[:, lags].flatten().tolist()}


def test_no_row_that_is_learned_from_has_a_held_out_target_as_a_lag(tmp_path: Path) -> None:
    dataset = table(tmp_path / "t.csv")
    every = [*pairs(dataset, LAYOUT)]
    assert all(held and rest and not held & seen for held, rest, seen in every)
    blind = [*split.folds(dataset.groups["existing"].train, 5)]
    assert sum(int(rest.size.sum()) for rest, _ in blind) > sum(len(rest) for _, rest, _ in every[:10])
    whole = {*dataset.groups["existing"].train.y[0, dataset.groups["existing"].train.mask[0]].tolist()}
    for held, rest, _ in (every[k] for k in range(0, 10, 2)):  # left out is exactly what is told
        assert whole - held - rest == {y for y in whole - held if {y - 3, y - 5} & held}


def test_a_rolling_mean_that_tells_all_rows_is_refused_by_tune_and_holds_nothing_out_elsewhere(tmp_path: Path) -> None:
    layout = Layout(time="when", features=("roll:100",), missing="drop")
    dataset = table(tmp_path / "t.csv", layout)
    find, train = told(dataset, layout), dataset.groups["existing"].train
    with pytest.raises(DataError, match=r"'c0': all of its rows beside fold 1 of 5 have lags or rolling means"):
        split.folds(train, 5, find)
    rest, held = split.held_out(train, 5, find)
    assert torch.equal(rest.size, train.size) and not held.mask.any()


def test_columns_that_a_table_has_are_told_nothing(tmp_path: Path) -> None:
    layout = Layout(time="when", features=("wind", "lag:1 of wind"), missing="drop")
    assert told(table(tmp_path / "t.csv", layout), layout) is None
