"""Formulas as MathML, which browsers show by themselves: no script, no font and no network, and nothing moves."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from docutils import nodes
from latex2mathml.converter import convert

if TYPE_CHECKING:
    from sphinx.writers.html5 import HTML5Translator


def visit_inline(writer: HTML5Translator, node: nodes.math) -> None:
    """Write a formula within a line.

    Args:
        writer: of the page.
        node: the formula, in TeX.
    """
    writer.body.append(convert(node.astext()))
    raise nodes.SkipNode


def visit_block(writer: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula of its own lines.

    Args:
        writer: of the page.
        node: the formula, in TeX, its lines divided as TeX divides them.
    """
    lines = [line for line in re.split(r"\\\\(?=\s|$)", node.astext()) if line.strip()]
    shown = "\n".join(convert(line, display="block") for line in lines)
    writer.body.append(f'<div class="formula">{shown}</div>\n')
    raise nodes.SkipNode
