"""What the site is generated from: dataclasses, parsers, records and tests, never a second list."""

from __future__ import annotations

from docs.pages import api, commands, methods, papers, project, records, results

_MODULES = (api, commands, methods, papers, project, records, results)


def every() -> dict[str, str]:
    """Write all generated pages.

    Returns:
        Markdown by path below docs/generated.
    """
    return {path: text for module in _MODULES for path, text in module.pages().items()}
