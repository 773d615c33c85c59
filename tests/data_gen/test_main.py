from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import data_gen
from data_gen import generators
from data_gen.__main__ import main, parser
from data_gen.generators import Generator


def test_polynomial_from_the_command_line(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "data_gen",
        "polynomial",
        "--clients",
        "2",
        "--samples",
        "3",
        "--out",
        str(tmp_path),
    ]
    root = Path(data_gen.__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, check=True)
    path, summary = done.stdout.splitlines()
    data = data_gen.load(path)
    assert data.sha256 == data_gen.generate("polynomial", clients=2, samples=3).sha256
    assert summary.startswith("2 clients, 24 new; 78 training and 2600 test rows of 1 features; sha256 ")
    assert summary.endswith(data.sha256)


def test_pv_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--samples all --clients 1 --new-clients 0 --weather clearsky --mode physical --utc-offset 2 --out"
    assert main(["pv-s", *options.split(), str(tmp_path)]) == 0
    data = data_gen.load(capsys.readouterr().out.splitlines()[0])
    assert data.manifest["name"] == "pv-s"
    assert data.manifest["hours_of_day"]["utc_offset"] == 2.0
    assert data.manifest["sizes"]["train_rows"] == 610


@pytest.mark.parametrize("known", generators.GENERATORS.values(), ids=lambda known: known.name)
def test_what_may_be_none_is_none_as_the_help_writes_it(known: Generator) -> None:
    kinds = get_type_hints(known.config)
    free = [name for name in known.options if type(None) in get_args(kinds[name])]
    for word in ("None", "none", "all"):
        given = [part for name in free for part in (f"--{name.replace('_', '-')}", word)]
        got = vars(parser().parse_args([known.name, *given, "--out", "there"]))
        assert {name: got[name] for name in free} == dict.fromkeys(free)


def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pv-ew", "--weather", str(tmp_path / "none.csv"), "--out", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: cannot read weather file")
    assert said.err.count("\n") == 1


def test_unknown_words_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["pv-n"], ["polynomial"], ["pv-ew", "--samples", "many", "--out", "x"]):
        with pytest.raises(SystemExit):
            main(words)
    assert "usage" in capsys.readouterr().err
