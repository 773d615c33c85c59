"""The parser: help for every argument, examples that are commands, versions, and what asking for them imports."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import pacbayes_fl
from pacbayes_fl.cli.parser import parser
from pacbayes_fl.study.file import Study

HEAVY = (
    *("numpy", "torch", "gpytorch", "pyro", "sympy", "sklearn", "scipy", "scipy.optimize", "scipy.sparse", "rich"),
    *("matplotlib", "pandas", "torchvision"),
)


def commands() -> dict[str, argparse.ArgumentParser]:
    (action,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    return {"": parser(), **action.choices}


def arguments(command: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return every argument of a command but --help."""
    other = argparse._HelpAction | argparse._SubParsersAction
    return [action for action in command._actions if not isinstance(action, other)]


EACH = commands()
each_command = pytest.mark.parametrize("command", EACH.values(), ids=EACH.keys())


# help -----------------------------------------------------------------------------------------------------------


@each_command
def test_every_argument_says_what_it_is(command: argparse.ArgumentParser) -> None:
    for action in arguments(command):
        text = action.help or ""
        words = re.findall(r"[A-Za-z]{2,}", text)
        assert len(words) >= 3, f"help of {action.dest} must say more than a name"
        assert set(word.lower() for word in words) - {action.dest, *action.dest.split("_"), "the", "of", "a"}, action
        assert not text.endswith(".") and text == " ".join(text.split()), action


@each_command
def test_what_is_not_given_has_a_value_that_help_says(command: argparse.ArgumentParser) -> None:
    """A number or a name by default stands in the help as it is, not as it was when the help was written."""
    for action in arguments(command):
        if action.default not in (None, False, "", [], (), argparse.SUPPRESS):
            assert "%(default)s" in (action.help or ""), action
        takes_value = action.option_strings and action.nargs != 0 and not action.required
        if takes_value and (action.choices or action.default == ""):
            assert "(default: " in (action.help or ""), action


def test_help_is_made_for_narrow_and_wide_terminals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slip in a format of one argument would show when somebody asks for help, and not before."""
    for columns in (60, 80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        for command, sub in commands().items():
            text, _, examples = sub.format_help().partition("\nexamples:\n")
            words = " ".join(text.split())  # a line may end before the sign
            assert "%" not in words.replace("95 %", "").replace("q %", ""), command
            assert max(map(len, text.splitlines())) <= columns, (command, columns)
            assert examples


@pytest.mark.parametrize("command", ["predict", "score", "update", "join", "plot"])
def test_clients_are_named_alike_everywhere(command: str) -> None:
    data = [] if command == "plot" else ["--data", "rows.csv"]
    got = parser().parse_args([command, "--client", "a,b", "--client", "c", "run", *data])
    assert got.client == ["a,b", "c"] and parser().parse_args([command, "run", *data]).client == []


@pytest.mark.law
@pytest.mark.parametrize("command", EACH)
def test_every_example_is_a_command(command: str) -> None:
    sub = commands()[command]
    lines = sub.format_help().partition("\nexamples:\n")[2].splitlines()
    assert lines
    for line in lines:
        program, *given = shlex.split(line)
        got = parser().parse_args(given)
        assert program == "pacbayes-fl" and (not command or command == got.command or got.command in ("run", "show"))
        if got.command in ("run", "compare", "tune", "audit") and re.fullmatch(
            r"[\w-]+", str(got.study or "runs/first")
        ):
            assert Study.from_toml(str(got.study)).name == got.study, line
    assert not command or any(shlex.split(line)[1] == command for line in lines)


def test_a_command_line_leaves_nothing_to_the_next_in_its_process() -> None:
    """As where tests keep one parser for all of them."""
    one, plain = parser(), ["run", "polynomial"]
    before = dict(vars(one.parse_args(plain)))
    assert vars(one.parse_args([*plain, "--set", "seed=1", "--quiet", "--debug", "--rounds", "3"])) != before
    assert vars(one.parse_args(plain)) == before


@pytest.mark.parametrize("number", ["-1e6", "-2.5E+3", "-.5e-2", "-inf", "-7", "-0.25"])
def test_a_negative_number_follows_its_option_as_any_other(number: str) -> None:
    needed = ["--prior", "data-free", "--n", "1e3", "--delta", ".05"]
    given = parser().parse_args(["bound", "disintegrated", "--log-ratio", number, *needed])
    assert (given.log_ratio, given.prior, given.delta) == (float(number), "data-free", 0.05)


def test_no_other_argument_is_taken_for_a_negative_number(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (["--log-ratio", "--json"], ["--log-ratio", "-1e6", "-1e6"], ["--json", "--", "-1e6"]):
        with pytest.raises(SystemExit):
            parser().parse_args(["bound", "disintegrated", *wrong])
    assert "expected one argument" in capsys.readouterr().err


def test_wrong_usage_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for given in (["list", "methods", "\x1b[31m\n\u202e"], ["\x1b[31m"], ["run", "x", "--seed", "\x1b[2J"]):
        with pytest.raises(SystemExit) as left:
            parser().parse_args(given)
        err = capsys.readouterr().err
        assert left.value.code == 2
        assert all(line.isprintable() for line in err.splitlines()) and "\\x1b[" in err


# versions -------------------------------------------------------------------------------------------------------


def test_version_names_the_package_and_what_its_numbers_depend_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        parser().parse_args(["--version"])
    out = capsys.readouterr().out
    assert left.value.code == 0 and out.startswith(f"pacbayes-fl {pacbayes_fl.__version__} (python ")
    for package in ("torch", "gpytorch", "pyro-ppl"):
        assert f"{package} {metadata.version(package)}" in out


def test_a_package_that_is_missing_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(SystemExit):
        parser().parse_args(["--version"])
    assert "pyro-ppl not installed" in capsys.readouterr().out


# what is imported -----------------------------------------------------------------------------------------------

COUNT = """
import sys
from pacbayes_fl.cli import main
loaded = []
SPLIT = "--set", "report.certify.scheme=split"
SMALL = "--set", "data.options.clients=2", "--set", "data.options.new_clients=1", "--set", "data.options.test_samples=4"
def after(*arguments):
    try:
        main(arguments)
    except SystemExit:
        pass
    loaded.append(sorted(name for name in {heavy} if name in sys.modules))
after("--help")
after("--version")
after("run", "--help")
after("run")
after("certify", "x", "--delta", "much")
after("show", "nowhere")
after("list", "methods")
after("list", "metrics")
after("list", "recorded")
after("list", "studies")
after("list", "data")
after("run", "polynomial", "--quiet", "--out", "run", "--rounds", "1", "--device", "cpu", *SPLIT, *SMALL)
after("certify", "run", "--quiet")
print(loaded, file=sys.stderr)
"""


@pytest.mark.slow
def test_no_command_imports_what_it_does_not_need(tmp_path: Path) -> None:
    """All in one process, from the lightest on: arrays come with data sets, tensors with the first run; sympy never."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT.format(heavy=HEAVY)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(pacbayes_fl.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    *light, run, certify = eval(done.stderr.splitlines()[-1])
    assert light == [*[[]] * 10, ["numpy"]]
    assert {"torch", "gpytorch"} <= set(run) <= {"numpy", "torch", "gpytorch", "pyro", "scipy"}
    assert "sympy" not in certify and (tmp_path / "run/certificates/seeger.json").is_file()


def test_the_package_runs_as_a_module(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pacbayes_fl", "--version"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(pacbayes_fl.__file__).parents[1])},
    )
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("pacbayes-fl ")
