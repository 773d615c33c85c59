"""Posteriors of powers of the likelihood: those of dense normals, of the same powers row by row, and of all of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl.bounds import full_gaussian_kl
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.models.inducing import Inducing
from pacbayes_fl.posteriors.functions.conditioning import condition, function_kl, tempered
from pacbayes_fl.posteriors.functions.powers import PowerPosterior, partly_refined
from pacbayes_fl.posteriors.weights.mixture import log_mixture_kl
from tests.inference.test_evidence import SIZES, clients, draw, models, particles

MODEL = models()["all of it"]
THETA = particles(MODEL, len(SIZES), 2)
NEW = draw(len(SIZES), 6, 3, seed=11)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


def between(prior: Any, rows: ClientBatch, powers: list[float]) -> list[tuple[PowerPosterior, Tensor]]:
    return partly_refined(prior, condition(prior.model, prior.theta, rows), rows, powers)


@pytest.mark.quick
def test_a_part_of_the_likelihood_is_between_prior_and_posterior() -> None:
    """Rows of before count whole; the divergence is that of dense normals at all rows, one particle at a time."""
    batch, one = clients(), THETA[:, :1]
    early, late = (batch.rows(torch.arange(*span).expand(batch.clients, -1)) for span in ((0, 2), (2, 5)))
    prior = condition(MODEL, one, early)
    ((posterior, kl),) = between(prior, late, [0.3])
    for k in (0, 2):  # with rows of both kinds
        rows = batch.x[k, :5].unsqueeze(0), batch.y[k, :5]
        theta = one[k].unsqueeze(0)
        mean, covariance = MODEL.mean(theta, rows[0])[0, 0], MODEL.covariance(theta, rows[0])[0, 0]
        noise = MODEL.noise(theta, rows[0]).expand(1, 1, 5)[0, 0]
        normals = []
        for power in (0.0, 0.3):
            weight = torch.tensor([1.0, 1.0, power, power, power], dtype=torch.float64) / noise
            inner = torch.eye(5).double() + covariance.mul(weight)
            after = torch.linalg.solve(inner, covariance)
            normals.append((mean + after.mul(weight) @ (rows[1] - mean), 0.5 * (after + after.mT)))
        (p_mean, p), (q_mean, q) = normals
        torch.testing.assert_close(kl[k], full_gaussian_kl(q_mean, q, p_mean, p), rtol=1e-5, atol=1e-8)
        close(posterior.function(rows[0].expand(batch.clients, -1, -1)).means[k, 0], q_mean)


@pytest.mark.quick
@pytest.mark.parametrize("weighting", ["evidence", "equal"])
@pytest.mark.parametrize("seen", [0, 2])
def test_one_decomposition_gives_the_posteriors_of_rows_with_as_much_more_noise(seen: int, weighting: Any) -> None:
    """Of powers that float32 rounds, too; the prior's rows count whole, and other inputs are asked for in between."""
    batch, powers = clients(), [0.05, 0.12, 0.7, 1.0]
    early, late = (batch.rows(torch.arange(*span).expand(batch.clients, -1)) for span in ((0, seen), (seen, 12)))
    prior, everything = condition(MODEL, THETA, early, weighting), early.extend(late)
    before = early.mask.sum(1, keepdim=True)
    place = torch.arange(everything.mask.shape[1])
    for power, (found, kl) in zip(powers, between(prior, late, powers), strict=True):
        weight = torch.where(place < before, 1.0, torch.tensor(power, dtype=torch.float64))
        expected = tempered(MODEL, THETA, everything, weight, weighting)
        assert expected is not None
        close(found.log_weights, expected.log_weights)
        each = function_kl(expected, prior, early)
        close(found.kl(), each)
        close(kl, log_mixture_kl(expected.log_weights, prior.log_weights, each))
        for x, real in ((late.x, late.mask), (NEW, torch.ones(NEW.shape[:2], dtype=torch.bool)), (late.x, late.mask)):
            ours, theirs = found.function(x), expected.function(x)
            close(ours.means.mT[real], theirs.means.mT[real])
            close(ours.variances.mT[real], theirs.variances.mT[real])


def test_what_is_not_known_of_a_client_stays_with_it() -> None:
    theta, batch = THETA.clone(), clients()
    theta[0] = torch.nan
    nothing = batch.rows(torch.zeros(batch.clients, 0, dtype=torch.long))
    ((found, kl),) = between(condition(MODEL, theta, nothing), batch, [0.5])
    ((sound, expected),) = between(condition(MODEL, THETA, nothing), batch, [0.5])
    assert kl.isfinite().tolist() == [False, True, True, True]
    close(kl[1:], expected[1:])
    close(found.function(NEW).means[1:], sound.function(NEW).means[1:])


class Indefinite(DeepKernelGP):
    """A model of one's own whose covariance is none: what is the same everywhere was taken off it."""

    def embedding(self, theta: Tensor, x: Tensor) -> None:
        return None

    def bind(self, theta: Tensor) -> Any:
        return lambda x: (self.mean(theta, x), None)

    def covariance(self, theta: Tensor, x: Tensor, other: Tensor | None = None) -> Tensor:
        return super().covariance(theta, x, other) - 3.0


def test_a_covariance_that_is_indefinite_has_powers_no_more_than_the_posterior_of_all_of_it() -> None:
    batch = clients()
    nothing = batch.rows(torch.zeros(batch.clients, 0, dtype=torch.long))
    model = Indefinite(batch.x.shape[2], (4,), (4,))
    theta = particles(model, len(SIZES), 2)
    assert bool(condition(model, theta, batch).log_evidence.isnan().all())
    ((found, kl),) = between(condition(model, theta, nothing), batch, [0.5])
    assert bool(found.kl().isnan().all()) and not bool(kl.isfinite().any())


def test_powers_are_known_of_exact_posteriors_under_gaussian_noise_alone() -> None:
    batch = clients()
    none = batch.rows(torch.zeros(batch.clients, 0, dtype=torch.long))
    single, nothing = (rows.to(dtype=torch.float32) for rows in (batch, none))
    student = DeepKernelGP(batch.x.shape[2], (4,), (4,), dof=4.0)
    theta = particles(student, len(SIZES), 2)
    assert between(condition(student, theta, none), batch, [0.5]) == []
    sparse = MODEL.with_inducing(Inducing(3))
    assert between(condition(sparse, THETA, none), batch, [0.5]) == []
    assert between(condition(MODEL, THETA.float(), nothing), single, [0.5]) == []
