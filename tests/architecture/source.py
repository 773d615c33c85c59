"""Source files, and names spelled out as their imports say."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("pacbayes_fl", "data_gen")

Checker = Callable[[str, str], Iterator[tuple[int, str]]]  # (text, path) -> (line, what is wrong)


def modules() -> list[str]:
    """Return the paths of all modules, relative to the root, with forward slashes."""
    return sorted(file.relative_to(ROOT).as_posix() for package in PACKAGES for file in (ROOT / package).rglob("*.py"))


def violations(check: Checker) -> list[str]:
    """Run a checker over all modules and return `path:line: what is wrong`."""
    return [
        f"{path}:{line}: {what}"
        for path in modules()
        for line, what in sorted(set(check((ROOT / path).read_text(encoding="utf-8"), path)))
    ]


def complain(found: list[str]) -> None:
    """Fail with one line per finding."""
    if found:
        raise AssertionError(f"{len(found)} found:\n" + "\n".join(found))


def imported(tree: ast.AST, path: str) -> Iterator[tuple[ast.Import | ast.ImportFrom, str, str]]:
    """Yield each import statement with the local name that it binds and the full name that this stands for."""
    parts = path.removesuffix(".py").split("/")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.asname or alias.name, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = [*(parts[: -node.level] if node.level else []), *([node.module] if node.module else [])]
            for alias in node.names:
                yield node, alias.asname or alias.name, ".".join([*base, alias.name])


def dotted(node: ast.AST, names: dict[str, str]) -> str:
    """Spell out `np.random.seed` as `numpy.random.seed`; a call or an index in between becomes `()`.

    A name that no import binds becomes `.name`, so that a local variable called `random` is not the module.
    """
    match node:
        case ast.Attribute(value=value, attr=attribute):
            return f"{dotted(value, names)}.{attribute}"
        case ast.Name(id=name):
            return names.get(name, f".{name}")
        case ast.Call(func=function):
            return f"{dotted(function, names)}()"
    return "()"


def local_names(tree: ast.AST, path: str) -> dict[str, str]:
    """Map the names that imports bind to what they stand for."""
    return {
        (local if local != full else local.split(".")[0]): (full if local != full else full.split(".")[0])
        for _, local, full in imported(tree, path)
    }
