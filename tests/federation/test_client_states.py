"""States of clients between rounds: what was written is there, what was there stays, and nobody pays for the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.federation import client_states as kept_module
from pacbayes_fl.federation import state_memory
from pacbayes_fl.federation.client_states import Kept, Writing
from pacbayes_fl.methods.base import Nothing
from tests.laws.cases import Toy, bits, federation

CLIENTS = 7
Written = Sequence[tuple[Sequence[int], Any]]


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


def whole(kept: Kept, written: Written) -> Kept:
    """A round in which everybody is written, call by call."""
    writing = Writing(kept, everybody=True)
    for positions, block in written:
        writing.put(positions, block)
    return writing.done()


def test_who_never_took_part_takes_no_memory_and_begins_where_all_did() -> None:
    asked: list[list[int]] = []
    kept = lazy(asked)
    assert kept.bytes == 0 and kept.present == () and not asked
    assert bits(kept.select([5, 2])) == bits(states([5, 2]))
    assert asked == [[5, 2]] and kept.bytes == 0
    after = kept.after([([2, 5], states([2, 5], 1))])
    assert (after.present, after.bytes) == ((2, 5), 2 * 3 * 8)
    assert bits(after.select([1, 5, 0, 2])) == bits(
        tensors.cat([states([1]), states([5], 1), states([0]), states([2], 1)])
    )
    assert asked[-1] == [1, 0]
    assert kept.present == () and bits(kept.together()) == bits(states(range(CLIENTS)))


def test_a_whole_call_is_given_back_without_a_copy_and_parts_of_it_as_views() -> None:
    one, other = states([4, 1, 0], 1), states([2, 3], 2)
    kept = whole(lazy(), [([4, 1, 0], one), ([2, 3], other)])
    assert kept.select([4, 1, 0]).mean.data_ptr() == one.mean.data_ptr()
    assert kept.select([1, 0]).mean.data_ptr() == one.mean[1:].data_ptr()
    assert bits(kept.select([0, 1])) == bits(tensors.select(one, torch.tensor([2, 1])))
    again = whole(kept, [([2, 3], states([2, 3], 3))])
    assert again.select([4, 1, 0]).mean.data_ptr() == one.mean.data_ptr()  # shared: nobody wrote it
    assert again.bytes == kept.bytes == 5 * 3 * 8


def test_states_hold_nothing_of_who_was_written_with_them() -> None:
    """Seven clients written together and six of them again: of the first block one row is left, or all of it."""
    rounds = (range(CLIENTS), range(1, CLIENTS))
    apart, together = lazy(), lazy()
    for number, positions in enumerate(rounds, 1):
        apart = apart.after([(positions, states(positions, number))])
        together = whole(together, [(positions, states(positions, number))])
    assert apart.bytes == CLIENTS * 3 * 8 and together.bytes == (2 * CLIENTS - 1) * 3 * 8


def test_a_client_that_failed_keeps_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    good = torch.tensor([True, False, True])
    for at_hand in (0, 2**26):
        monkeypatch.setattr(kept_module, "AT_HAND", at_hand)
        before = lazy().after([([1, 2, 3], states([1, 2, 3], 1))])
        for everybody in (False, True):
            writing = Writing(before, everybody)
            writing.put([1, 2, 3], states([1, 2, 3], 2), good, before.select([1, 2, 3]))
            wanted = tensors.cat([states([1], 2), states([2], 1), states([3], 2)])
            assert bits(writing.done().select([1, 2, 3])) == bits(wanted)


@pytest.mark.parametrize("clients", [30, 3])
def test_states_that_a_round_supersedes_go_to_a_file_but_for_a_few(
    clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of thirty states in calls of five all but six are in the file, and read from there bit by bit; of three none."""
    monkeypatch.setattr(kept_module, "AT_HAND", 6 * 24)
    monkeypatch.setattr(state_memory, "_SHELF", 0)
    kept = Kept(clients, states)

    def round(kept: Kept, of: int) -> Kept:
        calls = [list(range(k, min(k + 5, clients))) for k in range(0, clients, 5)]
        return kept.after([(call, states(call, of)) for call in calls])

    first = round(kept, 1)
    second = round(first, 2)
    stay = min(clients, 6)
    assert (first.bytes, second.bytes) == (stay * 24, clients * 24)
    assert second.shelves is first.shelves and second.shelves.in_file == (clients - stay) * 24
    assert second.shelves.bytes == (clients + stay) * 24
    order = [2, 0, *range(clients - 1, 0, -3)]
    assert bits(first.select(order)) == bits(states(order, 1)) and bits(second.select(order)) == bits(states(order, 2))
    undone = round(first, 3)
    assert bits(undone.together()) == bits(states(range(clients), 3))
    assert bits(first.together()) == bits(states(range(clients), 1))
    sizes = set()
    for of in range(4, 20):  # what nobody refers to makes room for what comes
        undone = round(undone, of)
        sizes.add(undone.shelves.in_file)
    assert len(sizes) == 1 and bits(second.together()) == bits(states(range(clients), 2))


def test_states_in_one_piece_are_taken_as_they_are() -> None:
    whole = states(range(CLIENTS), 1)
    kept = Kept.of(whole, CLIENTS)
    assert Kept.of(kept, CLIENTS) is kept
    assert kept.together().mean.data_ptr() == whole.mean.data_ptr()
    assert kept.present == tuple(range(CLIENTS)) and kept.bytes == CLIENTS * 3 * 8


def test_a_federation_of_some_clients_is_theirs() -> None:
    kept = lazy().after([([1, 3], states([1, 3], 1))])
    some = kept.subset([3, 6, 1])
    assert some.clients == 3 and some.present == (0, 2)
    assert bits(some.together()) == bits(tensors.cat([states([3], 1), states([6]), states([1], 1)]))
    written = some.after([([1], states([6], 5))])
    assert bits(written.select([1])) == bits(states([6], 5)) and bits(kept.select([6])) == bits(states([6]))


def test_methods_whose_clients_keep_nothing_need_nothing() -> None:
    kept = Kept(CLIENTS, lambda positions: Nothing()).after([([0, 1], Nothing())])
    assert kept.select([0, 5]) == kept.together() == Nothing()
    assert kept.present == () and kept.bytes == 0


def test_the_start_is_that_of_the_method() -> None:
    toy, batch = Toy(1), federation(1)
    message = toy.broadcast(toy.init_server(torch.Generator().manual_seed(0)))
    kept = Kept.start(toy, message, batch)
    assert bits(kept.together()) == bits(toy.init_clients(message, batch))
    assert kept.clients == batch.clients and kept.bytes == 0


@pytest.mark.law
@pytest.mark.parametrize("at_hand", [0, 72, 2**26])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rounds=st.lists(
        st.tuples(st.lists(st.lists(st.integers(0, CLIENTS - 1), unique=True), max_size=3), st.booleans()), max_size=8
    ),
    order=st.lists(st.integers(0, CLIENTS - 1), min_size=1, max_size=10),
)
def test_any_rounds_are_those_of_one_table_that_is_copied_every_time(
    at_hand: int, rounds: Any, order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brute force: leaves [K, *] cloned every round; and whatever was given before stays as it was."""
    monkeypatch.setattr(kept_module, "AT_HAND", at_hand)
    kept, table = lazy(), states(range(CLIENTS))
    history = []
    for number, (calls, everybody) in enumerate(rounds, 1):
        table, written, seen = tensors.tree_map(torch.clone, table), [], set[int]()
        for call in calls:
            positions = [k for k in call if k not in seen]
            seen |= set(positions)
            if positions:
                new = states(positions, number)
                written.append((positions, new))
                tensors.tree_map(lambda leaf, own, at=positions: leaf.index_copy_(0, torch.tensor(at), own), table, new)
        kept = whole(kept, written) if everybody else kept.after(written)
        history.append((kept, bits(table)))
    for then, known in [*history, (kept, bits(table))]:
        assert bits(then.together()) == known
    assert bits(kept.select(order)) == bits(tensors.select(table, torch.tensor(order)))
    if not any(everybody for _, everybody in rounds) or at_hand < CLIENTS * 3 * 8:
        assert kept.bytes == len(kept.present) * 3 * 8
