"""Imports go one way: every module may use lower ranks and its own room, and the exceptions stand in one table."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.architecture.source import complain, dotted, imported, local_names, violations

# A room is what follows `pacbayes_fl.`; rooms of one rank do not import each other.
RANKS = {
    **dict.fromkeys(("names",), -0.5),
    **dict.fromkeys(("errors", "records"), 0),
    **dict.fromkeys(("options",), 0.25),
    **dict.fromkeys(("files", "memory", "shapes", "tensors", "settings"), 0.5),
    **dict.fromkeys(("noise", "optim", "results"), 1),
    **dict.fromkeys(("data",), 2),
    **dict.fromkeys(("models",), 3),
    **dict.fromkeys(("posteriors",), 4),
    **dict.fromkeys(("inference", "server", "privacy"), 5),
    **dict.fromkeys(("methods",), 6),
    **dict.fromkeys(("federation",), 7),
    **dict.fromkeys(("study",), 8),
}
SIDE = {"bounds", "metrics", "plots", "report"}
# Modules that belong to a room of another name; `study_x.py` belongs to `study`. The literal tables of what a run
# records stand in the room of metrics, import nothing of the package, and are read from everywhere.
ALIASES = {"tune": "study", "metrics.table": "records", "metrics.recorded": "records"}


def _below(rank: float) -> set[str]:
    return {room for room, its_rank in RANKS.items() if its_rank < rank}


MAY_IMPORT = {room: _below(rank) for room, rank in RANKS.items()} | {
    "metrics": _below(5),
    "bounds": _below(5),
    "plots": {"names", "errors", "records", "files", "results"},
    "report": {"names", "errors", "records", "results", "plots"},
    "study": _below(8) | SIDE | {"data_gen"},
    "cli": {"names", "errors", "records", "files", "results", "study", "plots", "__version__"},
    "__main__": {"cli"},
    "__init__": {*RANKS, *SIDE},  # the package's public names; no module of the package imports them from there
    "data_gen": set(),
}
ONLY_IN_A_FUNCTION = {("cli", "plots")}
ONLY_IN = {"flwr": r"pacbayes_fl/federation/flower_\w+\.py", "pvlib": r"data_gen/"}
NEVER = {"data_gen": {"torch"}, "pacbayes_fl": set()}


def room(module: str) -> str:
    """Return the room of a module's full name; "" for the package itself."""
    package, *rest = module.split(".")
    if package != "pacbayes_fl":
        return package
    name = rest[0] if rest else ""
    name = next((inner for inner in ALIASES if ".".join(rest[:2]) == inner), name)
    return ALIASES.get(name, name if name.startswith("_") else name.split("_")[0])


def import_violations(text: str, path: str) -> Iterator[tuple[int, str]]:
    """Compare the import statements of one module with the tables above."""
    tree = ast.parse(text)
    top_level = {id(node) for node in _outside_functions(tree)}
    here = room(path.removesuffix(".py").replace("/", "."))
    if here not in MAY_IMPORT:
        yield 1, f"room {here!r} has no rank"
        return
    statements = [(node, full) for node, _, full in imported(tree, path)]
    for node, full in [*statements, *_called(tree, path)]:
        top = full.split(".")[0]
        if top in ONLY_IN and not re.match(ONLY_IN[top], path):
            yield node.lineno, f"{top} may be imported only in {ONLY_IN[top]}"
        if top in NEVER[path.split("/")[0]] | {"tests", "benchmarks"}:
            yield node.lineno, f"{here} may not import {top}"
        if top not in ("pacbayes_fl", "data_gen") or room(full) == here:
            continue
        if room(full) not in MAY_IMPORT[here]:
            yield node.lineno, f"{here} may not import {room(full) or 'the package itself'} ({full})"
        elif (here, room(full)) in ONLY_IN_A_FUNCTION and id(node) in top_level:
            yield node.lineno, f"{here} may import {room(full)} only inside a function"


def _called(tree: ast.AST, path: str) -> Iterator[tuple[ast.Call, str]]:
    """Yield each import by a call with the full name, where that is a literal: `import_module("pacbayes_fl.data")`."""
    names = local_names(tree, path)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func, names) in ("importlib.import_module", ".__import__"):
            given = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "name")]
            for name in given:
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    tail = name.value.lstrip(".")
                    dots = len(name.value) - len(tail)  # relative to the module's own package
                    parts = path.removesuffix(".py").split("/")
                    yield node, ".".join([*(parts[:-dots] if dots else []), tail])


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _outside_functions(child)


def test_imports_go_one_way() -> None:
    complain(violations(import_violations))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("pacbayes_fl/errors.py", "import pacbayes_fl.tensors"),
        ("pacbayes_fl/noise.py", "from pacbayes_fl.optim import adam"),  # one rank
        ("pacbayes_fl/tensors.py", "from pacbayes_fl.shapes import require"),
        ("pacbayes_fl/shapes.py", "from pacbayes_fl.noise import Noise"),
        ("pacbayes_fl/settings.py", "from pacbayes_fl.results import Result"),
        ("pacbayes_fl/models/base.py", "from pacbayes_fl import methods"),
        ("pacbayes_fl/models/base.py", "from ..methods import base"),
        ("pacbayes_fl/models/base.py", "from pacbayes_fl import METHODS"),  # a public name, through the front door
        ("pacbayes_fl/models/base.py", "import pacbayes_fl"),
        ("pacbayes_fl/models/base.py", "def f():\n    import pacbayes_fl.methods as m"),
        ("pacbayes_fl/models/base.py", "if TYPE_CHECKING:\n    from pacbayes_fl.posteriors.base import Posterior"),
        ("pacbayes_fl/server/svgd.py", "from pacbayes_fl.inference.evidence import particle_scores"),
        ("pacbayes_fl/privacy/ledger.py", "from pacbayes_fl.server import average"),
        ("pacbayes_fl/metrics/regression.py", "from pacbayes_fl.inference import evidence"),
        ("pacbayes_fl/metrics/regression.py", "from pacbayes_fl.bounds import classic"),
        ("pacbayes_fl/metrics/table.py", "from pacbayes_fl.metrics.regression import rmse"),
        ("pacbayes_fl/metrics/recorded.py", "from pacbayes_fl.results import Result"),
        ("pacbayes_fl/plots/style.py", "from pacbayes_fl.metrics import regression"),
        ("pacbayes_fl/plots/style.py", "from pacbayes_fl.metrics import METRICS"),
        ("pacbayes_fl/methods/pac_pfl.py", "from pacbayes_fl.metrics import regression"),
        ("pacbayes_fl/methods/baselines/pooled.py", "from pacbayes_fl.bounds import classic"),
        ("pacbayes_fl/plots/learning.py", "from pacbayes_fl.data.batch import ClientBatch"),
        ("pacbayes_fl/federation/engine.py", "from pacbayes_fl import study"),
        ("pacbayes_fl/federation/engine.py", "import flwr.app"),
        ("pacbayes_fl/federation/engine.py", "import data_gen"),
        ("pacbayes_fl/cli.py", "from pacbayes_fl.federation import engine"),
        ("pacbayes_fl/cli.py", "from pacbayes_fl import plots"),
        ("pacbayes_fl/study.py", "from pacbayes_fl import cli"),
        ("pacbayes_fl/study.py", "import pvlib"),
        ("pacbayes_fl/study.py", "from tests.conftest import data_root"),
        ("pacbayes_fl/models/base.py", "import importlib\nimportlib.import_module('pacbayes_fl.methods.pac_pfl')"),
        ("pacbayes_fl/models/base.py", "from importlib import import_module as get\ndef f():\n    get('..methods')"),
        ("pacbayes_fl/models/base.py", "from importlib import import_module\nimport_module(name='pacbayes_fl')"),
        ("pacbayes_fl/federation/engine.py", "import importlib as i\ni.import_module('flwr.app')"),
        ("pacbayes_fl/models/base.py", "__import__('pacbayes_fl.study')"),
        ("pacbayes_fl/cli.py", "from importlib import import_module\nPLOTS = import_module('pacbayes_fl.plots')"),
        ("pacbayes_fl/utils.py", "import math"),
        ("data_gen/pv.py", "from pacbayes_fl.errors import DataError"),
        ("data_gen/pv.py", "import torch"),
    ],
)
def test_a_planted_import_is_found(path: str, text: str) -> None:
    assert list(import_violations(text, path))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("pacbayes_fl/__init__.py", "from pacbayes_fl.study import Study\nfrom pacbayes_fl import bounds, plots"),
        ("pacbayes_fl/__init__.py", "from importlib import import_module\nimport_module(f'pacbayes_fl.{name}')"),
        ("pacbayes_fl/models/base.py", "from importlib import import_module\nimport_module('pacbayes_fl.data.batch')"),
        ("pacbayes_fl/models/base.py", "import importlib\nimportlib.import_module('math'), importlib.reload(x)"),
        ("pacbayes_fl/__main__.py", "from pacbayes_fl.cli import main"),
        ("pacbayes_fl/settings.py", "from pacbayes_fl.errors import StudyError"),
        ("pacbayes_fl/optim.py", "from pacbayes_fl import tensors, shapes, errors"),
        ("pacbayes_fl/methods/pac_pfl.py", "from ..server import svgd\nfrom . import base\nimport torch"),
        ("pacbayes_fl/methods/baselines/pooled.py", "from pacbayes_fl.methods.base import Method"),
        ("pacbayes_fl/bounds/pac_pfl.py", "from pacbayes_fl.posteriors.particles import HyperPosterior"),
        ("pacbayes_fl/federation/flower_client.py", "from flwr.clientapp import ClientApp"),
        ("pacbayes_fl/plots/style.py", "from pacbayes_fl.metrics.table import METRICS"),
        ("pacbayes_fl/plots/style.py", "from pacbayes_fl.metrics import recorded"),
        ("pacbayes_fl/metrics/__init__.py", "from pacbayes_fl.metrics.table import METRICS"),
        ("pacbayes_fl/study.py", "import data_gen.pv\nfrom pacbayes_fl import study_parts, tune, metrics, report"),
        ("pacbayes_fl/study_parts.py", "from pacbayes_fl.methods import METHODS"),
        ("pacbayes_fl/tune.py", "from pacbayes_fl.study import Study"),
        ("pacbayes_fl/cli.py", "from pacbayes_fl import study\ndef plot():\n    from pacbayes_fl import plots"),
        ("data_gen/pv.py", "import pvlib\nfrom data_gen.weather import read\nfrom .manifest import versions"),
    ],
)
def test_a_good_import_passes(path: str, text: str) -> None:
    assert list(import_violations(text, path)) == []


def test_importing_the_package_loads_no_optional_dependency() -> None:
    optional = ("matplotlib", "pandas", "pvlib", "pyarrow", "flwr", "torchvision")
    code = f"import sys, pacbayes_fl, pacbayes_fl.cli; print([m for m in {optional} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
