"""The gradient of the collapsed bound, written out: against autograd, the exact evidence, and what holds of bounds."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.inference import collapsed_evidence
from pacbayes_fl.inference.evidence import ParticleScores, particle_scores
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.inducing import Inducing
from pacbayes_fl.posteriors.functions import pivoted
from pacbayes_fl.posteriors.functions.collapsed import collapsed_bound
from pacbayes_fl.posteriors.functions.pivoted import ModelKernel, choose
from tests.inference.test_evidence import SIZES, clients, close, draw, every_model, models, particles

POWER = torch.tensor([2.0, 0.5, 1.0, 1.3], dtype=torch.float64)


@pytest.fixture(autouse=True)
def to_the_last_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pivoted, "SLACK", 0.0)
    monkeypatch.setattr(collapsed_evidence, "_ROWS", 5)  # so that rows come in several turns, the last one shorter


def scores(model: FunctionModel, theta: Tensor, batch: ClientBatch, count: int = 4) -> ParticleScores:
    return particle_scores(model.with_inducing(Inducing(count)), theta, batch)


@pytest.mark.quick
@every_model
@pytest.mark.parametrize("power", [None, POWER], ids=["", "tempered"])
def test_with_all_rows_as_points_it_is_the_exact_evidence(name: str, power: Tensor | None) -> None:
    model, batch = models()[name], clients()
    theta = particles(model, 3)
    exact = particle_scores(model, theta, batch, power)
    found = particle_scores(model.with_inducing(Inducing(12)), theta, batch, power)
    torch.testing.assert_close(found.log_evidence, exact.log_evidence, rtol=0, atol=1e-9)
    close(found.score, exact.score, 1e-7)


@pytest.mark.law
@every_model
def test_value_and_gradient_are_those_of_the_definition_under_autograd(name: str) -> None:
    """Rows and points of one client at a time, without padding, under a jitter of none."""
    model, batch = models()[name], clients()
    theta = particles(model, len(SIZES), 2)
    found = scores(model, theta, batch)
    for k, m in enumerate(SIZES):
        for p in range(2):
            leaf = theta[k : k + 1, p : p + 1].clone().requires_grad_(True)
            x, y, mask = (part[k : k + 1, :m] for part in (batch.x, batch.y, batch.mask))
            with torch.no_grad():
                points = choose(ModelKernel(model, leaf, x), model.noise(leaf, x), mask, 4)
            inducing = x[:, points.at[0, 0][points.used[0, 0]]]
            value = collapsed_bound(model, leaf, inducing, ClientBatch(x, y, mask, (k,), (str(k),)))
            assert found.log_evidence[k, p].item() == pytest.approx(value.item(), rel=1e-9)
            close(found.score[k : k + 1, p : p + 1], torch.autograd.grad(value.sum(), leaf)[0], 1e-7)


@pytest.mark.law
@pytest.mark.quick
@every_model
def test_it_is_below_the_evidence_and_a_point_more_never_lowers_it(name: str) -> None:
    model, batch = models()[name], clients()
    theta = particles(model, 3)
    exact = particle_scores(model, theta, batch).log_evidence
    values = torch.stack([scores(model, theta, batch, count).log_evidence for count in range(1, 13)])
    assert (values.diff(dim=0) > -1e-10).all() and (values <= exact + 1e-9).all()
    assert (values[0] < exact - 1e-3).any()


def test_padding_and_other_clients_change_nothing() -> None:
    model, batch = models()["all of it"], clients()
    theta = particles(model, 2)
    whole = scores(model, theta, batch)
    for k, m in enumerate(SIZES):
        alone = scores(model, theta, ClientBatch.pad([(batch.x[k, :m], batch.y[k, :m])]))
        torch.testing.assert_close(alone.log_evidence, whole.log_evidence[k : k + 1], rtol=1e-11, atol=1e-11)
        close(alone.score, whole.score[k : k + 1], 1e-9)


def test_particles_that_are_no_numbers_fail_alone() -> None:
    model, batch = models()["all of it"], clients()
    theta = particles(model, 3)
    theta[1] = torch.nan
    found = scores(model, theta, batch)
    assert found.log_evidence[:, 1].isnan().all() and found.score[:, 1].isnan().all()
    assert found.score[:, [0, 2]].isfinite().all()


def test_few_points_are_enough_for_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where rows are dense the slack is small, and the choice ends by itself far before all rows are points."""
    monkeypatch.undo()
    model, x = models()["linear start"], draw(200, 3)
    batch = ClientBatch.pad([(x, x[:, 0].sin() + 0.3 * draw(200, seed=2))])
    theta = particles(model, 2)
    exact, found = particle_scores(model, theta, batch), scores(model, theta, batch, 150)
    assert (0 <= exact.log_evidence - found.log_evidence).all()
    torch.testing.assert_close(found.log_evidence, exact.log_evidence, rtol=0, atol=1e-3)
    close(found.score, exact.score, 1e-3)
