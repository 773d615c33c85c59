"""Docstrings as Sphinx reads them: formulas typeset, algorithm boxes as tables, and names in backticks linked."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from docs.formulas import is_formula, to_tex

_SECTION: Final = re.compile(r"^(Args|Returns|Raises|Yields|Attributes|Example|Examples|Note|References):$")
_STEP: Final = re.compile(r"^\s{2,}(\d+|)\s+(\S.*?)(?:\s{2,}((?:`[^`]+`|\(.*?\)|, |\s|and )+))?$")
_PACKAGE: Final = "pacbayes_fl"
_DEFINED: Final = (ast.FunctionDef, ast.ClassDef)


def process(app: object, what: str, name: str, of: Any, options: object, lines: list[str]) -> None:
    """Rewrite a docstring in place; what Sphinx calls for each.

    Args:
        app: the build.
        what: kind of the object.
        name: its dotted name.
        of: the object.
        options: of the directive.
        lines: of the docstring.
    """
    described = what in ("attribute", "data", "property")  # napoleon would take what stands before a colon for a type
    lines[:] = [*(["..", ""] if described else []), *rewritten(lines, _module(name, of))]


def rewritten(lines: list[str], module: str) -> Iterator[str]:
    """Rewrite a docstring as reStructuredText.

    Args:
        lines: as they are.
        module: in which names are looked up.

    Yields:
        Lines.
    """
    inside = ""  # of a section
    outer = min((len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()), default=0)
    for paragraph in _paragraphs(lines):
        if heading := _SECTION.match(paragraph[0].strip()):
            inside = heading[1]
            if inside in ("Returns", "Yields"):  # napoleon would take what stands before a colon for a type
                first, *others = paragraph[1:]
                paragraph = [f":{inside.lower()}: {first.strip()}", *others]
        indent = " " * (len(paragraph[0]) - len(paragraph[0].lstrip()))
        if any(line.lstrip().startswith(">>>") for line in paragraph) or inside.startswith("Example"):
            yield from paragraph
        elif is_box(paragraph):
            yield from _box(paragraph, module)
        elif inside in ("", "Note") and is_formula(paragraph):
            ends = [r"\\"] * (len(paragraph) - 1) + [""]
            yield f"{indent}.. math::"
            yield ""
            yield from (f"{indent}   {to_tex(line)} {end}" for line, end in zip(paragraph, ends, strict=True))
        elif not inside and len(indent) > outer:  # set out by hand
            yield from ("::", "", *paragraph)
        else:
            yield from (_line(line, module, bool(inside)) for line in paragraph)
        yield ""


def _paragraphs(lines: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            part.append(line)
        elif part:
            yield part
            part = []


def is_box(paragraph: list[str]) -> bool:
    """Whether lines are the steps of an algorithm.

    Args:
        paragraph: lines.

    Returns:
        True where most lines begin with a number and end with code.
    """
    numbered = [line for line in paragraph if re.match(r"^\s{2,}\d+\s+\S", line)]
    return len(numbered) >= max(1, len(paragraph) // 2) and any("`" in line for line in paragraph)


def steps(paragraph: list[str]) -> Iterator[tuple[str, str, str]]:
    """Take the lines of an algorithm apart.

    Args:
        paragraph: lines of a box.

    Yields:
        The number, the step, and where it stands in the code, with names in backticks.
    """
    for line in paragraph:
        found = _STEP.match(line)
        if found is None:
            yield "", line.strip(), ""
        else:
            yield found[1], found[2].strip(), re.sub(r"\s+", " ", found[3] or "").strip()


def _box(paragraph: list[str], module: str) -> Iterator[str]:
    yield ".. list-table::"
    yield "   :class: algorithm"
    yield "   :widths: 6 56 38"
    yield ""
    for number, step, code in steps(paragraph):
        yield f"   * - {number}"
        yield f"     - {step_text(step)}"
        yield f"     - {_line(code, module, False).strip()}"


def step_text(step: str) -> str:
    """Write a step of an algorithm: as a formula where it is one.

    Args:
        step: as the docstring has it.

    Returns:
        reStructuredText.
    """
    if re.search(r" (?:=|\+=|<-|~) ", step) and not step.startswith(("for ", "draw ")):
        return f":math:`{to_tex(step)}`"
    return _escaped(step)


def _line(line: str, module: str, entry: bool) -> str:
    """Escape what reStructuredText would read as markup; link code that names something."""
    pieces = re.split(r"(`[^`]+`)", line)
    head = re.match(r"^\s*(\*{1,2}\w+: |- )", line) if entry or line.lstrip().startswith("- ") else None
    result = []
    for i, piece in enumerate(pieces):
        if i % 2:
            glued = bool(re.match(r"\w", pieces[i + 1]))  # markup ends where no letter follows
            result.append(link(piece[1:-1], module) + ("\\ " if glued else ""))
        elif i == 0 and head:
            result.append(head[0] + _escaped(piece[head.end() :]))
        else:
            result.append(_escaped(piece))
    return "".join(result)


def _escaped(text: str) -> str:
    return re.sub(r"[\\*|`]|(?<=\w)_(?!\w)", r"\\\g<0>", text)


def link(code: str, module: str) -> str:
    """Link a name to where it stands.

    Args:
        code: what stands in backticks.
        module: in which it is looked up.

    Returns:
        A reference where something of the package has the name, code otherwise.
    """
    target = resolve(code, module)
    return f":py:obj:`{code} <{target}>`" if target else f"``{code}``"


@cache
def resolve(code: str, module: str) -> str | None:
    """Find what a name in a docstring of a module means.

    Args:
        code: such as "svgd.direction", "federation.engine" or "init_server".
        module: in which it is looked up first.

    Returns:
        The dotted name by which the API pages know it; None where nothing public has it.
    """
    path = code.removesuffix("()")
    if not re.fullmatch(r"[A-Za-z]\w*(\.[A-Za-z]\w*)*", path):
        return None
    place = importlib.import_module(module) if module.startswith(_PACKAGE) else None
    for start in (place, *_classes(place)):
        if (found := _named(start, path)) is not None:
            return found
    parts = path.removeprefix(f"{_PACKAGE}.").split(".")
    for cut in range(len(parts), 0, -1):
        dotted = ".".join([_PACKAGE, *parts[:cut]])
        try:
            home = importlib.import_module(dotted)
        except ImportError:
            continue
        if cut == len(parts):
            return dotted if len(parts) > 1 or "." in code else None
        if (found := _named(home, ".".join(parts[cut:]))) is not None:
            return found
        break
    known = [one for one in _index() if one.endswith(f".{path}")]
    return known[0] if len(known) == 1 else None


@cache
def _index() -> tuple[str, ...]:
    """Dotted names of all public classes and functions, read off the sources."""
    root = Path(__file__).parents[1] / _PACKAGE
    result = []
    for file in sorted(root.rglob("*.py")):
        parts = file.relative_to(root.parent).with_suffix("").parts
        if "flower" not in parts and not any(part.startswith("_") for part in parts):  # which stands in no page
            defined = [node for node in ast.parse(file.read_text("utf-8")).body if isinstance(node, _DEFINED)]
            result += [".".join([*parts, node.name]) for node in defined if not node.name.startswith("_")]
    return tuple(result)


def _classes(module: ModuleType | None) -> list[type]:
    own = vars(module).values() if module else ()
    return [one for one in own if inspect.isclass(one) and one.__module__ == module.__name__]  # type: ignore[union-attr]


def _named(start: Any, path: str) -> str | None:
    value = start
    for one in path.split("."):
        if one.startswith("_") or not hasattr(value, one):
            return None
        owner, value = value, getattr(value, one)
    if inspect.ismodule(value):
        return value.__name__ if value.__name__.startswith(_PACKAGE) else None
    if inspect.isclass(owner) and not inspect.isclass(value):
        base = next((each for each in owner.__mro__ if one in vars(each)), owner)
        method = getattr(value, "__qualname__", "").startswith(f"{base.__qualname__}.{one}")  # and no field of a class
        return f"{base.__module__}.{base.__qualname__}.{one}" if _ours(base) and method else None
    if (inspect.isclass(value) or inspect.isfunction(value)) and _ours(value):
        return f"{value.__module__}.{value.__qualname__}"
    return None


def _ours(value: Any) -> bool:
    return str(getattr(value, "__module__", "")).startswith(f"{_PACKAGE}.")


def _module(name: str, of: Any) -> str:
    if inspect.ismodule(of):
        return of.__name__
    home = getattr(inspect.unwrap(of) if callable(of) else of, "__module__", None)
    if isinstance(home, str):
        return home
    parts = name.split(".")
    return next(dotted for cut in range(len(parts), 0, -1) if (dotted := ".".join(parts[:cut])) in sys.modules)
