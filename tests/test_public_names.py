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
        "update",
        "score",
        "certify",
        "Callback",
        "EarlyStop",
    ),
    "RoundLog",
    *("PacPFLRegressor", "PFedBayesClassifier", "testing.check_method"),
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_of_a_public_function_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a user who copies it: in an empty folder, with nothing imported before."""
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(attrgetter(name)(pacbayes_fl)) or ""
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, 0)
    assert len(example.examples) >= 3
    said: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=said.append)
    assert not failed, "".join(said)
