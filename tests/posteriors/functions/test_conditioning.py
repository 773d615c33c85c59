"""A prior says whether its rows are known through inducing points; later rows keep to it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from pacbayes_fl.bounds.divergence import gp_posterior_kl
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference.evidence import particle_scores
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.models.functions.remembered import Remembered
from pacbayes_fl.models.inducing import Inducing
from pacbayes_fl.posteriors.functions import pivoted
from pacbayes_fl.posteriors.functions.conditioning import (
    MixedPosterior,
    centre,
    condition,
    function_kl,
    refined,
    sharing_prior,
    tempered,
)
from pacbayes_fl.posteriors.functions.gaussian_process import GPPosterior
from pacbayes_fl.posteriors.functions.inducing import InducingPosterior
from pacbayes_fl.posteriors.functions.powers import PowerPosterior
from tests.inference.test_evidence import SIZES, clients, draw, models, particles
from tests.posteriors.functions.test_powers import between

MODEL = models()["all of it"]
THETA = particles(MODEL, len(SIZES), 2)


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


def test_the_prior_says_by_which_way() -> None:
    exact, sparse = (condition(model, THETA, clients(), "equal") for model in (MODEL, MODEL.with_inducing(Inducing(3))))
    assert isinstance(exact, GPPosterior) and isinstance(sparse, InducingPosterior)
    assert sparse.inducing.shape[2] == 3 and exact.weighting == sparse.weighting == "equal"
    with pytest.raises(TypeError, match="no divergence"):
        function_kl(exact, sparse, clients())


def test_means_alone_are_those_of_the_prediction_to_the_bit() -> None:
    batch, generator = clients(), torch.Generator().manual_seed(2)
    x = torch.randn(batch.clients, 6, batch.x.shape[2], generator=generator, dtype=batch.x.dtype)
    for model in models().values():
        exact = condition(model, particles(model, len(SIZES), 2), batch)
        alone = centre(exact, x)
        if model.degrees_of_freedom(exact.theta) is not None:
            assert alone is None  # means of scales that are summed over
            continue
        assert alone is not None and torch.equal(alone.mean, exact.predict(x).mean)
        assert not alone.variances.any()
    assert centre(condition(MODEL.with_inducing(Inducing(3)), THETA, batch), x) is None


@pytest.mark.quick
def test_refined_posteriors_with_all_rows_as_points_are_the_exact_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pivoted, "SLACK", 0.0)
    batch = clients()
    early, late = (batch.rows(torch.arange(*span).expand(batch.clients, -1)) for span in ((0, 2), (2, 5)))
    results = [
        refined(condition(model, THETA, early), early, late) for model in (MODEL, MODEL.with_inducing(Inducing(12)))
    ]
    torch.testing.assert_close(results[1][1], results[0][1], rtol=1e-8, atol=1e-8)
    means = [result[0].predict(batch.x).mean for result in results]
    torch.testing.assert_close(means[1], means[0], rtol=1e-8, atol=1e-8)


def test_from_no_rows_the_refined_divergence_is_that_of_the_certificates() -> None:
    batch, model = clients(), MODEL.with_inducing(Inducing(3))
    none = batch.rows(torch.zeros(batch.clients, 0, dtype=torch.long))
    posterior, kl = refined(condition(model, THETA, none, "equal"), none, batch, "equal")
    torch.testing.assert_close(kl, gp_posterior_kl(posterior), rtol=1e-10, atol=1e-10)


@pytest.mark.quick
@pytest.mark.parametrize("weighting", ["evidence", "equal"])
def test_powers_of_likelihoods_are_those_of_dense_matrices(weighting: Any) -> None:
    """Weights are the integrals of the powers under the prior, by determinants of another form."""
    batch, generator = clients(), torch.Generator().manual_seed(1)
    powers = torch.rand(batch.y.shape, generator=generator, dtype=torch.float64)
    found = tempered(MODEL, THETA, batch, powers, weighting)
    assert found is not None
    function = found.function(batch.x)
    for k in range(batch.clients):
        real, log_integrals = batch.mask[k], []
        x, y, w = batch.x[k][real].unsqueeze(0), batch.y[k][real], powers[k][real]
        for p in range(2):
            theta = THETA[k, p].view(1, 1, -1)
            mean, covariance = MODEL.mean(theta, x)[0, 0], MODEL.covariance(theta, x)[0, 0]
            noise = MODEL.noise(theta, x).expand(1, 1, len(y))[0, 0]
            precision = torch.diag(w / noise)
            after = covariance - covariance @ torch.linalg.inv(covariance + torch.linalg.inv(precision)) @ covariance
            close(function.means[k, p, real], mean + after @ precision @ (y - mean))
            close(function.variances[k, p, real], after.diagonal())
            loss = torch.linalg.inv(covariance + torch.linalg.inv(precision))
            log_integrals.append(
                -0.5 * (w * (2 * math.pi * noise).log()).sum()
                - 0.5 * torch.linalg.slogdet(torch.eye(len(y)).double() + covariance @ precision)[1]
                - 0.5 * (y - mean) @ loss @ (y - mean)
            )
        integrals = torch.stack(log_integrals)
        expected = integrals if weighting == "evidence" else torch.zeros_like(integrals)
        close(found.log_weights[k].exp(), expected.softmax(0))


def test_posteriors_that_share_their_prior_are_those_that_do_not() -> None:
    batch = clients()
    for seen in (2, 0):
        early = batch.rows(torch.arange(seen).expand(batch.clients, -1))
        prior = condition(MODEL, THETA, early)
        alike = sharing_prior(prior)
        assert isinstance(alike.model, Remembered) and alike.model.inner is MODEL
        for one, other in zip(
            [refined(alike, early, batch), *between(alike, batch, [0.3, 1.0])],
            [refined(prior, early, batch), *between(prior, batch, [0.3, 1.0])],
            strict=True,
        ):
            posterior = one[0]
            assert (
                posterior.spectrum.prior if isinstance(posterior, PowerPosterior) else posterior
            ).model is alike.model
            close(one[1], other[1])
            close(one[0].function(batch.x).variances, other[0].function(batch.x).variances)
    sparse = condition(MODEL.with_inducing(Inducing(3)), THETA, batch)
    assert sharing_prior(sparse) is sparse


def test_powers_are_known_of_exact_posteriors_under_gaussian_noise_alone() -> None:
    batch, ones = clients(), torch.ones_like(clients().y)
    student = DeepKernelGP(batch.x.shape[2], (4,), (4,), dof=4.0)
    assert tempered(student, particles(student, len(SIZES), 2), batch, ones) is None
    assert tempered(MODEL.with_inducing(Inducing(3)), THETA, batch, ones) is None


MIXED = MODEL.with_inducing(Inducing(4, above=3))  # sizes are 5, 1, 12 and 3
NEW = draw(len(SIZES), 6, 3, seed=11)


def alone(model: FunctionModel, k: int, rows: int = 12) -> tuple[Any, ClientBatch]:
    """The posterior of one client without padding, and its rows."""
    batch = clients()
    m = min(rows, SIZES[k])
    one = ClientBatch.pad([(batch.x[k, :m], batch.y[k, :m])])
    return condition(model, THETA[k : k + 1], one), one


def test_clients_with_and_without_points_are_each_as_they_are_alone() -> None:
    found, batch = condition(MIXED, THETA, clients()), clients()
    assert isinstance(found, MixedPosterior) and found.personal
    predicted, function, kl, residuals = found.predict(NEW), found.function(NEW), found.kl(), found.leave_one_out()
    scores = particle_scores(MIXED, THETA, batch, torch.tensor([2.0, 0.5, 1.0, 1.3], dtype=torch.float64))
    for k, m in enumerate(SIZES):
        one, rows = alone(MIXED, k)
        assert isinstance(one, InducingPosterior) == (m > 3)
        for ours, theirs in ((predicted, one.predict(NEW[k : k + 1])), (function, one.function(NEW[k : k + 1]))):
            close(ours.means[k], theirs.means[0])
            close(ours.variances[k], theirs.variances[0])
        close(found.log_weights[k], one.log_weights[0])
        close(kl[k], one.kl()[0])
        close(residuals.z[k, :, :m], one.leave_one_out().z[0])
        assert residuals.mask[k].sum() == m
        power = torch.tensor([[2.0, 0.5, 1.0, 1.3][k]], dtype=torch.float64)
        own = particle_scores(MIXED, THETA[k : k + 1], rows, power)
        close(scores.log_evidence[k], own.log_evidence[0])
        close(scores.score[k], own.score[0])


def test_a_client_whose_later_rows_make_it_large_is_refined_from_its_exact_posterior() -> None:
    """From 3 rows to 5, 1 to 1, 3 to 12, and 3 to 3: the divergence is that of numbers, with a posterior by points."""
    batch = clients()
    early, late = (batch.rows(torch.arange(*span).expand(batch.clients, -1)) for span in ((0, 3), (3, 12)))
    posterior, kl = refined(condition(MIXED, THETA, early, "equal"), early, late, "equal")
    assert isinstance(posterior, MixedPosterior)
    for k, m in enumerate(SIZES):
        (q, rows), (p, before) = alone(MIXED, k), alone(MIXED, k, 3)
        assert isinstance(p, GPPosterior) and rows.mask.shape[1] == m
        close(kl[k], function_kl(q, p, before).mean())


def test_rows_alone_decide_and_padding_does_not() -> None:
    """Small clients with much padding are exact, and all are where nobody has more rows than that."""
    batch = clients()
    assert isinstance(condition(MODEL.with_inducing(Inducing(4, 12)), THETA, batch), GPPosterior)
    small = replace(batch, mask=batch.mask & (torch.arange(12) < 3))
    found = condition(MIXED, THETA, small)
    assert isinstance(found, GPPosterior) and found.mask.shape[1] == 3
    assert isinstance(condition(MODEL.with_inducing(Inducing(4)), THETA, small), InducingPosterior)


@pytest.mark.parametrize("rule", [Inducing(0), Inducing(-1), Inducing(3, -1)])
def test_a_rule_without_points_is_refused(rule: Inducing) -> None:
    with pytest.raises(StudyError, match="at least 1 inducing"):
        MODEL.with_inducing(rule)


def test_the_prior_that_was_given_stays_exact() -> None:
    assert MIXED.inducing == Inducing(4, 3) and MODEL.inducing is None and MIXED.with_inducing(None).inducing is None
    assert MODEL.footprint(5) == MIXED.footprint(5) + 25 - 80 == 25 and MIXED.footprint(3) == 9
