"""Conformal intervals: against explicit refits and counting, their coverage by simulation, and what few rows get."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.models.inducing import Inducing
from pacbayes_fl.posteriors.functions import conditioning, inducing, pivoted
from pacbayes_fl.posteriors.functions.conformal import (
    ALPHA,
    Banded,
    ConformalPosterior,
    blocks_of,
    jackknife_plus,
    left_out,
)
from pacbayes_fl.posteriors.functions.gaussian_process import GPPosterior, condition
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.residuals import Residuals, bin_values, quantile_of_size, standard_normal

MODEL = DeepKernelGP(2, None, (3,), 2)
SIZES = (19, 24, 7, 0)
LEVELS = (ALPHA / 2, 1 - ALPHA / 2)
NORMAL = standard_normal(torch.zeros(1))


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def clients(sizes: tuple[int, ...] = SIZES) -> ClientBatch:
    rows = [(draw(m, 2, seed=10 + m), draw(m, seed=20 + m)) for m in sizes]
    return ClientBatch.pad(rows, allow_empty=True)


def particles(model: FunctionModel, count: int, clients: int) -> Tensor:
    return (model.location() + 0.5 * draw(count, model.dim, seed=3)).expand(clients, -1, -1)


def moments(posterior: GPPosterior, x: Tensor) -> tuple[float, float]:
    """Return mean and standard deviation of one client's prediction of one row."""
    known = posterior.predict(x.view(1, 1, -1))
    return float(known.mean), float(known.variance.sqrt())


@pytest.mark.parametrize("weighting", ["evidence", "equal"])
@pytest.mark.parametrize(("blocks", "alpha"), [(None, ALPHA), (4, 0.2)])
def test_intervals_are_those_of_refits_without_each_block(
    weighting: Literal["evidence", "equal"], blocks: int | None, alpha: float
) -> None:
    batch, new = clients(), draw(4, 3, 2, seed=7)
    theta = particles(MODEL, 3, 4)
    low, high = jackknife_plus(condition(MODEL, theta, batch, weighting), new, blocks, alpha)
    for k, m in enumerate(SIZES):
        if m < 1 / alpha - 1:
            assert bool(low[k].isinf().all()) and bool(high[k].isinf().all())
            continue
        cut = m if blocks is None else blocks
        ends: list[tuple[list[float], list[float]]] = [([], []) for _ in range(3)]
        for g in range(cut):
            block = range(g * m // cut, (g + 1) * m // cut)
            rest = [j for j in range(m) if j not in block]
            alone = ClientBatch.pad([(batch.x[k][rest], batch.y[k][rest])])
            known = condition(MODEL, theta[:1], alone, weighting)
            for i in block:
                mean, std = moments(known, batch.x[k, i])
                score = abs(float(batch.y[k, i]) - mean) / std
                for n in range(3):
                    mean, std = moments(known, new[k, n])
                    ends[n][0].append(mean - score * std)
                    ends[n][1].append(mean + score * std)
        for n in range(3):
            assert float(low[k, n]) == pytest.approx(sorted(ends[n][0])[math.floor(alpha * (m + 1)) - 1], rel=1e-7)
            assert float(high[k, n]) == pytest.approx(
                sorted(ends[n][1])[math.ceil((1 - alpha) * (m + 1)) - 1], rel=1e-7
            )


def test_blocks_are_runs_of_rows_that_leave_none_out() -> None:
    mask = torch.arange(11) < torch.tensor([[11], [8], [3], [0]])
    at, inside = blocks_of(mask, 4)
    for k, m in enumerate((11, 8, 3, 0)):
        runs = [at[k, g][inside[k, g]].tolist() for g in range(4)]
        assert [row for run in runs for row in run] == list(range(m))
        sizes = {len(run) for run in runs if run}
        assert not sizes or max(sizes) - min(sizes) <= 1
    assert blocks_of(mask, None)[0].shape == (4, 11, 1)


def test_neither_padding_nor_the_order_of_rows_moves_an_interval() -> None:
    batch, theta, new = clients((20,)), particles(MODEL, 2, 1), draw(1, 70, 2, seed=8)
    base = jackknife_plus(condition(MODEL, theta, batch), new)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    moved = ClientBatch.pad([(batch.x[0][order], batch.y[0][order])])
    torch.testing.assert_close(jackknife_plus(condition(MODEL, theta, moved), new), base)
    both = ClientBatch.pad([(batch.x[0], batch.y[0]), (draw(33, 2), draw(33))])
    wide = jackknife_plus(condition(MODEL, theta.expand(2, -1, -1), both), new.expand(2, -1, -1))
    torch.testing.assert_close(wide[:, :1], base)


def simulated(count: int, rows: int, asked: int) -> tuple[ClientBatch, ClientBatch]:
    """Draw clients whose noise has heavy tails and grows with x: the model is wrong about both."""
    random = np.random.default_rng(1)
    x = random.normal(size=(count, rows + asked, 2))
    y = np.sin(2 * x[..., 0]) + np.exp(0.7 * x[..., 1]) * random.standard_t(3, x.shape[:2])
    both = torch.from_numpy(x), torch.from_numpy(y)
    train, test = ([leaf[:, part] for leaf in both] for part in (slice(rows), slice(rows, None)))
    return ClientBatch.pad(list(zip(*train, strict=True))), ClientBatch.pad(list(zip(*test, strict=True)))


@pytest.mark.parametrize("blocks", [None, 6])
def test_intervals_of_clients_that_never_trained_cover_what_they_promise_where_the_model_does_not(
    blocks: int | None,
) -> None:
    train, test = simulated(150, 30, 8)
    posterior = condition(MODEL, particles(MODEL, 2, 150), train)

    def coverage(ends: Tensor) -> float:
        return float(((ends[0] <= test.y) & (test.y <= ends[1])).double().mean())

    mine = coverage(jackknife_plus(posterior, test.x, blocks))
    models = coverage(posterior.predict(test.x).quantile(test.x.new_tensor(LEVELS)))
    assert models < 0.8
    assert 0.93 < mine < 0.985


def test_few_rows_get_the_federations_quantile_and_all_else_is_the_posterior_shown() -> None:
    batch, x = clients((7, 24, 0)), draw(3, 5, 2, seed=4)
    inner = condition(MODEL, particles(MODEL, 2, 3), batch)
    others = torch.zeros(128, dtype=torch.float64)
    others[40] = others[90] = 0.5
    result, known = ConformalPosterior(inner, inner, others, None).predict(x), inner.predict(x)
    lower, upper = result.quantile(torch.tensor(LEVELS))
    far = float(quantile_of_size(others, 0.95))
    assert float(bin_values(others)[90]) < far * 1.05
    low, high = known.mean - far * known.variance.sqrt(), known.mean + far * known.variance.sqrt()
    widest = jackknife_plus(inner, x, alpha=1 / 8)  # of seven rows: from the least end to the greatest
    torch.testing.assert_close(lower[0], torch.minimum(low, widest[0])[0])
    torch.testing.assert_close(upper[0], torch.maximum(high, widest[1])[0])
    torch.testing.assert_close((lower[2], upper[2]), (low[2], high[2]))
    torch.testing.assert_close(torch.stack((lower, upper))[:, 1], jackknife_plus(inner, x)[:, 1])
    assert torch.equal(result.log_prob(batch.y[:, :5]), known.log_prob(batch.y[:, :5]))
    levels = torch.tensor([0.3, 0.5], dtype=torch.float64)
    assert torch.equal(result.quantile(levels), known.quantile(levels))  # inside of every interval here


@pytest.mark.parametrize("blocks", [None, 3])
@pytest.mark.parametrize("share", [0.05, 1.0])
def test_intervals_that_more_rows_may_leave_are_no_wider(share: float, blocks: int | None) -> None:
    """Also where the client's own rows are enough for the one level and too few for the next: of 12, .92 and .93."""
    batch, x = clients((12, 3, 24, 0)), draw(4, 6, 2, seed=5)
    inner = condition(MODEL, particles(MODEL, 2, 4), batch)
    others = torch.zeros(128, dtype=torch.float64)
    others[60:68] = share / 8  # errors that are far smaller than those of these clients
    others[30] = others[97] = (1 - share) / 2
    alphas = [0.01, 0.03, 0.05, 0.07, 0.075, 0.08, 0.1, 0.2, 0.3, 0.5]
    bands = [ConformalPosterior(inner, inner, others, blocks, alpha).predict(x).band for alpha in alphas]
    for wide, narrow in pairwise(bands):
        assert bool((wide[0] <= narrow[0]).all()) and bool((wide[1] >= narrow[1]).all())


@pytest.mark.law
@pytest.mark.parametrize("alpha", [ALPHA, 0.2])
@pytest.mark.parametrize("half", [0.1, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("shift", [-4.0, 0.0, 0.7])
def test_quantiles_never_cross(shift: float, half: float, alpha: float) -> None:
    """Whatever the interval is: narrower or wider than the mixture's, or beside it."""
    mixture = NormalMixture(draw(3, 2).log_softmax(1), draw(3, 2, 4), draw(3, 2, 4).exp())
    band = torch.stack((mixture.mean + shift - half, mixture.mean + shift + half))
    one = Banded(mixture.log_weights, mixture.means, mixture.variances, band, alpha)
    own = torch.tensor([alpha / 2, 1 - alpha / 2], dtype=torch.float64)
    levels = torch.cat((own, torch.linspace(1e-4, 1 - 1e-4, 101, dtype=torch.float64))).sort().values
    quantiles = one.quantile(levels)
    assert (quantiles.diff(dim=0) >= 0).all()
    assert torch.equal(one.quantile(own), band)
    assert torch.equal(one.quantile(levels[40:41]), quantiles[40:41])  # whatever is asked for beside it
    for level, mine, model in zip(levels.tolist(), quantiles, mixture.quantile(levels), strict=True):
        if level < alpha / 2 - 1e-6:
            expected = torch.minimum(model, band[0])
        elif level > 1 - alpha / 2 + 1e-6:
            expected = torch.maximum(model, band[1])
        else:
            ends = {alpha / 2: band[0], 1 - alpha / 2: band[1]}
            expected = next((end for at, end in ends.items() if abs(at - level) < 1e-6), model.clamp(*band))
        torch.testing.assert_close(mine, expected)


def test_a_standard_normal_with_an_interval_that_is_wider_and_one_that_is_narrower() -> None:
    nothing, levels = torch.zeros(1, 1, dtype=torch.float64), torch.tensor([0.01, 0.025, 0.5, 0.975, 0.99]).double()

    def quantiles(half: float) -> list[float]:
        band = torch.tensor([-half, half], dtype=torch.float64).view(2, 1, 1)
        one = Banded(nothing, nothing.unsqueeze(2), nothing.unsqueeze(2) + 1, band)
        return [round(float(value), 2) for value in one.quantile(levels)]

    assert quantiles(3.0) == [-3.0, -3.0, 0.0, 3.0, 3.0]
    assert quantiles(1.0) == [-2.33, -1.0, 0.0, 1.0, 2.33]


def test_intervals_move_with_units() -> None:
    mixture = NormalMixture(draw(2, 3).log_softmax(1), draw(2, 3, 4), draw(2, 3, 4).exp())
    band = torch.stack((mixture.mean - 1, mixture.mean + 2))
    one = Banded(mixture.log_weights, mixture.means, mixture.variances, band)
    loc, scale = torch.tensor([3.0, -1.0]).double(), torch.tensor([2.0, 1e3]).double()
    moved = one.rescale(loc, scale)
    torch.testing.assert_close(moved.quantile(torch.tensor(LEVELS)), loc.view(2, 1) + scale.view(2, 1) * band)
    torch.testing.assert_close(moved.mean, mixture.rescale(loc, scale).mean)


def test_a_covariance_that_cannot_be_factored_leaves_no_number_and_a_particle_of_weight_0_no_trace() -> None:
    batch, new = clients((20, 21)), draw(2, 3, 2)
    theta = particles(MODEL, 2, 2).clone()
    theta[1] = torch.nan
    known = condition(MODEL, theta, batch)
    lost = torch.tensor([[True, False], [True, True]])  # the second particle of the first client fails
    posterior = replace(
        known,
        alpha=torch.where(lost[..., None], known.alpha, 0.0),
        whitener=torch.where(lost[..., None, None], known.whitener, 0.0),
        log_weights=torch.where(lost, known.log_weights, -torch.inf).log_softmax(1),
    )
    result = jackknife_plus(posterior, new)
    assert bool(result[:, 1].isnan().all())
    alone = jackknife_plus(condition(MODEL, theta[:1, :1], batch.select(torch.tensor([0]))), new[:1])
    torch.testing.assert_close(result[:, :1], alone)


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_quantile_of_a_normals_size_is_known(level: float) -> None:
    expected = float(torch.special.ndtri(torch.tensor(0.5 + level / 2, dtype=torch.float64)))
    assert float(quantile_of_size(NORMAL, level)) == pytest.approx(expected, rel=2e-3)


def test_a_posterior_of_everybodys_rows_has_the_federations_quantile_alone() -> None:
    known = NormalMixture(torch.zeros(2, 1).double(), draw(2, 1, 4), draw(2, 1, 4).exp())

    class Pooled:
        personal = False

        def leave_one_out(self) -> Residuals:
            raise AssertionError("nobody asks")

        def predict(self, x: Tensor) -> NormalMixture:
            return known

    result = ConformalPosterior(Pooled(), Pooled(), NORMAL, None).predict(torch.zeros(2, 4, 1))
    torch.testing.assert_close(result.band[1] - result.band[0], 2 * 1.96 * known.stds[:, 0], rtol=3e-3, atol=0.0)


@pytest.mark.parametrize("blocks", [None, 4])
def test_intervals_with_all_rows_as_points_are_the_exact_ones(
    monkeypatch: pytest.MonkeyPatch, blocks: int | None
) -> None:
    monkeypatch.setattr(pivoted, "SLACK", 0.0)
    batch, new = clients(), draw(4, 3, 2, seed=7)
    theta, others = particles(MODEL, 2, 4), NORMAL
    bands = []
    for rule in (None, Inducing(40), Inducing(40, above=20)):  # the last: one client exactly, the other by points
        known = conditioning.condition(MODEL.with_inducing(rule), theta, batch)
        bands.append(ConformalPosterior(known, known, others, blocks).predict(new).band)
    assert isinstance(known, conditioning.MixedPosterior)
    torch.testing.assert_close(bands[1], bands[0], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(bands[2], bands[0], rtol=1e-6, atol=1e-6)


def test_a_row_that_is_left_out_of_points_is_one_that_never_moved_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The points stay, and the posterior of their values is that of the other rows, with the weights of these."""
    batch, theta = clients().select(torch.tensor([0])), particles(MODEL, 2, 1)
    known = inducing.condition_on_points(MODEL, theta, batch, 3)
    chosen = inducing.choose
    left = left_out(known, None)
    for row in (0, 7):
        without = batch.mask.clone()
        without[0, row] = False

        def held(kernel: Any, noise: Tensor, mask: Tensor, count: int) -> Any:
            points = chosen(kernel, noise, batch.mask, count)
            return points._replace(left=torch.where(mask.unsqueeze(1), points.left, 0.0))

        monkeypatch.setattr(inducing, "choose", held)
        rest = inducing.condition_on_points(MODEL, theta, replace(batch, mask=without), 3)
        predicted = rest.predict(batch.x[:, row : row + 1])
        torch.testing.assert_close(left.weights[0, :, row], rest.log_weights[0].exp(), rtol=1e-8, atol=1e-8)
        missed = batch.y[:, row] - predicted.means[0, :, 0]
        torch.testing.assert_close(left.residual[0, :, row, 0], missed, rtol=1e-8, atol=1e-8)
        variance = left.cholesky[0, :, row, 0, 0] ** -2 + left.unexplained[0, :, row, 0]
        torch.testing.assert_close(variance, predicted.variances[0, :, 0], rtol=1e-8, atol=1e-8)
