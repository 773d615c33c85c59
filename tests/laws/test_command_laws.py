"""Laws of all commands: what prints a table prints it as JSON with the keys that its help says, and in 80 columns."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pacbayes_fl import cli
from pacbayes_fl.cli.parser import COMMANDS, parser
from pacbayes_fl.names import width
from tests.tiny import TABLE, rows, write_csv, write_study

LONG = "a house of which the name is so long that no terminal of eighty columns has room for it and for numbers"
SETS = ("--set", "federation.rounds=2", "--set", "method.particles=1", "--set", "report.certify.scheme=split")
STUDY = ("tiny.toml", *SETS, "--set", "report.certify.independent=true")
LINES = {
    "run": (*STUDY, "--out", "second"),
    "compare": ("tiny.toml", *SETS[:2], "--methods", "pac-pfl,ridge", "--seeds", "1"),
    "tune": ("polynomial", *SETS[:4], "--budget", "2", "--folds", "2", "--out", "tuned.toml"),
    "list": ("methods",),
    "show": ("first",),
    "certify": ("first", "--draws", "50"),
    "bound": ("seeger", *"--risk 0.1 --kl 3 --n 100 --delta 0.05 --prior split --independent".split()),
    "join": ("first", "--data", "newcomer.csv"),
    "predict": ("first", "--data", "ask.csv"),
    "update": ("first", "--data", "later.csv"),
    "score": ("first", "--data", "truth.csv"),
    "describe": ("pac-pfl",),
    "check": ("rows.csv", "--no-cost"),
}
"""A line of every command that prints a table, beside what a run folder holds."""
CSV = ("join", "predict")
WITHOUT = {
    "plot": "prints the paths of figures",
    "release": "prints what was written",
    "audit": "prints two bounds and a verdict",
    "report": "prints where the page is",
    "init": "prints the roles of columns",
    "schema": "prints JSON anyhow",
    "deploy": "prints where the run folder is, whose table `show` prints",
    "node": "prints what it does",
}
Output = Callable[[str, Sequence[str]], str]


def names() -> list[str]:
    """Names of all commands."""
    known = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    return list(known.choices)


def table_lines(text: str) -> list[str]:
    """Lines whose cells are aligned by more than one blank, and those below the title of such."""
    return [line for line in text.splitlines() if re.search(r"\S {2,}\S", line.lstrip())]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a study of houses of which one has a long name, and a run of it."""
    root = tmp_path_factory.mktemp("commands")
    table = [
        {**row, "client": LONG if row["client"] == "existing_0" else row["client"]} for row in rows(sizes=(12, 14))
    ]
    write_csv(root / "rows.csv", table)
    write_study(root, {**TABLE, "data": {"source": "rows.csv"}})
    known = ("client", "lag_1", "wind", "y")
    write_csv(root / "ask.csv", [{name: row[name] for name in known[:3]} for row in table])
    later = [{name: row[name] if name != "wind" else row["wind"] + 0.25 for name in known} for row in table[:9]]
    write_csv(root / "later.csv", later)
    write_csv(root / "truth.csv", [{**row, "wind": row["wind"] + 0.5} for row in later])
    write_csv(root / "newcomer.csv", [{**row, "client": f"new {LONG}"} for row in later])
    before = Path.cwd()
    os.chdir(root)
    try:
        assert cli.main(["run", *STUDY, "--out", "first", "--quiet"]) == 0
    finally:
        os.chdir(before)
    return root


@pytest.fixture
def output(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Output:
    """Run a command beside a copy of the run, and give what it printed."""

    def called(command: str, more: Sequence[str] = ()) -> str:
        shutil.copytree(place, tmp_path / "here", dirs_exist_ok=True)
        monkeypatch.chdir(tmp_path / "here")
        capsys.readouterr()
        assert cli.main([command, *LINES[command], "--quiet", *more]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    return called


def test_every_command_has_json_or_says_why_not() -> None:
    assert sorted([*LINES, *WITHOUT]) == sorted(names()) and len(COMMANDS) == len(names())
    for command, line in LINES.items():
        assert parser().parse_args([command, *line]).json_keys


@pytest.mark.law
@pytest.mark.parametrize("command", LINES)
def test_json_is_one_document_with_the_keys_that_the_help_says(command: str, output: Output) -> None:
    found = json.loads(output(command, ["--json"]), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    known = parser().parse_args([command, *LINES[command]]).json_keys
    entry = found[0] if isinstance(found, list) else next(iter(found.values())) if command in CSV else found
    stated = list(known)
    for cut, word in enumerate(stated):  # "or ..." begins what another kind of run has
        if word.startswith("or"):
            stated = stated[:cut]
            break
    missing = [key for key in stated if key not in entry and key != "quantiles"]
    assert not missing, f"{command} --json has no {missing}: {list(entry)}"


@pytest.mark.law
@pytest.mark.parametrize("command", [name for name in LINES if name not in CSV])
def test_no_line_of_a_table_is_wider_than_the_terminal(
    command: str, output: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("output", "listing", "describe", "update", "check"):
        monkeypatch.setattr(f"pacbayes_fl.cli.{module}.room", lambda: 80)
    printed = output(command)
    assert printed
    wide = [line for line in table_lines(printed) if width(line) > 80]
    assert not wide, "\n".join(wide)
    if command in ("run", "show", "certify", "score", "update"):  # a name keeps its ends
        assert "a hou" in printed and "bers" in printed and LONG not in printed
