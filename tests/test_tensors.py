"""Trees: names, rebuilding, and what is done client by client."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.errors import ShapeError


class Gaussian(NamedTuple):
    loc: dict[str, Tensor]
    scale: Tensor


class State(NamedTuple):
    q: Gaussian
    steps: Tensor


def state(clients: int = 3) -> State:
    """Return a nested tree whose numbers say which client and which leaf they belong to."""
    k = torch.arange(clients, dtype=torch.float64)
    loc = {"w0": k.view(-1, 1, 1) + torch.arange(6.0).view(2, 3) / 10, "b0": k.unsqueeze(1) + torch.zeros(2)}
    return State(Gaussian(loc, 100 + k), torch.arange(clients))


def same(tree: Any, other: Any) -> bool:
    mine, theirs = tensors.leaves(tree), tensors.leaves(other)
    return list(mine) == list(theirs) and all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_flat_names_spell_the_path_in_order() -> None:
    assert list(tensors.leaves(state())) == ["q.loc.w0", "q.loc.b0", "q.scale", "steps"]
    assert list(tensors.leaves(torch.zeros(2))) == [""]
    assert tensors.leaves({}) == {}


def test_a_tree_survives_being_flattened() -> None:
    tree = state()
    shuffled = dict(reversed(tensors.leaves(tree).items()))  # names decide, not the order
    like = tensors.tree_map(torch.zeros_like, tree)
    again = tensors.unleaves(like, shuffled)
    assert type(again) is State and type(again.q) is Gaussian and same(again, tree)
    assert torch.equal(tensors.unleaves(torch.zeros(2), {"": torch.ones(2)}), torch.ones(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda flat: flat.pop("q.scale"), r"leaves missing: \['q.scale'\], not known: \[\]"),
        (lambda flat: flat.update(extra=torch.zeros(1)), r"missing: \[\], not known: \['extra'\]"),
        (
            lambda flat: flat.update({"q.loc.b0": torch.zeros(3, 1, dtype=torch.float64)}),
            r"leaf 'q.loc.b0' must be \[3, 2\] torch.float64, got \[3, 1\] torch.float64",
        ),
        (
            lambda flat: flat.update({"q.scale": torch.zeros(3)}),
            r"leaf 'q.scale' must be \[3\] torch.float64, got \[3\] torch.float32",
        ),
    ],
    ids=["missing", "foreign", "broadcastable", "dtype"],
)
def test_a_leaf_that_does_not_fit_is_named(change: Callable[[dict[str, Tensor]], None], message: str) -> None:
    flat = tensors.leaves(state())
    change(flat)
    with pytest.raises(ShapeError, match=message):
        tensors.unleaves(state(), flat)


def test_inexact_rebuilding_forgives_shapes_alone() -> None:
    tree, five = state(3), state(5)
    assert same(tensors.unleaves(tree, tensors.leaves(five), exact=False), five)
    with pytest.raises(ShapeError, match=r"'q\.scale'"):
        tensors.unleaves(tree, tensors.leaves(tree) | {"q.scale": torch.zeros(3)}, exact=False)


def test_two_leaves_of_one_name_are_refused() -> None:
    with pytest.raises(ShapeError, match=r"two leaves are called 'a.b'"):
        tensors.leaves({"a": {"b": torch.zeros(1)}, "a.b": torch.ones(1)})


@pytest.mark.parametrize("intruder", [[torch.zeros(1)], (torch.zeros(1),), None, 1.0])
def test_what_is_neither_tensor_nor_container_is_refused(intruder: object) -> None:
    with pytest.raises(ShapeError, match=f"got {type(intruder).__name__}"):
        tensors.leaves({"a": intruder})
    with pytest.raises(ShapeError, match=f"got {type(intruder).__name__}"):
        tensors.tree_map(torch.neg, {"a": intruder})


def test_mapping_over_several_trees_goes_by_name() -> None:
    left = {"a": torch.tensor([1.0]), "b": torch.tensor([2.0])}
    right = MappingProxyType({"b": torch.tensor([20.0]), "a": torch.tensor([10.0])})
    assert same(tensors.tree_map(torch.add, left, right), {"a": torch.tensor([11.0]), "b": torch.tensor([22.0])})


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"a": torch.ones(1)}, {"a": torch.ones(1), "b": torch.ones(1)}),
        ({"a": torch.ones(1), "b": torch.ones(1)}, {"a": torch.ones(1)}),
        ({"a": torch.ones(1)}, {"a": {"b": torch.ones(1)}}),
        ({"a": {"b": torch.ones(1)}}, {"a": torch.ones(1)}),
    ],
)
def test_trees_of_different_structure_are_refused(left: Any, right: Any) -> None:
    with pytest.raises(ShapeError, match="one structure"):
        tensors.tree_map(torch.add, left, right)


def test_select_acts_on_every_leaf() -> None:
    tree, index = state(4), torch.tensor([3, 1])
    part = tensors.select(tree, index)
    for name, leaf in tensors.leaves(tree).items():
        assert torch.equal(tensors.leaves(part)[name], torch.stack([leaf[3], leaf[1]]))
    assert same(tree, state(4))


def test_no_flag_is_known_to_be_set_on_the_host_alone() -> None:
    none = torch.zeros(3, dtype=torch.bool)
    assert tensors.known_false(none) and tensors.known_false(none[:0])
    assert not tensors.known_false(torch.tensor([False, True]))
    assert not tensors.known_false(none.to("meta"))


def test_cat_joins_what_select_took_apart() -> None:
    tree = state(5)
    parts = [tensors.select(tree, torch.tensor(at)) for at in ([0, 1], [2], [3, 4])]
    assert same(tensors.cat(parts), tree)
    with pytest.raises(ShapeError, match="at least one tree"):
        tensors.cat([])


def test_expand_shows_every_client_the_server_without_copying() -> None:
    server = {"w": torch.arange(6.0).view(2, 3), "count": torch.tensor(4)}
    views = tensors.expand(server, 5)
    assert views["w"].shape == (5, 2, 3) and views["count"].shape == (5,)
    assert all(torch.equal(view, server["w"]) for view in views["w"])
    assert views["w"].data_ptr() == server["w"].data_ptr()


def test_total_keeps_a_client_dimension_of_one() -> None:
    total = tensors.leaves(tensors.total(state(3)))
    for name, leaf in tensors.leaves(state(3)).items():
        assert torch.equal(total[name], (leaf[0] + leaf[1] + leaf[2]).unsqueeze(0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_weighted_mean_is_the_loop(dtype: torch.dtype) -> None:
    tree = tensors.tree_map(lambda leaf: leaf.sin().to(dtype), state(3).q)
    weight = torch.tensor([20.0, 0.0, 5.0], dtype=torch.float64)
    mean = tensors.leaves(tensors.weighted_mean(tree, weight))
    for name, leaf in tensors.leaves(tree).items():
        loop = (20 * leaf[0].double() + 5 * leaf[2].double()) / 25
        assert mean[name].dtype == dtype and mean[name].shape == leaf.shape[1:]
        torch.testing.assert_close(mean[name].double(), loop, rtol=torch.finfo(dtype).eps * 4, atol=0)


def test_a_weighted_mean_of_nobody_is_zero_and_not_a_nan() -> None:
    tree = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}
    assert not tensors.weighted_mean(tree, torch.zeros(2, dtype=torch.float64))["w"].any()
    tiny = tensors.weighted_mean(tree, torch.tensor([1e-300, 3e-300], dtype=torch.float64))
    torch.testing.assert_close(tiny["w"], torch.tensor([2.5, 3.5]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_mean_of_values_that_are_alike_is_that_value_whoever_is_first_and_however_often_it_is_taken(
    dtype: torch.dtype,
) -> None:
    """Not so of sum_k w_k x / sum_k w_k, of which at least one here is another number."""
    random = torch.Generator().manual_seed(7)
    value = torch.randn(40, generator=random, dtype=dtype)
    leaf, moved = value.expand(9, 40), False
    for trial in range(20):
        weight = torch.rand(9, generator=random, dtype=torch.float64) * (torch.arange(9) != trial)
        each = weight.unsqueeze(1) * torch.rand(9, 40, generator=random, dtype=torch.float64)
        parts = [tensors.weighted_mean(leaf[at], weight[at]) for at in (slice(0, 4), slice(4, 9))]
        twice = tensors.weighted_mean(torch.stack(parts), torch.stack([weight[:4].sum(), weight[4:].sum()]))
        assert torch.equal(tensors.weighted_mean(leaf, weight), value) and torch.equal(twice, value)
        assert torch.equal(tensors.weighted_mean(leaf, each), value)
        moved |= not torch.equal(torch.tensordot((weight / weight.sum()).to(dtype), leaf, 1), value)
    assert moved
    assert tensors.weighted_mean(leaf[:0], torch.zeros(0, dtype=torch.float64)).tolist() == [0.0] * 40


def test_weighted_mean_refuses_integers() -> None:
    with pytest.raises(ShapeError, match=r"torch\.int64"):
        tensors.weighted_mean({"steps": torch.tensor([4, 8])}, torch.ones(2, dtype=torch.float64))


def test_finite_says_client_by_client() -> None:
    tree = state(4)
    tree.q.loc["w0"][1, 0, 2] = math.nan
    tree.q.scale[3] = math.inf
    assert tensors.finite(tree).tolist() == [True, False, True, False]
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        largest = torch.finfo(dtype).max
        rows = [[largest, largest], [-math.inf, 0], [0, math.nan], [math.inf, -math.inf], [-largest, 0]]
        assert tensors.finite({"a": torch.tensor(rows, dtype=dtype)}).tolist() == [True, False, False, False, True]
    assert tensors.finite({"a": torch.zeros(2, 0), "n": torch.tensor([1, 2])}).tolist() == [True, True]
    with pytest.raises(ShapeError, match="at least one leaf"):
        tensors.finite({})


def test_a_norm_is_that_of_all_leaves_together() -> None:
    tree = {"a": torch.tensor([[3.0, 0.0], [1e30, 0.0]]), "b": torch.tensor([[[4.0]], [[0.0]]]), "c": torch.zeros(2)}
    result = tensors.norm(tree)
    assert result is not None and result.dtype == torch.float64
    assert result.tolist() == pytest.approx([5.0, 1e30])  # whose square is none in float32
    assert tensors.norm({}) is None
    far = tensors.norm({"a": torch.tensor([[1e200, 1e200]], dtype=torch.float64)})
    assert far is not None and far.tolist() == [torch.finfo(torch.float64).max]


def test_where_takes_nothing_from_the_side_not_chosen() -> None:
    good, bad = state(3), tensors.tree_map(lambda leaf: torch.full_like(leaf, -1), state(3))
    for leaf in (*bad.q.loc.values(), bad.q.scale):
        leaf.fill_(math.nan)
    keep = torch.tensor([True, False, True])
    mixed = tensors.leaves(tensors.where(keep, good, bad))
    for name, leaf in tensors.leaves(good).items():
        assert torch.equal(mixed[name][keep], leaf[keep])
        assert mixed[name].dtype == leaf.dtype and not torch.equal(mixed[name][1], leaf[1])
    cleaned = tensors.where(tensors.finite(mixed), mixed, tensors.tree_map(torch.zeros_like, mixed))
    assert tensors.finite(cleaned).all() and (cleaned["q.loc.w0"][1] == 0).all()


def resident() -> int:
    """Return the memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_was_written_to_a_file_stays_and_takes_no_memory() -> None:
    large = tensors.mapped_zeros((2**21, 8), torch.float64)  # 128 MiB
    before = resident()
    large.copy_(torch.arange(8.0).double().expand_as(large))
    assert resident() - before > 2**26
    tensors.release_mapped()
    assert resident() - before < 2**24
    assert large[2**20].tolist() == [*map(float, range(8))] and float(large.sum()) == 28.0 * 2**21


def test_small_tensors_and_those_of_a_full_disk_are_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert tensors.mapped_zeros((3,), torch.bool).tolist() == [False] * 3
    assert not tensors.mapped_zeros((2**21, 2), torch.float64).any()


def test_clients_are_cut_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "BLOCK", 4)
    assert [(one.start, one.stop) for one in tensors.client_blocks(9)] == [(0, 4), (4, 8), (8, 9)]
