"""Whether an object that a program gives is the one that it gave before: its class, the source of that, its values."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pacbayes_fl.files import JsonTable
from pacbayes_fl.methods.base import Method
from pacbayes_fl.models.functions.gpytorch_prior import GPyTorchPrior
from pacbayes_fl.results.metrics import Metric

_PLAIN: Final = (bool, int, float, str, bytes, complex, type(None), type(Ellipsis))
_OURS: Final = ("pacbayes_fl", "torch", "gpytorch", "pyro", "numpy", "builtins", "abc", "typing")  # have versions


class Identity(NamedTuple):
    """Identity of an object by its content.

    Args:
        kind: module and name of its class; of a metric, of its function.
        options: those of its values that are numbers, flags or texts, by name.
        sha256: of the source of its class and of all that it holds.
    """

    kind: str
    options: Mapping[str, bool | int | float | str | None]
    sha256: str


def identity(thing: Method[object, object, object, object] | Metric | object) -> Identity:
    """Identify an object by its content, equal in every process that makes an equal object from the same source.

    Numbers, texts, tensors and arrays count by value; dataclasses, mappings, lists and other objects by what they hold;
    functions and classes by name and, where they are not of a library with a version, by their source.

    Args:
        thing: a method, a model, a metric, or any other object.

    Returns:
        Its class, its plain values, and the hash.
    """
    digest = hashlib.sha256()
    _feed(thing, digest.update, ())
    kind = thing.function if isinstance(thing, Metric) and callable(thing.function) else type(thing)
    values = {name: value for name, value in _held(thing).items() if isinstance(value, bool | int | float | str | None)}
    return Identity(_name(kind), values, digest.hexdigest())


def _feed(value: object, add: Callable[[bytes], object], above: tuple[int, ...]) -> None:
    """Add an object to a hash, with marks of where its parts begin and end; objects that hold it count once."""
    if isinstance(value, _PLAIN):
        add(f"{type(value).__name__} {value!r};".encode())
    elif id(value) in above:
        add(f"again {len(above) - above.index(id(value))};".encode())
    elif isinstance(value, Tensor | np.ndarray):
        array = value.detach().cpu().contiguous().numpy() if isinstance(value, Tensor) else np.ascontiguousarray(value)
        add(f"array {array.dtype} {array.shape};".encode() + array.tobytes())
    elif isinstance(value, torch.dtype | torch.device | torch.Size):
        add(f"{value!r};".encode())
    elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        add(f"{_name(value)} {_source(value)};".encode())
    else:
        parts = _parts(value)
        add(f"{_name(type(value))} {_sources(type(value))} holds {len(parts)};".encode())
        for part in parts:
            _feed(part, add, (*above, id(value)))


def _parts(value: object) -> list[object]:
    """List what an object holds, in an order that does not depend on the process."""
    if isinstance(value, Mapping):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, list | tuple):
        return [*value]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, GPyTorchPrior):
        return [value.content()]
    if isinstance(value, torch.nn.Module):
        plain = {name: one for name, one in vars(value).items() if isinstance(one, _PLAIN) and name[:1] != "_"}
        return [plain, dict(value.named_parameters()), dict(value.named_buffers()), dict(value.named_children())]
    return [_held(value)]


def _held(value: object) -> JsonTable:
    """Give the fields of a dataclass, and the attributes of another object but for those that it has computed."""
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    known = getattr(value, "__dict__", {})
    computed = functools.cached_property
    return {name: one for name, one in known.items() if not isinstance(getattr(type(value), name, None), computed)}


def _name(thing: object) -> str:
    return f"{getattr(thing, '__module__', '')}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def _sources(cls: type) -> str:
    return " ".join(filter(None, map(_source, _unversioned(cls.__mro__))))


def _unversioned(classes: Iterable[type]) -> Iterable[type]:
    return (one for one in classes if (one.__module__ or "").split(".")[0] not in _OURS)


def _source(thing: Any) -> str:
    """Hash the source of a class or function of a user's; of code typed into an interpreter there may be none."""
    if (getattr(thing, "__module__", None) or "").split(".")[0] in _OURS:
        return ""
    try:
        return hashlib.sha256(inspect.getsource(thing).encode()).hexdigest()
    except (OSError, TypeError):
        return ""
