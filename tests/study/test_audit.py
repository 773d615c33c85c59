"""Studies and runs are audited for the releases that they make."""

from __future__ import annotations

from pathlib import Path

import pytest

from pacbayes_fl.errors import PrivacyError
from pacbayes_fl.privacy.accounting import Budget
from pacbayes_fl.privacy.ledger import Ledger
from pacbayes_fl.results import records
from pacbayes_fl.study import run
from pacbayes_fl.study.audit import audit, planned
from tests.tiny import ROUNDS, tiny, write_study

SETS = ("privacy.epsilon=2", "privacy.delta=0.01", "federation.rounds=3")


def test_a_study_is_audited_for_what_its_run_reports(tmp_path: Path) -> None:
    charges, delta = planned(tiny(*SETS))
    folder = tmp_path / "run"
    run.run(tiny(*SETS), folder)
    assert Ledger(folder, Budget(1e300, 0.5)).charges == tuple(charges) and delta == 0.01
    by_study, by_run = audit(str(write_study(tmp_path)), SETS, 4000), audit(str(folder), (), 4000)
    assert by_study == by_run and by_run.holds and by_run.releases == 3 < ROUNDS
    assert by_run.reported == records.load(folder).labels["privacy"]["epsilon"] and by_run.delta == 0.01
    assert by_run.gaussian is not None and 1.4 < by_run.gaussian < 2
    with pytest.raises(PrivacyError, match="settings are past"):
        audit(str(folder), SETS)


def test_what_is_not_private_has_nothing_to_audit(tmp_path: Path) -> None:
    with pytest.raises(PrivacyError, match="tiny is not private"):
        audit(str(write_study(tmp_path)))
    with pytest.raises(PrivacyError, match="no private run"):
        audit(str(tmp_path))
