"""The form that every method has."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from pacbayes_fl import tensors
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.base import Method, Nothing, slowed
from pacbayes_fl.methods.tempered import Tempered
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
    assert getattr(type(method), "__final__", False) or type(method).__subclasses__()
    for field in dataclasses.fields(method):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(method, field.name, getattr(method, field.name))


@pytest.mark.parametrize("name", METHODS)
def test_more_rows_never_cost_less(name: str) -> None:
    method = from_recipe(METHODS[name], 1)
    costs = [method.footprint(rows) for rows in (0, 1, 10, 1000)]
    assert costs == sorted(costs) and costs[0] >= 1


def rates(value: object, path: str = "") -> dict[str, float]:
    """List every number whose name has a rate in it, in whatever a method is made of."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif isinstance(value, tuple | list):
        parts = dict(enumerate(value))  # type: ignore[arg-type]
    elif isinstance(value, dict):
        parts = value
    else:
        parts = {}
    named = [name for name in parts if "rate" in str(name) or (type(value).__name__, name) == ("PFedMe", "eta")]
    result = {f"{path}.{name}": parts[name] for name in named if isinstance(parts[name], float)}
    return result | {key: rate for name, part in parts.items() for key, rate in rates(part, f"{path}.{name}").items()}


@pytest.mark.parametrize(
    "wrap", [lambda method: method, lambda method: Tempered(method, 2.0)], ids=["bare", "tempered"]
)
@pytest.mark.parametrize("name", METHODS)
def test_a_slowed_method_has_all_its_rates_halved_and_nothing_else_changed(name: str, wrap: Any) -> None:
    method = wrap(from_recipe(METHODS[name], 1))
    known = rates(method)
    slower = slowed(method, 0.5)
    assert rates(slower) == {path: rate / 2 for path, rate in known.items()}
    options = METHODS[name].options.__dataclass_fields__.keys()
    assert bool(known) == any("rate" in option for option in options), "an option that is a rate is one of the method"
    assert slowed(slower, 2.0) == method
    if not known:
        assert slower is method
    assert type(slower) is type(method) and slower.federated == method.federated
