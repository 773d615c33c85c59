"""Pages of the API: every public name of the package, and every module in the room that it stands in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pacbayes_fl
from docs.pages import records

ROOT: Final = Path(pacbayes_fl.__file__).parent
_HEAD: Final = """# API

These names come from `pacbayes_fl` itself, and are what [versions](../security.md) speak of; everything else comes
from its module, listed below by folder.
"""
_MODULE: Final = """## {0}

```{{eval-rst}}
.. automodule:: {0}
   :members:
   :ignore-module-all:
```
"""


def pages() -> dict[str, str]:
    """Write the pages.

    Returns:
        Markdown by path.
    """
    rooms: dict[str, list[str]] = {}
    for file in sorted(ROOT.rglob("*.py")):
        parts = file.relative_to(ROOT.parent).with_suffix("").parts
        hidden = parts[-1].startswith("_") and parts[-1] != "__init__"
        dotted = ".".join(parts).removesuffix(".__init__")
        if not hidden and "flower" not in parts and dotted != "pacbayes_fl":  # the extra `flower` need not be there
            rooms.setdefault(".".join(parts[:-1]) if len(parts) > 2 else "pacbayes_fl", []).append(dotted)
    result = {
        f"api/{room}.md": "\n".join([f"# {room}\n", *map(_MODULE.format, sorted(names))])
        for room, names in rooms.items()
    }
    return result | {"api/index.md": _index([*rooms])}


def _index(rooms: list[str]) -> str:
    stub = ROOT.joinpath("__init__.pyi").read_text(encoding="utf-8")
    names = {name: home for home, name in re.findall(r"^from (\S+) import (\w+)", stub, re.MULTILINE)}
    rows = []
    for name in sorted(names, key=str.lower):
        value = getattr(pacbayes_fl, name)
        first = records.text((value.__doc__ or "").strip().partition("\n")[0])
        rows.append(f"| {{py:obj}}`{name} <{_target(value, name, names[name])}>` | {first} |")
    table = "\n".join(["| name | what it is |", "|---|---|", *rows])
    return "\n".join([_HEAD, table, "\n```{toctree}", ":maxdepth: 1", "", *rooms, "```", ""])


def _target(value: object, name: str, home: str) -> str:
    """Dotted name by which the pages know a public name."""
    if home == "pacbayes_fl":
        return f"pacbayes_fl.{name}"  # a package
    named = getattr(value, "__name__", None)
    kind = type(value).__module__
    defined = kind if kind.startswith(f"{home}.") else home  # a table beside its class, which its package exports
    return f"{value.__module__}.{named}" if named else f"{defined}.{name}"
