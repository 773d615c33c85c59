"""Fingerprints of losses and bounds that users bring, by what they compute and not by what they are called."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import re
import sys
from collections.abc import Mapping, Set
from functools import partial
from types import CodeType, FunctionType
from typing import Any, Final

import numpy as np
from torch import Tensor

from pacbayes_fl.errors import AssumptionError, shown

_PACKAGE: Final = __name__.partition(".")[0]
_INSTALLED: Final = ("site-packages", "dist-packages")
_WRITTEN: Final = frozenset({"__doc__", "__module__", "__firstlineno__", "__static_attributes__", "__annotations__"})
_KEPT: Final = frozenset({"__slotnames__"})  # by copyreg, in a class of which an object was copied or pickled


def fingerprint(thing: object) -> str:
    """Fingerprint a function, a class or an object: by its code, and by the values that the code can see.

    These are attributes, defaults, closures and global names. What is installed and of another package than the thing
    itself, such as torch, goes by its name.

    Args:
        thing: any.

    Returns:
        SHA-256, in hexadecimal: the same in another process of the same Python.

    Raises:
        AssumptionError: when it holds values in values, deeper than Python follows.
    """
    own = thing
    while isinstance(own, partial):
        own = own.func
    try:
        text = _described(thing, {}, str(getattr(own, "__module__", None)).partition(".")[0])
    except RecursionError as error:
        what = f"{shown(thing)} holds values in values, deeper than Python follows"
        raise AssumptionError(
            what, hint="certificates are counted by what a loss or a bound of your own holds"
        ) from error
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _described(thing: Any, met: dict[int, tuple[int, object]], home: str) -> str:
    if thing is None or thing is Ellipsis or isinstance(thing, str | bytes | int | float | complex):
        return repr(thing)
    if id(thing) in met:
        return f"number {met[id(thing)][0]}"
    met[id(thing)] = len(met), thing  # which keeps it alive, so that no other gets its id
    inner = partial(_described, met=met, home=home)
    if isinstance(thing, Tensor | np.ndarray | np.generic):
        if isinstance(thing, Tensor):
            thing = thing.detach().to_dense()
        return f"{thing.dtype} {str(thing) if getattr(thing, 'is_meta', False) else thing.tolist()}"
    if isinstance(thing, Mapping):
        return f"{{{', '.join(sorted(f'{inner(key)}: {inner(value)}' for key, value in thing.items()))}}}"
    if isinstance(thing, Set):
        return f"{{{', '.join(sorted(map(inner, thing)))}}}"
    if isinstance(thing, list | tuple):
        return f"[{', '.join(map(inner, thing))}]"
    if inspect.ismodule(thing):
        return thing.__name__
    if isinstance(thing, CodeType):
        return f"{thing.co_code.hex()} {inner(thing.co_consts)} {thing.co_names} {thing.co_freevars}"
    return inner(_parts(thing, home))


def _parts(thing: Any, home: str) -> list[object]:
    """What a function, a class or an object is made of."""
    if isinstance(thing, partial):
        return [thing.func, thing.args, thing.keywords]
    if isinstance(thing, property):
        return [thing.fget]
    if inspect.ismethod(thing):
        return [thing.__func__, thing.__self__]
    if isinstance(thing, staticmethod | classmethod):
        return [thing.__func__]
    name = f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}"
    if inspect.isclass(thing):
        return [name] if _installed(thing.__module__, home) else [name, thing.__bases__, _members(thing)]
    if inspect.isfunction(thing):
        sees: list[object] = [] if _installed(thing.__module__, home) else [thing.__code__, _seen(thing, home)]
        return [name, thing.__defaults__, thing.__kwdefaults__, thing.__dict__, *sees]
    if inspect.isroutine(thing):
        return [name]
    slots = (each for kind in type(thing).__mro__ for each in np.atleast_1d(getattr(kind, "__slots__", ())).tolist())
    held = {each: getattr(thing, each) for each in slots if hasattr(thing, each) and not each.startswith("__")}
    values = {**held, **getattr(thing, "__dict__", {})}
    return [type(thing), values or re.sub(r" at 0x[0-9a-fA-F]+", "", repr(thing))]


def _members(kind: type) -> dict[str, object]:
    own = {name: value for name, value in vars(kind).items() if name not in _WRITTEN | _KEPT}
    return {name: value for name, value in own.items() if not inspect.isgetsetdescriptor(value) and name != "_abc_impl"}


def _seen(function: FunctionType, home: str) -> list[object]:
    """Values of the names of a function's closure and of its module, as far as there are any yet."""
    names = _names(function.__code__)
    found: list[object] = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # it is empty
            found.append((name, _looked_up(cell.cell_contents, names, home)))
    known = function.__globals__
    return [*found, {name: _looked_up(known[name], names, home) for name in sorted(names) if name in known}]


def _looked_up(value: object, names: Set[str], home: str, above: tuple[object, ...] = ()) -> object:
    """Give of a module of one's own what the code names of it, and of those in it; anything else as it is."""
    if not inspect.ismodule(value) or value in above or _installed(value.__name__, home):
        return value
    own = {name: vars(value)[name] for name in sorted(names & vars(value).keys())}
    return value, {name: _looked_up(one, names, home, (*above, value)) for name, one in own.items()}


def _names(code: CodeType) -> set[str]:
    """Names that a code and those within it, such as of comprehensions, look up."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names}.union(*map(_names, inner))


def _installed(module: str | None, home: str) -> bool:
    top = str(module).partition(".")[0]
    if top == _PACKAGE or top in sys.stdlib_module_names:
        return True
    file = str(getattr(sys.modules.get(top), "__file__", None))
    return top not in (home, "__main__") and any(part in file for part in _INSTALLED)
