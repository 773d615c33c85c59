"""No class replaces a concrete method of another: bases have abstract hooks, marked defaults, and the rest for good."""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from types import FunctionType

import pytest

import pacbayes_fl
from pacbayes_fl.models.base import default
from tests.architecture.source import complain


def functions(cls: type) -> Iterator[tuple[str, FunctionType]]:
    """Yield what a class defines by `def`, under its names; what Python calls by itself is left out."""
    for name, value in vars(cls).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if isinstance(function, FunctionType) and not (name.startswith("__") and name.endswith("__")):
            yield name, function


def replaced(cls: type) -> Iterator[str]:
    """Name the concrete methods that a class replaces, and the defaults that it replaces and calls all the same."""
    for name, function in functions(cls):
        for base in cls.__mro__[1:]:
            known = dict(functions(base)).get(name)
            if known is None or getattr(base, "_is_protocol", False) or base.__module__.split(".")[0] != own(cls):
                continue
            if not (getattr(known, "__isabstractmethod__", False) or hasattr(known, "__default__")):
                yield f"{cls.__module__}.{cls.__name__}.{name} replaces that of {base.__name__}"
            elif hasattr(known, "__default__") and "super" in function.__code__.co_names:
                yield f"{cls.__module__}.{cls.__name__}.{name} replaces a default of {base.__name__}, and calls it"
            break


def own(cls: type) -> str:
    """The package of a class."""
    return str(cls.__module__).split(".")[0]


def classes(cls: type[object]) -> Iterator[type]:
    """Yield the classes that are derived from one, at any distance."""
    below: list[type] = type.__subclasses__(cls)
    for derived in below:
        yield derived
        yield from classes(derived)


def test_no_concrete_method_is_replaced() -> None:
    for module in pkgutil.walk_packages(pacbayes_fl.__path__, "pacbayes_fl."):
        try:
            import_module(module.name)
        except ModuleNotFoundError as error:  # Flower has an environment of its own
            if error.name != "flwr":
                raise
    result = {cls for cls in classes(object) if own(cls) == "pacbayes_fl"}
    assert len(result) > 300
    complain(sorted(line for cls in result for line in replaced(cls)))


class Base(ABC):
    @abstractmethod
    def step(self) -> int: ...

    @default
    def hook(self) -> int:
        return 1

    @property
    @default
    def number(self) -> int:
        return 1

    def whole(self) -> int:
        return self.step() + self.hook()

    @property
    def size(self) -> int:
        return 2


class Good(Base):
    def __init__(self) -> None:
        super().__init__()

    def step(self) -> int:
        return 1

    def hook(self) -> int:
        return 2

    @property
    def number(self) -> int:
        return 3


class Calls(Good):
    pass


@dataclass(frozen=True)
class Whole(Good):
    def whole(self) -> int:
        return 3


class Sized(Good):
    @property
    def size(self) -> int:
        return 3


class Again(Good):
    def hook(self) -> int:
        return 4


class CallsIt(Base):
    def step(self) -> int:
        return 1

    def hook(self) -> int:
        return super().hook() + 1


@pytest.mark.parametrize(
    ("cls", "what"),
    [
        (Whole, "whole replaces that of Base"),
        (Sized, "size replaces that of Base"),
        (Again, "hook replaces that of Good"),
        (CallsIt, "hook replaces a default of Base, and calls it"),
    ],
)
def test_what_is_replaced_is_found(cls: type, what: str) -> None:
    (line,) = replaced(cls)
    assert line.endswith(f"{cls.__name__}.{what}")


@pytest.mark.parametrize("cls", [Good, Calls])
def test_hooks_and_defaults_may_be_filled(cls: type) -> None:
    assert list(replaced(cls)) == []
