"""The table of clients and their panels: everybody is there, under names that are text."""

from __future__ import annotations

import re

import pytest

from pacbayes_fl.pages import clients as module
from pacbayes_fl.pages.clients import clients
from pacbayes_fl.pages.forecasts import rows_of
from pacbayes_fl.pages.markup import to_html
from pacbayes_fl.results.records import Result
from tests.pages.test_markup import Read


def written(result: Result) -> str:
    groups = {group: rows for group in ("existing", "new") if (rows := rows_of(result, group)) is not None}
    return to_html(clients(result, groups))


def test_every_client_has_a_line_and_a_panel_with_its_forecasts(numbers: Result) -> None:
    text = written(numbers)
    for at, row in enumerate(numbers.clients):
        assert f'<a href="#client-{at}">{row.name}</a>' in text and f'id="client-{at}"' in text
        assert f"{row.metrics['rsmse']:.4g}" in text
    assert text.count("<svg") == len(numbers.clients) and "Forecasts of every client" in text
    assert text.count('data-group="new"') == 6


def test_tools_are_hidden_until_a_script_serves_them(numbers: Result) -> None:
    (tools,) = re.findall(r'<div id="client-tools"[^>]*>', written(numbers)) or re.findall(
        r'<div [^>]*id="client-tools"[^>]*>', written(numbers)
    )
    assert "hidden" in tools


def test_names_are_text(series: Result) -> None:
    text = written(series)
    reader = Read()
    reader.feed(text)
    assert "script" not in reader.tags and "<script>alert(1)</script>" in reader.text and "\x1b" not in text


def test_classifiers_have_panels_without_drawings(labelled: Result) -> None:
    text = written(labelled)
    assert "<svg" not in text and "Every client" in text and "accuracy, personal model" in text


def test_what_the_page_cannot_hold_is_said(numbers: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINES", 5)
    assert "5 clients of 18: the page holds no more" in written(numbers)
