"""One self-contained page: style and script inside, nothing fetched, no script but ours."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from typing import Final

from pacbayes_fl.pages.markup import Content, Element, raw, tag, to_html

MOST: Final = 3_000_000
"""Bytes that a page may have."""


def page(title: str, kind: str, lead: Sequence[Content], sections: Sequence[Element | None]) -> str:
    """Put a page together.

    Args:
        title: of the page.
        kind: what it is a report of.
        lead: paragraphs below the title.
        sections: in their order; None are left out.

    Returns:
        HTML 5 that needs no network and can be read without scripts. A policy inside it lets no other script run.
    """
    style, script = (_asset(name) for name in ("style.css", "script.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    only = f"style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    policy = f"default-src 'none'; {only}; base-uri 'none'; form-action 'none'"
    kept = [one for one in sections if one is not None]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        raw("style", style),
    )
    links = [tag("li", tag("a", one.find("h2").text or "", href=f"#{one.get('id')}")) for one in kept]  # type: ignore[union-attr]
    body = tag(
        "body",
        tag("a", "Skip to the results", href="#main", class_="skip"),
        tag("header", tag("p", kind, class_="kind"), tag("h1", title), *(tag("p", one, class_="lead") for one in lead)),
        tag("nav", tag("ul", *links), aria_label="Contents"),
        tag("main", *kept, id="main"),
        tag("footer", tag("p", "Written by pacbayes-fl from the folder alone.")),
        raw("script", script),
    )
    for at, figure in enumerate(body.iter("figure")):  # a figure is called what its caption says
        if (caption := figure.find("figcaption")) is not None:
            caption.set("id", f"figure-{at}")
            figure.set("aria-labelledby", f"figure-{at}")
    return to_html(tag("html", head, body, lang="en"))


def _asset(name: str) -> str:
    return resources.files("pacbayes_fl.pages").joinpath(name).read_text("utf-8")
