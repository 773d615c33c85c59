"""Parameters of estimators: the options of a study's tables, which are derived from their dataclasses."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, NamedTuple

import numpy as np

from pacbayes_fl.files import JsonTable
from pacbayes_fl.options import options_of
from pacbayes_fl.study.config.parts import SEEN
from pacbayes_fl.study.file import Study

_SOURCE: Final = "rows of a program"  # no file: the defaults are those of rows that nobody has tuned anything for
_TAKEN: Final = ("transform",)  # scikit-learn takes an object that has it for a transformer
_NOT_HERE: Final = ("checkpoint_every",)  # an estimator writes nothing
_INTERVALS: Final = ("intervals", "interval_blocks")


class Parameter(NamedTuple):
    """An option of a study as a parameter of an estimator.

    Args:
        name: of the parameter: the option's, behind that of its table where an earlier table has the name or
            scikit-learn means something else by it.
        table: "method", "federation", "model", "data" or "report".
        option: its name there.
        default: what a study of a table of one's own takes; None for an empty table.
        meaning: one or more sentences.
    """

    name: str
    table: str
    option: str
    default: Any
    meaning: str


def parameters_of(method: str) -> tuple[Parameter, ...]:
    """List the parameters of an estimator.

    Args:
        method: of `METHODS`.

    Returns:
        The options of the method, the federation, the model, of [data] those that say how columns are seen, and of
        [report] those of intervals, where the method has such.
    """
    study = _study({"method": {"name": method}})
    result: dict[str, Parameter] = {}
    shown = {"data": SEEN, "report": _INTERVALS if study.recipe.model == "functions" else ()}
    for table in ("method", "federation", "model", "data", "report"):
        part = study.method.options if table == "method" else getattr(study, table)
        known = options_of(type(part))
        for one in fields(part):
            if one.name in _NOT_HERE or one.name not in shown.get(table, (one.name,)):
                continue
            name = f"{table}_{one.name}" if one.name in (*result, *_TAKEN) else one.name
            default = getattr(part, one.name)
            default = None if isinstance(default, Mapping) else default
            result[name] = Parameter(name, table, one.name, default, known[one.name].meaning)
    return tuple(result.values())


def study_of(method: str, known: Sequence[Parameter], given: Mapping[str, object], seed: int, task: str) -> Study:
    """Build the study of an estimator: what is left at its default is settled as in a study of a file.

    Args:
        method: of `METHODS`.
        known: its parameters.
        given: values by parameter.
        seed: of every random draw.
        task: "regression" or "classification".

    Returns:
        The study, without its rows.

    Raises:
        StudyError: naming the option, its table and what it may be.
    """
    table: JsonTable = {"seed": seed, "method": {"name": method}, "data": {"task": task}}
    for one in known:
        if not _same(given[one.name], one.default):
            table.setdefault(one.table, {})[one.option] = _plain(given[one.name])
    return _study(table)


def signature(known: Sequence[Parameter], own: Mapping[str, object]) -> inspect.Signature:
    """Write the signature of an estimator's `__init__`.

    Args:
        known: parameters that are options.
        own: defaults of parameters that are no options, by name.

    Returns:
        Of keywords alone.
    """
    kind = inspect.Parameter.KEYWORD_ONLY
    defaults = {one.name: one.default for one in known} | dict(own)
    keywords = [inspect.Parameter(name, kind, default=default) for name, default in defaults.items()]
    return inspect.Signature([inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD), *keywords])


def arguments(known: Sequence[Parameter]) -> str:
    """Write the parameters as a docstring has them under Args.

    Args:
        known: parameters that are options.

    Returns:
        A paragraph each, with the default.
    """
    return listed({one.name: f"[{one.table}] {one.meaning} Default {one.default!r}." for one in known})


def listed(meanings: Mapping[str, str]) -> str:
    """Write names with their meanings as a docstring has them.

    Args:
        meanings: by name.

    Returns:
        A paragraph each.
    """
    lines = (f"{name}: {text}" for name, text in meanings.items())
    return "\n".join(textwrap.fill(text, 110, initial_indent=" " * 8, subsequent_indent=" " * 12) for text in lines)


def _study(table: JsonTable) -> Study:
    return Study.from_table({**table, "data": {"source": _SOURCE, **table.get("data", {})}}, "the estimator's")


def _same(value: object, default: object) -> bool:
    if value is None or default is None or isinstance(value, str) or isinstance(default, str):
        return type(value) is type(default) and value == default
    return bool(_plain(value) == _plain(default))


def _plain(value: object) -> object:
    """Bring numbers and sequences, such as a grid of NumPy has them, to what tables hold."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    return tuple(_plain(one) for one in value) if isinstance(value, list | tuple) else value
