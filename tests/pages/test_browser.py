"""Pages in a real browser: no error, nothing overlaps at 400 and 1400 px, tables and panels work, also without scripts.

Skips itself where Chromium or its driver is not installed, and says so.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pacbayes_fl.pages.about import Known
from pacbayes_fl.pages.comparison import comparison_page
from pacbayes_fl.pages.run import run_page
from pacbayes_fl.pages.search import Tried, search_page
from pacbayes_fl.results.records import Result
from tests.pages.conftest import HOSTILE, shown
from tests.pages.test_certificates import made

KNOWN = Known(
    {"data": {"source": "a.csv"}}, {"versions": {"torch": "2"}}, ["<script>alert(2)</script>"], {"a": "b"}, ""
)

OVERLAPS, CONTRAST, STRUCTURE = (
    (Path(__file__).parent / f"{name}.js").read_text("utf-8") for name in ("overlaps", "contrast", "structure")
)
OPEN = "document.querySelectorAll('details').forEach((one, at) => { if (at < 12) one.open = true; });"


@pytest.fixture(scope="module")
def written(
    tmp_path_factory: pytest.TempPathFactory,
    numbers: Result,
    series: Result,
    labelled: Result,
    compared: list[Result],
) -> dict[str, Path]:
    """Write a page of every kind."""
    folder = tmp_path_factory.mktemp("pages")
    trials = [Tried({"method.rate": 0.1**k, "<b>": "x" * 200}, {"rsmse": 0.1 * k}, "") for k in range(4)]
    texts = {
        "one feature": run_page(numbers, KNOWN),
        "series": run_page(series, KNOWN),
        "classes and privacy": run_page(labelled, KNOWN),
        "certificates": run_page(numbers, KNOWN, [made(), made({"new": ["no <b>rows"]}, 0)], ["stale"]),
        "comparison": comparison_page(compared),
        "search": search_page("s", {"pac-pfl": trials}),
    }
    paths = {}
    for name, text in texts.items():
        paths[name] = folder / f"{name}.html"
        paths[name].write_text(text, "utf-8")
    return paths


def opened(browser: Any, page: Path | str, wide: int, scheme: str = "light", scripts: bool = True) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})
    feature = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", feature)
    size = {"width": wide, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page if isinstance(page, str) else page.as_uri())


@pytest.mark.slow
def test_no_page_has_an_error_an_overlap_or_weak_letters(browser: Any, written: dict[str, Path]) -> None:
    """Every kind, narrow and wide, light and dark; a name that runs as a script would be an error too."""
    for name, path in written.items():
        for wide, scheme in ((400, "light"), (1400, "dark")):
            opened(browser, path, wide, scheme)
            browser.execute_script(OPEN)
            where = f"{name} at {wide} px"
            assert browser.execute_script(OVERLAPS) == [], where
            assert browser.execute_script(CONTRAST) == [], where
            assert browser.get_log("browser") == [], where
            assert browser.execute_script(STRUCTURE) == [], where


@pytest.mark.slow
def test_what_lies_over_something_is_found(browser: Any, written: dict[str, Path]) -> None:
    """The checks themselves, on a page that is spoiled."""
    opened(browser, written["search"], 400)
    browser.execute_script(
        "document.querySelector('svg').append(document.querySelector('svg text').cloneNode(true));"
        "document.querySelector('h1').style.marginBottom = '-3rem'; document.querySelector('p').style.width = '30rem';"
        "document.querySelector('h1').style.color = '#bbb'; document.querySelector('th').removeAttribute('scope');"
    )
    found = browser.execute_script(OVERLAPS)
    assert any("texts" in one for one in found) and any("children of HEADER" in one for one in found)
    assert any("leaves the page" in one for one in found)
    assert any("H1" in one for one in browser.execute_script(CONTRAST))
    assert any("no scope" in one for one in browser.execute_script(STRUCTURE))


def names(browser: Any) -> list[str]:
    rows = "return [...document.querySelectorAll('#client-table tbody tr')].filter((one) => !one.hidden)"
    return [str(one) for one in browser.execute_script(f"{rows}.map((one) => one.cells[0].textContent)")]


def test_sorting_searching_and_a_clients_panel_work(browser: Any, written: dict[str, Path], numbers: Result) -> None:
    opened(browser, written["one feature"], 1400)
    buttons = browser.find_elements("css selector", "#client-table thead button")
    score = {row.name: row.metrics["rsmse"] for row in numbers.clients}
    buttons[4].click()
    assert names(browser) == sorted(score, key=lambda name: score[name])
    buttons[4].send_keys("\ue007")  # Enter: a keyboard sorts too
    assert names(browser) == sorted(score, key=lambda name: -score[name])
    assert (
        browser.find_element("css selector", "#client-table th[aria-sort]").get_attribute("aria-sort") == "descending"
    )
    browser.find_element("id", "client-search").send_keys("_1")
    browser.find_element("css selector", "#client-group option[value=new]").click()
    expected = {row.name for row in numbers.clients if row.group == "new" and "_1" in row.name}
    assert set(names(browser)) == expected
    assert browser.find_element("id", "client-count").text == f"{len(expected)} of 18 clients"
    browser.find_element("link text", "client_14").click()
    panels = browser.find_elements("css selector", "details.client[open]")
    assert (
        len(panels) == 1 and "client_14" in panels[0].text and panels[0].find_element("tag name", "svg").is_displayed()
    )
    assert browser.execute_script("return document.activeElement.parentElement.tagName") == "DETAILS"
    assert browser.get_log("browser") == []


def test_sorting_is_said_by_the_heading_alone_and_figures_and_tables_have_names(
    browser: Any, written: dict[str, Path]
) -> None:
    """As the browser's own tree says it to screen readers."""
    opened(browser, written["one feature"], 1400)
    browser.execute_script(OPEN)
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    told = [(one["role"]["value"], one.get("name", {}).get("value", "")) for one in nodes if not one["ignored"]]
    said = [name for role, name in told if role == "button"]
    assert "client" in said and not any(arrow in name for name in said for arrow in "\u2195\u2191\u2193")
    drawn = [name for role, name in told if role == "figure"]
    assert "Forecasts of client_00" in drawn and all(drawn)
    tables = [name for role, name in told if role == "table"]
    assert "18 clients" in tables and not set(tables) & {name for role, name in told if role in ("region", "group")}


def test_headings_are_low_and_what_scrolls_has_a_shade_on_a_telephone(
    browser: Any, numbers: Result, tmp_path: Path
) -> None:
    """With a score whose heading has fifty letters."""
    rows = [replace(row, metrics={**row.metrics, "crps": 0.1}) for row in numbers.clients]
    (tmp_path / "page.html").write_text(run_page(replace(numbers, clients=tuple(rows)), KNOWN), "utf-8")
    opened(browser, tmp_path / "page.html", 400)
    browser.execute_script(OPEN)
    for what in ("#results .scroll", "#clients .scroll", "details[open] .wide .drawing"):
        wide, shade = browser.execute_script(
            f"const one = document.querySelector('{what}');"
            "return [one.scrollWidth - one.clientWidth, getComputedStyle(one).backgroundAttachment]"
        )
        assert wide > 0 and shade == "local, local, scroll, scroll", what
    high = browser.execute_script("return document.querySelector('#client-table thead tr').offsetHeight")
    assert high < 110  # px: three lines of letters of 14.4 px, and a smaller one below


def test_without_scripts_the_page_has_everything(browser: Any, written: dict[str, Path], numbers: Result) -> None:
    opened(browser, written["one feature"], 1400, scripts=False)
    try:
        text = browser.find_element("tag name", "body").text
        for row in numbers.clients:
            assert row.name in text
        assert "Search" not in text and not browser.find_element("id", "client-tools").is_displayed()
        browser.find_element("css selector", "details.client summary").click()
        assert browser.find_element("css selector", "details.client svg").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_hostile_names_are_text(browser: Any, written: dict[str, Path]) -> None:
    opened(browser, written["series"], 1400)
    text = names(browser)
    for name in HOSTILE[:18]:
        assert " ".join(shown(name).split()) in {" ".join(one.split()) for one in text}
    assert "<script>alert('study')" in browser.title
