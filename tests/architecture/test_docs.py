"""Every public function, class and method says what it does, states the shape of its tensors and is fully typed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.architecture.source import complain, violations

Function = ast.FunctionDef | ast.AsyncFunctionDef
# One size: `K`, `*feature`, `*`, `...`, `3`, `groups * N`, `min(n, N)`, `sum of k_i`.
SIZE = r"(?:\.\.\.|…|\*|\*?[A-Za-z]\w*|\d+|\w+(?: ?[-+*/·] ?\w+)+|(?:min|max)\(\w+, \w+\)|sum of \w+)"
SHAPE = re.compile(rf"\[(?:(?![\d, ]+\]){SIZE}(?:,\s+{SIZE})*)?\]")  # "[K, N]", "[]"; not "[0, 1]", "[Smith 2020]"
SECTION = re.compile(r"^\s*(Args|Returns|Raises|Yields|Attributes|Note|Example|References)s?:\s*$")


def docs_violations(text: str, path: str) -> Iterator[tuple[int, str]]:
    """Find public definitions without docstring, shapes or types in one module."""
    tree = ast.parse(text)
    if not ast.get_docstring(tree):
        yield 1, "module without docstring"
    yield from _public(tree.body, "", "")


def _public(body: list[ast.stmt], owner: str, class_doc: str) -> Iterator[tuple[int, str]]:
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            doc = ast.get_docstring(node)
            if not doc:
                yield node.lineno, f"class {node.name} without docstring"
            yield from _public(node.body, f"{owner}{node.name}.", doc or "")
        elif isinstance(node, Function) and (not node.name.startswith("_") or node.name in ("__init__", "__call__")):
            yield from ((node.lineno, f"{owner}{node.name}{what}") for what in _function(node, class_doc, bool(owner)))
        elif isinstance(node, ast.If | ast.Try):
            yield from _public([*node.body, *node.orelse], owner, class_doc)


def _function(node: Function, class_doc: str, is_method: bool) -> Iterator[str]:
    marks = {ast.unparse(mark).split(".")[-1] for mark in node.decorator_list}
    spec = node.args
    arguments = [(a.arg, a.annotation) for a in [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]]
    arguments += [(a.arg, a.annotation) for a in (spec.vararg, spec.kwarg) if a is not None]
    if is_method and "staticmethod" not in marks:
        arguments = arguments[1:]
    for name, annotation in arguments:
        if annotation is None:
            yield f": argument {name} is not typed"
    if node.returns is None:
        yield ": the result is not typed"
    if marks & {"overload", "override"}:  # documented where it is first declared
        return
    doc = ast.get_docstring(node) or ""
    if not doc and node.name not in ("__init__", "__call__"):
        yield " without docstring"
    if node.name == "__init__":
        doc = f"{doc}\n{class_doc}"
    for name, annotation in arguments:
        if annotation is not None and _is_tensor(annotation) and not _has_shape(doc, name, is_method):
            yield f": no shape in brackets on the Args line of tensor {name}"
    if node.returns is not None and _returns_tensor(node.returns) and not SHAPE.search(_result(doc)):
        yield ": no shape in brackets under Returns or in the summary of a function that returns a tensor"


def _is_tensor(annotation: ast.expr) -> bool:
    """Whether the argument itself may be a tensor: `Tensor`, `torch.Tensor | None`; not a container or a callable."""
    match annotation:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _is_tensor(left) or _is_tensor(right)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=inner):
            return _is_tensor(inner)
        case ast.Constant(value=str(quoted)):
            return _is_tensor(ast.parse(quoted, mode="eval").body)
    return ast.unparse(annotation) in ("Tensor", "torch.Tensor")


def _returns_tensor(annotation: ast.expr) -> bool:
    """Whether the result is a tensor or a tuple that holds one."""
    match annotation:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _returns_tensor(left) or _returns_tensor(right)
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=parts)):
            return any(map(_returns_tensor, parts))
        case ast.Subscript(value=ast.Name(id="tuple"), slice=part):
            return _returns_tensor(part)
    return _is_tensor(annotation)


def _result(doc: str) -> str:
    """Return what stands before the first section, and under "Returns:"."""
    kept, inside = [], True
    for line in doc.splitlines():
        if SECTION.match(line):
            inside = line.strip() == "Returns:"
        elif inside:
            kept.append(line)
    return "\n".join(kept)


def _has_shape(doc: str, name: str, is_method: bool) -> bool:
    """Whether the Args line has a shape; a method without "Args:" may say `at targets y [K, N]` in its summary."""
    if is_method and "Args:" not in doc:
        return bool(re.search(rf"\b{re.escape(name)}\b`{{0,2}}(,? and \w+)?\s*{SHAPE.pattern}", doc))
    return bool(SHAPE.search(_entry(doc, name)))


def _entry(doc: str, name: str) -> str:
    """Return an argument's line under "Args:" with the lines that continue it; "" where there is none."""
    entry, inside, indent = [], False, None
    for line in doc.splitlines():
        if SECTION.match(line):
            inside = line.strip() in ("Args:", "Attributes:")
        elif inside and line.strip():
            depth = len(line) - len(line.lstrip())
            if re.match(rf"\s*\*{{0,2}}{re.escape(name)}\s*(\([^)]*\))?:", line):
                indent = depth
                entry.append(line)
            elif indent is not None and depth > indent:
                entry.append(line)
            else:
                indent = None
    return "\n".join(entry)


def test_public_definitions_are_documented_and_typed() -> None:
    complain(violations(docs_violations))


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("x = 1", "module without docstring"),
        ('"""M."""\ndef f() -> None: ...', "f without docstring"),
        ('"""M."""\nclass A:\n    """A."""\n    def f(self) -> None: ...', "A.f without docstring"),
        ('"""M."""\nclass A: ...', "class A without docstring"),
        ('"""M."""\ndef f(x) -> None:\n    """F."""', "argument x is not typed"),
        ('"""M."""\ndef f(*x, **y: int) -> None:\n    """F."""', "argument x is not typed"),
        ('"""M."""\ndef f(x: int):\n    """F."""', "the result is not typed"),
        ('"""M."""\ndef f(x: Tensor) -> None:\n    """F."""', "tensor x"),
        (
            '"""M."""\ndef f(x: "torch.Tensor | None") -> None:\n    """F.\n\n    Args:\n        x: rows.\n    """',
            "tensor x",
        ),
        (
            '"""M."""\ndef f(x: Tensor, y: Tensor) -> None:\n'
            '    """F.\n\n    Args:\n        x: rows.\n        y: targets [K, N].\n\n'
            '    Returns:\n        x: a [K]\n    """',
            "tensor x",
        ),
        ('"""M."""\nclass A:\n    """A."""\n    def __init__(self, x: Tensor) -> None: ...', "tensor x"),
        ('"""M."""\ndef f(x: Tensor) -> None:\n    """F at x [K]: the Args line is for functions."""', "tensor x"),
        (
            '"""M."""\nclass A:\n    """A."""\n    def f(self, x: Tensor) -> None:\n        """F [K] at x."""',
            "tensor x",
        ),
        ('"""M."""\ndef f() -> Tensor:\n    """F."""', "returns a tensor"),
        ('"""M."""\ndef f() -> tuple[Tensor, int]:\n    """F."""', "returns a tensor"),
        ('"""M."""\ndef f() -> tuple[Tensor, ...] | None:\n    """F, after [Smith 2020]."""', "returns a tensor"),
        (
            '"""M."""\ndef f(x: Tensor) -> Tensor:\n    """F.\n\n    Args:\n        x: rows [K, N].\n\n'
            '    Returns:\n        A number in [0, 1].\n    """',
            "returns a tensor",
        ),
        ('"""M."""\nclass A:\n    """A."""\n    @property\n    def f(self) -> Tensor:\n        """F."""', "a tensor"),
        (
            '"""M."""\ndef f(x: Tensor) -> None:\n    """F.\n\n    Args:\n        x: rows of [Smith 2020].\n    """',
            "tensor x",
        ),
        ('"""M."""\nclass A:\n    """A."""\n    @override\n    def f(self, x) -> None: ...', "argument x is not typed"),
    ],
)
def test_a_planted_omission_is_found(text: str, fragment: str) -> None:
    assert any(fragment in what for _, what in docs_violations(text, "pacbayes_fl/planted.py"))


GOOD = '''
"""M."""
class A:
    """A.

    Args:
        x: rows [K, N, *feature].
    """
    def __init__(self, x: Tensor) -> None: ...
    @property
    def size(self) -> Tensor:
        """Return real rows [K]."""
    @staticmethod
    def g(x: Tensor) -> tuple[Tensor, Tensor]:
        """G.

        Args:
            x: a scalar [].

        Returns:
            The lower and the upper half [*S, K, min(n, N), 3].
        """
    @override
    def h(self, x: Tensor) -> None: ...
    def log_prob(self, y: Tensor) -> Tensor:
        """Log density [K, N] at targets y [K, N]."""
    def _private(self, x): ...
def f(x: Tensor | None, flat: Mapping[str, Tensor], *more: Tensor) -> None:
    """F.

    Args:
        x: rows
            of clients [K, N].
        flat: what `leaves` returned.
        *more: further tensors [..., N].
    """
'''


@pytest.mark.parametrize(
    "text", ["[K, P, D]", "[*]", "[]", "[K, N, *feature]", "[..., N]", "[3, N]", "[B, groups * N, F]", "[K, min(n, N)]"]
)
def test_a_shape_looks_like_one(text: str) -> None:
    assert SHAPE.search(f"rows {text} of clients")


@pytest.mark.parametrize("text", ["[Smith 2020]", "[8]", "[0, 1]", "[see above]", "[K, N", "K", "[K; N]", "[a.b]"])
def test_other_text_in_brackets_is_no_shape(text: str) -> None:
    assert not SHAPE.search(f"rows {text} of clients")


def test_good_documentation_passes() -> None:
    assert list(docs_violations(GOOD, "pacbayes_fl/good.py")) == []
