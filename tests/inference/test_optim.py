"""Functional optimisers against torch's own, one client at a time."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.inference.optim import Adam, adam, adam_, adam_init, sgd, step_


class Weights(NamedTuple):
    w: Tensor
    b: Tensor
    s: Tensor


def weights(clients: int, seed: int, dtype: torch.dtype = torch.float64) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((clients, 3, 2), (clients, 2), (clients,))
    return Weights(*(torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes))


@pytest.mark.parametrize(
    ("reset", "path"),
    [
        (False, (-0.00099999999, -0.00199999998, -0.0027259826092, -0.0032782471214)),
        (True, (-0.00099999999, -0.00199999998, -0.00100000008, -1.8e-10)),
    ],
    ids=["kept", "reset"],
)
def test_moments_are_kept_between_rounds_or_not(reset: bool, path: tuple[float, ...]) -> None:
    x = torch.zeros((), dtype=torch.float64)
    state = adam_init(x)
    for step, (slope, expected) in enumerate(zip((1.0, 1.0, -0.1, -0.1), path, strict=True)):
        if reset and step == 2:
            state = adam_init(x)
        x, state = adam(x, torch.tensor(slope, dtype=torch.float64), state, 1e-3)
        assert float(x) == pytest.approx(expected, abs=1e-12)
    assert int(state.steps) == (2 if reset else 4)


def put(tree: Any, at: Tensor, part: Any) -> Any:
    return tensors.tree_map(lambda leaf, own: leaf.index_copy(0, at, own), tree, part)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9)])
def test_clients_that_were_drawn_unequally_often_equal_torch_one_by_one(betas: tuple[float, float]) -> None:
    rounds = ((0, 1, 2), (1,), (1, 2), (2,), (1, 2), (0, 1))
    start = weights(3, 0)
    gradients = [weights(3, seed) for seed in range(1, len(rounds) + 1)]
    batch, state = start, adam_init(start, 3)
    for drawn, gradient in zip(rounds, gradients, strict=True):
        at = torch.tensor(drawn)
        mine, moments = tensors.select(batch, at), tensors.select(state, at)
        mine, moments = adam(mine, tensors.select(gradient, at), moments, 0.03, betas, 1e-6)
        batch, state = put(batch, at, mine), put(state, at, moments)
    assert state.steps.tolist() == [2, 5, 4]
    for k in range(3):
        own = [torch.nn.Parameter(leaf[k].clone()) for leaf in start]
        reference = torch.optim.Adam(own, lr=0.03, betas=betas, eps=1e-6)
        for drawn, gradient in zip(rounds, gradients, strict=True):
            if k in drawn:
                for parameter, leaf in zip(own, gradient, strict=True):
                    parameter.grad = leaf[k].clone()
                reference.step()
        for parameter, leaf in zip(own, batch, strict=True):
            torch.testing.assert_close(leaf[k], parameter.data, rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize(
    ("reset", "path"),
    [
        (False, (-0.00099999999, -0.00199999998, -0.0027259826092, -0.0032782471214)),
        (True, (-0.00099999999, -0.00199999998, -0.00100000008, -1.8e-10)),
    ],
    ids=["kept", "reset"],
)
def test_steps_in_place_take_the_published_path(reset: bool, path: tuple[float, ...]) -> None:
    x = torch.zeros(1, dtype=torch.float64)
    state = adam_init(x, 1)
    for step, (slope, expected) in enumerate(zip((1.0, 1.0, -0.1, -0.1), path, strict=True)):
        if reset and step == 2:
            state = adam_init(x, 1)
        state = adam_(x, torch.tensor([slope], dtype=torch.float64), state, 1e-3)
        assert x.item() == pytest.approx(expected, abs=1e-12)
    assert state.steps.tolist() == [2 if reset else 4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{}, {"betas": (0.5, 0.9), "epsilon": 1e-3}], ids=str)
def test_steps_in_place_are_those_that_are_not(dtype: torch.dtype, options: dict[str, Any]) -> None:
    start = weights(3, 0, dtype)
    here, state = tensors.tree_map(torch.clone, start), adam_init(start, 3)
    state = state._replace(steps=torch.tensor([0, 7, 300]))  # clients that were drawn unequally often
    there, other = start, tensors.tree_map(torch.clone, state)
    for seed in range(1, 6):
        gradient = weights(3, seed, dtype)
        before = [leaf.clone() for leaf in gradient]
        moments = state.first.w
        state = adam_(here, gradient, state, 0.03, **options)
        there, other = adam(there, gradient, other, 0.03, **options)
        assert state.first.w is moments  # in place
        assert all(torch.equal(a, b) for a, b in zip(gradient, before, strict=True))
    slack = 1e-13 if dtype == torch.float64 else 1e-5
    for mine, theirs in zip((*here, *state.first, *state.second), (*there, *other.first, *other.second), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=slack, atol=slack)
    assert state.steps.tolist() == other.steps.tolist() == [5, 12, 305]


def test_steps_in_place_stand_still_without_a_slope() -> None:
    start = weights(2, 0)
    here, state = tensors.tree_map(torch.clone, start), adam_init(start, 2)
    for _ in range(3):
        state = adam_(here, tensors.tree_map(torch.zeros_like, start), state, 0.1)
    assert all(torch.equal(a, b) for a, b in zip(here, start, strict=True))


def test_a_server_counts_once_for_all_its_leaves() -> None:
    start, gradient = weights(4, 0), weights(4, 1)
    state = adam_init(start)
    assert state.steps.shape == ()
    moved, state = adam(start, gradient, state, 0.1)
    again, state = adam(moved, gradient, state, 0.1)
    batched, counts = adam(start, gradient, adam_init(start, 4), 0.1)
    assert all(torch.equal(a, b) for a, b in zip(moved, batched, strict=True))
    assert int(state.steps) == 2 and counts.steps.tolist() == [1] * 4 and not torch.equal(again.w, moved.w)


def test_float32_steps_are_as_long_as_torch_s() -> None:
    # 1 - 0.999 in float32 is off by 5e-5, which would make the first steps 2e-5 too short
    start = torch.zeros(5, dtype=torch.float32)
    gradient = torch.tensor([1.0, -2.0, 3e-3, 40.0, -5e4])
    own = torch.nn.Parameter(start.clone())
    reference = torch.optim.Adam([own], lr=1.0)
    mine, state = start, adam_init(start)
    for _ in range(3):
        own.grad = gradient.clone()
        reference.step()
        mine, state = adam(mine, gradient, state, 1.0)
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, own.data, rtol=1e-6, atol=0)


def test_inputs_are_left_as_they_are() -> None:
    parameters, gradient = weights(2, 0), weights(2, 1)
    state = adam(parameters, gradient, adam_init(parameters, 2), 0.1)[1]
    inputs = {"parameters": parameters, "gradient": gradient, "state": state}
    before = {name: leaf.clone() for name, leaf in tensors.leaves(inputs).items()}
    adam(parameters, gradient, state, 0.1)
    sgd(parameters, gradient, 0.1)
    assert all(torch.equal(leaf, before[name]) for name, leaf in tensors.leaves(inputs).items())


def test_sgd_walks_downhill() -> None:
    x = torch.tensor([2.0, -1.0])
    assert torch.equal(sgd(x, torch.tensor([4.0, 2.0]), 0.5), torch.tensor([0.0, -2.0]))


def test_state_is_a_tree_that_can_be_saved_and_drawn_from() -> None:
    state = adam_init(weights(3, 0), 3)
    assert list(tensors.leaves(state)) == [f"{m}.{leaf}" for m in ("first", "second") for leaf in "wbs"] + ["steps"]
    assert isinstance(tensors.select(state, torch.tensor([1])), Adam)
    assert all(len(leaf) == 1 for leaf in tensors.leaves(tensors.select(state, torch.tensor([1]))).values())


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_a_step_is_torch_s_and_who_does_not_take_it_stays(optimiser: Any) -> None:
    start, slope = weights(4, 1), weights(4, 2)
    slope.w[1] = torch.nan  # what a client that waits would have done is of no matter
    active = torch.tensor([True, False, True, False])
    mine = tensors.tree_map(torch.clone, start)
    state = adam_init(mine, 4)
    for _ in range(3):
        state = step_(mine, slope, state, 0.01, optimiser, active)
    assert state.steps.tolist() == [3, 0, 3, 0]
    for name in Weights._fields:
        own = torch.nn.Parameter(getattr(start, name).clone())
        kind = torch.optim.Adam if optimiser == "adam" else torch.optim.SGD
        theirs = kind([own], lr=0.01)
        for _ in range(3):
            own.grad = getattr(slope, name).clone()
            theirs.step()
        result = getattr(mine, name)
        torch.testing.assert_close(result[active], own.detach()[active], rtol=1e-12, atol=1e-14)
        assert torch.equal(result[~active], getattr(start, name)[~active])
        assert not getattr(state.first, name)[~active].any() and not getattr(state.second, name)[~active].any()
