"""A recipe: everything that the library knows of a method by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from pacbayes_fl.methods.base import Method

AnyMethod = Method[Any, Any, Any, Any]
Presets = Mapping[str, Mapping[str, Mapping[str, Any]]]


class LogUniform(NamedTuple):
    """A positive number between two bounds, uniform in its logarithm."""

    low: float
    high: float


class Choice(NamedTuple):
    """One of some values, all alike likely."""

    values: tuple[Any, ...]


Search = Mapping[str, LogUniform | Choice]


class HeldOut(NamedTuple):
    """An option that a study may leave open by the value "held-out".

    The study chooses among the candidates by the log likelihood of training rows that a federation was not given: one
    of `options.trial_rounds` rounds for each candidate or, for an option that only `Method.personalise` reads, a single
    one of all rounds.

    Args:
        option: name of the field of the options.
        candidates: of the options: the values to choose among, in the order of preference among equals.
        after: whether no round depends on it.
    """

    option: str
    candidates: Callable[[Any], tuple[Any, ...]]
    after: bool = False


def presets(**tables: Mapping[str, Mapping[str, Any]]) -> Presets:
    """Make presets read-only through and through; "recommended" and "paper" are the defaults where not given."""
    found: dict[str, Mapping[str, Mapping[str, Any]]] = {"recommended": {}, "paper": {}, **tables}
    frozen = {
        preset: MappingProxyType({part: MappingProxyType({**values}) for part, values in table.items()})
        for preset, table in found.items()
    }
    return MappingProxyType(frozen)


class Product(NamedTuple):
    """A method as a product of model, inference and aggregation, in words."""

    model: str
    client: str
    server: str
    uploads: str
    keeps: str


@dataclass(frozen=True)
class Recipe:
    """Everything that the library knows of a method by name.

    Args:
        title: one line for people.
        federated: False where rows leave the clients.
        rounds: False where there is nothing to repeat: one round says all.
        model: what the table [model] describes: a prior over "functions" (Gaussian processes), or a network with
            "weights".
        options: dataclass of the table [method].
        build: makes the method from its options, the model and the names of the features.
        product: what it is made of.
        presets: values by preset and part ("method", "model", "federation"); "recommended" holds the defaults.
        search: what `tune` varies, by dotted key.
        held_out: what a study may leave open; the options then have `trial_rounds`.
        variant: values in which the recommended method differs from its class built with defaults, by dotted field:
            what makes it this method and not another of the class, and what is a study's to choose.
    """

    title: str
    federated: bool
    rounds: bool
    options: type
    build: Callable[[Any, Any, Sequence[str]], AnyMethod]
    product: Product
    presets: Presets = field(default_factory=lambda: presets())
    model: Literal["functions", "weights"] = "functions"
    search: Search = field(default_factory=lambda: MappingProxyType({}))
    held_out: tuple[HeldOut, ...] = ()
    variant: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
