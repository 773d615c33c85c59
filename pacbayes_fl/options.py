"""Options: type, default, range, meaning and symbol, read from the dataclass of which they are fields.

A field is the only place of an option. Its type and default are those of the dataclass, its range and symbol stand in
the field's metadata (`option`), and its meaning in the docstring of the class, under Args. Tables of studies, errors,
help and reference pages are derived from these (`options_of`, `check`).
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import sys
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import (
    Any,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from pacbayes_fl.errors import PacBayesFLError, StudyError, meant, shown, usual_line

Value = TypeVar("Value")


class Named(Protocol):
    """A record with a name."""

    @property
    def name(self) -> str:
        """Its name in studies."""
        ...


Record = TypeVar("Record", bound=Named)

_METADATA: Final = "pacbayes_fl"
_ENTRY: Final = re.compile(r"([a-z_]\w*(?:, [a-z_]\w*)*): (.*)")


class OpenNames(tuple[str, ...]):
    """Names of records, beside which a study may refer to an object of the user's, as "FILE.py:NAME"."""

    def __contains__(self, name: object) -> bool:
        """Whether it is one of the names, or has the colon of a reference."""
        return super().__contains__(name) or (isinstance(name, str) and ":" in name)


class Packaged:
    """What installed packages add to a table of records; none of it is loaded.

    Args:
        group: of their entry points, such as "pacbayes_fl.partitions".
    """

    def __init__(self, group: str) -> None:
        """Nothing is looked through yet."""
        self._group = group
        self._found: tuple[list[str], dict[str, EntryPoint]] = ([], {})  # of a path to import from

    def entries(self) -> dict[str, EntryPoint]:
        """Find the records; packages are looked through again when `sys.path` has changed.

        Returns:
            Entry points by name.
        """
        if self._found[0] != sys.path:
            self._found = ([*sys.path], {entry.name: entry for entry in entry_points(group=self._group)})
        return dict(self._found[1])


@dataclass(frozen=True)
class Range:
    """Numbers that an option may have; without any bound, all of them.

    Args:
        low: the least.
        high: the largest; infinity lets the option be infinite, which it may not be otherwise.
        above: a number below the least.
        below: a number above the largest.

    Example:
        >>> from pacbayes_fl.options import Range
        >>> Range(above=0.0).holds(0.0), Range(low=0.0).holds(0.0)
        (False, True)
    """

    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None

    def holds(self, number: float) -> bool:
        """Whether a number is in the range; NaN never is.

        Args:
            number: any.

        Returns:
            True where it is, and where the range has no bound.
        """
        if self.low is None and self.high is None and self.above is None and self.below is None:
            return True
        return (
            (math.isfinite(number) or self.high == math.inf == number)
            and (self.low is None or number >= self.low)
            and (self.high is None or number <= self.high)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        """Say it as it stands in "must be ...": "at least 1", "positive and finite", "strictly between 0 and 1"."""
        low, high, above, below = (
            None if bound is None or bound == math.inf else _given(bound)
            for bound in (self.low, self.high, self.above, self.below)
        )
        if above is not None and below is not None:
            return f"strictly between {above} and {below}"
        if low is not None and high is not None:
            return f"from {low} to {high}"
        if self == Range(above=0):
            return "positive and finite"
        named = {"at least": low, "above": above, "at most": high, "below": below}
        return " and ".join(f"{word} {bound}" for word, bound in named.items() if bound is not None) or "any number"


class _Facts(NamedTuple):
    """Metadata of an option in its field."""

    range: Range = Range()
    names: Callable[[], Collection[str]] | None = None
    symbol: str = ""
    paper: object = None
    hint: str | None = None
    origin: type | None = None


class Option(NamedTuple):
    """An option as a reader sees it.

    Args:
        name: of the field.
        kind: its type.
        default: its value where nobody gives one; `dataclasses.MISSING` where somebody has to.
        range: of the option, where it is a number, and of each, where it is a list of numbers.
        names: what a text may be, where that is not open.
        meaning: one or more sentences.
        symbol: in the paper; "" where there is none.
        paper: the value that the paper states; None where it states none.
        hint: what errors advise.
    """

    name: str
    kind: Any
    default: object
    range: Range
    names: tuple[str, ...]
    meaning: str
    symbol: str
    paper: object
    hint: str | None

    @property
    def allowed(self) -> str:
        """What a value may be, in words: such as "a whole number (at least 1) or 'none'"."""
        return " or ".join(_words(self.kind, self))


class _Known(TypedDict, total=False):
    """Keywords of `option`, each with its meaning there."""

    low: float | None
    high: float | None
    above: float | None
    below: float | None
    names: Callable[[], Collection[str]] | None
    symbol: str
    paper: object
    hint: str | None
    metadata: Mapping[str, object] | None


@overload
def option(default: Value, **known: Unpack[_Known]) -> Value: ...


@overload
def option(*, factory: Callable[[], Value], **known: Unpack[_Known]) -> Value: ...


def option(
    default: object = dataclasses.MISSING,
    *,
    factory: object = dataclasses.MISSING,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    names: Callable[[], Collection[str]] | None = None,
    symbol: str = "",
    paper: object = None,
    hint: str | None = None,
    metadata: Mapping[str, object] | None = None,
) -> Any:
    """Declare a field of a dataclass that is an option.

    Args:
        default: its value where nobody gives one.
        factory: makes that value, in place of `default`.
        low: the least number.
        high: the largest.
        above: a number below the least.
        below: a number above the largest.
        names: gives the texts that it may be, where a table holds them; those of a Literal are known.
        symbol: in the paper.
        paper: the value that the paper states.
        hint: what the error of a value out of range advises.
        metadata: further metadata of the field, for other readers.

    Returns:
        The field.
    """
    facts = _Facts(Range(low, high, above, below), names, symbol, paper, hint)
    field: Any = dataclasses.field
    return field(default=default, default_factory=factory, metadata={**(metadata or {}), _METADATA: facts})


def by_name(*records: Record) -> Mapping[str, Record]:
    """Make a table of records, which is where a name stands once.

    Args:
        records: each with a name of its own.

    Returns:
        The records by name, read-only, in their order.
    """
    return types.MappingProxyType({record.name: record for record in records})


def same(cls: type, name: str, default: object = dataclasses.MISSING) -> Any:
    """Declare a field that is an option of another dataclass: with its default, range, symbol and meaning.

    Args:
        cls: the other dataclass.
        name: of its field.
        default: a default of its own.

    Returns:
        The field.
    """
    inherited = {field.name: field for field in dataclasses.fields(cls)}[name]
    facts: _Facts = inherited.metadata.get(_METADATA, _Facts())
    metadata = {**inherited.metadata, _METADATA: facts._replace(origin=facts.origin or cls)}
    field: Any = dataclasses.field
    if default is not dataclasses.MISSING:
        return field(default=default, metadata=metadata)
    return field(default=inherited.default, default_factory=inherited.default_factory, metadata=metadata)


def _literal(kind: object) -> tuple[str, ...]:
    """Collect the texts of the Literals in a type."""
    if get_origin(kind) is Literal:
        return tuple(choice for choice in get_args(kind) if isinstance(choice, str))
    if get_origin(kind) in (Union, types.UnionType):
        return tuple(text for inner in get_args(kind) for text in _literal(inner))
    return ()


class _Hints(dict[type, Mapping[str, Any]]):
    """Types of the fields of dataclasses by name, which are read from their annotations once a class."""

    def __missing__(self, cls: type) -> Mapping[str, Any]:
        return self.setdefault(cls, types.MappingProxyType(get_type_hints(cls)))


_HINTS: Final = _Hints()


class _Bounded(dict[type, tuple[tuple[str, _Facts, tuple[str, ...]], ...]]):
    """Fields of a dataclass that have a range or texts: name, facts, and texts by the type; read once a class."""

    def __missing__(self, cls: type) -> tuple[tuple[str, _Facts, tuple[str, ...]], ...]:
        kinds, result = _HINTS[cls], []
        for field in dataclasses.fields(cls):
            facts: _Facts = field.metadata.get(_METADATA, _Facts())
            texts = () if str in get_args(kinds[field.name]) else _literal(kinds[field.name])
            if texts or facts.names is not None or facts.range != Range():
                result.append((field.name, facts, texts))
        return self.setdefault(cls, tuple(result))


_BOUNDED: Final = _Bounded()


def options_of(cls: type) -> dict[str, Option]:
    """Read the options of a dataclass.

    Args:
        cls: a dataclass, whose fields may or may not be made by `option`.

    Returns:
        By name, in the order of the fields.

    Example:
        >>> from pacbayes_fl.methods import METHODS
        >>> from pacbayes_fl.options import options_of
        >>> tau = options_of(METHODS["pac-pfl"].options)["tau"]
        >>> tau.name, tau.symbol
        ('tau', 'tau')
    """
    kinds, meant, result = _HINTS[cls], meanings(cls), {}
    for field in dataclasses.fields(cls):
        name, kind = field.name, kinds[field.name]
        facts: _Facts = field.metadata.get(_METADATA, _Facts())
        meant = meant if facts.origin is None else meanings(facts.origin) | meant
        stated = () if facts.names is None else facts.names()
        names = stated if isinstance(stated, OpenNames) else tuple(stated) or _literal(kind)
        printed = facts.symbol, facts.paper, facts.hint
        result[name] = Option(name, kind, default_of(field), facts.range, names, meant.get(name, ""), *printed)
    return result


def default_of(field: dataclasses.Field[object]) -> Any:
    """Give the default of a field.

    Args:
        field: of a dataclass.

    Returns:
        Its value where nobody gives one; `dataclasses.MISSING` where somebody has to.
    """
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def meanings(cls: type) -> dict[str, str]:
    """Read the meaning of every argument from the docstrings of a class and its bases, under Args or Attributes.

    Args:
        cls: any class.

    Returns:
        By name, in one line each; of the class itself where several say it.
    """
    result: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        result |= _ARGUMENTS[base.__dict__.get("__doc__") or ""]
    return result


class _Arguments(dict[str, Mapping[str, str]]):
    """Arguments of docstrings by name, each read once: all methods ask for those of the same few."""

    def __missing__(self, text: str) -> Mapping[str, str]:
        return self.setdefault(text, types.MappingProxyType(dict(_entries(inspect.cleandoc(text)))))


_ARGUMENTS: Final = _Arguments()


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield the arguments of a docstring; several names before one colon share a meaning."""
    sections = re.split(r"^(?=\w+:$)", text, flags=re.MULTILINE)
    for section in sections:
        head, *lines = section.split("\n")
        if head not in ("Args:", "Attributes:"):
            continue
        body = inspect.cleandoc("\n".join(["", *lines]))
        for entry in re.split(r"\n(?=\S)", body.strip()):
            if matched := _ENTRY.fullmatch(" ".join(entry.split())):
                yield from ((name, matched[2]) for name in matched[1].split(", "))


def check(part: Any, where: str = "", error: type[PacBayesFLError] = StudyError) -> None:
    """Check that the options of a dataclass are in their ranges.

    Args:
        part: the dataclass; numbers, lists of numbers and texts are looked at, None and other objects are left alone.
        where: what errors call it, such as "[privacy]".
        error: what is raised.

    Raises:
        PacBayesFLError: of the class `error`, naming the first option that is not, its range and what came.
    """
    for name, facts, texts in _BOUNDED[type(part)]:
        place, value = f"{where} " if where else "", getattr(part, name)
        numbers = filter(_is_number, value if isinstance(value, tuple | list) else (value,))
        if not all(map(facts.range.holds, numbers)):
            hint = facts.hint or usual_line(type(part), where, name)
            raise error(f"{place}{name} must be {facts.range}, got {_given(value)}", hint=hint)
        known = texts if facts.names is None else facts.names()
        if isinstance(value, str) and (texts or facts.names is not None) and value not in known:
            what = f"{place}{name} must be one of {', '.join(map(repr, known))}, got {shown(value)}"
            raise error(what, hint=facts.hint or meant(value, known))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _given(value: object) -> str:
    """Write what came in a few characters, a list without brackets."""
    if isinstance(value, tuple | list):
        return ", ".join(map(_given, value))
    return f"{value:g}" if isinstance(value, float) else shown(value)


def _words(kind: Any, of: Option) -> list[str]:
    """Say what a value of a type may be, an entry for each of its alternatives."""
    bounds = "" if of.range == Range() else f" ({of.range})"
    plural = {int: f"whole numbers{bounds}", float: f"numbers{bounds}", str: "texts"}
    if get_origin(kind) in (Union, types.UnionType):
        return [text for inner in get_args(kind) for text in _words(inner, of)]
    if get_origin(kind) is Literal:
        return [" or ".join(map(repr, get_args(kind)))]
    if get_origin(kind) is tuple:
        return [f"a list of {plural.get(get_args(kind)[0], 'values')}"]
    if kind is str and of.names:
        return [" or ".join(map(repr, of.names))]
    plain = {
        type(None): "'none'",
        bool: "true or false",
        int: f"a whole number{bounds}",
        float: f"a number{bounds}",
        str: "a text",
    }
    return [plain.get(kind, "a table")]
