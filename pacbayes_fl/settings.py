"""Strict tables: nested mappings from a TOML file into frozen dataclasses, and back.

They are converted by hand. pydantic, msgspec and cattrs were tried on the tests of errors: every one loses the nearest
valid key, the range of a number or what a union allows, and to say them again takes as many lines as they save; tomli-w
leaves characters in strings that steer a terminal (docs/decisions.md has the table).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import tomllib
import types
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, ClassVar, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pacbayes_fl.errors import StudyError, meant, shown

Part = TypeVar("Part")
NONE = "none"
"""How a table says None, for which TOML has no word."""

_MOST: Final = 2**32 - 1  # of whole numbers: seeds, which are the largest, fill it
_LARGEST: Final = 1e30  # of other numbers, and its inverse the smallest: float32, of networks, ends at 3.4e38, 1.2e-38


class _Types(dict[type, Mapping[str, Any]]):
    """Types of the fields of dataclasses by name, which are read from their annotations once a class.

    Constants of a class are no fields: nobody can set them.
    """

    def __missing__(self, cls: type) -> Mapping[str, object]:
        hints = get_type_hints(cls)
        self[cls] = {name: kind for name, kind in hints.items() if (get_origin(kind) or kind) is not ClassVar}
        return self[cls]


_TYPES: Final = _Types()


def read_toml(text: str, where: str) -> dict[str, Any]:
    """Read TOML.

    Args:
        text: what a file or an argument holds.
        where: what errors call it.

    Returns:
        The table.

    Raises:
        tomllib.TOMLDecodeError: when it is not TOML.
        StudyError: when it is TOML that nobody can mean: tables in tables beyond Python's depth, or a number of
            thousands of digits.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise StudyError(f"{where} holds lists or tables in one another too deep to read") from None
    except ValueError:  # Python's limit on the digits of a whole number
        raise StudyError(f"{where} holds a number of too many digits") from None


def nearest(word: str, valid: Iterable[str]) -> str:
    """Advise on a word that is not known.

    Args:
        word: as given.
        valid: what would have been right.

    Returns:
        "did you mean ...?", or the list of valid words.

    Example:
        >>> from pacbayes_fl import settings
        >>> settings.nearest("partikles", ["particles", "tau"])
        "did you mean 'particles'?"
    """
    valid = list(valid)
    return meant(word, valid) or f"valid: {', '.join(valid) or 'nothing'}"


def parse(cls: type[Part], table: Mapping[str, object], where: str) -> Part:
    """Build a frozen dataclass from a table; fields that the table leaves out keep their defaults.

    Args:
        cls: a dataclass of numbers, strings, flags, tuples, mappings and dataclasses of these.
        table: values by name.
        where: what errors call the table, such as "study.toml [method]".

    Returns:
        The value.

    Raises:
        StudyError: naming the key, where it stands and the nearest valid key, or the kind of value that was expected,
            or a field without default that the table leaves out.
    """
    hints = _TYPES[cls]
    if not isinstance(table, Mapping):
        raise StudyError(f"{where} must be a table, got {shown(table)}")
    for key in table:
        if key not in hints:
            raise StudyError(f"{where}: unknown key {shown(key)}", hint=nearest(key, hints))
    needed = [field.name for field in dataclasses.fields(cls) if _needs_value(field)]  # type: ignore[arg-type]
    if missing := [name for name in needed if name not in table]:
        raise StudyError(f"{where}: no value for {', '.join(missing)}, which has no default")
    return cls(**{key: _convert(hints[key], value, f"{where} {key}") for key, value in table.items()})


def _needs_value(field: dataclasses.Field[object]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _convert(kind: object, value: object, where: str) -> Any:
    origin, choices = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if type(None) in choices and (value is None or value == NONE):
            return None
        for choice in choices:
            try:
                return _convert(choice, value, where)
            except StudyError:
                if _is_number(choice, value):  # out of range: no other kind is meant
                    raise
        what, words = f"{where} must be {' or '.join(map(_expected, choices))}", [*chain(*map(_words, choices))]
        raise StudyError(f"{what}, got {shown(value)}", hint=meant(value, words) if isinstance(value, str) else None)
    if origin is Literal:
        if value in choices:
            return value
        hint = meant(value, _words(kind)) if isinstance(value, str) else None
        raise StudyError(f"{where} must be {_expected(kind)}, got {shown(value)}", hint=hint)
    if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
        return parse(kind, value, where)  # type: ignore[arg-type]
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_convert(choices[0], item, f"{where}[{k}]") for k, item in enumerate(value))
    if (origin or kind) is Mapping and isinstance(value, Mapping):
        return dict(value)
    if _is_number(kind, value):
        return _number(kind, value, where)  # type: ignore[arg-type]
    if isinstance(kind, type) and isinstance(value, kind) and kind is not int:
        return value
    one = origin is tuple and isinstance(value, str) and choices[0] is str
    hint = f'write ["{value}"]' if one else None
    raise StudyError(f"{where} must be {_expected(kind)}, got {shown(value)}", hint=hint)


def _is_number(kind: object, value: object) -> bool:
    known = kind in (int, float) and isinstance(value, int if kind is int else int | float)
    return known and not isinstance(value, bool)


def limits(kind: type) -> tuple[float, float]:
    """Give the range that every number of a study has, whatever its option.

    Args:
        kind: int or float.

    Returns:
        The least and the largest; beside 0, a float is also at least 1e-30 in size.
    """
    return (0, _MOST) if kind is int else (-_LARGEST, _LARGEST)


def _number(kind: type, value: int | float, where: str) -> int | float:
    """Give a number in a range that every option has, whether its method uses it or not."""
    if kind is int and not 0 <= value <= _MOST:
        raise StudyError(f"{where} must be a whole number from 0 to 2**32 - 1, got {shown(value)}")
    if kind is float and not (math.isfinite(value) if isinstance(value, float) else True):
        raise StudyError(f"{where} must be a finite number, got {value:g}")
    if kind is float and not (value == 0 or 1 / _LARGEST <= abs(value) <= _LARGEST):
        raise StudyError(f"{where} must be 0 or of a size from {1 / _LARGEST:g} to {_LARGEST:g}, got {shown(value)}")
    return value if kind is int else float(value)


def _words(kind: object) -> list[str]:
    """Words that a value may be."""
    every = get_args(kind) if get_origin(kind) is Literal else (NONE,) if kind is type(None) else ()
    return [word for word in every if isinstance(word, str)]


def _expected(kind: object) -> str:
    """Say what a value of a kind looks like."""
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, get_args(kind)))}"
    if get_origin(kind) is tuple:
        (inner, *_) = get_args(kind)
        return f"a list of {_expected(inner) if get_origin(inner) is Literal else inner.__name__}"
    if (get_origin(kind) or kind) is Mapping or dataclasses.is_dataclass(kind):
        return "a table"
    return repr(NONE) if kind is type(None) else f"of type {getattr(kind, '__name__', kind)}"


def as_table(part: Any) -> dict[str, Any]:
    """Turn a dataclass into a nested table of plain values.

    Args:
        part: the dataclass.

    Returns:
        Names and values; None as "none", tuples as lists.
    """
    return {field.name: plain(getattr(part, field.name)) for field in dataclasses.fields(part)}


def plain(value: object) -> Any:
    """Turn a value of a dataclass into one that TOML has.

    Args:
        value: number, flag, text, None, dataclass, or list, tuple or mapping of these.

    Returns:
        None as "none", tuples as lists, dataclasses and mappings as tables.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_table(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return NONE if value is None else value


def to_toml(table: Mapping[str, object], prefix: str = "") -> str:
    """Write a nested table of plain values as TOML.

    Args:
        table: what `as_table` gives.
        prefix: dotted name of the table itself.

    Returns:
        The text.

    Example:
        >>> from pacbayes_fl import settings
        >>> print(settings.to_toml({"name": "mine", "seed": 1}).strip())
        name = "mine"
        seed = 1
    """
    simple = [f"{_key(name)} = {to_value(value)}" for name, value in table.items() if not isinstance(value, Mapping)]
    text = "\n".join(simple) + ("\n" if simple else "")
    for name, value in table.items():
        if isinstance(value, Mapping):
            path = f"{prefix}.{_key(name)}" if prefix else _key(name)
            inner = to_toml(value, path)
            header = not value or any(not isinstance(item, Mapping) for item in value.values())
            text += f"\n[{path}]\n{inner}" if header else inner
    return text


def _key(name: str) -> str:
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else _quoted(name)


def _quoted(text: str) -> str:
    """Quote a string as TOML, with an escape for what does not print; unlike JSON, TOML has no surrogates."""
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08X}" for c in quoted)


def to_value(value: object) -> str:
    """Write a plain value as TOML.

    Args:
        value: number, flag, string, or list or mapping of these.

    Returns:
        The text.

    Example:
        >>> from pacbayes_fl import settings
        >>> settings.to_value([0.5, "held-out", True])
        '[0.5, "held-out", true]'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(to_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(name)} = {to_value(item)}' for name, item in value.items())} }}"
    return _quoted(value) if isinstance(value, str) else repr(value)


def override(table: dict[str, object], assignment: str) -> None:
    """Put `part.key=value` into a nested table, in place.

    Args:
        table: the study's table.
        assignment: as given to `--set`; the value is read as TOML, or as a string where it is not TOML.

    Raises:
        StudyError: when there is no "=".
    """
    path, equals, text = assignment.partition("=")
    if not equals:
        raise StudyError(f"--set takes KEY=VALUE, got {shown(assignment)}", hint="such as --set method.tau=0.5")
    try:
        value = read_toml(f"value = {text}", f"--set {path}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
        with contextlib.suppress(ValueError):
            value = float(value) if value.isascii() else value  # such as ".5", which is no TOML
    *parents, last = path.strip().split(".")
    for name in parents:
        inner = table.setdefault(name, {})
        if not isinstance(inner, dict):
            raise StudyError(f"--set {shown(assignment)}: {name!r} is not a table")
        table = inner
    table[last] = value


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one nested table over another.

    Args:
        base: values that hold where `over` has none.
        over: values that win.

    Returns:
        A new table.

    Example:
        >>> from pacbayes_fl import settings
        >>> settings.merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
        {'a': {'b': 3, 'c': 2}}
    """
    merged = dict(base)
    for name, value in over.items():
        below = merged.get(name)
        both = isinstance(value, Mapping) and isinstance(below, Mapping)
        merged[name] = merge(below, value) if both else value  # type: ignore[arg-type]
    return merged
