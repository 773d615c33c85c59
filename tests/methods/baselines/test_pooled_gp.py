"""The pooled GP: the bound of Titsias, its predictions, and the exact GP when every row is an inducing input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import NumericalError
from pacbayes_fl.federation import engine, federation_state, personalisation
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.evidence import particle_scores
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.baselines.centralised import pool, send
from pacbayes_fl.methods.baselines.pooled_gp import PooledGP, Server
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.functions.collapsed import collapsed_bound
from pacbayes_fl.posteriors.functions.gaussian_process import condition
from pacbayes_fl.posteriors.predictive import NormalMixture
from tests.laws.cases import bits, deep, federation, plain, rich, strangers

Array = NDArray[np.float64]
BATCH = federation(3)
X, Y = pool(send(BATCH))
ONE = ClientBatch.pad([(X, Y)])
MODELS = pytest.mark.parametrize("model", [deep(3), plain(3), rich(3)], ids=["deep", "plain", "rich"])


def theta_of(model: FunctionModel, seed: int = 1) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    return model.location() + 0.7 * torch.randn(model.dim, generator=random, dtype=torch.float64)


def kernel(model: FunctionModel, theta: torch.Tensor, x: torch.Tensor, other: torch.Tensor) -> Array:
    return np.asarray(model.covariance(theta.view(1, 1, -1), x[None], other[None])[0, 0])


def bound_at(model: FunctionModel, theta: torch.Tensor, inducing: torch.Tensor) -> float:
    """The bound as the method learns it."""
    everybody = ClientBatch.pad([(X, Y)])
    return collapsed_bound(model, theta.view(1, 1, -1), inducing.unsqueeze(0), everybody, 1e-6).item()


def pieces(model: FunctionModel, theta: torch.Tensor, inducing: torch.Tensor) -> tuple[Array, ...]:
    """Return K_uu with the jitter of the method, K_uf, diag K_ff, the residual and the noise of every row."""
    k_uu = kernel(model, theta, inducing, inducing) + 1e-6 * np.eye(len(inducing))
    k_uf, k_ff = kernel(model, theta, inducing, X), kernel(model, theta, X, X)
    residual = (Y - model.mean(theta.view(1, 1, -1), X[None])[0, 0]).numpy()
    return k_uu, k_uf, k_ff, residual, model.noise(theta.view(1, 1, -1), X[None])[0, 0].numpy()


@MODELS
@pytest.mark.parametrize("count", [1, 5, 19])
def test_the_collapsed_bound_is_that_of_titsias(model: FunctionModel, count: int) -> None:
    theta, inducing = theta_of(model), X[:count] + 0.1
    k_uu, k_uf, k_ff, r, noise = pieces(model, theta, inducing)
    q = k_uf.T @ np.linalg.solve(k_uu, k_uf)
    cov = q + np.diag(noise)
    normal = -0.5 * (r @ np.linalg.solve(cov, r) + np.linalg.slogdet(cov)[1] + len(Y) * np.log(2 * np.pi))
    expected = normal - np.sum(np.diag(k_ff - q) / (2 * noise))
    bound = bound_at(model, theta, inducing)
    assert bound == pytest.approx(expected, rel=1e-8)


@MODELS
def test_the_bound_is_below_the_evidence_and_meets_it_with_all_rows(model: FunctionModel) -> None:
    for seed in range(5):
        theta = theta_of(model, seed)
        exact = particle_scores(model, theta.view(1, -1), ONE).log_evidence.item()
        bounds = [bound_at(model, theta, X[:count]) for count in (1, 5, 12, 19)]
        assert bounds == sorted(bounds) and bounds[-1] <= exact
        assert bounds[0] < exact - 0.1
        assert bounds[-1] == pytest.approx(exact, rel=2e-4, abs=2e-3)


@MODELS
def test_with_every_row_it_predicts_as_the_exact_gp(model: FunctionModel) -> None:
    method = PooledGP(model, init_std=0.5, steps=0)
    server = engine.run_rounds(method, BATCH, FederationPlan(rounds=1)).server
    assert len(server.inducing) == 19
    exact = condition(model, server.theta.view(1, 1, -1), ONE).predict(X[None])
    mine = method.personalise(server, Nothing(), ONE, Noise(0, 0, ONE.ids)).predict(X[None])
    torch.testing.assert_close(mine.mean, exact.mean, rtol=0, atol=1e-4)
    torch.testing.assert_close(mine.variance, exact.variance, rtol=0, atol=1e-4)


@MODELS
def test_with_few_inducing_inputs_it_predicts_as_titsias(model: FunctionModel) -> None:
    method = PooledGP(model, init_std=0.5, steps=0, inducing=6, exact_up_to=18)
    server = engine.run_rounds(method, BATCH, FederationPlan(rounds=1)).server
    assert len(server.inducing) == 6
    k_uu, k_uf, _, r, noise = pieces(model, server.theta, server.inducing)
    new = strangers(3)
    mine = personalisation.join(method, server, new, 0).predict(new.x)
    inner = np.linalg.inv(k_uu + k_uf / noise @ k_uf.T)
    for k in range(2):
        k_us = kernel(model, server.theta, server.inducing, new.x[k])
        prior = model.mean(server.theta.view(1, 1, -1), new.x[k][None])[0, 0].numpy()
        np.testing.assert_allclose(mine.mean[k], prior + k_us.T @ inner @ k_uf @ (r / noise), rtol=1e-6, atol=1e-6)
        k_ss = np.diag(kernel(model, server.theta, new.x[k], new.x[k]))
        own = model.noise(server.theta.view(1, 1, -1), new.x[k][None])[0, 0].numpy()
        variance = k_ss - np.einsum("us,uv,vs->s", k_us, np.linalg.inv(k_uu) - inner, k_us) + own
        np.testing.assert_allclose(mine.variance[k], variance, rtol=1e-6, atol=1e-6)


@MODELS
def test_the_exact_fit_climbs_the_evidence(model: FunctionModel) -> None:
    values = []
    for steps in (0, 20, 60):
        method = PooledGP(model, init_std=0.5, rate=0.02, steps=steps)
        server = engine.run_rounds(method, BATCH, FederationPlan(rounds=1)).server
        values.append(particle_scores(model, server.theta.view(1, -1), ONE).log_evidence.item())
    assert values == sorted(values) and values[-1] > values[0] + 0.5


@pytest.mark.law
@MODELS
def test_the_sparse_fit_climbs_the_bound_and_moves_the_inputs(model: FunctionModel) -> None:
    servers = []
    for steps in (0, 20, 60):
        method = PooledGP(model, init_std=0.5, rate=0.02, steps=steps, inducing=5, exact_up_to=0)
        servers.append(engine.run_rounds(method, BATCH, FederationPlan(rounds=1)).server)
    values = [bound_at(model, s.theta, s.inducing) for s in servers]
    assert values == sorted(values) and values[-1] > values[0] + 0.5
    assert not torch.equal(servers[0].inducing, servers[-1].inducing)
    rows = {tuple(row) for row in X.tolist()}
    assert {tuple(row) for row in servers[0].inducing.tolist()} <= rows


def test_inducing_rows_are_chosen_by_the_seed() -> None:
    method = PooledGP(deep(3), steps=0, inducing=5, exact_up_to=0)
    chosen = [engine.run_rounds(method, BATCH, FederationPlan(rounds=1, seed=s)).server.inducing for s in (0, 0, 1)]
    assert torch.equal(chosen[0], chosen[1]) and not torch.equal(chosen[0], chosen[2])
    assert len(torch.unique(chosen[0], dim=0)) == 5


@pytest.mark.parametrize(("limit", "points"), [(18, 6), (19, 19), (2000, 19)])
def test_the_limit_decides_between_exact_and_sparse(limit: int, points: int) -> None:
    method = PooledGP(deep(3), steps=1, inducing=6, exact_up_to=limit)
    assert len(engine.run_rounds(method, BATCH, FederationPlan(rounds=1)).server.inducing) == points


def test_every_client_gets_the_same_gp() -> None:
    method = PooledGP(deep(3), steps=2)
    server = engine.run_rounds(method, BATCH, FederationPlan(rounds=1)).server
    same = replace(BATCH, x=BATCH.x[:1].expand_as(BATCH.x))
    predictive = personalisation.join(method, server, same, 0).predict(same.x)
    assert isinstance(predictive, NormalMixture) and predictive.means.shape == (4, 1, 9)
    assert torch.equal(predictive.mean, predictive.mean[:1].expand_as(predictive.mean))


def test_before_any_row_it_predicts_the_prior() -> None:
    model = deep(3)
    method = PooledGP(model)
    server = federation_state.start(method, BATCH, FederationPlan()).server
    theta = server.theta.view(1, 1, -1)
    predictive = personalisation.join(method, server, BATCH, 0).predict(BATCH.x)
    assert isinstance(predictive, NormalMixture)
    torch.testing.assert_close(predictive.means, model.mean(theta, BATCH.x))
    prior = model.variance(theta, BATCH.x) + model.noise(theta, BATCH.x)
    torch.testing.assert_close(predictive.variances, prior)


def test_without_any_row_nothing_is_learned() -> None:
    method = PooledGP(deep(3), steps=1)
    server = federation_state.start(method, BATCH, FederationPlan()).server
    nobody = send(BATCH)._replace(weight=torch.zeros(4))
    assert bits(method.server(server, nobody, 4)) == bits(server)


@pytest.mark.parametrize("limit", [0, 2000])
@pytest.mark.parametrize("steps", [0, 1])
def test_a_covariance_that_cannot_be_factored_is_named(limit: int, steps: int) -> None:
    method = PooledGP(deep(3), steps=steps, exact_up_to=limit)
    server = federation_state.start(method, BATCH, FederationPlan()).server
    broken: Server = server._replace(theta=server.theta * torch.nan)
    with pytest.raises(NumericalError, match="pooled covariance cannot be factored"):
        method.server(broken, send(BATCH), 4)


def test_repeated_rows_do_no_harm() -> None:
    rows = ClientBatch.pad([(X[:1].expand(30, -1), Y[:1].expand(30)), (X, Y)])
    for limit in (0, 2000):
        method = PooledGP(deep(3), steps=3, inducing=40, exact_up_to=limit)
        server = engine.run_rounds(method, rows, FederationPlan(rounds=1)).server
        predictive = personalisation.join(method, server, rows, 0).predict(rows.x)
        assert predictive.mean.isfinite().all() and (predictive.variance > 0).all()


@MODELS
@pytest.mark.parametrize("count", [5, 19])
def test_leave_one_out_residuals_are_those_of_fits_without_the_row(model: FunctionModel, count: int) -> None:
    """Inducing inputs and hyper-parameters stay; with all rows as inducing inputs the GP is exact."""
    theta, inducing = theta_of(model), X[:count] if count < len(X) else X
    k_uu, k_uf, k_ff, r, noise = pieces(model, theta, inducing)

    def weights(rows: list[int]) -> tuple[Array, Array]:
        scaled = k_uf[:, rows] / noise[rows]
        inner = k_uu + scaled @ k_uf[:, rows].T
        weight = np.linalg.solve(inner, scaled @ r[rows])
        return weight, np.linalg.inv(k_uu) - np.linalg.inv(inner)

    everything = weights(list(range(len(Y))))
    server = Server(theta, inducing, *map(torch.from_numpy, everything), torch.tensor(0))
    result = PooledGP(model).personalise(server, Nothing(), ONE, Noise(0, 0, [0])).leave_one_out()
    for i in range(len(Y)):
        weight, reduction = weights([j for j in range(len(Y)) if j != i])
        variance = k_ff[i, i] - k_uf[:, i] @ reduction @ k_uf[:, i] + noise[i]
        expected = (r[i] - k_uf[:, i] @ weight) / np.sqrt(variance)
        assert float(result.z[0, 0, i]) == pytest.approx(expected, rel=1e-4, abs=1e-5)
