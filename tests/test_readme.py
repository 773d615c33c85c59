import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_an_example_runs_and_prints_finite_numbers(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    assert printed and "nan" not in printed and "inf" not in printed


def test_the_example_of_a_prior_is_short() -> None:
    own = next(block for block in BLOCKS if "GPyTorchPrior(" in block)
    assert len([line for line in own.splitlines() if line.strip()]) <= 22


def test_the_example_of_a_pyro_program_is_short() -> None:
    own = next(block for block in BLOCKS if "WeightModel)" in block)
    assert len([line for line in own.splitlines() if line.strip()]) <= 25


def test_the_readme_names_every_command() -> None:
    from pacbayes_fl.cli import parser

    commands = next(action for action in parser()._actions if action.dest == "command").choices or {}
    for name in commands:
        assert f"pacbayes-fl {name} " in README
