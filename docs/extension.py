"""What the site adds to Sphinx: generated pages, docstrings with formulas and links, and formulas as MathML."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs import docstrings, images, mathml, pages

if TYPE_CHECKING:
    from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, Any]:
    """Add what the site needs.

    Args:
        app: the build.

    Returns:
        What Sphinx asks of an extension.
    """
    app.add_html_math_renderer("mathml", (mathml.visit_inline, None), (mathml.visit_block, None))
    app.connect("builder-inited", _write)
    app.connect("autodoc-process-docstring", docstrings.process, priority=400)  # before napoleon's
    app.connect("autodoc-skip-member", _skip)
    app.connect("html-page-context", _size_images)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}


def _write(app: Sphinx) -> None:
    """Write the generated pages, and touch none that has not changed."""
    folder = Path(app.srcdir) / "generated"
    for path, text in pages.every().items():
        file = folder / path
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")


def _size_images(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: object) -> None:
    """Keep the room of images that have not come yet."""
    if "body" in context:
        files = {name: Path(app.srcdir) / path for path, name in app.builder.images.items()}
        context["body"] = images.with_sizes(context["body"], files)


def _skip(app: object, what: str, name: str, of: Any, skip: bool, options: object) -> bool | None:
    """Leave out fields of named tuples, which their classes describe, and what scikit-learn adds to estimators."""
    return True if type(of).__name__ == "_tuplegetter" or re.fullmatch(r"set_\w+_request", name) else None
