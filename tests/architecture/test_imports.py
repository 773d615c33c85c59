"""Imports go one way: every module may use lower ranks and its own room, and the exceptions stand in one table."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.architecture.source import ROOT, complain, dotted, imported, local_names, modules, violations

# A room is the longest prefix of a module's name, behind `pacbayes_fl.`, that stands here; rooms of one rank do not
# import each other, and the modules of one room may.
STUDY = (  # the stages of a study, from its file to what is read from its runs; of two names that fit the first counts
    ("study.config", "study.file"),
    (
        *("study.data", "study.rows", "study.size", "study.duration", "study.privacy", "study.residuals"),
        *("study.storage.origins", "study.storage.saved_meta"),
    ),
    (
        *("study.prepare", "study.deployment.claims", "study.deployment.roster", "study.method_names"),
        *("study.threads", "study.uncertifiable"),
    ),
    ("study.evaluate",),
    ("study.search",),
    (
        *("study.callbacks", "study.progress", "study.training", "study.run", "study.check"),
        *("study.storage", "study.deployment"),
    ),
    ("study.audit", "study.compare", "study.describe", "study.drafting", "study.estimators", "study.serving"),
)
STAGES = {module: f"study:{at}" for at, stage in enumerate(STUDY) for module in stage}
RANKS = {
    **dict.fromkeys(("names",), 0),
    **dict.fromkeys(("errors",), 1),
    **dict.fromkeys(("files", "options", "tensors", "settings"), 2),
    **dict.fromkeys(("plugins",), 2.5),
    **dict.fromkeys(("noise", "results"), 3),
    **dict.fromkeys(("data",), 4),
    **dict.fromkeys(("models",), 5),
    **dict.fromkeys(("posteriors",), 6),
    **dict.fromkeys(("inference", "server", "privacy"), 7),
    **dict.fromkeys(("methods",), 8),
    **dict.fromkeys(("federation",), 9),
    **{f"study:{at}": 10 + at / len(STUDY) for at in range(len(STUDY))},
    **dict.fromkeys(("certificates",), 11),
    **dict.fromkeys(("testing",), 12),
}
SIDE = {"bounds", "metrics", "pages", "plots"}


def _below(rank: float) -> set[str]:
    return {room for room, its_rank in RANKS.items() if its_rank < rank}


MAY_IMPORT = {room: _below(rank) for room, rank in RANKS.items()}
for _room in {*STAGES.values(), "certificates"}:
    MAY_IMPORT[_room] |= {"metrics", "pages", "plots", "data_gen"}
for _room in ("methods", STAGES["study.describe"], "certificates", "testing"):
    MAY_IMPORT[_room] |= {"bounds"}
MAY_IMPORT |= {
    "metrics": _below(7),
    "bounds": _below(7),
    "plots": {"names", "errors", "files", "results"},
    "pages": {"names", "errors", "files", "results"},
    "study": set(),  # its `__init__.py`
    "cli": {
        *("names", "errors", "files", "settings", "results", "certificates", "pages", "plots", "__version__"),
        *STAGES.values(),
    },
    "__main__": {"cli"},
    "__init__": {*RANKS, *SIDE},  # the package's public names; no module of the package imports them from there
    "data_gen": set(),
}
ONLY_IN_A_FUNCTION = {("cli", "pages"), ("cli", "plots")}
ONLY_IN = {"flwr": r"pacbayes_fl/federation/flower/", "pvlib": r"(data_gen/|pacbayes_fl/data/clear_sky\.py)"}
NEVER = {"data_gen": {"torch"}, "pacbayes_fl": set()}
FLOORS = 12  # of the drawing in which a folder is one room


def room(module: str) -> str:
    """Return the room of a module's full name; "" for the package itself."""
    package, *rest = module.split(".")
    if package != "pacbayes_fl":
        return package
    name = ".".join(rest)
    for module, stage in STAGES.items():
        if f"{name}.".startswith(f"{module}."):
            return stage
    return rest[0] if rest else ""


def import_violations(text: str, path: str) -> Iterator[tuple[int, str]]:
    """Compare the import statements of one module with the tables above."""
    tree = ast.parse(text)
    top_level = {id(node) for node in _outside_functions(tree)}
    here = room(path.removesuffix(".py").replace("/", "."))
    if here not in MAY_IMPORT or (here == "study" and not path.endswith("/__init__.py")):
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


def _graph(name_of: Callable[[str], str]) -> dict[str, set[str]]:
    """Return which names import which, of modules by `name_of`; imports for type checking count too."""
    known = {path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): path for path in modules()}
    graph: dict[str, set[str]] = {name_of(module): set() for module in known}
    for module, path in known.items():
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        full = [name for _, _, name in imported(tree, path)]
        used = {name if name in known else name.rpartition(".")[0] for name in full}
        graph[name_of(module)] |= {name_of(name) for name in used & set(known)} - {name_of(module)}
    return graph


def _floors(graph: dict[str, set[str]]) -> int:
    """Count the floors on which everything stands above all that it imports; a circle raises CycleError."""
    floor: dict[str, int] = {}
    for name in TopologicalSorter(graph).static_order():
        floor[name] = 1 + max((floor[below] for below in graph[name]), default=0)
    return max(floor.values())


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert _floors(_graph(lambda module: module)) > FLOORS  # a circle would raise


def test_folders_stand_on_few_floors() -> None:
    graph = _graph(lambda module: ".".join(module.split(".")[:2]))
    assert (
        _floors({room: below for room, below in graph.items() if room != "pacbayes_fl.__main__"}) <= FLOORS
    )  # starts cli


def test_few_modules_stand_beside_the_folders() -> None:
    beside = [path for path in modules() if path.startswith("pacbayes_fl/") and path.count("/") == 1]
    assert len([path for path in beside if not path.endswith("__main__.py")]) <= 8


def test_a_circle_and_a_floor_too_many_are_found() -> None:
    assert _floors({"a": {"b"}, "b": {"c"}, "c": set()}) == 3
    with pytest.raises(CycleError):
        _floors({"a": {"b"}, "b": {"a"}})


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("pacbayes_fl/errors.py", "import pacbayes_fl.tensors"),
        ("pacbayes_fl/noise.py", "from pacbayes_fl.inference.optim import adam"),  # one rank
        ("pacbayes_fl/tensors.py", "from pacbayes_fl.metrics.shapes import require"),
        ("pacbayes_fl/metrics/shapes.py", "from pacbayes_fl.inference import evidence"),
        ("pacbayes_fl/settings.py", "from pacbayes_fl.results.records import Result"),
        ("pacbayes_fl/models/base.py", "from pacbayes_fl import methods"),
        ("pacbayes_fl/models/base.py", "from ..methods import base"),
        ("pacbayes_fl/models/base.py", "from pacbayes_fl import METHODS"),  # a public name, through the front door
        ("pacbayes_fl/models/base.py", "import pacbayes_fl"),
        ("pacbayes_fl/models/base.py", "def f():\n    import pacbayes_fl.methods as m"),
        (
            "pacbayes_fl/models/base.py",
            "if TYPE_CHECKING:\n    from pacbayes_fl.posteriors.predictive import Posterior",
        ),
        ("pacbayes_fl/server/svgd.py", "from pacbayes_fl.inference.evidence import particle_scores"),
        ("pacbayes_fl/privacy/ledger.py", "from pacbayes_fl.server import average"),
        ("pacbayes_fl/metrics/regression.py", "from pacbayes_fl.inference import evidence"),
        ("pacbayes_fl/metrics/regression.py", "from pacbayes_fl.bounds import classic"),
        ("pacbayes_fl/results/metrics.py", "from pacbayes_fl.metrics.regression import rmse"),
        ("pacbayes_fl/plots/style.py", "from pacbayes_fl.metrics import regression"),
        ("pacbayes_fl/plots/style.py", "from pacbayes_fl.metrics import METRICS"),
        ("pacbayes_fl/methods/pac_pfl/gp.py", "from pacbayes_fl.metrics import regression"),
        ("pacbayes_fl/server/pooled.py", "from pacbayes_fl.bounds import classic"),
        ("pacbayes_fl/plots/learning.py", "from pacbayes_fl.data.batch import ClientBatch"),
        ("pacbayes_fl/federation/engine.py", "from pacbayes_fl import study"),
        ("pacbayes_fl/federation/engine.py", "import flwr.app"),
        ("pacbayes_fl/federation/engine.py", "import data_gen"),
        ("pacbayes_fl/cli/run.py", "from pacbayes_fl.federation import engine"),
        ("pacbayes_fl/cli/run.py", "from pacbayes_fl import plots"),
        ("pacbayes_fl/study/run.py", "from pacbayes_fl import cli"),
        ("pacbayes_fl/study/run.py", "from pacbayes_fl.certificates import clients"),
        ("pacbayes_fl/study/data.py", "from pacbayes_fl.study.run import run"),
        ("pacbayes_fl/study/search/tune.py", "from pacbayes_fl.study import run"),
        ("pacbayes_fl/study/new.py", "import math"),
        ("pacbayes_fl/study/run.py", "import pvlib"),
        ("pacbayes_fl/study/run.py", "from tests.conftest import data_root"),
        ("pacbayes_fl/models/base.py", "import importlib\nimportlib.import_module('pacbayes_fl.methods.pac_pfl.gp')"),
        ("pacbayes_fl/models/base.py", "from importlib import import_module as get\ndef f():\n    get('..methods')"),
        ("pacbayes_fl/models/base.py", "from importlib import import_module\nimport_module(name='pacbayes_fl')"),
        ("pacbayes_fl/federation/engine.py", "import importlib as i\ni.import_module('flwr.app')"),
        ("pacbayes_fl/models/base.py", "__import__('pacbayes_fl.study.run')"),
        ("pacbayes_fl/cli/run.py", "from importlib import import_module\nPLOTS = import_module('pacbayes_fl.plots')"),
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
        ("pacbayes_fl/__init__.py", "from pacbayes_fl.study.run import Study\nfrom pacbayes_fl import bounds, plots"),
        ("pacbayes_fl/__init__.py", "from importlib import import_module\nimport_module(f'pacbayes_fl.{name}')"),
        ("pacbayes_fl/models/base.py", "from importlib import import_module\nimport_module('pacbayes_fl.data.batch')"),
        ("pacbayes_fl/models/base.py", "import importlib\nimportlib.import_module('math'), importlib.reload(x)"),
        ("pacbayes_fl/__main__.py", "from pacbayes_fl.cli import main"),
        ("pacbayes_fl/settings.py", "from pacbayes_fl.errors import StudyError"),
        ("pacbayes_fl/inference/optim.py", "from pacbayes_fl import tensors, errors"),
        ("pacbayes_fl/methods/pac_pfl/gp.py", "from ..server import svgd\nfrom . import base\nimport torch"),
        ("pacbayes_fl/methods/baselines/pooled.py", "from pacbayes_fl.methods.base import Method"),
        ("pacbayes_fl/bounds/pac_pfl.py", "from pacbayes_fl.posteriors.hyper_posterior import HyperPosterior"),
        ("pacbayes_fl/federation/flower/client_app.py", "from flwr.clientapp import ClientApp"),
        ("pacbayes_fl/plots/style.py", "from pacbayes_fl.results.metrics import METRICS"),
        ("pacbayes_fl/plots/style.py", "from pacbayes_fl.results import recorded"),
        ("pacbayes_fl/metrics/__init__.py", "from pacbayes_fl.results.metrics import METRICS"),
        ("pacbayes_fl/study/run.py", "import data_gen.pv\nfrom pacbayes_fl import metrics"),
        ("pacbayes_fl/study/config/parts.py", "from pacbayes_fl.methods import METHODS"),
        ("pacbayes_fl/study/search/tune.py", "from pacbayes_fl.study.file import Study"),
        ("pacbayes_fl/cli/run.py", "from pacbayes_fl.study import run\ndef plot():\n    from pacbayes_fl import plots"),
        ("data_gen/pv.py", "import pvlib\nfrom data_gen.weather import read\nfrom .manifest import versions"),
    ],
)
def test_a_good_import_passes(path: str, text: str) -> None:
    assert list(import_violations(text, path)) == []


def test_importing_the_package_loads_no_optional_dependency() -> None:
    optional = ("matplotlib", "pandas", "pvlib", "pyarrow", "flwr", "torchvision", "tensorboard")
    code = f"import sys, pacbayes_fl, pacbayes_fl.cli; print([m for m in {optional} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
