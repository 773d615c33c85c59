"""Columns that a few values stretch are named, and no others, in any unit."""

import warnings

import pytest
import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.lone_values import lone, say_lone

NORMAL = torch.randn(7, 40, 3, generator=torch.Generator().manual_seed(0)).double()
ALL = torch.ones(7, 40, dtype=torch.bool)


def test_usual_columns_are_never_stretched() -> None:
    generator = torch.Generator().manual_seed(1)
    student = NORMAL / torch.randn(7, 40, 3, generator=generator).double().abs().clamp_min(0.05)  # heavier than t_2
    rain = torch.where(NORMAL > 1.5, NORMAL, 0.0)  # most hours are dry
    constant, two = torch.full_like(NORMAL, 3.7), (NORMAL > 0.3).double()
    for values in (NORMAL, student, rain, constant, two, 1e9 + NORMAL, NORMAL.exp()):
        for unit in (1.0, 1e-200, 1e200):
            assert not bool(lone(values * unit, ALL).any())


@pytest.mark.parametrize("unit", [1.0, 1e-100, 1e100])
def test_one_wrong_cell_is_found_where_it_stands(unit: float) -> None:
    values = NORMAL.clone()
    values[2, 11, 1] = 1e6
    found = lone(values * unit, ALL)
    assert found.nonzero().tolist() == [[2, 1]]


def test_the_definition_holds_row_by_row() -> None:
    values = NORMAL.clone()
    values[:, 0, 0] = torch.logspace(1, 5, 7).double()
    mask = ALL.clone()
    mask[:, 30:] = False
    for k in range(7):
        own = values[k, :30, 0]
        median = own.sort().values[14]
        away = (own - median).abs().sort().values
        expected = bool(away[23] < 0.01 * away.square().mean().sqrt())
        assert bool(lone(values, mask)[k, 0]) == expected
    assert 0 < int(lone(values, mask)[:, 0].sum()) < 7


def test_a_client_of_few_rows_and_padding_say_nothing() -> None:
    values, mask = NORMAL.clone(), ALL.clone()
    values[0, 0], mask[0, 4:] = 1e9, False
    values[1, 39], mask[1, 39] = 1e9, False
    mask[2] = False
    assert not bool(lone(values, mask).any())


def test_the_warning_names_clients_and_columns() -> None:
    rows = NORMAL.clone()
    rows[2, 11, 1] = -1e6
    batch = ClientBatch.pad([(x[:, :2], x[:, 2]) for x in rows], [f"c{k}" for k in range(7)])
    with pytest.warns(UserWarning, match="^c2: a few values of b are so far from the others"):
        say_lone(batch, ["a", "b", "y"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        say_lone(ClientBatch.pad([(x[:, :2], x[:, 2]) for x in NORMAL]), ["a", "b", "y"])
