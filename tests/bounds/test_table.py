"""The table of bounds: its names, its order, and that nothing else names a bound."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import get_args

import pytest

import pacbayes_fl
from pacbayes_fl import bounds
from pacbayes_fl.bounds.bound import ARGUMENTS
from pacbayes_fl.bounds.objective import QUADRATIC, Trainable
from pacbayes_fl.bounds.table import BOUNDS, bound_named, formulas, listing
from pacbayes_fl.errors import AssumptionError
from tests.bounds.own import REFINED_PINSKER


def test_bounds_on_a_client_come_first_and_the_table_is_read_only() -> None:
    groups = [bound.group is None for bound in BOUNDS.values()]
    assert groups == sorted(groups, reverse=True) and next(iter(BOUNDS)) == "seeger"
    assert all(name == bound.name for name, bound in BOUNDS.items())
    with pytest.raises(TypeError):
        BOUNDS["seeger"] = BOUNDS["gibbs"]  # type: ignore[index]


def test_a_bound_is_looked_up_by_name_or_given() -> None:
    assert bound_named("gibbs") is BOUNDS["gibbs"] and bound_named(REFINED_PINSKER) is REFINED_PINSKER
    with pytest.raises(AssumptionError, match=r"bound must be one of seeger, .*, got 'seger'"):
        bound_named("seger")


def test_every_formula_has_one_name() -> None:
    result = formulas(REFINED_PINSKER)
    assert len({id(formula) for formula in result.values()}) == len(result) == len(formulas()) + 1
    assert {id(formula) for formula in result.values()} == {
        id(bound.formula) for bound in (*BOUNDS.values(), REFINED_PINSKER)
    }
    assert result["refined-pinsker"] is REFINED_PINSKER.formula and "theorem-3.2" not in result


def test_every_argument_of_every_bound_is_described() -> None:
    for bound in BOUNDS.values():
        assert ARGUMENTS.keys() >= inspect.signature(bound.function).parameters.keys(), bound.name


@pytest.mark.slow
def test_no_other_module_names_a_bound() -> None:
    """But the records themselves, the list of public functions and that of what clients can descend, an option's
    choices; "server" is also the word for something else.
    """
    assert BOUNDS.keys() >= {*get_args(Trainable), QUADRATIC}
    for path in Path(pacbayes_fl.__file__).parent.rglob("*.py"):
        if path.parent.name == "bounds" and path.name in (
            "bernstein.py",
            "chain.py",
            "client.py",
            "further.py",
            "holdout.py",
            "objective.py",
            "server.py",
            "printed.py",
            "unbounded.py",
            "__init__.py",
        ):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert node.value not in BOUNDS.keys() - {"server"}, (path.name, node.lineno, node.value)


def test_every_bound_is_listed_with_a_line() -> None:
    result = dict(listing())
    assert list(BOUNDS) == list(result)
    for name, text in result.items():
        line, dot, where = text.rpartition(".")
        if name == "recursive":
            assert text.endswith(". [Python: bounds.recursive]")
        elif name == "holdout-betting":  # of whose losses a run has all, and a command line none
            assert text.endswith(". [certify, Python: bounds.holdout_betting]")
        elif BOUNDS[name].group is None:
            assert line and (dot, where) == (".", "")
        elif BOUNDS[name].certifiable:
            assert text.endswith(". [certify]")
        else:
            function = text.rpartition(". [Python: bounds.")[2].removesuffix("]")
            assert getattr(bounds, function) is BOUNDS[name].function
