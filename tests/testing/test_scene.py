"""The tiny federations that laws look at: ragged, repeatable, and the same clients in every arrangement."""

from __future__ import annotations

import pytest
import torch

from pacbayes_fl.testing.scene import ARRANGEMENTS, CLASSES, assert_close, federation, strangers_of, unchanged, widen


@pytest.mark.parametrize("d", [1, 2, 3])
def test_clients_are_ragged_repeatable_and_one_has_a_single_row(d: int) -> None:
    batch = federation(d)
    assert 1.0 in batch.size.tolist() and len(set(batch.size.tolist())) > 3
    assert torch.equal(batch.x, federation(d).x) and batch.x.shape[-1] == d
    assert set(federation(3, labelled=True).y.flatten().tolist()) == {*range(CLASSES)}


def test_strangers_have_rows_of_their_own_or_none() -> None:
    new = strangers_of(federation(3))
    assert new.size.tolist() == [float(federation(3).size[0]), 0.0]
    assert strangers_of(federation(3, labelled=True), CLASSES).y.dtype == torch.int64


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_every_arrangement_holds_rows_that_their_clients_have(name: str) -> None:
    batch = federation(3)
    for positions, padded in ARRANGEMENTS[name](batch.clients):
        rows = padded(batch.select(torch.tensor(positions)))
        assert rows.ids == tuple(batch.ids[k] for k in positions)
        assert torch.equal(rows.size, batch.size[positions])
    assert widen(batch).x.shape[1] == batch.x.shape[1] + 3 and not widen(batch).mask[:, -3:].any()
    assert unchanged(batch) is batch


def test_trees_that_differ_are_told_by_their_leaf() -> None:
    tree = {"a": torch.zeros(2), "b": torch.ones(2)}
    assert_close(tree, {"a": torch.zeros(2), "b": torch.ones(2)})
    with pytest.raises(AssertionError, match=r"^b: "):
        assert_close(tree, {"a": torch.zeros(2), "b": torch.tensor([1.0, 1.1])})
    with pytest.raises(AssertionError, match="leaves are a, b, expected a"):
        assert_close(tree, {"a": torch.zeros(2)})
