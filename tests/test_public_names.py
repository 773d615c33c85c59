"""What the package offers by name, and that offering it costs nothing."""

from __future__ import annotations

import ast
import doctest
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

import pacbayes_fl


@pytest.mark.parametrize("name", pacbayes_fl.__all__)
def test_every_public_name_is_there(name: str) -> None:
    value = getattr(pacbayes_fl, name)
    assert value is not None
    if hasattr(value, "__name__") and hasattr(value, "__module__"):
        home = import_module(value.__module__)
        assert getattr(home, value.__name__) is value


def test_the_names_are_sorted_once_each_and_listed() -> None:
    assert len(set(pacbayes_fl.__all__)) == len(pacbayes_fl.__all__)
    assert dir(pacbayes_fl) == pacbayes_fl.__all__ == sorted(pacbayes_fl.__all__)
    stub = ast.parse(Path(pacbayes_fl.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    stated = [(alias.name, alias.asname) for node in imports for alias in node.names]
    assert sorted(stated) == [(name, name) for name in pacbayes_fl.__all__]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'pacbayes_fl' has no attribute 'nothing'"):
        _ = pacbayes_fl.nothing


def test_a_star_import_brings_every_name() -> None:
    space: dict[str, object] = {}
    exec("from pacbayes_fl import *", space)
    assert set(pacbayes_fl.__all__) <= set(space)


def test_importing_the_package_and_the_command_line_loads_no_torch() -> None:
    code = "import sys, pacbayes_fl; print('torch' in sys.modules, len(dir(pacbayes_fl)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, f"False {len(pacbayes_fl.__all__)}\n"), done.stderr


EXAMPLES = (
    *(
        "run",
        "compare",
        "tune",
        "open_run",
        "predict",
        "forecast",
        "forecast_newcomers",
        "update",
        "score",
        "certify",
        "Callback",
        "EarlyStop",
        "ProgressBar",
    ),
    "RoundLog",
    *("PacPFLRegressor", "PFedBayesClassifier", "testing.check_method"),
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_public_function_has_an_example(name: str) -> None:
    """That it runs is tested with those of all docstrings (tests/docs/test_doctests.py)."""
    text = inspect.getdoc(attrgetter(name)(pacbayes_fl)) or ""
    assert len(doctest.DocTestParser().get_examples(text)) >= 3


SEVERAL = re.compile(
    r"(Sequence|Collection|Iterable)\[(str|float|Result|CertifiedRun|Study|Metric|Callback)\]( \| None)?"
)
ONE = {"str": "abc", "float": 0.5}


def _functions(name: str, value: object) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield all that the package offers to call: functions, those of its modules, and methods but for Python's own."""
    if inspect.ismodule(value):
        for each in getattr(value, "__all__", [one for one in vars(value) if not one.startswith("_")]):
            inner = getattr(value, each)
            home = inner.__name__ if inspect.ismodule(inner) else getattr(inner, "__module__", "")
            if str(home).startswith(value.__name__):
                yield from _functions(f"{name}.{each}", inner)
    elif inspect.isclass(value):
        methods = {each: getattr(value, each, None) for each in dir(value) if not each.startswith("_")}
        yield from ((f"{name}.{each}", method) for each, method in methods.items() if inspect.isroutine(method))
    elif callable(value):
        yield name, value


def _arguments(pattern: re.Pattern[str]) -> list[tuple[str, Callable[..., object], str, re.Match[str]]]:
    return [
        (f"{name}({argument})", function, argument, match)
        for public in pacbayes_fl.__all__
        for name, function in _functions(public, getattr(pacbayes_fl, public))
        for argument, kind in getattr(function, "__annotations__", {}).items()
        if argument != "return" and isinstance(kind, str) and (match := pattern.fullmatch(kind))
    ]


def _call(function: Callable[..., object], argument: str, value: object) -> None:
    """Call a function with a value for one argument, and with nothing that could be used for all that it needs."""
    needed = [one for one in inspect.signature(function).parameters.values() if one.default is one.empty]
    named = {one.name: None for one in needed if one.kind is not one.VAR_KEYWORD}
    function(**{**named, argument: value})


@pytest.mark.parametrize(
    ("function", "argument", "kind"),
    [pytest.param(function, argument, match[2], id=name) for name, function, argument, match in _arguments(SEVERAL)],
)
def test_one_value_where_several_are_meant_is_refused_with_what_to_write(
    function: Callable[..., object], argument: str, kind: str
) -> None:
    with pytest.raises(pacbayes_fl.PacBayesFLError, match=rf"^{argument} must be a list, got .*write \["):
        _call(function, argument, ONE.get(kind, object()))


FILE = re.compile(r"Path \| str(?: \| \w+)*")


class Table:
    """Stands for a table of pandas, which may not be there."""

    def to_csv(self, path: str, index: bool) -> None:
        """Write it."""


@pytest.mark.parametrize(
    ("function", "argument"),
    [pytest.param(function, argument, id=name) for name, function, argument, _ in _arguments(FILE)],
)
@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Table(), r"Table \(write it to a file, \.to_csv"),
        (np.zeros((2, 3)), "ndarray"),
        (3, "int"),
        (b"a.csv", "bytes"),
    ],
)
def test_what_is_no_path_where_a_file_is_meant_is_refused_by_name(
    function: Callable[..., object], argument: str, value: object, words: str
) -> None:
    with pytest.raises(pacbayes_fl.PacBayesFLError, match=rf"^{argument} must be a path( or Tensor)?, got {words}"):
        _call(function, argument, value)


RUN = re.compile(r"Trained( \| Served)?")


@pytest.mark.parametrize(
    ("function", "argument"),
    [pytest.param(function, argument, id=name) for name, function, argument, _ in _arguments(RUN)],
)
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("runs/a", r"str \(pacbayes_fl\.open_run\('runs/a'\) opens"),
        (Path("a"), r"\w+Path \(pacbayes_fl\.open_run\('a'\)"),
        (3, r"int \(as open_run"),
    ],
)
def test_what_is_no_run_where_one_is_meant_is_refused_with_what_opens_one(
    function: Callable[..., object], argument: str, value: object, words: str
) -> None:
    with pytest.raises(pacbayes_fl.PacBayesFLError, match=rf"^{argument} must be a run, Trained[\w ]*, got {words}"):
        _call(function, argument, value)


@pytest.mark.parametrize("field", ["tasks", "options", "run", "comparison", "boxes"])
def test_a_metric_refuses_one_text_where_several_are_meant(field: str) -> None:
    with pytest.raises(pacbayes_fl.PacBayesFLError, match=rf'^{field} must be a list, got .*write \["rmse"\]'):
        replace(pacbayes_fl.metrics.METRICS["rmse"], **{field: "rmse"})


def test_a_bound_refuses_one_text_where_several_are_meant() -> None:
    with pytest.raises(pacbayes_fl.PacBayesFLError, match=r'^needs must be a list, got .*write \["risk"\]'):
        replace(pacbayes_fl.bounds.BOUNDS[next(iter(pacbayes_fl.bounds.BOUNDS))], needs="risk")


def test_the_law_of_several_values_sees_all_kinds_of_functions() -> None:
    names = {name for name, *_ in _arguments(SEVERAL)}
    some = "score(clients)", "Study.from_toml(sets)", "plots.save_all(formats)", "bounds.Certificate.to_latex(names)"
    assert names > {*some, "ClientBatch.stack(names)", "plots.box_plots(results)", "testing.check_method(without)"}
    files = {name for name, *_ in _arguments(FILE)}
    assert files > {"score(path)", "forecast(path)", "forecast(later)", "update(path)", "predict(path)", "run(out)"}
    runs = {name for name, *_ in _arguments(RUN)}
    assert runs >= {"certify(trained)", "predict(trained)", "score(trained)", "forecast_newcomers(trained)"}
