"""Commands are called in an empty folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from pacbayes_fl import cli
from tests.cli.answers import Answer, Call
from tests.tiny import write_study


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Run a command in an empty folder that holds tiny.toml."""
    monkeypatch.chdir(tmp_path)
    write_study(tmp_path)

    def run(*arguments: object) -> Answer:
        capsys.readouterr()
        code = cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Answer(code, out, err)

    return run
