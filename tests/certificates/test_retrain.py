"""Runs that can be certified are made of those that cannot, and nothing is trained that would be refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pacbayes_fl.bounds import ZeroOne
from pacbayes_fl.certificates.clients import certify
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.certificates.retrain import certifiable, check, is_finished
from pacbayes_fl.errors import AssumptionError, CheckpointError, PrivacyError
from pacbayes_fl.study import run as study
from pacbayes_fl.study.run import open_run, run
from tests.tiny import on_csv, quick, rows, tiny, write_csv
from tests.tiny_images import tiny_images, write_root


def test_a_run_without_room_for_certificates_can_be_made_again(tmp_path: Path) -> None:
    run(tiny(), tmp_path / "run")
    study, folder = certifiable(tmp_path / "run")
    assert (study.report.certify.scheme, folder) == ("split", tmp_path / "run-certify")
    assert replace(study, report=tiny().report) == tiny()
    run(study, folder)
    assert certifiable(folder) == (study, folder)


def test_a_private_run_is_not_trained_again(tmp_path: Path) -> None:
    run(tiny("privacy.epsilon=5"), tmp_path)
    with pytest.raises(PrivacyError, match="not trained again"):
        certifiable(tmp_path)


def test_a_choice_is_made_anew_without_the_rows_that_are_kept_now(tmp_path: Path) -> None:
    study = tiny_images(
        write_root(tmp_path), "method.name=cfedbayes", "method.clusters=held-out", "method.trial_rounds=1"
    )
    run(study, tmp_path / "run")
    assert open_run(tmp_path / "run").study.held_out == ()
    again, _ = certifiable(tmp_path / "run")
    assert [one.option for one in again.held_out] == ["clusters"] and again.report.certify.scheme == "split"


def test_a_made_run_is_taken_only_where_it_is_of_the_same_study(tmp_path: Path) -> None:
    run(tiny("federation.rounds=3"), tmp_path / "run")
    study, folder = certifiable(tmp_path / "run")
    assert not is_finished(study, folder)
    run(study, folder)
    assert is_finished(study, folder)
    run(tiny("federation.rounds=4"), tmp_path / "run", resume=True)
    assert not is_finished(*certifiable(tmp_path / "run"))
    with pytest.raises(CheckpointError, match=r"method\.tau"):
        is_finished(
            replace(study, method=replace(study.method, options=replace(study.method.options, tau=0.5))), folder
        )


def refused(tmp_path: Path, request: Request, *sets: str, file: bool = False) -> list[str]:
    """Give the reasons for which a run would not be trained again."""
    made = on_csv(write_csv(tmp_path / "rows.csv", rows()), *sets) if file else tiny(*sets)
    made = replace(made, report=replace(made.report, certify=replace(made.report.certify, scheme="split")))
    try:
        check(made, request)
    except AssumptionError as error:
        return str(error).split("would have no certificate: ")[1].removesuffix(" (nothing was trained)").split("; ")
    return []


def test_all_reasons_come_at_once_and_before_any_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(on_csv(write_csv(tmp_path / "rows.csv", rows()), *quick("ridge"), "federation.rounds=1"), tmp_path / "run")
    monkeypatch.setattr(study, "train", lambda *_: pytest.fail("a run was trained that cannot be certified"))
    made, folder = certifiable(tmp_path / "run")
    with pytest.raises(AssumptionError, match=r"nothing was trained") as caught:
        check(made, Request("new-clients", loss=ZeroOne()))
    for words in (
        "report.certify.independent = true",
        "ridge has no posterior over hypotheses",
        "report.certify.drawn_clients = true",
        "method.name = 'pac-pfl'",
        "0-1 loss is not for real targets",
    ):
        assert words in str(caught.value)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("request_", "sets", "words"),
    [
        (Request(), (), None),
        (Request("catoni", beta="rows"), (), None),
        (Request("server"), (), None),
        (Request("theorem-3.2", beta="rows"), (), "drawn with privacy"),
        (Request("gibbs", beta="rows"), (), "method.posterior = 'importance'"),
        (Request(tried=None), (), "--tried"),
        (Request("new-clients"), (), "report.certify.drawn_clients = true"),
        (Request("new-clients"), ("report.certify.drawn_clients=true",), None),
        (
            Request("new-clients"),
            ("report.certify.drawn_clients=true", "data.options.new_clients=0"),
            "no new clients",
        ),
        (Request(), tuple(quick("ridge")), "no posterior over hypotheses"),
    ],
)
def test_what_is_refused_before_is_what_would_be_refused_after(
    request_: Request, sets: tuple[str, ...], words: str | None, tmp_path: Path
) -> None:
    """The law behind `check`: it says no where, and only where, `certify` would give no number after the training."""
    sets = (*sets, "federation.rounds=1")
    reasons = refused(tmp_path, request_, *sets)
    assert (reasons == []) == (words is None)
    assert words is None or any(words in reason for reason in reasons)
    trained = study.train(tiny(*sets, "report.certify.scheme=split"))
    numbers: Any = ()
    try:
        numbers = certify(trained, request_).clients
    except AssumptionError:
        pass
    assert bool(numbers) == (words is None) or words == "--tried"


def test_a_beta_by_rows_needs_new_clients_of_one_size(tmp_path: Path) -> None:
    sets = ("report.certify.independent=true", "report.certify.drawn_clients=true", "federation.rounds=1")
    (reason,) = refused(tmp_path, Request("new-clients"), *sets, file=True)
    assert "--beta with a number" in reason
    assert refused(tmp_path, Request("new-clients", beta=4.0), *sets, file=True) == []
    trained = study.train(on_csv(tmp_path / "rows.csv", *sets, "report.certify.scheme=split"))
    with pytest.raises(AssumptionError, match="beta must be the same"):
        certify(trained, Request("new-clients"))
    assert certify(trained, Request("new-clients", beta=4.0)).clients


def test_a_temperature_hides_nothing_of_what_would_be_refused(tmp_path: Path) -> None:
    sets = ("method.name=fedavg", "method.steps=2", "report.certify.scheme=split", "model.temperature=0.5")
    with pytest.raises(AssumptionError, match=r"fedavg has no posterior over hypotheses.*nothing was trained"):
        check(tiny_images(write_root(tmp_path), *sets), Request())


def test_rows_of_a_file_are_declared_by_a_key(tmp_path: Path) -> None:
    (reason,) = refused(tmp_path, Request(), file=True)
    assert "report.certify.independent = true" in reason
    assert refused(tmp_path, Request(), "report.certify.independent=true", file=True) == []
