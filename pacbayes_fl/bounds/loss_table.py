"""Losses by name: those of the library, and those that users and installed packages bring."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final, cast

from pacbayes_fl.bounds.checks import of_library
from pacbayes_fl.bounds.losses import LOSSES, PARTS, BoundedLoss, require_bounded
from pacbayes_fl.bounds.normal_nll import UNBOUNDED
from pacbayes_fl.errors import AssumptionError, shown
from pacbayes_fl.plugins.references import anchored
from pacbayes_fl.plugins.table import OpenTable

LossMaker = BoundedLoss | type[BoundedLoss]
"""A loss, or its class, whose arguments are its settings."""

_UNBOUNDED = MappingProxyType(
    {
        "nll": "use 'clipped-nll'",
        "nlpd": "use 'saturating-square'; or normal-nll=STD, for --bound sub-gamma with a constant that you state",
        "mse": "use 'clipped-square'",
        "square": "use 'clipped-square'",
    }
)


def _loss(thing: object, module: ModuleType, name: str) -> LossMaker | None:
    """Take a loss or its class: what has the parts of one, and can be called with predictions and targets."""
    if isinstance(thing, type):
        known = {*dir(thing), *(key for base in thing.__mro__ for key in vars(base).get("__annotations__", ()))}
        takes = any("__call__" in vars(base) for base in thing.__mro__)
    else:
        known = {each for each in PARTS if hasattr(thing, each)}
        takes = callable(thing)
    return cast(LossMaker, thing) if takes and known.issuperset(PARTS) else None


OWN_LOSSES: Final[OpenTable[LossMaker]] = OpenTable(
    dict,
    "pacbayes_fl.losses",
    "--loss",
    "a bounded loss or its class, with name, low, high, convex and a call (prediction, y) -> a value for each row",
    _loss,
)
"""Losses that users and installed packages bring."""


def settings_of(name: str) -> Mapping[str, object]:
    """Name the settings of a loss.

    Args:
        name: as `loss_named` takes it.

    Returns:
        Defaults by name, `inspect.Parameter.empty` where there is none; nothing of a loss that is made already.

    Raises:
        AssumptionError: as `loss_named`.
    """
    return _settings(_found(name))


def _settings(kind: LossMaker) -> Mapping[str, object]:
    if not isinstance(kind, type):
        return {}
    return {each.name: each.default for each in inspect.signature(kind).parameters.values()}


def loss_named(name: str, **settings: float) -> BoundedLoss:
    """Look a loss up.

    Args:
        name: a key of `LOSSES` or `UNBOUNDED`, of an entry point of an installed package, or a reference such as
            "mine.py:MyLoss" to a loss or its class.
        **settings: arguments of the class, such as p_min.

    Returns:
        The loss.

    Raises:
        AssumptionError: when the loss is one that no bound is for or unknown, has no such setting, needs one that is
            not given, or, where it is of one's own, does not say what a loss has to, or has a name of the library's.
        StudyError: when a reference leads to no loss.

    Example:
        >>> from pacbayes_fl.bounds import loss_named
        >>> loss_named("clipped-nll", p_min=1e-3)
        ClippedNLL(p_min=0.001)
    """
    kind = _found(name)
    known = _settings(kind)
    if idle := sorted(settings.keys() - known.keys()):
        hint = f"it has {', '.join(known)}" if known else "its range is that of an indicator"
        if not isinstance(kind, type):
            hint = "it is made already; a reference to its class takes settings"
        raise AssumptionError(f"the loss {name!r} has no setting {', '.join(idle)}", hint=hint)
    missing = [key for key, default in known.items() if default is inspect.Parameter.empty and key not in settings]
    if missing:
        raise AssumptionError(f"the loss {name!r} needs {', '.join(missing)}", hint=f"such as {name}=4")
    loss = cast(Any, kind)(**settings) if isinstance(kind, type) else kind
    if name not in LOSSES and name not in UNBOUNDED:
        check_parts(loss, name)
    return cast(BoundedLoss, loss)


def check_parts(loss: Any, said: str) -> None:
    """Refuse a loss of one's own that does not say what it has to of itself.

    Args:
        loss: which can be called.
        said: what errors call it.

    Raises:
        AssumptionError: naming the part, what was expected and what came.
    """
    own = f"the loss {said!r}"
    for part in PARTS:
        if not hasattr(loss, part):
            what = f"{own} must have name, low, high and convex, and has no {part}"
            raise AssumptionError(what, hint=f"give {type(loss).__name__} a {part}")
    if not isinstance(loss.name, str) or not loss.name.strip():
        raise AssumptionError(f"the name of {own} must be a text, got {shown(loss.name)}")
    for part in ("low", "high"):
        if not isinstance(value := getattr(loss, part), Real) or isinstance(value, bool):
            raise AssumptionError(f"{part} of {own} must be a number, got {shown(value)}")
    if not isinstance(loss.convex, bool):
        raise AssumptionError(f"convex of {own} must be True or False, got {shown(loss.convex)}")
    require_bounded(loss)
    inherited = getattr(type(loss), "name", None) in [vars(kind)["name"] for kind in LOSSES.values()]
    if inherited and not of_library(loss):
        what = f"{own} cannot be called {loss.name!r}, as a loss of the library is"
        raise AssumptionError(what, hint=f"give {type(loss).__name__} a name of its own, for certificates say it")


def _found(name: str) -> LossMaker:
    if name in LOSSES:
        return cast(LossMaker, LOSSES[name])
    if name in UNBOUNDED:
        return cast(LossMaker, UNBOUNDED[name])
    if name in _UNBOUNDED:
        raise AssumptionError(f"the loss {name!r} is unbounded: no bound holds", hint=_UNBOUNDED[name])
    if name in OWN_LOSSES:
        return OWN_LOSSES[anchored(name, Path.cwd())]
    known = [*LOSSES, *UNBOUNDED, *(own for own, _ in OWN_LOSSES.listing())]
    raise AssumptionError(f"loss must be one of {', '.join(known)}, got {name!r}")


def title_of(loss: object) -> str:
    """Say in a line what a loss is.

    Args:
        loss: or its class.

    Returns:
        The first line of its docstring; the name of its class without one.
    """
    kind = loss if isinstance(loss, type) else type(loss)
    own = vars(kind).get("__doc__") or kind.__name__
    return str(own).strip().partition("\n")[0]


def listing() -> list[tuple[str, str]]:
    """List the losses.

    Returns:
        Names, each with a line: of built-in ones what they are, of others the package that brings them.
    """
    return [*((name, title_of(kind)) for name, kind in {**LOSSES, **UNBOUNDED}.items()), *OWN_LOSSES.listing()]
