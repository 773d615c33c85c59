"""Pages of the built documentation in a real browser: letters can be read, nothing moves or sticks out.

Skips itself where `make docs` has not built the site of this checkout, or there is no Chromium.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pages.test_browser import opened

ROOT = Path(__file__).parents[2]
SITE, STYLE = ROOT / "build" / "docs", Path("_static", "site.css")
LOOK = (Path(__file__).parent / "site.js").read_text("utf-8")
PAGES = (
    *("index.html", "search.html", "howto/run-folders.html", "tutorials/pv_new_houses.html"),
    *("generated/keys.html", "generated/methods/pac-pfl.html", "generated/commands.html"),
)


@pytest.fixture(scope="module")
def site() -> Path:
    """Give the built site."""
    built, ours = SITE / STYLE, ROOT / "docs" / STYLE
    if not built.is_file() or built.read_bytes() != ours.read_bytes():
        pytest.skip("the site of this checkout is not built: make docs")
    return SITE


@pytest.mark.parametrize(("wide", "scheme"), [(400, "light"), (400, "dark"), (1400, "light"), (1400, "dark")])
def test_pages_of_each_kind_can_be_read(wide: int, scheme: str, site: Path, browser: Any) -> None:
    for name in PAGES:
        opened(browser, site / name, wide, scheme)
        assert browser.execute_script(LOOK) == [], f"{name} at {wide} px, {scheme}"
        assert browser.get_log("browser") == [], name


def test_what_is_wrong_with_a_page_is_found(browser: Any, tmp_path: Path) -> None:
    """The check itself, on a page that has everything wrong."""
    page = tmp_path / "bad.html"
    page.write_text(
        "<html><body><h2>no first heading</h2><h4>too deep</h4><p style='color: #aaa'>pale</p><input>"
        "<p style='opacity: .4'>faint</p><article><img src='a.png'></article><a href='#x' style='padding: 1em'></a>"
        "<div style='width: 3000px; height: 1px'></div></body></html>",
        "utf-8",
    )
    opened(browser, page, 400)
    found = "\n".join(browser.execute_script(LOOK))
    wrong = ["P pale", "P faint", "headings begin 2,4", "h4 below h2", "scrolls sideways", "image without words"]
    wrong += ["image without a size", "field without a label", "without a name", "without a language"]
    assert [one for one in wrong if one not in found] == []
    browser.get_log("browser")  # of the image that is not there
