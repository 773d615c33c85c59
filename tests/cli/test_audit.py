"""The command `audit` prints what was shown beside what is reported, and says when that does not hold."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pacbayes_fl.privacy import mechanisms
from tests.cli.answers import Call
from tests.tiny import write_study


def test_audit_prints_the_bound_beside_the_report(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = write_study(tmp_path)
    asked = "audit", study, "--set", "privacy.epsilon=2", "--set", "federation.rounds=2", "--games", "3000", "--quiet"
    code, out, _ = call(*asked)
    first, second, last = out.splitlines()
    assert code == 0 and "(95% Clopper-Pearson, 3000 games with each of two neighbours, 2 releases)" in first
    assert second.startswith("epsilon is at least ") and "trade-off of Gaussian noise" in second
    assert last.startswith("reported: epsilon = ") and last.endswith("; nothing speaks against it")
    real = mechanisms.noise
    monkeypatch.setattr(mechanisms, "noise", lambda *given, **named: real(*given, **named) / 2)
    assert call(*asked)[1].splitlines()[-1].endswith("; WHICH DOES NOT HOLD")
    about = json.loads(call(*asked, "--json")[1])
    assert not about["holds"] and about["gaussian"] > about["reported"] > 1.9 and about["releases"] == 2
