"""Steps on posteriors of many clients at once against torch's Adam on each client alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import softplus

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference import svi
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Engine, Noise
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.posteriors.weights.spike_slab import SpikeSlab

MODEL = BayesianMLP((2, 3, 1), Gaussian(0.3), torch.float64)
SIZES = (5, 2, 7)
K, D = len(SIZES), MODEL.dim


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clients(*sizes: int) -> ClientBatch:
    rows = [(randn(k, m, 2), randn(10 + k, m)) for k, m in enumerate(sizes)]
    return ClientBatch.pad(rows, allow_empty=True)


def start(seed: int) -> MeanField:
    return MeanField(0.5 * randn(seed, K, D), 0.1 * randn(seed + 1, K, D) - 2.0)


def plain_loss(local: LocalInference, q: list[Tensor], w: list[Tensor], rows: Any, scale: float, eps: Any) -> Tensor:
    x, y = rows
    mine, theirs = Normal(q[0], softplus(q[1])), Normal(w[0], softplus(w[1]))
    divergence = kl_divergence(mine, theirs) if local.divergence == "forward" else kl_divergence(theirs, mine)
    loss: Tensor = local.zeta * divergence.sum()
    for draw in eps:
        theta = q[0] + softplus(q[1]) * local.noise_std * draw
        out = torch.relu(x @ theta[:6].view(2, 3) + theta[6:9]) @ theta[9:12].view(3, 1) + theta[12:]
        loss = loss - scale * Normal(out[:, 0], 0.3).log_prob(y).sum() / len(eps)
    return loss


@pytest.mark.law
@pytest.mark.quick
@pytest.mark.parametrize("engine", ["philox", "generators"])
@pytest.mark.parametrize("divergence", ["forward", "reverse"])
@pytest.mark.parametrize("data_scale", ["rows", "sum", "mean"])
def test_a_fit_is_torch_s_adam_on_every_client_alone(engine: Engine, divergence: Any, data_scale: Any) -> None:
    local = LocalInference(
        steps=3, inner=2, minibatch=4, draws=2, rate=0.03, zeta=0.7, data_scale=data_scale, divergence=divergence
    )
    batch, prior = clients(*SIZES), start(20)
    noise = Noise(3, 1, batch.ids, engine=engine)
    fitted = svi.fit(MODEL, local, prior, batch, noise, 2, lambda q, streams: svi.draw_of(q, streams))
    for k, m in enumerate(SIZES):
        alone = Noise(3, 1, batch.ids[k : k + 1], engine=engine)
        x, y = batch.x[k, :m], batch.y[k, :m]
        w = [leaf[k] for leaf in prior]
        own = [torch.nn.Parameter(leaf.clone()) for leaf in w]
        adam = torch.optim.Adam(own, lr=0.03)
        for _ in range(2 * 3):
            at = alone.rows(torch.ones(1, m, dtype=torch.bool), 4)[0]
            scale = {"rows": m / len(at), "sum": 1.0, "mean": 1.0 / len(at)}[data_scale]
            for _ in range(2):
                eps = [alone.weights(torch.empty(1, D, dtype=torch.float64))[0] for _ in range(2)]
                adam.zero_grad()
                plain_loss(local, [*own], w, (x[at], y[at]), scale, eps).backward()
                adam.step()
        for got, expected in zip(fitted, own, strict=True):
            torch.testing.assert_close(got[k], expected.data, rtol=1e-9, atol=1e-10)
            assert (got[k] - prior.loc[k]).abs().max() > 0.01


def test_a_client_without_rows_stays_at_the_prior_to_the_last_bit() -> None:
    """Adam would make whole steps of a gradient that is rounding alone."""
    batch, local = clients(5, 0, 7), LocalInference(steps=5, inner=3, rate=0.1, zeta=2.0)
    shared = MeanField(*(leaf[0] for leaf in start(20)))
    for prior in (start(20), tensors.expand(shared, K), tensors.tree_map(torch.Tensor.float, start(20))):
        model = BayesianMLP((2, 3, 1), Gaussian(0.3), prior.loc.dtype)
        fitted = svi.fit(model, local, prior, batch, Noise(0, 1, batch.ids), 3, svi.draw_of)
        assert all(torch.equal(got[1], before[1]) for got, before in zip(fitted, prior, strict=True))
        assert not any(torch.equal(got[0], before[0]) for got, before in zip(fitted, prior, strict=True))
    gates = SpikeSlab(*start(20), randn(40, K, D))
    fitted = svi.fit(MODEL, local, gates, batch, Noise(0, 1, batch.ids), 3, svi.draw_of)
    assert all(torch.equal(got[1], before[1]) for got, before in zip(fitted, gates, strict=True))


def test_the_prior_and_what_may_not_move_stay() -> None:
    batch, prior, free = clients(*SIZES), start(20), torch.arange(D) >= 9
    before = [leaf.clone() for leaf in prior]
    local = LocalInference(steps=2, inner=2, rate=0.1)
    fitted = svi.fit(MODEL, local, prior, batch, Noise(0, 1, batch.ids), 1, svi.draw_of, free)
    assert all(torch.equal(a, b) for a, b in zip(prior, before, strict=True))
    for got, was in zip(fitted, before, strict=True):
        assert torch.equal(got[:, ~free], was[:, ~free]) and (got[:, free] != was[:, free]).any(1).all()


def test_a_long_fit_of_a_linear_model_is_the_best_mean_field_in_closed_form() -> None:
    """Its mean is the exact posterior's, its precisions are the diagonal of the exact posterior's."""
    model, local = (
        BayesianMLP((2, 1), Gaussian(0.3), torch.float64),
        LocalInference(steps=300, inner=1, rate=0.02, draws=4, zeta=1.0),
    )
    batch = clients(8, 20)
    prior = MeanField(0.5 * randn(50, 2, 3), torch.full((2, 3), -2.0, dtype=torch.float64))
    fitted = svi.fit(model, local, prior, batch, Noise(0, 1, batch.ids), 1, svi.draw_of)
    for k in range(2):
        m, before = int(batch.size[k]), softplus(prior.rho[k]) ** -2
        x = torch.cat((batch.x[k, :m], torch.ones(m, 1, dtype=torch.float64)), 1)
        precision = x.T @ x / 0.09 + before.diag()
        mean = torch.linalg.solve(precision, x.T @ batch.y[k, :m] / 0.09 + before * prior.loc[k])
        std = precision.diagonal() ** -0.5
        assert ((fitted.loc[k] - mean).abs() < 0.5 * std).all()
        assert ((softplus(fitted.rho[k]) / std).log().abs() < 0.25).all()


def test_factors_of_the_log_likelihood() -> None:
    batch = clients(250, 30, 0)
    rows = batch.rows(Noise(0, 1, batch.ids).rows(batch.mask, 100))
    assert LocalInference().scale(batch, rows).tolist() == [2.5, 1.0, 0.0]
    assert LocalInference(data_scale="sum").scale(batch, rows).tolist() == [1.0, 1.0, 1.0]
    assert LocalInference(data_scale="mean").scale(batch, rows).tolist() == [0.01, 1 / 30, 1.0]


def test_a_minibatch_takes_one_draw_of_noise_however_many_rows_there_are() -> None:
    batch, local = clients(9, 3), LocalInference(minibatch=4)
    together, alone = Noise(0, 1, batch.ids), Noise(0, 1, batch.ids[1:])
    rows, scale = svi.minibatch(local, batch, together, torch.float32)
    assert rows.x.shape == (2, 4, 2) and rows.size.tolist() == [4, 3]
    assert scale.dtype == torch.float32 and scale.tolist() == [2.25, 1.0]
    whole, _ = svi.minibatch(local, batch.select(torch.tensor([1])).trim(), alone, torch.float32)
    assert whole.size.tolist() == [3]
    like = torch.empty(2, 5, dtype=torch.float64)
    assert torch.equal(together.normal(like)[1:], alone.normal(like[1:]))


def test_draws_are_shrunk_where_asked() -> None:
    q = start(20)
    usual, shrunk = (svi.draw_of(q, Noise(0, 1, (1, 2, 3)), std) for std in (1.0, 1e-3))
    torch.testing.assert_close(shrunk, 1e-3 * usual, rtol=1e-15, atol=0)


@pytest.mark.parametrize("name", ["steps", "inner", "minibatch", "draws", "rate", "zeta", "noise_std"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_numbers_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(StudyError, match=f"{name} must be (positive and finite|at least 1), got"):
        LocalInference(**{name: value})  # type: ignore[arg-type]
