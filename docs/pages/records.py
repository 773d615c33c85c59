"""Pages of what a study can name, and of all its keys: the descriptions that `pacbayes-fl describe` prints."""

from __future__ import annotations

import re
from typing import Final

from docs.formulas import to_tex
from pacbayes_fl.study.describe import Description, Options, describe, every_name

_TITLES: Final = {
    "table of a study": ("keys", "Study keys"),
    "kind of model": ("models", "Kinds of model"),
    "source of data": ("sources", "Sources of data"),
    "partition": ("partitions", "Partitions"),
    "bound": ("bounds", "Bounds"),
    "loss": ("losses", "Losses"),
    "metric": ("metrics", "Metrics"),
    "variational family": ("families", "Variational families"),
    "noise mechanism": ("mechanisms", "Noise mechanisms"),
    "rule of aggregation": ("aggregations", "Rules of aggregation"),
    "bundled study": ("studies", "Bundled studies"),
}
_KEYS: Final = """
A study is a TOML file. Everything that a run depends on stands in it; what is left out has the default below.
`name` and `seed` stand above the tables, `[method]` has the options of its method ([methods](methods/index.md)),
`[model]` those of its kind ([kinds of model](models.md)), and `[data.options]` those of its source
([sources](sources.md)). `[methods.NAME.method]`, `[methods.NAME.model]` and so on hold values for single methods of
a comparison. On the command line a key is set by `--set data.scale=shrunk`. `pacbayes-fl schema` writes all of this
as JSON Schema, for editors.
"""


def pages() -> dict[str, str]:
    """Write a page for each family of names.

    Returns:
        Markdown by path.
    """
    result = {}
    for family, names in every_name().items():
        if family == "method":
            continue
        file, title = _TITLES[family]
        head = f"# {title}\n{_KEYS if family == 'table of a study' else ''}"
        blocks = [section(one, family) for name in names for one in describe(name) if one.family == family]
        result[f"{file}.md"] = "\n\n".join([head, *blocks]) + "\n"
    return result


def section(one: Description, family: str) -> str:
    """Write a description as a section.

    Args:
        one: the description.
        family: what it is the name of.

    Returns:
        Markdown.
    """
    heading = f"[{one.name}]" if family == "table of a study" else one.name
    return "\n\n".join([f"## `{heading}`", *body(one)])


def body(one: Description) -> list[str]:
    """Write what is known of a name.

    Args:
        one: the description.

    Returns:
        Paragraphs of Markdown.
    """
    result = [text(one.title) + ("" if one.title.endswith(".") else ".")]
    if one.facts:
        result.append("\n".join(["| | |", "|---|---|", *(f"| {label} | {text(said)} |" for label, said in one.facts)]))
    result += [table(options) for options in one.options]
    if one.examples:
        result.append("\n".join(["```sh", *one.examples, "```"]))
    return result


def table(options: Options) -> str:
    """Write a table of options.

    Args:
        options: the table.

    Returns:
        Markdown.
    """
    symbols = any(row.cells[-1] for row in options.rows)
    head = [*options.head[: None if symbols else -1], "what it is"]
    rows = [_row(row.cells if symbols else row.cells[:-1], row.text, len(options.head)) for row in options.rows]
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *rows])


def _row(cells: tuple[str, ...], said: str, head: int) -> str:
    first, *others = cells
    shown = [f"`{cell}`" if cell and i < len(others) else cell for i, cell in enumerate(others, 1)]
    if len(cells) == head and cells[-1]:
        shown[-1] = f"${to_tex(cells[-1])}$"
    return "| " + " | ".join([f"`{first}`", *(cell.replace("|", r"\|") for cell in shown), text(said)]) + " |"


def text(said: str) -> str:
    """Escape what Markdown would read as markup.

    Args:
        said: plain text, with code in backticks.

    Returns:
        Markdown of one line.
    """
    pieces = re.split(r"(`[^`]+`)", said.replace("\n", " "))
    marks = re.compile(r"([\\*_|<>$\[\]{}#~])")
    return "".join(piece.replace("|", r"\|") if i % 2 else marks.sub(r"\\\1", piece) for i, piece in enumerate(pieces))
