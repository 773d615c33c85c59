"""The table of methods, and a page for each: algorithm box, parts, presets side by side, numbers beside the papers'."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Final

from docs.docstrings import rewritten
from docs.pages import records, results
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.recipe import Recipe
from pacbayes_fl.study.describe import describe

BOXES: Final = Path(__file__).parents[1] / "algorithms"
_WHEN: Final = BOXES / "when.md"
_COLUMNS: Final = ("name", "model", "client", "server", "uploads", "keeps")


def pages() -> dict[str, str]:
    """Write the pages.

    Returns:
        Markdown by path.
    """
    result = {f"methods/{name}.md": _page(name, recipe) for name, recipe in METHODS.items()}
    listed = "\n".join(METHODS)
    index = f"""# Methods

Every method runs on the same rows, splits, networks and metrics: `pacbayes-fl compare STUDY --methods a,b,c`. Which to
take is said in [choosing a method](../../howto/choosing.md).

{table(lambda name: f"[`{name}`]({name}.md)")}

```{{toctree}}
:hidden:

{listed}
```
"""
    return result | {"methods/index.md": index}


def table(link: Callable[[str], str]) -> str:
    """Write the table of methods.

    Args:
        link: makes the first cell of a name.

    Returns:
        Markdown.
    """
    rows = [(link(name), *map(records.text, recipe.summary)) for name, recipe in METHODS.items()]
    return "\n".join(["| " + " | ".join(row) + " |" for row in (_COLUMNS, ("---",) * len(_COLUMNS), *rows)])


def short_table() -> str:
    """Write the README's table of methods: a line each.

    Returns:
        Markdown.
    """
    rows = [f"| `{name}` | {records.text(title)} |" for name, title in METHODS.titles().items()]
    return "\n".join(["| name | method |", "|---|---|", *rows])


def when() -> dict[str, str]:
    """Read when each method is good.

    Returns:
        Text by name.
    """
    lines = [line.split(": ", 1) for line in _WHEN.read_text(encoding="utf-8").splitlines() if line.startswith("- `")]
    return {name.strip("- `"): text for name, text in lines}


def _page(name: str, recipe: Recipe) -> str:
    (description,) = [one for one in describe(name) if one.family == "method"]
    title, *rest = records.body(description)
    facts, *options = rest
    said = when().get(name)
    measured = results.of_method(name)
    home = f"{recipe.method.__module__}.{recipe.method.__qualname__}"
    parts = [
        f"# `{name}`\n\n{title}",
        f"## Algorithm\n\n```{{eval-rst}}\n{_box(name, recipe)}\n```\n\nThe class is {{py:obj}}`{home}`.",
        *([f"## When it is good\n\n{said}"] if said else ()),
        f"## Parts\n\n{facts}",
        "## Options and presets\n\n" + "\n\n".join(options),
        *([f"## Beside the paper\n\n{measured}"] if measured else ()),
    ]
    return "\n\n".join(parts) + "\n"


def _box(name: str, recipe: Recipe) -> str:
    """The algorithm: of a file, of the module, or what the class says of itself."""
    file = BOXES / f"{name}.txt"
    module = recipe.method.__module__
    if file.is_file():
        text = file.read_text(encoding="utf-8")
    elif name == "pac-pfl":
        text = inspect.getdoc(inspect.getmodule(recipe.method)) or ""
    else:
        text = (inspect.getdoc(recipe.method) or "").partition("Args:")[0]
    return "\n".join(rewritten(text.rstrip().splitlines(), module))
