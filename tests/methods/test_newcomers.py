"""Who never took part in a round is trained at personalisation, and nobody else."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pacbayes_fl.methods.base import Method
from pacbayes_fl.methods.baselines.local import LocalOnly
from pacbayes_fl.methods.newcomers import TrainsNewcomers

UNUSED: Any = None


class State(NamedTuple):
    theta: Tensor
    rounds: Tensor


class Tenfold(TrainsNewcomers[float, State, Any]):
    """Trains by multiplication, and predicts with what came of it."""

    def train_newcomers(self, message: float, state: State, batch: Any, noise: Any) -> State:
        return State(message * state.theta, torch.full_like(state.rounds, 7))

    def personalise_trained(self, message: float, state: State, batch: Any, noise: Any) -> Any:
        return state


class Untrained(Tenfold):
    def train_newcomers(self, message: float, state: State, batch: Any, noise: Any) -> State:
        raise AssertionError("nobody is new")


class Stateless(Untrained):
    def is_new(self, state: State) -> None:
        return None


def test_only_new_clients_are_trained() -> None:
    state = State(torch.tensor([[1.0], [torch.nan], [3.0]]), torch.tensor([0, 2, 0]))
    assert Tenfold().is_new(state).tolist() == [True, False, True]
    theta, rounds = Tenfold().personalise(10.0, state, UNUSED, UNUSED)
    assert theta[[0, 2]].tolist() == [[10.0], [30.0]] and theta[1].isnan() and rounds.tolist() == [7, 2, 7]


@pytest.mark.parametrize(("method", "rounds"), [(Untrained(), [1, 2]), (Stateless(), [0, 0])])
def test_nothing_is_trained_where_nobody_is_new(method: Untrained, rounds: list[int]) -> None:
    state = State(torch.tensor([[1.0], [2.0]]), torch.tensor(rounds))
    assert method.personalise(10.0, state, UNUSED, UNUSED) is state


def test_a_method_says_how_its_newcomers_are_trained() -> None:
    assert issubclass(LocalOnly, TrainsNewcomers) and issubclass(LocalOnly, Method)
    assert TrainsNewcomers.__abstractmethods__ == {"train_newcomers", "personalise_trained"}


def test_a_personalise_that_trained_clients_would_not_come_to_is_refused() -> None:
    body = {"personalise": lambda self, message, state, batch, noise: None}
    with pytest.raises(
        TypeError, match=r"^Other replaces personalise, .*: define personalise_trained, .*train_newcomers"
    ):
        type("Other", (Tenfold,), body)
