"""How the documentation site is built; `make docs` does it, without a network and with every warning an error.

Sphinx, because it checks its references (nitpicky) and reads API pages off the docstrings; MyST, so that pages are the
Markdown that the rest of the project is written in; furo, because it has a dark mode, works without scripts and loads
nothing from elsewhere. MkDocs has neither checked references nor executed notebooks without several more plugins.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import pacbayes_fl

project = "pacbayes_fl"
author = "The pacbayes_fl contributors"
version = release = pacbayes_fl.__version__
copyright = author

extensions = [
    "myst_nb",  # Markdown pages, and tutorials that the build runs
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",  # docstrings in Google's style
    "docs.extension",  # formulas as MathML, generated pages, sizes of images
]
exclude_patterns = ["pages", "_static", "_templates", "algorithms", "papers.md", "**.ipynb_checkpoints"]

html_theme = "furo"
html_title = "pacbayes_fl"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_sphinx = False
html_copy_source = False

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_default_options = {"no-value": True}  # of tables, which are pages of their own
autodoc_typehints = "none"  # types stand in the signature's docstring, with shapes
autodoc_use_type_comments = False  # there are none, and every definition would be parsed for them
toc_object_entries = False  # thousands of names, which the sidebar of every page would copy to show a tree of titles
napoleon_google_docstring = True
napoleon_numpy_docstring = False

nb_execution_mode = "force"
nb_execution_timeout = 1800  # seconds a cell: they take few, but of a machine that has much else to do
nb_execution_raise_on_error = True
nb_merge_streams = True

nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(torch|gpytorch|collections|tomllib|typing|flwr)\..*|<function.*|Partition\(.*")]
"""Names of packages whose pages are elsewhere, and reprs of defaults, which are no names."""
