"""The table of clients and their panels: everybody is there, under names that are text."""

from __future__ import annotations

import math
import re
from dataclasses import replace

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


def sparse(result: Result, counts: dict[int, int], lost: tuple[int, ...]) -> Result:
    """Leave existing clients that many test rows, and some without an RSMSE."""
    mask = result.predictions["existing.mask_test"].clone()
    for at, count in counts.items():
        mask[at, count:] = False
    rows = [
        replace(one, metrics={**one.metrics, "rsmse": math.nan}) if one.id in lost else one for one in result.clients
    ]
    return replace(result, clients=tuple(rows), predictions={**result.predictions, "existing.mask_test": mask})


def test_the_table_has_numbers_of_test_rows_and_says_why_a_score_is_missing(numbers: Result) -> None:
    text = written(sparse(numbers, {2: 1, 3: 7}, (2,)))
    cells = re.findall(
        r">client_0([23])</a></th><td>existing</td><td class=\"n\">9</td><td class=\"n\">(\d+)</td>", text
    )
    assert cells == [("2", "1"), ("3", "7")] and "<dt>test rows</dt><dd>7</dd>" in text
    said = "RSMSE divides by the spread of a client's test targets: client_02 (one test row, which has none)."
    assert f"–: not defined. {said}" in text
    assert "not defined" not in written(numbers)
    text = written(sparse(numbers, {2: 1, 4: 1, 5: 0}, (2, 4, 5, 6)))
    assert "No test rows: client_05." in text and "client_02, client_04 (one test row each, which have none)" in text
    assert "RSMSE is no number: client_06." in text


def test_without_rows_no_number_of_test_rows_is_made_up(numbers: Result) -> None:
    text = to_html(clients(replace(numbers, predictions={}), {}))
    assert "training rows" in text and "test rows" not in text


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
