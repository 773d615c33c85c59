"""What a study alone says of its certificates is said before the training, and is what `certify` says after it."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from pacbayes_fl.certificates.clients import certify
from pacbayes_fl.certificates.request import Request
from pacbayes_fl.errors import StudyError
from pacbayes_fl.methods import METHODS
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.prepare import prepare
from pacbayes_fl.study.run import train
from pacbayes_fl.study.uncertifiable import announce, told_by_plan
from tests.tiny import NUMBERS, on_csv, quick, rows, tiny, write_csv
from tests.tiny_images import tiny_images, write_root
from tests.user_objects import RULE, write

SPLIT, FOLDS = ("report.certify.scheme=split",), ("report.certify.scheme=folds", "report.certify.folds=2")
NETWORK = ("model={kind='vgg'}", *quick("pac-pfl-bnn"), "method.posterior=importance", "method.particles=1")
SERIES = {"persistence"}  # which needs a lag


def of_file(folder: Path, *sets: str) -> Study:
    return on_csv(write_csv(folder / "rows.csv", rows()), *sets, "federation.rounds=1")


def of_images(folder: Path, *sets: str) -> Study:
    return tiny_images(write_root(folder), *NETWORK, *sets, "federation.rounds=1")


def of_lines(folder: Path, *sets: str) -> Study:
    return tiny("data.options.clients=6", *sets, "federation.rounds=1")


CASES = {
    "known rows": (of_lines, SPLIT, ()),
    "rows of a file": (of_file, SPLIT, ("report.certify.independent = true",)),
    "declared rows": (of_file, (*SPLIT, "report.certify.independent=true"), ()),
    "declared otherwise": (of_lines, (*FOLDS, "report.certify.independent=false"), ("report.certify.independent",)),
    "folds": (of_lines, FOLDS, ()),
    "folds that all clients clip": (of_lines, (*FOLDS, "federation.aggregate=clipped"), ("'mean' or 'median'",)),
    "a split that all clients clip": (of_lines, (*SPLIT, "federation.aggregate=clipped"), ()),
    "folds of a file that all clip": (
        of_file,
        (*FOLDS, "federation.aggregate=clipped"),
        ("'mean' or 'median'", "report.certify.independent = true"),
    ),
    "a network that normalises": (of_images, SPLIT, ()),
    "one that has seen no row": (of_images, (*SPLIT, "report.certify.prior=global"), ("report.certify.prior = 'pers",)),
    "one in folds": (of_images, FOLDS, ("normalises by rows",)),
}


@pytest.mark.law
@pytest.mark.parametrize("case", CASES)
def test_what_certify_refuses_for_the_study_s_sake_is_said_before_the_training(case: str, tmp_path: Path) -> None:
    """The law of `foreseen`: it warns where, and only where, the trained run has no certificate, and of all reasons."""
    of, sets, words = CASES[case]
    study = of(tmp_path, *sets)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trained = train(study)
    said = [str(one.message) for one in caught if "certify will refuse" in str(one.message)]
    assert len(said) == bool(words) and all(word in said[0] for word in words)
    table = certify(trained, Request(draws=2))
    assert bool(table.reasons["existing"]) == bool(words)
    assert all(reason in said[0] for reason in table.reasons["existing"])


@pytest.mark.law
@pytest.mark.parametrize("name", [name for name in METHODS if name not in SERIES])
@pytest.mark.parametrize("sets", [(*SPLIT, "report.certify.prior=global"), FOLDS], ids=["split", "folds"])
def test_no_method_is_said_to_have_no_certificate_that_has_one(
    name: str, sets: tuple[str, ...], tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """By a bound that needs no posterior, which every method can have: of folds where it can be trained in them."""
    if name in NUMBERS:
        study = tiny(*quick(name), *sets, "data.options.clients=6", "federation.rounds=1")
    else:
        study = tiny_images(write_root(tmp_path), *quick(name), *sets, "federation.rounds=1")
    try:
        trained = train(study)
    except StudyError as error:
        assert "cannot be trained in folds" in str(error) and sets == FOLDS
        return
    assert certify(trained, Request("holdout-betting")).reasons["existing"] == []
    assert not [one for one in recwarn if "certify will refuse" in str(one.message)]


def test_a_study_that_reserves_no_rows_asks_for_no_certificates(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    study = of_file(tmp_path)
    announce(study, prepare(study, load(study))[0])
    assert not [one for one in recwarn if "certify" in str(one.message)]


@pytest.mark.parametrize("clips", [True, False])
def test_a_rule_of_ones_own_that_clips_tells_folds_of_each_other(clips: bool, tmp_path: Path) -> None:
    path = write(tmp_path, "rule.py", RULE.replace("robust=True,", f"robust=True, clips={clips},"))
    sets = ("report.certify.scheme=folds", "report.certify.folds=2", f"federation.aggregate={path}:RULE")
    said = told_by_plan(tiny(*sets))
    assert [f"aggregate = '{path}:RULE' ended steps in every fold" in text for text in said] == [True] * clips
    assert not told_by_plan(tiny(*sets[1:]))
