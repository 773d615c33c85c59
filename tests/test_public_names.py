"""What the package offers by name, and that offering it costs nothing."""

from __future__ import annotations

import ast
import doctest
import inspect
import subprocess
import sys
from importlib import import_module
from operator import attrgetter
from pathlib import Path

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
