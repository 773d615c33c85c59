"""Reports as pages that people look at: `RUN/report.html` and `COMPARISON/report.html`, made from folders alone.

A page is one file without a network, scripts only where they help, figures of its own as inline SVG: matplotlib takes
seconds for what every run writes, and its colours do not follow the reader's. `plots` has the figures for papers.
"""

from __future__ import annotations

from pacbayes_fl.pages.comparison import comparison_page, write_comparison
from pacbayes_fl.pages.run import FILE, refresh, run_page, write_run
from pacbayes_fl.pages.search import search_page, write_search

__all__ = [
    "FILE",
    "comparison_page",
    "refresh",
    "run_page",
    "search_page",
    "write_comparison",
    "write_run",
    "write_search",
]
