"""A long run is announced with what would be shorter; a short one is not, and none of its rows are touched."""

from __future__ import annotations

import warnings

import pytest

from pacbayes_fl.models.inducing import AUTO, Inducing
from pacbayes_fl.study import duration
from pacbayes_fl.study.data import load
from pacbayes_fl.study.duration import Work, announce, remark, work_of
from pacbayes_fl.study.prepare import prepare
from tests.tiny import ROUNDS, tiny

SPEED = 2.5e10


def test_a_long_run_is_announced_with_the_option_that_makes_it_short() -> None:
    """A hundred rounds of four particles at 24 clients of 3,000 rows: 24 x 400 x 1.3 x 3000^3 operations."""
    text = remark(Work(400, [3000] * 24, None), SPEED)
    assert text is not None and "up to 3000 rows take about 4 hours here" in text
    assert text.endswith("model.inducing = 'auto' takes about 12 minutes")
    assert remark(Work(400, [700] * 24, AUTO), SPEED) is None  # where points would take as long
    below = remark(Work(400, [1500] * 24, Inducing(100, 2000)), SPEED)
    assert below is not None and "28 minutes here" in below and "model.inducing = 200 takes about 6 minutes" in below


@pytest.mark.parametrize(
    "work", [Work(400, [150] * 24, None), Work(400, [8760] * 24, AUTO), Work(400, [], None), Work(0, [9000], None)]
)
def test_a_run_that_is_short_or_has_points_already_is_not(work: Work) -> None:
    assert remark(work, SPEED) is None


def test_evidences_are_those_of_rounds_particles_and_minibatches() -> None:
    study = tiny("model.inducing=5", "method.minibatch=3", "federation.cohort=2")
    method, _ = prepare(study, load(study))
    assert work_of(study, method, [7, 2, 7, 7], 2) == Work((ROUNDS - 2) * 0.5 * 2, [3, 2, 3, 3], Inducing(5))
    alone = tiny("method.name=vanilla-gp", "method.steps=9")
    assert work_of(alone, prepare(alone, load(alone))[0], [7]) == Work(9, [7], AUTO)
    for name in ("pooled-gp", "ridge", "pfedbayes"):
        other = tiny(f"method.name={name}", "model.widths=[3]") if name == "pfedbayes" else tiny(f"method.name={name}")
        assert work_of(other, prepare(other, load(other))[0], [7]) is None


def test_a_run_says_it_once_before_its_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    study = tiny()
    method, groups = prepare(study, load(study))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        announce(study, method, groups["existing"].train)
    monkeypatch.setattr(duration, "_USUAL", 1e-9)
    monkeypatch.setattr(duration, "_operations_a_second", lambda: 1e-3)
    monkeypatch.setattr(duration, "AUTO", Inducing(1, 2000))
    monkeypatch.setattr(duration, "_PER_ROW", 0.0)
    with pytest.warns(UserWarning, match="exact Gaussian processes of clients with up to 7 rows take about"):
        announce(study, method, groups["existing"].train)
