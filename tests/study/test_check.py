"""Checks before a comparison: they refuse what the run itself would refuse before its first round, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from pacbayes_fl.errors import PacBayesFLError, StudyError
from pacbayes_fl.federation.player import RoundPlayer
from pacbayes_fl.methods import METHODS
from pacbayes_fl.study import check, run
from pacbayes_fl.study.data import load
from pacbayes_fl.study.file import Study
from tests.tiny import NUMBERS, on_csv, quick, rows, tiny, write_csv

PRIVATE = ("privacy.epsilon=5", "privacy.randomness=simulation")
FAULTS: dict[str, tuple[str, ...]] = {
    "none": (),
    "more clients than there are": ("federation.min_clients=5",),
    "certificates by halves": ("report.certify.scheme=split",),
    "certificates by folds": ("report.certify.scheme=folds", "report.certify.folds=2"),
    "more folds than clients": ("report.certify.scheme=folds", "report.certify.folds=9"),
    "private": PRIVATE,
    "private cohort without a size": (*PRIVATE, "privacy.cohort=fixed"),
    "private by an account that needs delta": (*PRIVATE, "privacy.mechanism=gaussian", "privacy.delta=0"),
    "a choice by few rows": ("data.options.samples=3",),
}
"""Assignments by what is wrong with them, for some methods at least."""


class Began(Exception):
    """The first round."""


def asked(name: str, fault: str) -> Study | None:
    """Read the study of a method with a fault; None where the study itself is refused."""
    sets = [*quick(name), *FAULTS[fault], *([] if METHODS[name].model == "functions" else ["model.widths=[4]"])]
    if "choice" in fault:
        for one in METHODS[name].held_out:
            sets.append(f"method.{one.option}=held-out")
    try:
        return tiny(*sets)
    except PacBayesFLError:
        return None


@pytest.mark.law
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", NUMBERS)
def test_what_a_run_refuses_is_refused_and_nothing_else(
    name: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the run itself, which is stopped where its first round begins."""
    one = asked(name, fault)
    if one is None:
        return

    def begin(*_: object) -> None:
        raise Began

    monkeypatch.setattr(RoundPlayer, "play", begin)
    told = ""
    try:
        run.run(one, tmp_path / "run")
    except Began:
        pass
    except PacBayesFLError as error:
        told = str(error)
    if told:
        with pytest.raises(PacBayesFLError) as refused:
            check.check(one, load(one))
        assert str(refused.value) == told
    else:
        check.check(one, load(one))


@pytest.mark.parametrize(
    ("name", "fault", "words"),
    [
        ("persistence", "none", "persistence needs a feature 'lag_1'"),
        ("ridge", "more clients than there are", "min_clients is 5, and there are 4 clients"),
        ("fedavg", "certificates by folds", "fedavg cannot be trained in folds of clients"),
        ("pac-pfl", "more folds than clients", "folds"),
        ("pac-pfl", "private cohort without a size", "needs the size of a cohort"),
        ("pac-pfl", "private by an account that needs delta", "delta"),
    ],
)
def test_each_fault_bites(name: str, fault: str, words: str) -> None:
    one = asked(name, fault)
    assert one is not None
    with pytest.raises(PacBayesFLError, match=words):
        check.check(one, load(one))


def test_several_studies_share_their_data_and_the_error_names_the_one(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[str] = []

    def counted(one: Study) -> object:
        loads.append(one.method.name)
        return load(one)

    monkeypatch.setattr(check, "load", counted)
    good = {name: tiny(*quick(name)) for name in ("ridge", "pac-pfl", "pfedgp")}
    check.check_all(good)
    assert loads == ["ridge"]
    with pytest.raises(StudyError, match=r"^lag 7 cannot run, and nothing was run yet: persistence needs a feature"):
        check.check_all({**good, "lag 7": tiny("method.name=persistence")})
    other = {"ridge": tiny("method.name=ridge"), "more": tiny("method.name=ridge", "data.options.samples=5")}
    loads.clear()
    check.check_all(other)
    assert loads == ["ridge", "ridge"]
    seeds = {str(seed): tiny("method.name=ridge", "data.follow_seed=true", f"seed={seed}") for seed in (1, 2)}
    check.check_all(seeds)
    assert len(loads) == 4


def test_a_missing_file_is_said_before_anything_runs(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "rows.csv", rows())
    both = {name: on_csv(path, f"method.name={name}") for name in ("ridge", "persistence")}
    check.check_all(both)
    path.unlink()
    with pytest.raises(PacBayesFLError, match=r"^ridge cannot run, and nothing was run yet: there is no file"):
        check.check_all(both)
