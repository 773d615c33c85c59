"""The table of bounds: one record each, under the name that commands take."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Final

from pacbayes_fl.bounds import bernstein, chain, client, further, holdout, printed, server, unbounded
from pacbayes_fl.bounds.bound import Bound
from pacbayes_fl.bounds.certificate import Formula
from pacbayes_fl.errors import AssumptionError, StudyError
from pacbayes_fl.plugins.table import OpenTable

BOUNDS: Mapping[str, Bound] = MappingProxyType(
    {
        bound.name: bound
        for bound in (
            client.SEEGER,
            client.MCALLESTER,
            client.CATONI,
            client.ALQUIER,
            client.PBB_QUADRATIC,
            client.PBB_LAMBDA,
            client.THEOREM_3_2,
            client.GIBBS,
            bernstein.EMPIRICAL_BERNSTEIN,
            unbounded.SUB_GAMMA,
            chain.RECURSIVE,
            further.ANYTIME,
            further.ONE_DRAW,
            further.TANDEM,
            holdout.HOLDOUT_BINOMIAL,
            holdout.HOLDOUT_BETTING,
            holdout.HOLDOUT_KL,
            holdout.HOLDOUT_CHERNOFF,
            holdout.HOLDOUT_HOEFFDING,
            server.SERVER,
            server.NEW_CLIENTS,
            printed.THEOREM_4_2,
            printed.LEMMA_4_3,
            printed.LEMMA_4_6,
        )
    }
)
"""Every bound by its name: those on a client, of which the first is the default, then those on averages."""

DEFAULT: Final = next(iter(BOUNDS))
"""The bound that is taken where none is asked for: the first of the table."""


def _bound(thing: object, module: ModuleType, name: str) -> Bound | None:
    if isinstance(thing, Bound) and thing.name in BOUNDS:
        raise StudyError(f"{name}: a bound of one's own cannot be called {thing.name!r}", hint="choose another name")
    return thing if isinstance(thing, Bound) else None


OWN_BOUNDS: Final[OpenTable[Bound]] = OpenTable(
    dict, "pacbayes_fl.bounds", "--bound", "a record pacbayes_fl.bounds.Bound", _bound
)
"""Bounds that users and installed packages bring."""


def bound_named(bound: str | Bound) -> Bound:
    """Look a bound up.

    Args:
        bound: a key of `BOUNDS`, a reference such as "mine.py:MY_BOUND", or a record, which is taken as it is.

    Returns:
        Its record.

    Raises:
        AssumptionError: when there is none of that name.

    Example:
        >>> from pacbayes_fl.bounds import bound_named
        >>> bound_named("seeger").needs
        ('risk', 'kl', 'n')
    """
    if isinstance(bound, Bound):
        return bound
    if bound not in BOUNDS and bound in OWN_BOUNDS:
        return OWN_BOUNDS[bound]
    if bound not in BOUNDS:
        raise AssumptionError(f"bound must be one of {', '.join(BOUNDS)}, got {bound!r}")
    return BOUNDS[bound]


def formulas(*more: Bound) -> dict[str, Formula]:
    """Name every formula: by the first bound that has it.

    Args:
        *more: bounds beside those of the table.

    Returns:
        Formulas by the names that records of certificates give them.
    """
    result: dict[str, Formula] = {}
    for bound in (*BOUNDS.values(), *more):
        if bound.formula not in result.values():
            result[bound.name] = bound.formula
    return result


def listing() -> list[tuple[str, str]]:
    """List the bounds with a line on each: on clients, then on averages over them, with who gives them.

    Nothing is said of those that the command `bound` computes.
    """
    result = []
    for bound in BOUNDS.values():
        where = ["certify"] if bound.certifiable else []
        if bound.group is None or not where:
            where.append(f"Python: bounds.{bound.function.__name__}")
        result.append((bound.name, bound.summary + ("" if bound.stated else f" [{', '.join(where)}]")))
    return [*result, *OWN_BOUNDS.listing()]
