"""Folds inside clients, and the two checks of a split: disjointness and a fingerprint."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from pacbayes_fl.data import split
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.split import assert_disjoint, folds, held_block, held_out, shuffled, split_hash, stratified_folds
from pacbayes_fl.errors import DataError


def federation(*sizes: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> ClientBatch:
    generator = torch.Generator().manual_seed(seed)
    rows = [(torch.randn(m, 2, generator=generator), torch.randn(m, generator=generator)) for m in sizes]
    return ClientBatch.pad(rows, [f"c{k}" for k in range(len(sizes))], dtype=dtype, allow_empty=True)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_folds_are_blocks_that_cover_every_row_once(count: int) -> None:
    batch = federation(5, 11, 7)
    number = torch.arange(11.0, dtype=torch.float64).expand(3, -1) * batch.mask  # the row's number as its target
    batch = replace(batch, y=number)
    pairs = folds(batch, count)
    assert len(pairs) == count
    for k, m in enumerate((5, 11, 7)):
        held = [test.y[k][test.mask[k]].tolist() for _, test in pairs]
        assert [row for block in held for row in block] == list(range(m))  # blocks in order: disjoint and complete
        assert max(map(len, held)) - min(map(len, held)) <= 1 and min(map(len, held)) >= 1
        for (rest, test), block in zip(pairs, held, strict=True):
            assert rest.y[k][rest.mask[k]].tolist() == [row for row in range(m) if row not in block]
            assert torch.equal(test.x[k][test.mask[k]], batch.x[k, [int(row) for row in block]])
            assert rest.names == test.names == batch.names and rest.ids == test.ids == batch.ids
    for rest, test in pairs:
        assert_disjoint(rest, test)


@pytest.mark.parametrize("m", [0, 1, 2, 4, 5, 7, 23])
def test_blocks_are_counted_from_both_ends(m: int) -> None:
    count = min(5, m)
    blocks = [[*range(m * k // count, m * (k + 1) // count)] for k in range(count)] if m > 1 else [[]]
    for block, rows in enumerate(blocks):
        for at in (block, block - len(blocks)):
            assert held_block(m, 5, at).nonzero().flatten().tolist() == rows


@pytest.mark.parametrize("batch", [federation(4, 4, dtype=torch.float32), federation(6)])
def test_folds_keep_dtypes(batch: ClientBatch) -> None:
    labels = ClientBatch.pad([(batch.x[0], torch.arange(len(batch.x[0])) % 2)], classes=2, dtype=batch.x.dtype)
    for given in (batch, labels):
        for pair in folds(given, 2):
            assert all(part.x.dtype == given.x.dtype and part.y.dtype == given.y.dtype for part in pair)


def test_folds_need_rows_and_two_parts() -> None:
    with pytest.raises(DataError, match="client 'c1': needs at least 4 rows for 4 folds, has 3"):
        folds(federation(5, 3), 4)
    with pytest.raises(DataError, match="needs at least 2 folds, got 1"):
        folds(federation(5, 3), 1)


def test_a_planted_duplicate_is_found() -> None:
    train, test = federation(4, 6), federation(3, 5, seed=1)
    assert_disjoint(train, test)
    test.x[1, 3], test.y[1, 3] = train.x[1, 5], train.y[1, 5]
    with pytest.raises(DataError, match="client 'c1': test row 3 is also a training row"):
        assert_disjoint(train, test)


def test_what_is_no_duplicate_passes() -> None:
    train, test = federation(4, 6), federation(3, 5, seed=1)
    test.x[0, 0], test.y[0, 0] = train.x[1, 0], train.y[1, 0]  # another client's row
    test.x[0, 1] = train.x[0, 1]  # the same inputs, another target
    assert_disjoint(train, test)  # and the zeros of padding on both sides are no rows
    assert_disjoint(train, federation(0, 0))


def test_zero_of_either_sign_is_zero() -> None:
    train, test = federation(2), federation(2, seed=1)
    train.x[0, 0], train.y[0, 0] = 0.0, 1.0
    test.x[0, 1], test.y[0, 1] = -0.0, 1.0
    with pytest.raises(DataError, match="test row 1"):
        assert_disjoint(train, test)


def test_other_clients_or_another_order_are_refused() -> None:
    train = federation(4, 6)
    for test in (train.select(torch.tensor([1, 0])), train.select(torch.tensor([0]))):
        with pytest.raises(DataError, match="same clients"):
            assert_disjoint(train, test)


def test_the_hash_sees_values_names_and_where_each_row_stands() -> None:
    train, test = federation(4, 6), federation(3, 5, seed=1)
    base = split_hash(train, test)
    assert len(base) == 64 and base == split_hash(federation(4, 6), federation(3, 5, seed=1))
    wider = replace(  # padding is no part of it
        train,
        x=torch.nn.functional.pad(train.x, (0, 0, 0, 3)),
        y=torch.nn.functional.pad(train.y, (0, 3)),
        mask=torch.nn.functional.pad(train.mask, (0, 3)),
    )
    assert split_hash(wider, test) == base
    rows = [(train.x[k][train.mask[k]], train.y[k][train.mask[k]]) for k in range(2)]
    last, x, y = (rows[0][0][-1:], rows[0][1][-1:]), *rows[0]
    moved = [(x[:-1], y[:-1]), (torch.cat((last[0], rows[1][0])), torch.cat((last[1], rows[1][1])))]
    changed = [
        split_hash(test, train),
        split_hash(train),
        split_hash(ClientBatch.pad(moved, train.names), test),
        split_hash(ClientBatch.pad([(x.flip(0), y.flip(0)), rows[1]], train.names), test),
        split_hash(ClientBatch.pad(rows, ["c0", "d1"]), test),
        split_hash(replace(train, y=train.y + 1e-15 * train.mask), test),
    ]
    assert len({base, *changed}) == len(changed) + 1


def test_the_hash_does_not_run_names_and_rows_together() -> None:
    empty = torch.zeros(0, 2)
    glued = [
        ClientBatch.pad([(empty, empty[:, 0])] * len(names), names, allow_empty=True) for names in (["ab"], ["a", "b"])
    ]
    assert split_hash(glued[0]) != split_hash(glued[1])
    flat = torch.arange(8.0, dtype=torch.float64)
    narrow = ClientBatch.pad([(flat.view(4, 2)[:, :1], flat.view(4, 2)[:, 1])])
    wide = ClientBatch.pad([(flat.view(2, 4)[:, :3], flat.view(2, 4)[:, 3])])
    assert split_hash(narrow) != split_hash(wide)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_stratified_folds_deal_every_label_evenly(count: int) -> None:
    random = np.random.default_rng(0)
    sizes = (17, 9, 30)
    clients = [(torch.arange(float(m)).unsqueeze(1), torch.tensor(np.sort(random.integers(4, size=m)))) for m in sizes]
    batch = ClientBatch.pad(clients, classes=4)
    pairs = stratified_folds(batch, count)
    assert len(pairs) == count
    for k, (x, y) in enumerate(clients):
        held = [pair[1].x[k][pair[1].mask[k]][:, 0].tolist() for pair in pairs]
        assert sorted(row for fold in held for row in fold) == x[:, 0].tolist()  # every row once
        for (rest, _), fold in zip(pairs, held, strict=True):
            assert rest.x[k][rest.mask[k]][:, 0].tolist() == [row for row in x[:, 0].tolist() if row not in fold]
            assert torch.equal(rest.y[k][rest.mask[k]], y[[int(r) for r in x[:, 0] if r not in fold]])
        for label in range(4):
            counts = [int((y[[int(row) for row in fold]] == label).sum()) for fold in held]
            assert max(counts) - min(counts) <= 1  # contiguous blocks would hold out whole labels
    with pytest.raises(DataError, match="client 'client_01': needs at least 10 rows for 10 folds, has 9"):
        stratified_folds(batch, 10)
    with pytest.raises(DataError, match="needs at least 2 folds, got 1"):
        stratified_folds(batch, 1)


def test_rows_of_different_times_are_different_rows() -> None:
    train, test = federation(4, 6), federation(3, 5, seed=1)
    test.x[1, 3], test.y[1, 3] = train.x[1, 5], train.y[1, 5]
    old, new = torch.arange(12).view(2, 6), 100 + torch.arange(10).view(2, 5)
    assert_disjoint(train, test, times=(old, new))
    new[1, 3] = old[1, 5]
    with pytest.raises(DataError, match="client 'c1': test row 3 is also a training row"):
        assert_disjoint(train, test, times=(old, new))
    new[1, 3] = old[1, 4]  # the time of another row
    assert_disjoint(train, test, times=(old.double(), new.double()))


def test_repeats_are_counted_shown_and_the_keys_that_help_are_named() -> None:
    train, test = federation(4, 6, 5), federation(3, 5, 4, seed=1)
    for k, row in ((1, 3), (1, 4), (2, 0)):
        test.x[k, row], test.y[k, row] = 0.0, 0.25
        train.x[k, 1], train.y[k, 1] = 0.0, 0.25
    with pytest.raises(DataError) as refused:
        assert_disjoint(train, test)
    assert str(refused.value) == (
        "client 'c1': test row 3 is also a training row (x = 0, 0; y = 0.25), the first of 2 such rows among its 5, of "
        "3 in 2 clients (split the rows again; or, where rows are alike by chance, as nights are, data.time = 'COLUMN' "
        "tells them apart by their times, and data.duplicate_rows = 'allow' keeps them)"
    )


def test_rows_come_client_after_client_whatever_is_copied_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = replace(federation(4, 0, 6), y=torch.full((3, 6), -0.0, dtype=torch.float64))
    expected = [torch.cat((batch.x[k, :m], torch.zeros(m, 1)), 1) for k, m in enumerate((4, 0, 6))]
    for block in (1, 40, 2**22):
        monkeypatch.setattr(split, "_BLOCK", block)
        result = [torch.from_numpy(rows) for rows in split.rows_of(batch)]
        assert len(result) == 3 and all(map(torch.equal, result, expected))
        assert not any(rows[:, 2].signbit().any() for rows in result)


def test_a_client_s_hash_is_that_of_the_client_alone() -> None:
    train, test = federation(4, 6), federation(3, 5, seed=1)
    alone = [torch.tensor([k]) for k in range(2)]
    assert split.client_hashes(train, test) == {
        name: split_hash(train.select(at), test.select(at)) for name, at in zip(train.names, alone, strict=True)
    }


@pytest.mark.parametrize("labelled", [False, True])
def test_what_is_held_out_is_the_first_fold_and_one_row_of_few_but_never_the_last_one(labelled: bool) -> None:
    random = np.random.default_rng(0)
    rows = [(torch.from_numpy(random.normal(size=(m, 2))), torch.arange(m) % 3) for m in (13, 5, 4, 2, 1)]
    clients = [(x, y if labelled else y.double()) for x, y in rows]
    batch = ClientBatch.stack(clients, [f"c{k}" for k in range(5)], list(range(5)))
    rest, held = held_out(batch, 5)
    assert held.size.tolist() == [3 if labelled else 2, 1, 1, 1, 0] and (rest.size + held.size).equal(batch.size)
    many = batch.select(torch.tensor([0, 1]))
    for own, fold in zip((rest, held), (stratified_folds if labelled else folds)(many, 5)[0], strict=True):
        assert all(own.x[k, : int(m)].equal(fold.x[k, : int(m)]) for k, m in enumerate(fold.size))
    for k, (x, _) in enumerate(rows):
        parts = torch.cat([one.x[k, : int(one.size[k])] for one in (rest, held)])
        assert sorted(parts.tolist()) == sorted(x.tolist())


def test_no_label_is_held_out_that_its_client_would_not_know_any_more() -> None:
    labels = [[0, 0, 1, 2, 3, 4, 5, 6], [0, 1, 1], [0, 1, 2], [2, 0, 1], [0, 1, 2, 3, 4, 5, 6], [0] * 6 + [1] * 5 + [2]]
    clients = [(torch.arange(float(len(y))).unsqueeze(1), torch.tensor(y)) for y in labels]
    batch = ClientBatch.stack(clients, [*"abcdef"], [0, 1, 3, 4, 5, 6])
    rest, held = held_out(batch, 5)
    chosen = [
        [labels[k][int(at)] for at in own[mask, 0]] for k, (own, mask) in enumerate(zip(held.x, held.mask, strict=True))
    ]
    # The only row of a label stays; of clients with one of each the number of the client (3, 4, 5) says which goes.
    assert chosen == [[0], [1], [0], [1], [5], [0, 0, 1]]
    assert (rest.size + held.size).equal(batch.size)


def test_a_drawn_order_goes_by_the_names_of_clients() -> None:
    """Whatever order the table has them in; another draw is another order."""
    batch, turned = federation(3, 3, 3, 3, 3), torch.tensor([3, 0, 4, 1, 2])

    def drawn(one: ClientBatch, seed: int) -> list[str]:
        return [one.names[k] for k in shuffled(one, torch.Generator().manual_seed(seed)).tolist()]

    assert sorted(drawn(batch, 0)) == sorted(batch.names) and drawn(batch, 0) == drawn(batch.select(turned), 0)
    assert drawn(batch, 0) != drawn(batch, 1)
    many = federation(*[2] * 12)  # as tables have them: c9 before c10
    assert drawn(many, 0) == [many.names[k] for k in torch.randperm(12, generator=torch.Generator().manual_seed(0))]
