"""Factors that grow by a block are those of all rows; what cannot grow is left to them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mpmath
import pytest
import torch

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.models.inducing import Inducing
from pacbayes_fl.posteriors.functions import gaussian_process
from pacbayes_fl.posteriors.functions.conditioning import condition, refined, tempered
from pacbayes_fl.posteriors.functions.extending import extended
from pacbayes_fl.posteriors.functions.gaussian_process import GPPosterior, factorise, function_kl
from pacbayes_fl.posteriors.weights.mixture import log_mixture_kl
from tests.inference.test_evidence import FEATURES, draw, models, particles

NAMES = ("a", "b", "c", "d")
MODELS = {name: model for name, model in models().items() if model.degrees_of_freedom(particles(model, 4, 3)) is None}


def batches() -> tuple[ClientBatch, ClientBatch]:
    """Rows of before and later ones of four clients, of whom one has none of the first and one none of the others."""
    result = []
    for seed, sizes in ((1, (4, 0, 7, 2)), (11, (3, 5, 1, 0))):
        x = draw(sum(sizes), FEATURES, seed=seed)
        y = x[:, 0].sin() + 0.3 * draw(sum(sizes), seed=seed + 1)
        result.append(ClientBatch.stack(list(zip(x.split(sizes), y.split(sizes), strict=True)), NAMES, range(4)))
    return result[0], result[1]


@pytest.mark.parametrize("weighting", ["evidence", "equal"])
@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_posterior_of_all_rows(name: str, weighting: Any) -> None:
    """Padding is in between: of rows that a client does not have, on either side."""
    model, (early, late) = MODELS[name], batches()
    theta = particles(model, 4, 3)
    prior, everything = condition(model, theta, early, weighting), early.extend(late)
    whole = condition(model, theta, everything, weighting)
    assert isinstance(prior, GPPosterior) and isinstance(whole, GPPosterior)
    found = extended(prior, early, late)
    assert found is not None
    posterior, by_particle = found
    new = torch.randn(4, 6, early.x.shape[2], generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    for ours, theirs in (
        (posterior.log_evidence, whole.log_evidence),
        (posterior.log_weights, whole.log_weights),
        (posterior.kl(), whole.kl()),
        (posterior.covariance(new), whole.covariance(new)),
        (posterior.predict(new).means, whole.predict(new).means),
        (posterior.predict(new).variances, whole.predict(new).variances),
        (by_particle, function_kl(whole, prior, early)),
        (refined(prior, early, late, weighting)[1], log_mixture_kl(whole.log_weights, prior.log_weights, by_particle)),
        (posterior.leave_one_out().z[0][:, posterior.mask[0]], whole.leave_one_out().z[0][:, whole.mask[0]]),
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("noise", [1e-1, 1e-3, 1e-4])
def test_its_divergence_is_known_however_small_the_noise_is(noise: float, again: bool) -> None:
    """By 60 digits; from the evidences of all rows it would be .13 nats too small at 1e-4, where rows come again."""
    model, x = DeepKernelGP(1, None, None, noise_std=noise), draw(14, 1, seed=1)
    if again:
        x = torch.cat((x[:7], x[:7]))
    y, theta = x[:, 0].sin() + noise * draw(14, seed=2), model.location().view(1, 1, -1)
    early, late = (ClientBatch.pad([(x[at], y[at])]) for at in (slice(7), slice(7, 14)))
    prior = condition(model, theta, early)
    assert isinstance(prior, GPPosterior)
    grown = extended(prior, early, late)
    assert grown is not None
    with mpmath.workdps(60):
        mean, covariance = (
            mpmath.matrix(one[0, 0].tolist()) for one in (model.mean(theta, x[None]), model.covariance(theta, x[None]))
        )
        variance = mpmath.mpf(model.noise(theta, x[None]).flatten()[0].item()) * mpmath.eye(7)
        residual, across = mpmath.matrix(y.tolist()) - mean, covariance[7:, :7]
        gain = across * (covariance[:7, :7] + variance) ** -1
        inside, left = covariance[7:, 7:] - gain * across.T, residual[7:] - gain * residual[:7]
        inverse = (inside + variance) ** -1
        determinant = mpmath.log(mpmath.det(inside + variance)) - 7 * mpmath.log(variance[0, 0])
        trace = mpmath.fsum((inside * inverse)[i, i] for i in range(7))
        expected = float((determinant - trace + (left.T * inverse * inside * inverse * left)[0]) / 2)
    assert grown[1].item() == pytest.approx(expected, rel=1e-6, abs=1e-4)


def test_it_grows_again() -> None:
    model, (first, second) = MODELS["deep"], batches()
    third = first.rows(torch.arange(2).expand(4, -1))
    seen, posterior = first, condition(model, particles(model, 4, 3), first)
    for rows in (second, third):
        posterior, _ = refined(posterior, seen, rows)
        assert isinstance(posterior, GPPosterior)
        seen = replace(seen, x=posterior.x, y=torch.cat((seen.y, rows.y), 1), mask=posterior.mask)
    assert isinstance(posterior, GPPosterior)
    assert posterior.x.shape[1] == sum(one.x.shape[1] for one in (first, second, third))  # blocks, not rows anew
    expected = condition(model, posterior.theta, first.extend(second).extend(third)).predict(first.x)
    torch.testing.assert_close(posterior.predict(first.x).means, expected.means, rtol=1e-8, atol=1e-8)


def test_what_is_not_known_by_a_block_is_conditioned_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (early, late) = MODELS["deep"], batches()
    theta = particles(model, 4, 3)
    prior = condition(model, theta, early)
    powers = tempered(model, theta, early, torch.full_like(early.y, 0.5))
    nothing = early.rows(torch.zeros(4, 0, dtype=torch.long))
    single = early.to(dtype=torch.float32), late.to(dtype=torch.float32)
    assert isinstance(prior, GPPosterior) and powers is not None
    assert extended(prior, early, late) is not None
    cases: list[tuple[str, Any, ClientBatch, ClientBatch]] = [
        ("other rows", prior, late, late),
        ("other clients", prior, early, late.select(torch.tensor([1, 0, 2, 3]))),
        ("no rows", condition(model, theta, nothing), nothing, late),
        ("powers of rows", powers, early, late),
        ("jitter", replace(prior, factor_jitter=prior.factor_jitter + 1e-8), early, late),
        ("no factor", replace(prior, log_evidence=prior.log_evidence * torch.nan), early, late),
        ("float32", condition(model, theta.float(), single[0]), *single),
        ("points", condition(model.with_inducing(Inducing(3, above=7)), theta, early), early, late),
    ]
    for why, posterior, seen, rows in cases:
        assert isinstance(posterior, GPPosterior)
        assert extended(posterior, seen, rows) is None, why
    for wrong in ({"jitter": torch.full((4, 3), 1e-8)}, {"ok": torch.zeros(4, 3, dtype=torch.bool)}):
        with monkeypatch.context() as patch:
            patch.setattr(gaussian_process, "factorise", lambda *at, wrong=wrong: factorise(*at)._replace(**wrong))
            assert extended(prior, early, late) is None, wrong
