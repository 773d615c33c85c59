"""The page of a comparison: intervals, paired differences, ranks, time and bytes, from its folder alone."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from pacbayes_fl import pages
from pacbayes_fl.pages.comparison import comparison_page, write_comparison
from pacbayes_fl.results.comparison import table
from pacbayes_fl.results.records import Result
from pacbayes_fl.study.compare import compare
from tests.tiny import tiny


def test_it_has_what_a_referee_asks_for(compared: list[Result]) -> None:
    text = comparison_page(compared, {"ridge": 12_345})
    for words in (
        *(
            "3 methods were run on polynomial",
            "seeds 1, 2",
            "Paired differences over clients",
            "Mean rank over clients",
        ),
        *("12.3 kB", "lower is better", "method less pac_pfl, which has the best mean", "p, Holm", "Time and bytes"),
    ):
        assert words in text, words
    for cell in table(compared):
        assert f"{cell.low:.4g} to {cell.high:.4g}" in text


def test_one_seed_and_one_method_are_said(compared: list[Result]) -> None:
    assert "One seed" in comparison_page(compared[:1]) and "Paired differences" not in comparison_page(compared[:1])
    assert "One seed" not in comparison_page(compared)


def test_scores_that_are_not_finite_and_rounds_that_differ_are_warned_of(compared: list[Result]) -> None:
    broken = replace(compared[0].clients[0], metrics={"rsmse": float("nan"), "ce": 0.1})
    odd = replace(compared[0], clients=(broken, *compared[0].clients[1:]), labels={"round": 7})
    text = comparison_page([odd, *compared[1:]])
    assert "client_00 nan" in text and "scored at different rounds: [7, 120]" in text


def test_seconds_a_round_are_of_all_rounds_together(compared: list[Result]) -> None:
    """Runs that stopped early have fewer: 0.1 s in each of 120, and 0.4 s in each of 30, are 24 s in 150."""
    short = [replace(record, values={"seconds": 0.4}) for record in compared[0].rounds[:30]]
    one, other = compared[0], replace(compared[0], seed=2, rounds=tuple(short))
    text = comparison_page([one, other])
    cells = re.findall(r"<td[^>]*>(.*?)</td>", text[text.index('id="cost"') :])
    assert cells[:3] == ["30, 120", "12", "0.16"]


@pytest.mark.usefixtures("paged")
def test_compare_writes_it_and_the_folder_gives_it_again(tmp_path: Path) -> None:
    sets = ("federation.rounds=2",)
    compare(
        [tiny(*sets, "method.particles=2"), tiny(*sets, "method.particles=3")],
        1,
        tmp_path / "both",
        vary="method.particles",
    )
    page = tmp_path / "both" / pages.FILE
    first = page.read_bytes()
    assert b"pac-pfl particles=3" in first and b" kB" in first
    assert write_comparison(tmp_path / "both") == page and page.read_bytes() == first
    assert all((folder / pages.FILE).is_file() for folder in (tmp_path / "both").glob("*-seed*"))


def test_a_page_that_fails_loses_no_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(pages, "write_comparison", fail)
    with pytest.warns(UserWarning, match="no report.html"):
        compare([tiny("federation.rounds=1")], 1, tmp_path / "one")
    assert (tmp_path / "one" / "compare.json").is_file()
