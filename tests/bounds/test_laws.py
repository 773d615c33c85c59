"""The laws of bounds range over the table, take a new record by themselves, and catch records that are wrong."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from torch import Tensor

from pacbayes_fl.bounds import laws
from pacbayes_fl.bounds.bound import Bound, World
from pacbayes_fl.bounds.certificate import Certificate
from pacbayes_fl.bounds.client import CATONI, SEEGER, THEOREM_3_2
from pacbayes_fl.bounds.coverage import DRAWN, Case
from pacbayes_fl.bounds.holdout import HOLDOUT_BINOMIAL
from pacbayes_fl.bounds.premises import Premises, Provenance
from pacbayes_fl.bounds.printed import THEOREM_4_2
from pacbayes_fl.bounds.server import SERVER
from pacbayes_fl.bounds.table import BOUNDS
from pacbayes_fl.errors import AssumptionError
from tests.bounds.own import REFINED_PINSKER


@pytest.fixture(scope="module")
def cases() -> Mapping[World, tuple[Case, ...]]:
    return {world: tuple(draw(0)) for world, draw in DRAWN.items()}


@pytest.mark.parametrize("name", list(BOUNDS))
def test_every_bound_covers_in_the_world_that_it_states(name: str, cases: Mapping[World, tuple[Case, ...]]) -> None:
    laws.covers(BOUNDS[name], cases)


@pytest.mark.law
@pytest.mark.quick
@pytest.mark.parametrize("law", [law for law in laws.LAWS.values() if law is not laws.covers])
@pytest.mark.parametrize("bound", [*BOUNDS.values(), REFINED_PINSKER], ids=lambda bound: bound.name)
def test_every_bound_obeys_every_law(bound: Bound, law: Callable[[Bound], None]) -> None:
    law(bound)


@pytest.mark.slow
def test_a_bound_of_one_s_own_is_checked_by_one_call() -> None:
    laws.check_bound(REFINED_PINSKER)


def altered(bound: Bound, **change: Callable[[Any], Any]) -> Bound:
    """Return a record whose function changes arguments before it computes."""

    def function(**given: Any) -> Certificate:
        return bound.function(**{key: change.get(key, lambda same: same)(value) for key, value in given.items()})

    function.__doc__ = bound.function.__doc__
    function.__signature__ = inspect.signature(bound.function)  # type: ignore[attr-defined]
    return dataclasses.replace(bound, function=function)


def stopped(value: Tensor) -> Tensor:
    return value.detach() if isinstance(value, Tensor) else value


def tighter_at_pooled_rows(said: Premises) -> Premises:
    return dataclasses.replace(said, tried=1 if said.average == "client" else 9)


def free_of_charge(said: Premises) -> Premises:
    return dataclasses.replace(said, prior=Provenance("row-level DP", 1e-9))


_COMPLEXITIES = ("kl", "log_ratio", "kls", "log_z")  # what the choice of hypotheses costs, by each name that it has


@pytest.mark.parametrize("name", list(BOUNDS))
def test_every_bound_fails_where_it_leaves_out_what_a_choice_costs(
    name: str, cases: Mapping[World, tuple[Case, ...]]
) -> None:
    """That of fixed predictors has no choice to pay for, and leaves out its delta."""
    bound = BOUNDS[name]
    wrong = [altered(bound, **{each: lambda nats: 0 * nats}) for each in _COMPLEXITIES if each in bound.needs]
    wrong = wrong or [altered(bound, delta=lambda delta: 1 - 1e-12)]
    with pytest.raises(AssumptionError, match=f"the bound '{name}' breaks the law covers: "):
        laws.covers(wrong[0], cases)


@pytest.mark.parametrize(
    ("bound", "law"),
    [
        (altered(SERVER, delta=lambda delta: 1 - 1e-12), laws.covers),
        (altered(THEOREM_4_2, delta=lambda delta: 1 - 1e-12), laws.covers),
        (altered(THEOREM_3_2, premises=free_of_charge), laws.covers),
        *(
            (dataclasses.replace(one, anytime=True), laws.holds_at_all_n)
            for one in (HOLDOUT_BINOMIAL, BOUNDS["holdout-kl"], BOUNDS["holdout-hoeffding"])
        ),
        (altered(SEEGER, risk=lambda risk: 0.5 - 0.5 * risk), laws.never_rises),
        (altered(SEEGER, n=lambda n: 10**6 // n.int()), laws.never_rises),
        (altered(CATONI, beta=lambda beta: beta + 1), laws.has_the_unit_of_the_loss),
        (altered(SEEGER, kl=stopped), laws.has_slopes),
        (altered(SEEGER, kl=lambda kl: kl.sum()), laws.bounds_clients_one_by_one),
        (altered(SEEGER, kl=lambda kl: kl.mean()), laws.takes_one_shape),
        (altered(SEEGER, monte_carlo=lambda draws: None), laws.pays_for_estimates),
        (altered(SEEGER, premises=lambda said: dataclasses.replace(said, tried=1)), laws.refuses_what_it_cannot_bound),
        (altered(SEEGER, kl=lambda kl: kl.nan_to_num(0, 0)), laws.refuses_what_it_cannot_bound),
        (altered(SEEGER, premises=tighter_at_pooled_rows), laws.pools_as_it_states),
    ],
)
def test_a_wrong_bound_breaks_a_law(
    bound: Bound, law: Callable[..., None], cases: Mapping[World, tuple[Case, ...]]
) -> None:
    with pytest.raises(AssumptionError, match=f"the bound '{bound.name}' breaks the law {law.__name__}: "):
        law(bound, cases) if law is laws.covers else law(bound)


def test_a_formula_that_is_not_the_function_s_is_found_when_it_is_recorded() -> None:
    wrong = dataclasses.replace(REFINED_PINSKER, formula=lambda terms: {"bound": 0.5 * terms["risk"]})
    with pytest.raises(AssumptionError, match="the formula of 'refined Pinsker' is none of"):
        laws.is_rebuilt(wrong)
