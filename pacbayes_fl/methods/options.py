"""Options of a method: those of its dataclass and of the dataclasses of its parts, in one table, and back."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from pacbayes_fl.errors import shown
from pacbayes_fl.options import OpenNames, Option, check, default_of, option, options_of

Whole = TypeVar("Whole")

_PART: Final = "part"
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_STORABLE: Final = (bool, int, float, str, type(None))  # what a study file holds, beside lists and Literals


class Paper(NamedTuple):
    """The value of an option in a paper.

    Args:
        value: its value; ... where the paper gives none, or no single one.
        where: equation, section or table, or what the paper says in words.
    """

    value: Any
    where: str


class _Names(NamedTuple):
    """How the fields of a part are called where they are options of the whole."""

    names: Mapping[str, str]
    others: bool
    paper: Mapping[str, Paper]

    def of(self, field: str) -> str | None:
        """The name of the option, None where the field is not one."""
        return self.names.get(field, field if self.others else None)


def part(
    default: Callable[[], object],
    names: Mapping[str, str] = _NOTHING,
    others: bool = True,
    paper: Mapping[str, Paper] = _NOTHING,
) -> Any:
    """Declare a field that is a dataclass of options, which are options of the whole too.

    Args:
        default: makes the part; its values are the defaults.
        names: names of the options by field of the part, where they differ.
        others: whether fields that `names` leaves out are options of the whole.
        paper: what the paper of the whole says, by field of the part.

    Returns:
        The field.
    """
    return dataclasses.field(default_factory=default, metadata={_PART: _Names(names, others, paper)})


def flat_options(cls: type, given: Mapping[str, Any] = _NOTHING) -> dict[str, Option]:
    """List the options of a dataclass and of its parts, in the order of the fields.

    Args:
        cls: a dataclass; fields without a default, such as the model, are no options.
        given: values by field that stand in for the defaults.

    Returns:
        By the dotted fields that hold them; types are those that a study file can hold.

    Raises:
        ValueError: when two options have the same name.
    """
    result = dict(_flat(cls, given))
    names = [one.name for one in result.values()]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{cls.__name__} has two options {name!r}: rename one of them in part(names=...)")
    return result


def _flat(cls: type, given: Mapping[str, object]) -> Iterator[tuple[str, Option]]:
    known = options_of(cls)
    for field in dataclasses.fields(cls):
        one = known[field.name]
        default = given.get(field.name, one.default)
        named: _Names | None = field.metadata.get(_PART)
        if named is not None:
            for path, inner in _flat(type(default), _values(default)):
                if name := named.of(path):
                    paper = named.paper.get(path, inner.paper)
                    yield f"{field.name}.{path}", inner._replace(name=name, paper=paper)
        elif one.default is not dataclasses.MISSING:
            yield field.name, one._replace(kind=_storable(field.name, one.kind), default=default)


def built(cls: type[Whole], options: Mapping[str, Any], given: Mapping[str, Any], needed: Mapping[str, Any]) -> Whole:
    """Make a dataclass of values of its options.

    Args:
        cls: the dataclass.
        options: values by name of the option; the defaults stand in for those that are left out.
        given: values by field that stand in for the defaults.
        needed: values of fields without a default, by name; others are left out.

    Returns:
        The value.
    """
    values: dict[str, object] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        named: _Names | None = field.metadata.get(_PART)
        if named is not None:
            whole = given.get(field.name, default_of(field))
            own = {inner.name: named.of(inner.name) for inner in dataclasses.fields(whole)}
            changes = {inner: options[name] for inner, name in own.items() if name is not None and name in options}
            values[field.name] = dataclasses.replace(whole, **changes)
        else:
            for source in (options, given, needed):
                if field.name in source:
                    values[field.name] = source[field.name]
                    break
    return cls(**values)


def table_of(name: str, options: Mapping[str, Option], text: str) -> type[object]:
    """Make the dataclass that reads options from a table, and checks them.

    Args:
        name: of the dataclass.
        options: as `flat_options` gives them.
        text: what the options are of.

    Returns:
        A frozen dataclass with a field for every option, in the same order, of which `options_of` tells all.
    """
    fields = [
        (
            one.name,
            one.kind,
            option(
                one.default,
                low=one.range.low,
                high=one.range.high,
                above=one.range.above,
                below=one.range.below,
                names=partial(OpenNames, one.names) if isinstance(one.names, OpenNames) else None,
                symbol=one.symbol,
                paper=one.paper,
                hint=one.hint,
            ),
        )
        for one in options.values()
    ]
    meanings = "\n".join(f"    {one.name}: {one.meaning}" for one in options.values())
    body = {"__doc__": f"{text}\n\nArgs:\n{meanings}", "__post_init__": check}
    return dataclasses.make_dataclass(name, fields, frozen=True, namespace=body)


def with_word(kind: object, word: str) -> Any:
    """Let an option also be a word.

    Args:
        kind: its type.
        word: such as "held-out".

    Returns:
        The type; its own words stand before this one.
    """
    members = _members(kind)
    literals = [text for one in members if get_origin(one) is Literal for text in get_args(one)]
    others = [one for one in members if get_origin(one) is not Literal]
    return Union[(*others, Literal[(*literals, word)])]


def _storable(name: str, kind: object) -> Any:
    """Leave out what a study file cannot hold: objects that only a program can make."""
    members = tuple(one for one in _members(kind) if one in _STORABLE or get_origin(one) in (Literal, tuple))
    if not members:
        raise TypeError(f"{name} is {shown(kind)}, which is no number, word, truth value or list of these")
    return Union[(*members,)]


def _members(kind: object) -> tuple[object, ...]:
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _values(whole: Any) -> dict[str, Any]:
    return {field.name: getattr(whole, field.name) for field in dataclasses.fields(whole)}
