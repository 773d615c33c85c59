"""Rows of clients: what is refused and how, padding, and grouping by size."""

from __future__ import annotations

import hashlib
import math
import warnings
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from pacbayes_fl.data import batch as data_batch
from pacbayes_fl.data.batch import ClientBatch, client_id, group_by_size, same_schema
from pacbayes_fl.errors import DataError, PacBayesFLError

Rows = list[tuple[Tensor, Tensor]]


def rows(*sizes: int, d: int = 3, seed: int = 0) -> Rows:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(m, d, generator=generator, dtype=torch.float64),
            torch.randn(m, generator=generator, dtype=torch.float64),
        )
        for m in sizes
    ]


def assert_same(one: ClientBatch, other: ClientBatch) -> None:
    assert one.ids == other.ids and one.names == other.names
    for name in ("x", "y", "mask"):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs), name


def test_client_ids_are_63_bits_of_sha256_and_never_change() -> None:
    assert client_id("house_07") == 5391490634262856269
    for name in ("house_07", "", "Zürich"):
        assert client_id(name) == int(hashlib.sha256(name.encode("utf-8")).hexdigest()[:16], 16) // 2
        assert 0 <= client_id(name) < 2**63


def test_padding_is_zero_and_real_rows_come_first() -> None:
    clients = rows(4, 1, 0, 3)
    batch = ClientBatch.pad(clients, ["a", "b", "c", "d"], allow_empty=True)
    assert batch.x.shape == (4, 4, 3) and batch.y.shape == batch.mask.shape == (4, 4)
    assert batch.clients == 4 and batch.size.tolist() == [4, 1, 0, 3] and batch.size.dtype == torch.float64
    for k, (x, y) in enumerate(clients):
        m = len(y)
        assert torch.equal(batch.x[k, :m], x) and torch.equal(batch.y[k, :m], y)
        assert batch.mask[k].tolist() == [True] * m + [False] * (4 - m)
        assert not batch.x[k, m:].any() and not batch.y[k, m:].any()


def test_names_and_ids_default_to_numbers_and_hashes() -> None:
    batch = ClientBatch.pad(rows(1, 2))
    assert batch.names == ("client_00", "client_01")
    assert batch.ids == tuple(client_id(name) for name in batch.names)
    assert ClientBatch.pad(rows(1, 2), ["a", "b"], [5, 2**63 - 1]).ids == (5, 2**63 - 1)


def test_only_empty_clients_still_make_a_column() -> None:
    batch = ClientBatch.pad(rows(0, 0), allow_empty=True)
    assert batch.x.shape == (2, 1, 3) and not batch.mask.any()


def test_images_keep_their_shape() -> None:
    image = torch.arange(48, dtype=torch.float64).view(2, 2, 3, 4)
    batch = ClientBatch.pad([(image, torch.zeros(2)), (image[:1], torch.zeros(1))])
    assert batch.x.shape == (2, 2, 2, 3, 4) and torch.equal(batch.x[0], image)
    turned = batch.rows(torch.tensor([[1, 0], [1, 0]]))
    assert torch.equal(turned.x[0], image.flip(0)) and turned.mask.tolist() == [[True, True], [False, True]]


def holed(holes: list[tuple[int, int]], m: int = 12, d: int = 5, value: float = math.nan) -> Tensor:
    x = torch.zeros(m, d, dtype=torch.float64)
    for row, column in holes:
        x[row, column] = value
    return x


Y = torch.zeros(12, dtype=torch.float64)
LABELS = torch.zeros(12, dtype=torch.int64)


@pytest.mark.parametrize(
    ("x", "y", "options", "message"),
    [
        (holed([(4, 3), (9, 3)]), Y, {}, "x has 2 non-finite values (rows 4, 9; column 3)"),
        (holed([(4, 3)], value=math.inf), Y, {}, "x has 1 non-finite value (row 4; column 3)"),
        (
            holed([(i, i % 2) for i in range(7)], value=-math.inf),
            Y,
            {},
            "x has 7 non-finite values (rows 0, 1, 2, 3, 4, ...; columns 0, 1)",
        ),
        (holed([]), Y.index_fill(0, torch.tensor([11]), math.nan), {}, "y has 1 non-finite value (row 11)"),
        (
            holed([(2, 1)], value=1e300),
            Y,
            {"dtype": torch.float32},
            "x has 1 non-finite value (row 2; column 1) (torch.float32 cannot hold it)",
        ),
        (holed([], m=0), Y[:0], {}, "has no samples (drop it, or let it join as a new client)"),
        (holed([], d=4), Y, {}, "x has 4 features, expected 5 (compare the columns)"),
        (holed([])[:, :1].unsqueeze(-1), Y, {}, "x has [1, 1] features, expected 5 (compare the columns)"),
        (holed([])[:, 0], Y, {}, "x must be [m, d] and y [m], got [12] and [12]"),
        (holed([]), Y[:11], {}, "x must be [m, d] and y [m], got [12, 5] and [11]"),
        (holed([]), Y[0], {}, "x must be [m, d] and y [m], got [12, 5] and []"),
        (holed([]), Y.unsqueeze(1), {}, "x must be [m, d] and y [m], got [12, 5] and [12, 1]"),
        (holed([]) + 1j, Y, {}, "x and y must be real, got torch.complex128 and torch.float64"),
        (holed([]), Y + 1j, {}, "x and y must be real, got torch.float64 and torch.complex128"),
        (holed([]).numpy(), Y, {}, "x and y must be tensors, got ndarray and Tensor"),
        (
            holed([]),
            LABELS.index_fill(0, torch.tensor([5, 6]), 62),
            {"classes": 62},
            "label 62 outside 0..61 (row 5)",
        ),
        (holed([]), LABELS.index_fill(0, torch.tensor([7]), -1), {"classes": 62}, "label -1 outside 0..61 (row 7)"),
        (holed([]), Y.index_fill(0, torch.tensor([3]), 0.5), {"classes": 2}, "label 0.5 is not whole (row 3)"),
        (
            holed([]),
            Y.index_fill(0, torch.tensor([3]), math.nan),
            {"classes": 2},
            "y has 1 non-finite value (row 3)",
        ),
    ],
)
def test_a_client_that_cannot_be_used_is_named_with_its_fault(
    x: Tensor, y: Tensor, options: dict[str, object], message: str
) -> None:
    good = (torch.ones(2, 5, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    with pytest.raises(DataError) as caught:
        ClientBatch.pad([good, (x, y), good], ["a", "house_07", "b"], **options)  # type: ignore[arg-type]
    assert str(caught.value) == f"client 'house_07': {message}"
    assert caught.value.client == "house_07"


def test_nothing_is_broadcast_to_a_federation_of_images() -> None:
    wide, narrow = torch.ones(2, 3, 4), torch.ones(2, 3, 1)
    with pytest.raises(DataError, match=r"client 'b': x has \[3, 1\] features, expected \[3, 4\]"):
        ClientBatch.pad([(wide, torch.ones(2)), (narrow, torch.ones(2))], ["a", "b"])


@pytest.mark.parametrize(
    ("clients", "names", "ids", "message"),
    [
        ([], None, None, "got 0 clients, 0 names and 0 ids"),
        (rows(1, 1), ["a"], None, "got 2 clients, 1 names and 1 ids"),
        (rows(1, 1), ["a", "b"], [1], "got 2 clients, 2 names and 1 ids"),
        (rows(1, 1, 1), ["a", "b", "b"], None, "^client 'b': its name or id is used twice"),
        (rows(1, 1, 1), ["a", "b", "c"], [4, 5, 4], "^client 'c': its name or id is used twice"),
        (rows(1, 1), ["a", "b"], [4, -1], r"^client 'b': its id must be in 0\.\.2\*\*63 - 1, got -1"),
        (rows(1, 1), ["a", "b"], [2**63, 1], "^client 'a': its id"),
    ],
)
def test_clients_must_be_told_apart(
    clients: Rows, names: list[str] | None, ids: list[int] | None, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        ClientBatch.pad(clients, names, ids)


@pytest.mark.parametrize("kind", [torch.int64, torch.uint8, torch.float16, torch.bfloat16, torch.bool])
def test_other_kinds_of_numbers_are_converted_with_one_warning(kind: torch.dtype) -> None:
    x, y = torch.tensor([[0, 1], [1, 1]]), torch.tensor([0.5, 1.0])
    with pytest.warns(UserWarning, match=f"inputs of {kind} were converted to torch.float64") as caught:
        batch = ClientBatch.pad([(x.to(kind), y), (x.to(kind), y)])
    assert len(caught) == 1 and caught[0].filename == __file__
    assert batch.x.dtype == torch.float64 and torch.equal(batch.x[0], x.double())


def test_whole_targets_are_converted_with_a_warning_and_labels_without() -> None:
    x, y = torch.ones(2, 1), torch.tensor([0, 3])
    with pytest.warns(UserWarning, match=r"inputs of torch.int64 were converted to torch.float32"):
        assert ClientBatch.pad([(x, y)], dtype=torch.float32).y.dtype == torch.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for labels in (y, y.double(), y.to(torch.uint8)):
            batch = ClientBatch.pad([(x, labels)], classes=4)
            assert batch.y.dtype == torch.int64 and batch.y.tolist() == [[0, 3]]
        assert ClientBatch.pad([(x, y.float()), (x.double(), y.double())]).x.dtype == torch.float64


def test_padding_leaves_the_rows_given_as_they_are() -> None:
    clients = rows(3, 2)
    before = [(x.clone(), y.clone()) for x, y in clients]
    batch = ClientBatch.pad(clients)
    batch.x.zero_()
    assert all(torch.equal(x, a) and torch.equal(y, b) for (x, y), (a, b) in zip(clients, before, strict=True))


def test_select_takes_clients_in_the_order_asked_for() -> None:
    clients, names = rows(4, 1, 3), ["a", "b", "c"]
    picked = ClientBatch.pad(clients, names).select(torch.tensor([2, 0]))
    assert_same(picked.trim(), ClientBatch.pad([clients[2], clients[0]], ["c", "a"]))


def test_rows_take_rows_and_padding_stays_padding() -> None:
    clients = rows(4, 2)
    batch = ClientBatch.pad(clients)
    index = torch.tensor([[3, 0, 2], [1, 3, 0]])
    taken = batch.rows(index)
    assert taken.mask.tolist() == [[True] * 3, [True, False, True]]
    for k, (x, y) in enumerate(clients):
        for n, row in enumerate(index[k].tolist()):
            real = row < len(y)
            assert torch.equal(taken.x[k, n], x[row] if real else torch.zeros(3, dtype=torch.float64))
            assert float(taken.y[k, n]) == (float(y[row]) if real else 0.0)


def test_trim_undoes_padding() -> None:
    clients = rows(2, 3)
    tight = ClientBatch.pad(clients)
    loose = ClientBatch.pad([*clients, *rows(9)]).select(torch.tensor([0, 1]))
    assert loose.x.shape[1] == 9
    assert_same(loose.trim(), tight)
    assert_same(loose.trim(3), tight)
    assert ClientBatch.pad(rows(0), allow_empty=True).trim().x.shape == (1, 1, 3)


@pytest.mark.parametrize("classes", [None, 4])
def test_extend_matches_by_id_and_puts_later_rows_last(classes: int | None) -> None:
    def labelled(clients: Rows) -> Rows:
        return [(x, y if classes is None else (y.abs() * 2).round().clamp(max=3)) for x, y in clients]

    first, more = labelled(rows(3, 0, 2)), labelled(rows(1, 4, seed=1))
    names = ["a", "b", "c"]
    batch = ClientBatch.pad(first, names, allow_empty=True, classes=classes)
    grown = batch.extend(ClientBatch.pad(more, ["c", "b"], classes=classes))
    joined = [first[0], more[1], tuple(torch.cat(pair) for pair in zip(first[2], more[0], strict=True))]
    assert_same(grown, ClientBatch.pad(joined, names, classes=classes))  # type: ignore[arg-type]
    assert batch.size.tolist() == [3, 0, 2]
    with pytest.raises(DataError, match="client 'd': has later rows but is not in the batch"):
        batch.extend(ClientBatch.pad(more, ["c", "d"], classes=classes))


def test_extend_of_clients_without_rows_gives_the_later_rows_themselves() -> None:
    later = ClientBatch.pad(rows(2, 4), ["a", "b"])
    grown = later.rows(torch.zeros(2, 0, dtype=torch.long)).extend(later)
    assert grown.x is later.x and grown.y is later.y and grown.mask is later.mask and grown.names == later.names


def test_extend_refuses_other_columns() -> None:
    with pytest.raises(DataError, match=r"client 'a': x has \[2\] features, the model was trained on \[3\]"):
        ClientBatch.pad(rows(3), ["a"]).extend(ClientBatch.pad(rows(3, d=2), ["a"]))


def test_to_changes_the_dtype_of_floating_numbers_alone() -> None:
    plain = ClientBatch.pad(rows(2, 1)).to(dtype=torch.float32)
    assert plain.x.dtype == plain.y.dtype == torch.float32 and plain.mask.dtype == torch.bool
    labels = ClientBatch.pad([(torch.ones(2, 1), torch.tensor([0, 1]))], classes=2).to("cpu", torch.float32)
    assert labels.x.dtype == torch.float32 and labels.y.dtype == torch.int64
    assert_same(ClientBatch.pad(rows(2)).to(), ClientBatch.pad(rows(2)))


@pytest.mark.gpu
def test_extend_and_pad_stay_on_their_device() -> None:
    batch = ClientBatch.pad([(x.cuda(), y.cuda()) for x, y in rows(2, 3)])
    assert batch.x.is_cuda and batch.mask.is_cuda and batch.extend(batch).y.is_cuda


@given(st.lists(st.integers(0, 400), max_size=60), st.floats(1, 3), st.integers(0, 20))
@example([], 1.0, 0)
@example([5, 5, 5], 1.0, 0)
def test_groups_hold_everybody_once_and_waste_little(sizes: list[int], waste: float, slack: int) -> None:
    groups = group_by_size(sizes, waste, slack)
    assert sorted(k for group in groups for k in group) == list(range(len(sizes)))
    assert all(groups)
    for group in groups:
        own = [sizes[k] for k in group]
        assert own == sorted(own) and own[-1] <= max(waste * own[0], own[0] + slack)
    for group, following in pairwise(groups):  # smallest first, and never a group too many
        assert sizes[following[0]] > max(waste * sizes[group[0]], sizes[group[0]] + slack)


def test_equal_clients_are_one_group_and_a_giant_stands_alone() -> None:
    assert group_by_size([10, 10, 10]) == [[0, 1, 2]]
    assert group_by_size([1000, 10, 18, 1001]) == [[1, 2], [0, 3]]


def test_a_schema_must_be_met() -> None:
    ours = ClientBatch.pad(rows(2), ["a"])
    same_schema(ours, ClientBatch.pad(rows(5, 1), ["b", "c"]))
    for theirs, message in (
        (ClientBatch.pad(rows(2, d=4), ["b"]), r"client 'b': x has \[4\] features, the model was trained on \[3\]"),
        (
            ClientBatch.pad(rows(2), ["b"], dtype=torch.float32),
            "client 'b': x must be torch.float64, got torch.float32",
        ),
        (
            ClientBatch.pad([(rows(2)[0][0], torch.tensor([0, 1]))], ["b"], classes=2),
            "client 'b': y must be torch.float64, got torch.int64",
        ),
    ):
        with pytest.raises(DataError, match=message):
            same_schema(ours, theirs)


VALUES = st.sampled_from([0.0, 1.0, -2.5, 1e-310, 1e30, 1e300, math.nan, math.inf, -math.inf])
KINDS = st.sampled_from([torch.float64, torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64])


@st.composite
def federations(draw: st.DrawFn) -> Rows:
    """Draw clients of which each has perhaps one thing wrong."""
    d, clients = draw(st.integers(0, 4)), []
    for _ in range(draw(st.integers(0, 5))):
        m, own_d = draw(st.integers(0, 20)), d + draw(st.sampled_from([0, 0, 0, 0, 1]))
        random = np.random.default_rng(draw(st.integers(0, 9)))
        x, y = torch.tensor(random.normal(size=(m, own_d))), torch.tensor(random.integers(-1, 4, m) / 1.0)
        if x.numel() and draw(st.booleans()):
            x[m // 2, 0] = draw(VALUES)
        if m and draw(st.booleans()):
            y[-1] = draw(VALUES)
        if draw(st.booleans()):
            x = x.nan_to_num(0, 0, 0).to(draw(KINDS))
        clients.append((x, y[: m - draw(st.sampled_from([0, 0, 0, 0, 1]))]))
    return clients


@pytest.mark.slow
@settings(max_examples=300)
@given(
    federations(),
    st.sampled_from([None, None, 1, 4]),
    st.sampled_from([torch.float64, torch.float32]),
    st.booleans(),
)
def test_any_rows_give_a_named_error_or_a_sound_batch(
    clients: Rows, classes: int | None, dtype: torch.dtype, allow_empty: bool
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            batch = ClientBatch.pad(clients, dtype=dtype, classes=classes, allow_empty=allow_empty)
        except PacBayesFLError as error:
            assert error.client in {None, *(f"client_{k:02d}" for k in range(len(clients)))}
            assert (error.client is None) == (not clients)
            return
    assert batch.x.isfinite().all() and batch.y.isfinite().all() and batch.x.dtype == dtype
    assert batch.size.tolist() == [len(y) for _, y in clients]
    assert not batch.x[~batch.mask].any() and not batch.y[~batch.mask].any()
    for k, (x, y) in enumerate(clients):
        assert torch.equal(batch.x[k, : len(y)], x.to(dtype))
        assert torch.equal(batch.y[k, : len(y)].double(), y.to(dtype).double())
        assert classes is None or not len(y) or 0 <= int(batch.y[k].min()) <= int(batch.y[k].max()) < classes


def test_a_batch_shows_shapes_and_names_in_one_line() -> None:
    many = ClientBatch.pad([(torch.ones(m, 2).double(), torch.ones(m).double()) for m in (3, 1, 2, 5)])
    shown = "4 clients (client_00, client_01, client_02, ...), 11 rows, x [4, 5, 2] float64, y [4, 5] float64"
    assert repr(many) == f"ClientBatch({shown})"
    few = many.select(torch.tensor([1]))
    assert repr(few).startswith("ClientBatch(1 client (client_01), 1 row,")


@pytest.mark.parametrize("classes", [None, 3])
def test_clients_without_a_fault_are_checked_all_at_once(classes: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [(x, (y.argsort() % 3).to(y) if classes else y) for x, y in rows(3, 1, 4)]
    one_by_one, checked = list[str](), data_batch._checked

    def counted(name: str, *rest: Any) -> tuple[Tensor, Tensor]:
        one_by_one.append(name)
        return checked(name, *rest)

    monkeypatch.setattr(data_batch, "_checked", counted)
    batch = ClientBatch.pad(given, classes=classes)
    assert not one_by_one
    monkeypatch.setattr(data_batch, "_checked_together", lambda *_: None)
    assert_same(batch, ClientBatch.pad(given, classes=classes))
    assert one_by_one == list(batch.names)
