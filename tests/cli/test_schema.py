"""The command `schema` prints the schema of a study, as JSON that any editor reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pacbayes_fl import cli
from pacbayes_fl.study.config.schema import schema


def test_schema_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out) == schema() and err == "" and out.isascii()


def test_schema_writes_a_file_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "study.schema.json"
    for _ in range(2):
        assert cli.main(["schema", "--out", str(file)]) == 0
    assert capsys.readouterr() == ("", "")
    assert json.loads(file.read_text()) == schema()
