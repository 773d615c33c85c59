"""What no module may contain: a global store, pickle, shared mutable state, hidden seeds, asserts for checks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.source import complain, dotted, imported, local_names, violations

# Full names, as regular expressions over what `dotted` spells out.
BANNED_NAMES = {
    r"pyro\.(infer\.)?(param|module|get_param_store|clear_param_store)"
    r"|pyro\.nn\..*PyroParam": "parameters are explicit arguments, never in a global store",
    r"torch\.save|.*\.(read_pickle|to_pickle)": "pickles; use safetensors, npz or JSON",
    r"torch\.(cuda\.|mps\.|random\.)*(manual_seed|manual_seed_all|seed|seed_all|set_rng_state)"
    r"|numpy\.random\.seed|pyro\.(util\.)?set_rng_seed": "seeds a generator that everybody shares",
    r"torch\.set_default_(dtype|device|tensor_type)|pyro\.enable_validation": "changes a setting that everybody shares",
}
BANNED_MODULES = r"(_?pickle|cloudpickle|dill|joblib|shelve|marshal)(\.|$)"
# Draws of torch that take generator=...; `*_like` take none. In-place draws are methods of any tensor.
TORCH_DRAWS = r"torch\.(rand|randn|randint|randperm|normal|bernoulli|multinomial|poisson|binomial)"
TORCH_LIKE = r"torch\.(rand|randn|randint)_like|torch\.(nn\.functional\.)?(alpha_|feature_)?dropout"
IN_PLACE = r".*\.(\w*normal_|\w*uniform_|bernoulli_?|multinomial|exponential_|geometric_|cauchy_|random_)"
NUMPY_SEEDED = r"numpy\.random\.(default_rng|SeedSequence|PCG64(DXSM)?|Philox|SFC64|MT19937|RandomState)"
NUMPY_SAFE = rf"({NUMPY_SEEDED}|numpy\.random\.(Generator|BitGenerator))(\.|\(|$)"
SEEDED = rf"{NUMPY_SEEDED}|random\.Random|.*\.manual_seed"
OWN_SOURCE = re.compile(r"noise|generator|rng|eps|^\.random\.", re.IGNORECASE)
MUTABLE_CALLS = (
    r"\.(dict|list|set|bytearray)|collections\.\w+|weakref\.Weak\w+|itertools\.count"
    r"|torch\.(?!device$|Size$|finfo$|iinfo$|jit\.|compile$)[\w.]+|numpy\.(array|zeros|ones|full|empty|arange|linspace)"
)
CACHES = r"functools\.(cache|lru_cache)(\(\))?"
HARMLESS_CALLS = r"collections\.namedtuple"


def style_violations(text: str, path: str) -> Iterator[tuple[int, str]]:
    """Find in one module what no module may contain."""
    tree = ast.parse(text)
    names = local_names(tree, path)
    own = {node for block in ast.walk(tree) if _forks(block, names) for node in ast.walk(block)}
    for statement, _, full in imported(tree, path):
        if re.match(BANNED_MODULES, full):
            yield statement.lineno, f"{full} is pickle or as unsafe"
        yield from ((statement.lineno, what) for what in _banned(full))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            yield node.lineno, "assert disappears under python -O; raise an error of pacbayes_fl.errors"
        elif isinstance(node, ast.Global):
            yield node.lineno, f"global {', '.join(node.names)}: state of a module"
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
                if _mutable(default, names):
                    yield default.lineno, f"default {ast.unparse(default)} is shared by all calls and mutable"
        elif isinstance(node, ast.Attribute) and node not in own:
            yield from ((node.lineno, what) for what in _banned(dotted(node, names)))
        elif isinstance(node, ast.Call):
            yield from ((node.lineno, what) for what in _bad_call(node, dotted(node.func, names), text))
    for target, value in _shared_values(tree.body):
        if target not in ("__all__", "__slots__") and _mutable(value, names):
            yield value.lineno, f"{target} is shared and mutable; use a tuple, a frozenset or MappingProxyType"
    for function in _shared_functions(tree.body):
        if any(re.fullmatch(CACHES, dotted(mark, names)) for mark in function.decorator_list):
            yield function.lineno, f"{function.name} keeps its results in the module; let the caller keep them"


def _forks(node: ast.AST, names: dict[str, str]) -> bool:
    """Tell a block that puts torch's generator back when it ends, in which models of others may be seeded."""
    calls = [item.context_expr for item in node.items] if isinstance(node, ast.With) else []
    return any(isinstance(one, ast.Call) and dotted(one.func, names) == "torch.random.fork_rng" for one in calls)


def _banned(name: str) -> Iterator[str]:
    for pattern, reason in BANNED_NAMES.items():
        if re.fullmatch(pattern, name):
            yield f"{name}: {reason}"
    if name.startswith(("numpy.random.", "random.")) and not re.match(NUMPY_SAFE + r"|random\.Random", name):
        yield f"{name} draws from a generator that everybody shares"


def _bad_call(call: ast.Call, name: str, text: str) -> Iterator[str]:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if name == "torch.load" and not _is(given.get("weights_only"), True):
        yield "torch.load without weights_only=True can run code"
    if not _is(given.get("allow_pickle", ast.Constant(False)), False):
        yield "allow_pickle can run code"
    if name in ("numpy.load", "numpy.save") and len(call.args) > 2 and not _is(call.args[2], False):
        yield "allow_pickle, the third argument, can run code"
    if re.fullmatch(f"{TORCH_LIKE}", name) or (
        re.fullmatch(f"{TORCH_DRAWS}|{IN_PLACE}", name)
        and _is(given.get("generator"), None)
        and not name.startswith("numpy.")
        and not OWN_SOURCE.search(name)
    ):
        yield f"{name.lstrip('.')} without generator= draws from the generator that everybody shares"
    if re.fullmatch(r".*\.(sample|rsample|sample_n)", name) and not name.startswith("pyro."):
        if not OWN_SOURCE.search(ast.get_source_segment(text, call) or ""):
            yield f"{name.lstrip('.')} is given neither noise, eps nor a generator"
    if re.fullmatch(SEEDED, name) and all(isinstance(value, ast.Constant) for value in [*call.args, *given.values()]):
        yield f"{name.lstrip('.')} needs a seed that the caller can see and choose"


def _is(node: ast.expr | None, value: object) -> bool:
    """Whether an argument is the constant; an argument that is not given counts as None."""
    return value is None if node is None else isinstance(node, ast.Constant) and node.value is value


def _shared_values(body: list[ast.stmt]) -> Iterator[tuple[str, ast.expr]]:
    """Yield what modules and classes assign, in nested blocks too, but not what functions do."""
    for statement in body:
        if isinstance(statement, ast.Assign):
            yield from ((ast.unparse(target), statement.value) for target in statement.targets)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            yield ast.unparse(statement.target), statement.value
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            for block in ("body", "orelse", "finalbody", "handlers", "cases"):
                yield from _shared_values(getattr(statement, block, []))


def _shared_functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions of modules and classes, in nested blocks too, but not those inside functions."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield statement
        else:
            for block in ("body", "orelse", "finalbody", "handlers", "cases"):
                yield from _shared_functions(getattr(statement, block, []))


def _mutable(value: ast.expr, names: dict[str, str]) -> bool:
    match value:
        case ast.List() | ast.Set() | ast.Dict() | ast.ListComp() | ast.SetComp() | ast.DictComp():
            return True
        case ast.GeneratorExp():
            return True  # used up by its first reader
        case ast.Tuple(elts=elements):
            return any(_mutable(element, names) for element in elements)
        case ast.BinOp(left=left, right=right):
            return _mutable(left, names) or _mutable(right, names)
        case ast.Call(func=function, args=args):
            name = dotted(function, names)
            if name == "types.MappingProxyType":
                inner = args[0].values if args and isinstance(args[0], ast.Dict) else []
                return any(_mutable(element, names) for element in inner)
            return bool(re.fullmatch(f"{MUTABLE_CALLS}|{CACHES}", name)) and not re.fullmatch(HARMLESS_CALLS, name)
    return False


def test_no_module_contains_what_is_banned() -> None:
    complain(violations(style_violations))


@pytest.mark.parametrize(
    "text",
    [
        "import pyro\ndef f(x):\n    return pyro.param('w', x)",
        "from pyro import param",
        "import pyro as p\ndef f(file):\n    p.get_param_store().load(file)",
        "import pickle",
        "from cloudpickle import dumps",
        "import torch\ndef f(file):\n    return torch.load(file)",
        "import torch\ndef f(file):\n    return torch.load(file, weights_only=False)",
        "import torch\ndef f(file, x):\n    torch.save(x, file)",
        "import numpy as np\ndef f(file):\n    return np.load(file, allow_pickle=True)",
        "import numpy as np\ndef f(file):\n    return np.load(file, None, True)",
        "import numpy as np\ndef f(file, x, unsafe):\n    np.save(file, x, unsafe)",
        "def f(x, seen=[]):\n    return x",
        "def f(x, *, seen={}):\n    return x",
        "class A:\n    def f(self, seen=set()):\n        return seen",
        "def f():\n    return lambda x, seen=dict(): seen",
        "import torch\ndef f(x=torch.zeros(3)):\n    return x",
        "from functools import cache\n@cache\ndef f(x):\n    return x",
        "import functools as ft\n@ft.lru_cache(maxsize=3)\ndef f(x):\n    return x",
        "import functools\nclass A:\n    @functools.lru_cache\n    def f(self):\n        return 1",
        "import functools\ndef g(x):\n    return x\nf = functools.cache(g)",
        "CACHE = {}",
        "CACHE: dict[str, int] = dict()",
        "NAMES = ['a', 'b']",
        "TABLE = ('a', ['b'])",
        "from types import MappingProxyType\nTABLE = MappingProxyType({'a': []})",
        "from collections import defaultdict\nif True:\n    SEEN = defaultdict(list)",
        "class A:\n    seen = set()",
        "import itertools as it\nCOUNTER = it.count()",
        "import torch\nGENERATOR = torch.Generator()",
        "COUNT = 0\ndef f():\n    global COUNT\n    COUNT += 1",
        "import torch\ndef f():\n    torch.manual_seed(0)",
        "from torch import manual_seed",
        "import torch\ndef f():\n    return torch.Generator().manual_seed(0)",
        "import torch\ndef f(n):\n    return torch.randn(n)",
        "import torch\ndef f(n):\n    return torch.randn(n, generator=None)",
        "from torch import rand as r\ndef f(n):\n    return r(n)",
        "import torch\ndef f(x):\n    return torch.randn_like(x)",
        "def f(x):\n    return x.normal_()",
        "import torch.nn as nn\ndef f(x):\n    nn.init.xavier_uniform_(x)",
        "import torch\ndef f(p):\n    return torch.distributions.Bernoulli(p).sample()",
        "def f(q):\n    return q.rsample((3,))",
        "import numpy as np\ndef f():\n    np.random.seed(1)",
        "import numpy as np\ndef f(n):\n    return np.random.randn(n)",
        "from numpy import random as r\ndef f(n):\n    return r.choice(n)",
        "import numpy as np\ndef f():\n    return np.random.default_rng()",
        "import numpy as np\ndef f():\n    return np.random.default_rng(0)",
        "import numpy as np\ndef f():\n    return np.random.RandomState()",
        "import random\ndef f(x):\n    random.shuffle(x)",
        "from random import shuffle",
        "import torch\ntorch.set_default_dtype(torch.float64)",
        "def f(n):\n    assert n > 0",
    ],
)
def test_a_planted_violation_is_found(text: str) -> None:
    assert list(style_violations(text, "pacbayes_fl/planted.py"))


GOOD = """
import functools
import random
import re
from types import MappingProxyType
import numpy as np
import pyro
import torch
__all__ = ["A"]
TABLE = MappingProxyType({"a": 1, "b": (2, 3)})
LEVELS = tuple(i / 10 for i in range(10))
NAMES = frozenset({"a"})
WORD = re.compile("x")
DEVICE = torch.device("cpu")
class A:
    shape: tuple[int, ...] = ()
    @functools.cached_property
    def width(self):
        return 3
    def sample(self, draws, noise):
        return self.inner.sample(draws, noise) + pyro.sample("w", self.site(noise))
def f(seed, device, n, file, x, rng, sizes=(1, 2), *, names=None, scale=1.0, where=torch.device("cpu")):
    own = {}
    @functools.cache
    def local(i):
        return own[i]
    np.load(file, None, False), np.save(file, x, False)
    generator = torch.Generator(device).manual_seed(seed)
    random.Random(seed).shuffle(own)
    generator_2 = np.random.default_rng(np.random.SeedSequence([seed, 3]))
    random_2 = random.Random(seed)
    legacy: np.random.RandomState = np.random.RandomState(seed)
    generator_2.normal(size=n), random_2.random(), rng.multinomial(3, x), np.load(file, allow_pickle=False)
    torch.empty(n).normal_(generator=generator)
    return torch.randn(n, generator=generator), torch.load(file, weights_only=True)
"""


def test_good_style_passes() -> None:
    assert list(style_violations(GOOD, "pacbayes_fl/good.py")) == []
