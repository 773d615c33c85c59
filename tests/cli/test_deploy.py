"""The command `deploy`."""

from __future__ import annotations

from pathlib import Path

import pytest

from pacbayes_fl.cli import main
from pacbayes_fl.federation.flower import processes


def test_what_is_missing_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes.importlib.util, "find_spec", lambda name: None)
    assert main(["deploy", "polynomial", "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "Flower is not installed (pip install 'pacbayes_fl[flower]')" in said and said.count("\n") == 1
    assert not any(tmp_path.iterdir())
