"""States of clients between rounds: what was written is there, what was there stays, and nobody pays for the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.federation import kept as kept_module
from pacbayes_fl.federation.kept import Kept
from pacbayes_fl.methods.base import Nothing
from tests.laws.cases import Toy, bits, federation

CLIENTS = 7


class State(NamedTuple):
    mean: Tensor  # [K, 2]
    steps: Tensor  # [K] int64


def states(positions: Sequence[int], of: float = 0.0) -> State:
    at = torch.tensor(list(positions), dtype=torch.float64)
    return State(torch.stack((at, at + of), 1), torch.full((len(at),), int(of)))


def lazy(asked: list[list[int]] | None = None) -> Kept:
    def made(positions: Sequence[int]) -> State:
        if asked is not None:
            asked.append(list(positions))
        return states(positions)

    return Kept(CLIENTS, made)


def test_who_never_took_part_takes_no_memory_and_begins_where_all_did() -> None:
    asked: list[list[int]] = []
    kept = lazy(asked)
    assert kept.bytes == 0 and kept.present == () and not asked
    assert bits(kept.select([5, 2])) == bits(states([5, 2]))
    assert asked == [[5, 2]] and kept.bytes == 0
    after = kept.after([([2, 5], states([2, 5], 1))], apart=True)
    assert (after.present, after.bytes) == ((2, 5), 2 * 3 * 8)
    assert bits(after.select([1, 5, 0, 2])) == bits(
        tensors.cat([states([1]), states([5], 1), states([0]), states([2], 1)])
    )
    assert asked[-1] == [1, 0]
    assert kept.present == () and bits(kept.together()) == bits(states(range(CLIENTS)))


def test_a_whole_call_is_given_back_without_a_copy_and_parts_of_it_as_views() -> None:
    one, other = states([4, 1, 0], 1), states([2, 3], 2)
    kept = lazy().after([([4, 1, 0], one), ([2, 3], other)], apart=False)
    assert kept.select([4, 1, 0]).mean.data_ptr() == one.mean.data_ptr()
    assert kept.select([1, 0]).mean.data_ptr() == one.mean[1:].data_ptr()
    assert bits(kept.select([0, 1])) == bits(tensors.select(one, torch.tensor([2, 1])))
    again = kept.after([([2, 3], states([2, 3], 3))], apart=False)
    assert again.select([4, 1, 0]).mean.data_ptr() == one.mean.data_ptr()  # shared: nobody wrote it
    assert again.bytes == kept.bytes == 5 * 3 * 8


@pytest.mark.parametrize("apart", [True, False])
def test_states_apart_hold_nothing_of_who_was_written_with_them(apart: bool) -> None:
    """Seven clients written together and six of them again: of the first block one row is left, or all of it."""
    kept = lazy().after([(range(CLIENTS), states(range(CLIENTS), 1))], apart)
    kept = kept.after([(range(1, CLIENTS), states(range(1, CLIENTS), 2))], apart)
    assert kept.bytes == (CLIENTS if apart else 2 * CLIENTS - 1) * 3 * 8


def test_states_in_one_piece_are_taken_as_they_are() -> None:
    whole = states(range(CLIENTS), 1)
    kept = Kept.of(whole, CLIENTS)
    assert Kept.of(kept, CLIENTS) is kept
    assert kept.together().mean.data_ptr() == whole.mean.data_ptr()
    assert kept.present == tuple(range(CLIENTS)) and kept.bytes == CLIENTS * 3 * 8


def test_a_federation_of_some_clients_is_theirs() -> None:
    kept = lazy().after([([1, 3], states([1, 3], 1))], apart=True)
    some = kept.some([3, 6, 1])
    assert some.clients == 3 and some.present == (0, 2)
    assert bits(some.together()) == bits(tensors.cat([states([3], 1), states([6]), states([1], 1)]))
    written = some.after([([1], states([6], 5))], apart=True)
    assert bits(written.select([1])) == bits(states([6], 5)) and bits(kept.select([6])) == bits(states([6]))


def test_methods_whose_clients_keep_nothing_need_nothing() -> None:
    kept = Kept(CLIENTS, lambda positions: Nothing()).after([([0, 1], Nothing())], apart=True)
    assert kept.select([0, 5]) == kept.together() == Nothing()
    assert kept.present == () and kept.bytes == 0


def test_the_start_is_that_of_the_method() -> None:
    toy, batch = Toy(1), federation(1)
    message = toy.broadcast(toy.init_server(torch.Generator().manual_seed(0)))
    kept = Kept.start(toy, message, batch)
    assert bits(kept.together()) == bits(toy.init_clients(message, batch))
    assert kept.clients == batch.clients and kept.bytes == 0


@settings(max_examples=80, deadline=None)
@given(
    rounds=st.lists(
        st.tuples(st.lists(st.lists(st.integers(0, CLIENTS - 1), unique=True), max_size=3), st.booleans()), max_size=8
    ),
    order=st.lists(st.integers(0, CLIENTS - 1), min_size=1, max_size=10),
)
def test_any_rounds_are_those_of_one_table_that_is_copied_every_time(rounds: Any, order: list[int]) -> None:
    """Brute force: leaves [K, *] cloned every round; and whatever was given before stays as it was."""
    kept, table = lazy(), states(range(CLIENTS))
    history = []
    for number, (calls, apart) in enumerate(rounds, 1):
        table, written, seen = tensors.tree_map(torch.clone, table), [], set[int]()
        for call in calls:
            positions = [k for k in call if k not in seen]
            seen |= set(positions)
            if positions:
                new = states(positions, number)
                written.append((positions, new))
                tensors.tree_map(lambda leaf, own, at=positions: leaf.index_copy_(0, torch.tensor(at), own), table, new)
        kept = kept.after(written, apart)
        history.append((kept, bits(table)))
    for then, known in [*history, (kept, bits(table))]:
        assert bits(then.together()) == known
    assert bits(kept.select(order)) == bits(tensors.select(table, torch.tensor(order)))
    if all(apart for _, apart in rounds):
        assert kept.bytes == len(kept.present) * 3 * 8


@pytest.mark.parametrize("large", [0, 2**22], ids=["pages", "heap"])
def test_rows_of_shelves_are_used_again_and_nothing_that_was_given_changes(
    large: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every dtype and shape, without an element too: a hundred rounds take the room of two."""
    monkeypatch.setattr(kept_module, "_LARGE", large)
    random = torch.Generator().manual_seed(0)

    def block(of: float) -> dict[str, Tensor]:
        return {
            "a": torch.randn(3, 5, 7, generator=random, dtype=torch.float64) + of,
            "b": torch.arange(3) + int(of),
            "c": torch.randn(3, 1, generator=random)[:, :0],
            "d": torch.randn(7, 3, generator=random).T,
            "e": torch.tensor([True, False, True]),
        }

    kept = Kept(4, lambda positions: tensors.select(block(-1.0), torch.tensor([0] * len(positions))))
    given, kept_then, known = [], kept, {}
    rooms = set[int]()
    for number in range(100):
        new = block(number)
        kept = kept.after([([0, 3, 2], new)], apart=True)
        one, some = kept.select([3]), kept.select([2, 0, 3])
        assert bits(some) == bits(tensors.select(new, torch.tensor([2, 0, 1])))
        rooms |= {place.block["a"].data_ptr() + place.row for place in kept._at.values()}
        given.append((one, bits(tensors.select(new, torch.tensor([1])))))
        if number == 7:
            kept_then, known = kept, bits(new)
    assert len(rooms) <= 9  # of the round before, of this one, and of the one that somebody holds
    assert all(bits(one) == numbers for one, numbers in given)
    assert bits(kept_then.select([0, 3, 2])) == known
