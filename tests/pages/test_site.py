"""Pages of the built documentation in a real browser: letters can be read, nothing moves or sticks out.

Skips itself where `make docs` has not built the site of this checkout, or there is no Chromium.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.pages.test_browser import opened

ROOT = Path(__file__).parents[2]
SITE, STYLE = ROOT / "build" / "docs", Path("_static", "site.css")
LOOK, SHIFTS = ((Path(__file__).parent / f"{name}.js").read_text("utf-8") for name in ("site", "shifts"))
PAGES = (
    *("index.html", "search.html", "howto/run-folders.html", "tutorials/pv_new_houses.html"),
    *("generated/keys.html", "generated/methods/pac-pfl.html", "generated/commands.html"),
)
LONG = (
    *("generated/measured/results_images.html", "howto/certificates.html"),
    *("generated/keys.html", "generated/faults.html"),
)


class SlowHandler(SimpleHTTPRequestHandler):
    """Sends a page in pieces, as a slow line does: a browser draws what it has in between."""

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")  # or the second look is a fast one
        super().end_headers()

    def copyfile(self, source: Any, outputfile: Any) -> None:
        lines = source.readlines()  # whole ones, since a word of which more comes may move to the next line
        step = len(lines) // (6 if self.path.endswith(".html") else 1) + 1
        for at in range(0, len(lines), step):
            time.sleep(0.04 if at else 0)
            outputfile.write(b"".join(lines[at : at + step]))

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Path:
    """Give the built site."""
    built, ours = SITE / STYLE, ROOT / "docs" / STYLE
    if not built.is_file() or built.read_bytes() != ours.read_bytes():
        pytest.skip("the site of this checkout is not built: make docs")
    return SITE


@pytest.fixture
def slow_site(site: Path) -> Iterator[str]:
    """Serve the built site over a slow line, and give its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SlowHandler, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.law
@pytest.mark.parametrize(("wide", "scheme"), [(400, "light"), (400, "dark"), (1400, "light"), (1400, "dark")])
def test_pages_of_each_kind_can_be_read(wide: int, scheme: str, site: Path, browser: Any) -> None:
    for name in PAGES:
        opened(browser, site / name, wide, scheme)
        assert browser.execute_script(LOOK) == [], f"{name} at {wide} px, {scheme}"
        assert browser.get_log("browser") == [], name


@pytest.mark.slow
def test_no_name_of_the_index_is_cut(site: Path, browser: Any) -> None:
    names = "[...document.querySelectorAll('.indextable a')].map(name => name.getBoundingClientRect().right)"
    for wide in (400, 1000, 1250, 1400):
        opened(browser, site / "genindex.html", wide)
        assert browser.execute_script(f"return Math.max(...{names}) <= document.body.clientWidth"), wide


@pytest.mark.slow
def test_nothing_moves_while_a_long_page_loads(slow_site: str, browser: Any) -> None:
    """Neither the contents at the right nor rows of a table push away what is read already."""
    for name in LONG:
        for wide in (1000, 1400):
            opened(browser, f"{slow_site}/{name}", wide)
            moved, hidden = browser.execute_async_script(SHIFTS)
            assert moved < 0.01 and not hidden, f"{name} at {wide} px: {moved:.3f}, {hidden} hidden"
    browser.get_log("browser")  # of the icon that a browser asks a server for


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
