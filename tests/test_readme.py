"""The README is one screen, its example runs, its table is that of the records, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import readme

ROOT = Path(__file__).parents[1]
README = readme.README.read_text(encoding="utf-8")


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 130


def test_its_example_is_twelve_lines_that_run(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in block.splitlines() if line.strip()]) <= 12
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    assert printed.count("RSMSE") == 2 and "nan" not in printed and "inf" not in printed


def test_its_table_of_methods_is_that_of_the_records() -> None:
    assert readme.with_table(README) == README, "write it anew: python -m docs.readme"
    assert readme.with_table(README.replace("| `ridge` |", "| `bridge` |")) == README


def test_its_commands_are_those_that_there_are() -> None:
    from pacbayes_fl.cli import parser

    known = next(action for action in parser()._actions if action.dest == "command").choices or {}
    named = re.findall(r"^pacbayes-fl (\w+)", README, re.MULTILINE)
    assert len(named) >= 4 and {*named} <= {*known}


def test_its_links_lead_to_files() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    assert len(links) >= 10
    assert not [link for link in links if not (ROOT / link).exists()]
