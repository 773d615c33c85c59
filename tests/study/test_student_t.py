"""Student-t noise in runs: learned, resumed, predicted with and certified, and refused where noise must be normal."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from pacbayes_fl.certificates.clients import certify
from pacbayes_fl.errors import StudyError
from pacbayes_fl.study import run
from pacbayes_fl.study.config.gp_model import GPModel
from pacbayes_fl.study.file import Study
from pacbayes_fl.study.serving.predict import Prediction, join, predict
from tests.tiny import assert_same_results, assert_same_state, on_csv, quick, rows, write_csv

STUDENT = ("model.likelihood=student-t", "federation.rounds=4")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_csv(tmp_path_factory.mktemp("student") / "rows.csv", rows())


@pytest.mark.slow
def test_a_run_with_student_t_noise_goes_on_and_is_predicted_joined_and_certified(table: Path, tmp_path: Path) -> None:
    sets = (*STUDENT, "report.certify.scheme=split", "report.certify.independent=true")
    for name, rounds in (("whole", 4), ("cut", 2), ("cut", 4)):
        study = on_csv(table, *sets, f"federation.rounds={rounds}")
        run.run(study, tmp_path / name, resume=rounds == 4 and name == "cut")
    assert_same_results(tmp_path / "whole", tmp_path / "cut")
    assert_same_state(tmp_path / "whole", tmp_path / "cut")
    trained = run.open_run(tmp_path / "cut")
    raw = trained.method.model.unflatten(trained.state.server.particles)["likelihood.raw_dof"]
    assert not torch.equal(raw, torch.full_like(raw, math.log(2.0)))  # it has learned
    own = [{k: v for k, v in row.items() if k in ("lag_1", "wind")} for row in rows()[:3]]
    asked = predict(trained, "existing_0", write_csv(tmp_path / "ask.csv", own))
    assert (
        isinstance(asked, Prediction)
        and asked.mean.isfinite().all()
        and (asked.lower < asked.mean).all()
        and (asked.mean < asked.upper).all()
    )
    named = [{k: v for k, v in row.items() if k not in ("split", "group")} | {"client": "n"} for row in rows()[:6]]
    (joined,) = join(
        trained, write_csv(tmp_path / "join.csv", [*named[:4], *(r | {"y": math.nan} for r in named[4:])])
    ).values()
    assert isinstance(joined, Prediction) and joined.mean.isfinite().all() and (joined.std > 0).all()
    certified = certify(trained)
    assert len(certified.clients) == 6 and not any(certified.reasons.values())
    assert all(certified.low < one.bound <= certified.high for one in certified.clients)


@pytest.mark.parametrize("name", ["pfedgp", "vanilla-gp"])
def test_other_gaussian_processes_learn_under_it_too(table: Path, name: str) -> None:
    result = run.run(on_csv(table, *quick(name), *STUDENT, "model.degrees_of_freedom=3"))
    assert all(math.isfinite(score) for group in ("existing", "new") for score in result.column(group, "nlpd"))


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (("model.residuals=mixture",), "residuals = 'mixture' needs leave-one-out residuals in closed form"),
        (("model.residuals=held-out",), "residuals = 'held-out' tries 'mixture', which likelihood = 'student-t'"),
        (
            ("report.intervals=conformal",),
            "report.intervals = 'conformal' needs leave-one-out residuals",
        ),
        (("model.inducing=3",), "inducing points are for Gaussian noise"),
        ((*quick("pooled-gp"),), "a pooled GP takes Gaussian noise"),
        (("model.degrees_of_freedom=2",), "degrees_of_freedom"),
    ],
)
def test_what_is_not_for_student_t_noise_is_refused_by_name(table: Path, sets: tuple[str, ...], said: str) -> None:
    with pytest.raises(StudyError, match=said):
        run.run(on_csv(table, *STUDENT, *sets))


def test_on_rows_of_ones_own_the_shape_of_errors_is_then_the_noises(table: Path) -> None:
    given = {"data": {"source": str(table)}, "method": {"name": "pac-pfl"}}
    assert Study.from_table(given).model.residuals == "mixture"
    assert Study.from_table({**given, "model": {"likelihood": "student-t"}}).model.residuals == "gaussian"


def test_a_start_of_the_particles_has_the_degrees_of_freedom_that_the_centre_has() -> None:
    model = GPModel((4,), (4,), linear="none", likelihood="student-t").build((2,))
    spreads = model.spreads()
    assert spreads is not None
    named = model.unflatten(spreads.start)["likelihood.raw_dof"], model.unflatten(spreads.prior)["likelihood.raw_dof"]
    assert [value.item() for value in named] == pytest.approx([0.0, 1 / 0.3])
    centre = model.degrees_of_freedom(model.location().view(1, 1, -1))
    assert centre is not None and centre.item() == pytest.approx(4.0)
