"""The shape of errors: EM against scikit-learn and scipy, histograms against the residuals, mixtures by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.mixture import GaussianMixture
from torch import Tensor

from pacbayes_fl.errors import StudyError
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.residuals import (
    BINS,
    Mixture,
    Residuals,
    bin_values,
    blend,
    em_step,
    fit,
    held_out_errors,
    histogram,
    own_errors,
    pooled,
    pooled_without,
    recalibrated,
    shape_of,
    shape_of_errors,
    standard_normal,
)


def heavy(clients: int, rows: int, seed: int = 0) -> Tensor:
    """Draw residuals with heavy tails and a skew."""
    random = np.random.default_rng(seed)
    z = torch.from_numpy(random.standard_t(3, (clients, rows)))
    return torch.where(z > 0, 1.5 * z, 0.6 * z)


def equal(z: Tensor) -> Tensor:
    return torch.full_like(z, 1.0 / z.shape[1])


def residuals(z: Tensor, sizes: list[int], log_weights: Tensor | None = None) -> Residuals:
    """Return residuals of clients with as many rows, under one component unless weights are given."""
    mask = torch.arange(z.shape[-1]) < torch.tensor(sizes).unsqueeze(1)
    z = z if z.dim() == 3 else z.unsqueeze(1)
    return Residuals(z.new_zeros(len(z), 1) if log_weights is None else log_weights, z, mask)


def test_clients_with_few_rows_say_nothing_of_the_shape() -> None:
    sent = shape_of_errors(residuals(heavy(3, 6), [6, 5, 4]))
    torch.testing.assert_close(sent[:2], histogram(residuals(heavy(3, 6), [6, 5, 4]))[:2])
    assert not sent[2].any() and torch.equal(pooled(sent[2:]), standard_normal(sent))


def test_em_is_that_of_scikit_learn_step_by_step() -> None:
    (z,) = heavy(1, 300)
    z = z - z.mean()
    start = fit(equal(z[None]), z[None], steps=0)
    other = GaussianMixture(
        3,
        tol=0.0,
        reg_covar=0.0,
        max_iter=25,
        weights_init=start.log_weights[0].exp().numpy(),
        means_init=start.locs[0].unsqueeze(1).numpy(),
        precisions_init=start.scales[0].square().reciprocal().view(3, 1, 1).numpy(),
    )
    with pytest.warns(match="did not converge"):
        other.fit(z.unsqueeze(1).numpy())
    mine = fit(equal(z[None]), z[None], steps=25)
    np.testing.assert_allclose(mine.log_weights[0].exp(), other.weights_, rtol=1e-9)
    np.testing.assert_allclose(mine.locs[0], other.means_[:, 0], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(mine.scales[0].square(), other.covariances_[:, 0, 0], rtol=1e-9)


def test_no_optimiser_finds_more_likely_mixtures_of_weighted_residuals_nearby() -> None:
    z, weights = heavy(1, 60, seed=2), torch.rand(1, 60, generator=torch.Generator().manual_seed(1)).double()
    weights = weights / weights.sum()
    mine = fit(weights, z, steps=3000)
    centred = z - (weights * z).sum()

    def loss(p: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
        v, b, c = torch.from_numpy(p).view(3, 1, 3)
        return -float((weights * Mixture(v.log_softmax(1), b, c.exp()).log_prob(centred)).sum())

    start = torch.stack((mine.log_weights[0], mine.locs[0], mine.scales[0].log())).flatten().numpy()
    best = minimize(loss, start, method="BFGS")
    assert loss(start) - best.fun < 1e-7
    assert loss(start + 0.05) - best.fun > 1e-5


@pytest.mark.parametrize("floor", [False, True])
def test_the_likelihood_never_falls(floor: bool) -> None:
    z = heavy(5, 200, seed=3)
    if floor:
        z[:, :120] = 0.2  # one component wants no width
    weights = equal(z)
    z = z - z.mean(1, keepdim=True)
    mixture, before = fit(weights, z, steps=0), torch.full((5,), -math.inf, dtype=torch.float64)
    for _ in range(60):
        mixture = em_step(mixture, weights, z)
        now = (weights * mixture.log_prob(z)).sum(1)
        assert bool((now >= before - 1e-12).all())
        before = now
    assert bool((mixture.scales == 0.05).any()) == floor


def test_the_mean_of_every_mixture_is_0_and_it_integrates_to_1() -> None:
    mixture = fit(equal(heavy(4, 31)), heavy(4, 31) + 5.0)
    mean = (mixture.log_weights.exp() * mixture.locs).sum(1)
    torch.testing.assert_close(mean, torch.zeros(4).double(), atol=1e-12, rtol=0)
    grid = torch.linspace(-80, 80, 4001, dtype=torch.float64).expand(4, -1)
    torch.testing.assert_close(torch.trapezoid(mixture.log_prob(grid).exp(), grid), torch.ones(4).double())


def test_bins_hold_what_is_nearest_to_them_on_their_scale_and_move_it_by_less_than_half_their_width() -> None:
    z = torch.linspace(-31.9, 31.9, 4001, dtype=torch.float64)
    width = 2 * math.asinh(32.0) / BINS
    for one in z[::400].tolist():
        (result,) = histogram(residuals(torch.tensor([[one]], dtype=torch.float64), [1]))
        (at,) = result.nonzero()
        assert abs(math.asinh(float(bin_values(result)[at])) - math.asinh(one)) <= width / 2 + 1e-12
    far = histogram(residuals(torch.tensor([[1e9, -1e9]], dtype=torch.float64), [2]))[0]
    assert far[0] == far[-1] == 0.5


def test_the_fit_to_a_histogram_is_that_to_its_residuals_within_the_width_of_bins() -> None:
    z = heavy(3, 400, seed=5)
    exact = fit(equal(z), z)
    binned = fit(histogram(residuals(z, [400] * 3)), bin_values(z))
    grid = torch.linspace(-4, 4, 81, dtype=torch.float64).expand(3, -1)

    def cdf(mixture: Mixture) -> Tensor:
        steps = (grid.unsqueeze(1) - mixture.locs.unsqueeze(-1)) / mixture.scales.unsqueeze(-1)
        result: Tensor = (mixture.log_weights.exp().unsqueeze(-1) * torch.special.ndtr(steps)).sum(1)
        return result

    assert float((cdf(exact) - cdf(binned)).abs().max()) < 0.01


def test_histograms_know_neither_the_order_of_rows_nor_padding_and_weigh_components() -> None:
    z, log_weights = heavy(2, 12).view(2, 2, 6), torch.tensor([[0.25, 0.75], [1.0, 0.0]], dtype=torch.float64).log()
    base = histogram(residuals(z, [6, 4], log_weights))
    torch.testing.assert_close(base.sum(1), torch.ones(2).double(), atol=1e-15, rtol=0.0)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    moved = histogram(residuals(z[:, :, order], [6, 6], log_weights))[0]
    torch.testing.assert_close(moved, base[0])
    padded = torch.cat((z, torch.full((2, 2, 3), torch.nan, dtype=torch.float64)), 2)
    torch.testing.assert_close(histogram(residuals(padded, [6, 4], log_weights)), base)
    apart = [histogram(residuals(z[:1, p : p + 1], [6])) for p in (0, 1)]
    torch.testing.assert_close(0.25 * apart[0][0] + 0.75 * apart[1][0], base[0])
    z[1, 1] = torch.nan  # a component of weight 0
    torch.testing.assert_close(histogram(residuals(z, [6, 4], log_weights)), base)


def test_a_client_without_rows_or_with_residuals_that_are_no_numbers_sends_nothing() -> None:
    z = heavy(3, 4)
    z[1, 2] = torch.nan
    result = histogram(residuals(z, [4, 4, 0]))
    assert result.sum(1).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -0.5, 3.0])
def test_a_message_that_is_no_histogram_does_not_count(bad: float) -> None:
    sent = histogram(residuals(heavy(3, 20), [20] * 3))
    expected = (sent[0] + sent[1] + standard_normal(sent)) / 3  # the model is one client more
    sent[2, 5] += bad
    torch.testing.assert_close(pooled(sent), expected)
    torch.testing.assert_close(pooled(sent[2:]), standard_normal(sent))


def test_clients_with_few_rows_take_the_shape_of_the_others() -> None:
    own, others = histogram(residuals(heavy(4, 50), [50, 8, 1, 0])), standard_normal(heavy(1, 1))
    result = blend(own, torch.tensor([50, 8, 1, 0]), others, 0.5)
    for h, mine, m in zip(result, own, (50, 8, 1, 0), strict=True):
        a = 0.5 * m / (m + 8)
        torch.testing.assert_close(h, a * mine + (1 - a) * others)
    assert torch.equal(result[3], others)


@pytest.mark.parametrize("value", [0.0, 1e-9, -3.0])
def test_constant_residuals_leave_numbers_and_a_lower_limit_of_scales(value: float) -> None:
    result = fit(torch.ones(1, 5).double() / 5, torch.full((1, 5), value, dtype=torch.float64))
    assert all(bool(leaf.isfinite().all()) for leaf in result)
    assert float(result.scales.min()) == 0.05


@dataclass
class Fixed:
    """A posterior with given residuals and predictions."""

    residuals: Residuals
    predictive: NormalMixture
    personal: bool = True

    def leave_one_out(self) -> Residuals:
        return self.residuals

    def predict(self, x: Tensor) -> NormalMixture:
        return self.predictive


def fixed(personal: bool = True) -> Fixed:
    log_weights = torch.tensor([[0.3, 0.7], [0.5, 0.5]], dtype=torch.float64).log()
    known = NormalMixture(log_weights, heavy(4, 3).view(2, 2, 3), heavy(4, 3, 1).view(2, 2, 3).exp())
    return Fixed(residuals(heavy(2, 60).view(2, 2, 30), [30, 12], log_weights), known, personal)


def test_errors_of_rows_that_a_posterior_has_not_seen_are_counted_as_those_it_has_left_out() -> None:
    one = fixed()
    known, y = one.predictive, heavy(2, 3, 9)
    mask = torch.tensor([[True, True, False], [True, True, True]])
    found = held_out_errors(known, y, mask, torch.tensor([4, 4]))
    middles = bin_values(found)
    for k in range(2):
        expected = torch.zeros(BINS, dtype=torch.float64)
        for n in range(int(mask[k].sum())):
            for p in range(2):
                z = (y[k, n] - known.means[k, p, n]) / known.variances[k, p, n].sqrt()
                nearest = int((middles.asinh() - z.asinh()).abs().argmin())
                expected[nearest] += known.weights[k, p] / mask[k].sum()
        torch.testing.assert_close(found[k], expected)
    few = held_out_errors(known, y, mask, torch.tensor([3, 4]))
    assert not few[0].any() and torch.equal(few[1], found[1])


def test_what_the_others_say_of_a_client_is_without_its_own_message() -> None:
    sent = histogram(residuals(heavy(4, 20), [20, 3, 9, 1]))
    sent[2] = 0.0  # had too few rows
    apart = pooled_without(sent)
    for k in range(4):
        torch.testing.assert_close(apart[k], pooled(sent[[i for i in range(4) if i != k]]))
    torch.testing.assert_close(apart[2], pooled(sent))
    torch.testing.assert_close(pooled_without(sent[:1])[0], standard_normal(sent))


def test_each_client_may_have_others_of_its_own() -> None:
    own = own_errors(fixed())
    assert own is not None
    others = histogram(residuals(heavy(2, 40, 7), [40, 40]))
    together = shape_of(own, others, 0.5)
    for k in range(2):
        alone = shape_of(own, others[k], 0.5)
        torch.testing.assert_close([leaf[k] for leaf in together], [leaf[k] for leaf in alone])
    assert own_errors(fixed(personal=False)) is None and shape_of(None, others, 0.5).locs.shape == (2, 3)


@pytest.mark.parametrize("personal", [True, False])
def test_predictions_have_the_shape_of_residuals_and_the_mean_of_the_model(personal: bool) -> None:
    one, others = fixed(personal), pooled(histogram(residuals(heavy(2, 40, 7), [40, 40])))
    mine = recalibrated(one, others, 0.5)
    result, known = mine.predict(torch.zeros(2, 3, 1)), one.predictive
    torch.testing.assert_close(result.mean, known.mean)
    y = heavy(2, 3, 9)
    for k in range(2):
        v, b, c = (leaf[k if personal else 0] for leaf in mine.shape)
        for n in range(3):
            total = 0.0
            for p in range(2):
                for j in range(3):
                    s = float(known.stds[k, p, n])
                    mean, std = float(known.means[k, p, n] + b[j] * s), float(c[j]) * s
                    density = math.exp(-0.5 * ((float(y[k, n]) - mean) / std) ** 2) / std / math.sqrt(2 * math.pi)
                    total += float(known.weights[k, p] * v[j].exp()) * density
            assert float(result.log_prob(y)[k, n]) == pytest.approx(math.log(total), abs=1e-12)
    if personal:
        expected = blend(histogram(one.residuals), torch.tensor([30, 12]), others, 0.5)
        torch.testing.assert_close(mine.shape, fit(expected, bin_values(others)))


def test_without_rows_and_messages_predictions_are_the_models() -> None:
    one = fixed()
    one.residuals = one.residuals._replace(mask=torch.zeros_like(one.residuals.mask))
    result = recalibrated(one, None).predict(torch.zeros(2, 3, 1))
    levels = torch.tensor([0.05, 0.3, 0.5, 0.9], dtype=torch.float64)
    got = result.cdf(one.predictive.quantile(levels))
    torch.testing.assert_close(got, levels.view(4, 1, 1).expand_as(got), atol=2e-3, rtol=0)


def test_a_posterior_that_cannot_leave_rows_out_is_refused() -> None:
    with pytest.raises(StudyError, match="a str has no leave-one-out residuals"):
        recalibrated("nothing", None)
