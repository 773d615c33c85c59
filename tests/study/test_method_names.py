"""Errors of a study call its method as the study does."""

from __future__ import annotations

from pathlib import Path

import pytest

from pacbayes_fl.errors import PacBayesFLError, PrivacyError, StudyError
from pacbayes_fl.study import check, run
from pacbayes_fl.study.data import load
from pacbayes_fl.study.method_names import as_named
from pacbayes_fl.study.serving.updates import update
from tests.tiny import on_csv, quick, rows, tiny, write_csv


@pytest.mark.parametrize(("name", "own"), [("gbt", "LocalGBT"), ("ridge", "LocalRidge"), ("pooled-ridge", "Pooled")])
def test_a_refusal_names_what_the_study_names(tmp_path: Path, name: str, own: str) -> None:
    study = on_csv(write_csv(tmp_path / "rows.csv", rows()), *quick(name), "privacy.epsilon=5", "privacy.delta=0.01")
    for refused in (lambda: run.run(study, tmp_path / "run"), lambda: check.check(study, load(study))):
        with pytest.raises(PrivacyError, match=rf"^{name} has no private release") as caught:
            refused()
        assert own not in str(caught.value) and caught.value.hint == "train it without [privacy]"


def test_so_do_later_rows(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", rows())
    run.run(on_csv(path, *quick("fedavg"), "federation.rounds=1"), tmp_path / "run")
    later = write_csv(tmp_path / "later.csv", [{"client": "existing_0", "lag_1": 1.0, "wind": 2.0, "y": 3.0}])
    with pytest.raises(StudyError, match=r"^fedavg does not learn from later rows"):
        update(run.open_run(tmp_path / "run"), later)


def test_an_error_keeps_all_else() -> None:
    with pytest.raises(PrivacyError) as caught, as_named(tiny("method.name=fedavg")):
        raise PrivacyError("FedAvg and FedAvgPrior", client="a", round=3, cause="spent", hint="FedAvg")
    error = caught.value
    assert str(error) == "round 3: client 'a': fedavg and FedAvgPrior (FedAvg)"
    assert (error.client, error.round, error.cause, error.hint) == ("a", 3, "spent", "FedAvg")
    plain = PacBayesFLError("of something else")
    with pytest.raises(PacBayesFLError) as caught, as_named(tiny()):
        raise plain
    assert caught.value is plain
