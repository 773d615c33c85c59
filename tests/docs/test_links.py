"""Links of the built site: what leads nowhere is named, by page, and nothing else is."""

from __future__ import annotations

from pathlib import Path

from docs.links import broken


def test_links_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    (tmp_path / "methods").mkdir()
    good = (
        '<a id="here" href="methods/a%20b.html#x-y">1</a><a href="#here">2</a><a href="https://example.org/none">3</a>'
    )
    bad = '<a href="methods/c.html">4</a><a href="methods/a%20b.html#z">5</a><a href="#there">6</a><img src="p.png">'
    (tmp_path / "index.html").write_text(good + bad, "utf-8")
    (tmp_path / "methods" / "a b.html").write_text('<p id="x-y"></p><a href="../index.html">7</a>', "utf-8")
    found = ["#there", "methods/a%20b.html#z", "methods/c.html", "p.png"]
    assert broken(tmp_path) == [f"index.html: {link}" for link in found]
