"""The form that every method has."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.base import Method, Nothing
from tests.laws.cases import Toy, ToyUpdate, from_recipe


def test_nothing_is_a_tree_without_leaves() -> None:
    assert tensors.leaves(Nothing()) == {}
    assert tensors.cat([Nothing(), Nothing()]) == Nothing()
    assert tensors.select(Nothing(), torch.tensor([0])) == Nothing()


def test_half_a_method_cannot_be_made() -> None:
    class Half(Method[Nothing, Nothing, Nothing, Nothing]):
        def init_server(self, generator: torch.Generator) -> Nothing:
            return Nothing()

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]


def test_what_a_method_need_not_say() -> None:
    toy = Toy(2)
    update = ToyUpdate(torch.zeros(3, 2), torch.ones(3))
    assert toy.federated and not toy.raw_units
    assert toy.reduce(update) is update
    assert dict(toy.report(toy.init_server(torch.Generator()), update)) == {}
    assert toy.remark({"loss": 1.0}) is None
    assert toy.footprint(100) >= 1


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_a_frozen_value(name: str) -> None:
    method = from_recipe(METHODS[name], 1)
    assert isinstance(method, Method) and dataclasses.is_dataclass(method)
    assert type(method).federated == METHODS[name].federated
    assert getattr(type(method), "__final__", False)
    for field in dataclasses.fields(method):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, field.name, getattr(method, field.name))


@pytest.mark.parametrize("name", METHODS)
def test_more_rows_never_cost_less(name: str) -> None:
    method = from_recipe(METHODS[name], 1)
    costs = [method.footprint(rows) for rows in (0, 1, 10, 1000)]
    assert costs == sorted(costs) and costs[0] >= 1
