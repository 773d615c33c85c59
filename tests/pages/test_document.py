"""A page needs nothing but itself, and lets no script run but its own."""

from __future__ import annotations

import base64
import hashlib
import re

from pacbayes_fl.pages.document import page
from pacbayes_fl.pages.markup import section, tag


def test_a_page_is_self_contained() -> None:
    text = page("Title </title><script>", "kind", ["lead"], [section("a", "A", tag("p", "x")), None])
    assert "http" not in text.replace("http-equiv", "") and "@import" not in text and "url(" not in text
    assert text.startswith("<!DOCTYPE html>") and '<html lang="en">' in text and "prefers-color-scheme: dark" in text
    assert "@media print" in text and '<a href="#a">A</a>' in text and text.count("<h1>") == 1


def test_the_policy_knows_our_script_alone() -> None:
    text = page("t", "k", [], [])
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text and "default-src 'none'" in text
    assert "</" not in script.replace("</script>", "")
