"""Linearised predictions: published numbers, Bayesian linear regression in closed form, and integrals by quadrature."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pyro.distributions import Cauchy, Poisson
from scipy import integrate, special, stats
from torch import Tensor

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.inference import curvature
from pacbayes_fl.methods.fedsi import ALPHAS
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.models.weights.convolutional import BayesianVGG
from pacbayes_fl.models.weights.jacobian import linearise
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.sampled import SampledMixture
from pacbayes_fl.posteriors.weights import linearised
from pacbayes_fl.posteriors.weights.laplace import DiagonalGaussian, SubnetworkGaussian
from pacbayes_fl.posteriors.weights.linearised import LinearisedPosterior, probit_log_probs
from tests import laplace
from tests.laplace import NoisyCurve, Program, float64, randn

K, N = 3, 5


def posterior(model: Any, gaussian: Any, predictive: Any, draws: int = 16, **more: Any) -> LinearisedPosterior:
    noise = Noise(0, 0, range(len(gaussian.loc)))
    return LinearisedPosterior(model, gaussian.loc, lambda: gaussian, predictive, draws, noise, **more)


def some_gaussian(model: Any, size: int = 12, scale: float = 1.0) -> SubnetworkGaussian:
    """Return a correlated subnetwork and a few independent weights beside it."""
    index = torch.stack([torch.randperm(model.dim, generator=torch.Generator().manual_seed(k)) for k in range(K)])
    factor = randn(2, K, size, size).tril() + 3 * torch.eye(size, dtype=torch.float64)
    variance = torch.zeros(K, model.dim, dtype=torch.float64).scatter(1, index[:, size : size + 4], 0.2 * scale)
    loc = 0.7 * randn(1, K, model.dim)
    return SubnetworkGaussian(loc, index[:, :size], factor / scale**0.5, variance)


def moments(gaussian: SubnetworkGaussian, model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs [K, N, C] and their covariance [K, N, C, C] by dense Jacobians."""
    network, outputs, covariances = laplace.plain(model), [], []
    for k, own in enumerate(x):
        whole = torch.diag(gaussian.variance[k])
        whole[np.ix_(gaussian.chosen[k], gaussian.chosen[k])] = torch.linalg.inv(
            gaussian.factor[k] @ gaussian.factor[k].T
        )
        entries = laplace.jacobian(network, gaussian.loc[k], own)
        outputs.append(network(gaussian.loc[k], own))
        covariances.append(torch.einsum("ncd,de,nfe->ncf", entries, whole, entries))
    return torch.stack(outputs), torch.stack(covariances)


# labels -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "variance", "kappa", "soft", "exact", "printed"),
    [
        (1.2, 2.0, 0.7483977241491033, 0.7105542206049603, 0.7067970934337456, 0.8154278216890984),
        (-0.5, 4.0, 0.6236862429526105, 0.4226649176938071, 0.4247574682623665, 0.3775798753843557),
        (3.0, 1.0, 0.8473666266006313, 0.9270409814711996, 0.9306761419957142, 0.9944905659538608),
    ],
)
def test_the_probit_approximation_of_one_logit(
    output: float, variance: float, kappa: float, soft: float, exact: float, printed: float
) -> None:
    """The other logit is 0 and known. Eq. 19's Phi, read as the normal distribution's, is far from the integral."""
    result = probit_log_probs(float64([output, 0.0]), float64([variance, 0.0])).exp()[0].item()
    assert result == pytest.approx(soft, rel=1e-13) == pytest.approx(special.expit(kappa * output), rel=1e-13)
    integral, _ = integrate.quad(
        lambda f: float(special.expit(f) * stats.norm.pdf(f, output, variance**0.5)), output - 20, output + 20
    )
    assert integral == pytest.approx(exact, abs=1e-9)
    assert printed == pytest.approx(stats.norm.cdf(kappa * output), rel=1e-12)
    assert abs(result - integral) < 0.005 < 0.04 < abs(printed - integral)


@pytest.mark.parametrize(("first", "second"), [(1.2, 0.0), (-0.5, 0.3), (3.0, -3.0)])
def test_draws_of_the_logits_come_to_the_integral(first: float, second: float) -> None:
    """A linear classifier of one input: its logits are the weights, so that the integral is over their Gaussian."""
    model, many = BayesianMLP((1, 2), Categorical(2), torch.float64), 500
    loc = float64([first, second, 0.0, 0.0])
    factor = float64([[1.3, 0.0], [-0.4, 0.8]])
    some = SubnetworkGaussian(
        loc.expand(many, -1), torch.tensor([0, 1]).expand(many, -1), factor.expand(many, -1, -1), torch.zeros(many, 4)
    )
    result = posterior(model, some, "monte-carlo", 100).predict(torch.ones(many, 1, 1, dtype=torch.float64)).probs
    covariance = torch.linalg.inv(factor @ factor.T)
    spread = float(covariance[0, 0] - 2 * covariance[0, 1] + covariance[1, 1]) ** 0.5
    integral, _ = integrate.quad(
        lambda f: float(special.expit(f) * stats.norm.pdf(f, first - second, spread)), -20, 20, epsabs=1e-10
    )
    error = float(result[:, 0, 0].std()) / many**0.5
    assert abs(float(result[:, 0, 0].mean()) - integral) < 4 * error and error < 2e-3


def two_units() -> tuple[laplace.TanhNetwork, SubnetworkGaussian]:
    """The network of two units with the two weights of largest variance uncertain."""
    model = laplace.TanhNetwork((2, 2, 2), Categorical(2))
    theta = float64([laplace.THETA])[:, list(laplace.OURS)]
    batch = ClientBatch.pad([(float64(laplace.X), torch.tensor(laplace.LABELS))], classes=2)
    index = torch.tensor([[laplace.OURS[1], laplace.OURS[4]]])
    result = curvature.precision(model, theta, batch, index, torch.ones_like(theta))
    return model, SubnetworkGaussian(theta, *result, torch.zeros_like(theta))


def test_published_predictions() -> None:
    model, gaussian = two_units()
    x = float64([[[0.5, -1.0]]])
    result = linearise(model, gaussian.loc, linearised.rows_of(x, Noise(0, 0, [0])))
    assert result.outputs.flatten().tolist() == pytest.approx([1.1188975813, -0.1408731514], abs=6e-11)
    covariance = gaussian.output_covariance(result.jacobian)[0, 0]
    published = float64([[0.690903858383425, 0.414542315030055], [0.414542315030055, 0.24872538901803304]])
    torch.testing.assert_close(covariance, published, rtol=1e-13, atol=0)
    kappa = (1 + np.pi / 8 * covariance.diagonal()).rsqrt()
    assert kappa.tolist() == pytest.approx([0.8868966607, 0.95447216], abs=6e-9)
    probit = posterior(model, gaussian, "probit").predict(x).probs.flatten()
    assert probit.tolist() == pytest.approx([0.7552489816, 0.2447510184], abs=6e-11)
    plain = [0.7789866382, 0.2210133618]
    for way in (posterior(model, gaussian, "map").predict, posterior(model, gaussian, "probit").predict_at_mean):
        assert way(x).probs.flatten().tolist() == pytest.approx(plain, abs=6e-11)
    exact = 0.7738296244  # by quadrature; the probit is .0186 off
    assert covariance.det().abs() < 1e-12  # two weights before one hidden unit: the outputs move on a line
    sampled = posterior(model, gaussian, "monte-carlo", 1_500).predict(x).probs.flatten()
    assert sampled[0].item() == pytest.approx(exact, abs=6e-3)


MODEL = BayesianMLP((2, 6, 3), Categorical(3), torch.float64)


def test_probit_takes_the_variances_of_every_row_and_monte_carlo_draws_with_the_weights() -> None:
    gaussian, x = some_gaussian(MODEL), randn(5, K, N, 2)
    outputs, covariance = moments(gaussian, MODEL, x)
    probit = posterior(MODEL, gaussian, "probit").predict(x)
    assert isinstance(probit, ClassMixture)
    expected = probit_log_probs(outputs, covariance.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(probit.log_probs, expected, rtol=1e-10, atol=1e-11)
    sampled = posterior(MODEL, gaussian, "monte-carlo").predict(x)
    noise, network, probs = Noise(0, 0, range(K)), laplace.plain(MODEL), []
    for _ in range(16):
        step = gaussian.weights(gaussian.draw(noise)) - gaussian.loc
        moved = [outputs[k] + laplace.jacobian(network, gaussian.loc[k], x[k]) @ step[k] for k in range(K)]
        probs.append(torch.stack(moved).softmax(-1))
    torch.testing.assert_close(sampled.probs, torch.stack(probs).mean(0), rtol=1e-10, atol=1e-11)


def test_the_network_s_own_draws_are_averaged() -> None:
    gaussian, x = some_gaussian(MODEL), randn(5, K, N, 2)
    result, noise, probs = posterior(MODEL, gaussian, "draws", 5).predict(x).probs, Noise(0, 0, range(K)), []
    for _ in range(5):
        theta = gaussian.weights(gaussian.draw(noise))
        probs.append(torch.stack([laplace.plain(MODEL)(theta[k], x[k]).softmax(-1) for k in range(K)]))
    torch.testing.assert_close(result, torch.stack(probs).mean(0), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("predictive", ["probit", "monte-carlo", "draws", "map"])
def test_predictions_do_not_depend_on_other_rows_nor_on_blocks(
    predictive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gaussian, x = some_gaussian(MODEL), randn(5, K, N, 2)
    one = posterior(MODEL, gaussian, predictive)
    whole = one.predict(x).log_probs
    assert torch.equal(whole, one.predict(x).log_probs)
    torch.testing.assert_close(one.predict(x[:, 2:3]).log_probs, whole[:, 2:3], rtol=1e-6, atol=1e-7)
    monkeypatch.setattr(linearised, "_NUMBERS", 700)  # two rows
    torch.testing.assert_close(one.predict(x).log_probs, whole, rtol=1e-6, atol=1e-7)


def test_blocks_share_the_statistics_that_normalise_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = BayesianVGG((1, 16, 16), Categorical(3), torch.float64), randn(5, 2, N, 1, 16, 16)
    reference, loc = laplace.clients(model, 3, 2, feature=(1, 16, 16)), model.centre() + 0.2 * randn(3, 2, model.dim)
    one = posterior(model, DiagonalGaussian(loc, torch.full_like(loc, 1e-3)), "probit", reference=reference)
    whole, plain, lengths = one.predict(x).log_probs, BayesianVGG.images, list[int]()
    assert torch.equal(replace(one, model=model).predict(x).log_probs, whole)
    monkeypatch.setattr(BayesianVGG, "images", lambda own, rows: lengths.append(rows.mask.shape[1]) or plain(own, rows))  # type: ignore[func-returns-value]
    monkeypatch.setattr(linearised, "_NUMBERS", 1)
    torch.testing.assert_close(replace(one, model=model).predict(x).log_probs, whole, rtol=1e-6, atol=1e-7)
    assert lengths == [3, *[1] * (1 + N)]  # the statistics, what a row costs, and row by row


def test_the_gaussian_is_inferred_once_and_only_where_it_is_needed() -> None:
    calls = []

    def infer() -> SubnetworkGaussian:
        calls.append(1)
        return some_gaussian(MODEL)

    loc, noise, x = some_gaussian(MODEL).loc, Noise(0, 0, range(K)), randn(5, K, N, 2)
    plain = LinearisedPosterior(MODEL, loc, infer, "map", 4, noise)
    plain.predict(x)
    plain.predict_at_mean(x)
    assert not calls and not plain.uncertain
    unsure = LinearisedPosterior(MODEL, loc, infer, "probit", 4, noise)
    unsure.predict(x)
    unsure.predict(x)
    assert calls == [1] and unsure.uncertain


def test_float32_predicts_as_float64() -> None:
    gaussian, x = some_gaussian(MODEL), randn(5, K, N, 2)
    single = SubnetworkGaussian(*(leaf.float() if leaf.is_floating_point() else leaf for leaf in gaussian))
    for predictive in ("probit", "monte-carlo"):
        mine = posterior(BayesianMLP((2, 6, 3), Categorical(3)), single, predictive).predict(x.float()).probs
        exact = posterior(MODEL, gaussian, predictive).predict(x).probs
        assert mine.dtype == torch.float64 and (mine.sum(-1) - 1).abs().max() < 1e-12
        torch.testing.assert_close(mine, exact, rtol=0, atol=2e-3)


@pytest.mark.parametrize("scale", [*ALPHAS, 1e-8, 1e-20, 1e-37, 0.0])
@pytest.mark.parametrize("kind", ["correlated", "independent"])
def test_tiny_variances_in_float32_predict_as_the_estimate_does(kind: str, scale: float) -> None:
    """Covariances of outputs that are singular, or below the rounding of float32, give probabilities all the same.

    One uncertain weight for ten classes, and rows of very different size: the output covariance has rank one.
    """
    model = BayesianMLP((2, 6, 10), Categorical(10))
    loc, x = (
        (0.7 * randn(1, K, model.dim)).float(),
        (randn(5, K, N, 2) * float64([[1e-3], [1.0], [1e3], [0.0], [30.0]])).float(),
    )
    gaussian: Any = DiagonalGaussian(loc, scale * torch.ones_like(loc))
    if kind == "correlated" and scale:
        factor = torch.full((K, 1, 1), scale**-0.5)
        gaussian = SubnetworkGaussian(loc, torch.zeros(K, 1, dtype=torch.int64), factor, torch.zeros_like(loc))
    for predictive in ("monte-carlo", "probit"):
        result = posterior(model, gaussian, predictive).predict(x)
        assert (result.probs.sum(-1) - 1).abs().max() < 1e-9, predictive
        if scale <= 1e-20:
            plain = posterior(model, gaussian, "map").predict(x).probs.double()
            torch.testing.assert_close(result.probs, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_rounding_of_an_output_covariance_is_no_matter(alpha: float) -> None:
    """Of 3,140 weights in float32 the covariance of ten logits had eigenvalues of -1.5e-6 of its largest."""

    class Rounded(DiagonalGaussian):
        def output_covariance(self, jacobian: Any) -> Tensor:
            exact = super().output_covariance(jacobian)
            largest: Tensor = torch.linalg.eigvalsh(exact)[..., -1:, None]
            return exact - 1.5e-6 * largest * torch.eye(10)

    model = BayesianMLP((2, 1, 10), Categorical(10))  # one hidden unit: logits move on a line
    loc, flat = (0.7 * randn(1, K, model.dim)).float(), torch.zeros(K, model.dim)
    flat[:, model.span("weight_0")] = alpha
    loc[:, model.span("bias_0")] = 9.0
    result = posterior(model, Rounded(loc, flat), "monte-carlo").predict(randn(7, K, N, 2).float()).probs
    plain = posterior(model, DiagonalGaussian(loc, flat), "monte-carlo").predict(randn(7, K, N, 2).float()).probs
    assert (result.sum(-1) - 1).abs().max() < 1e-9 and torch.equal(result, plain)


# clients without a Gaussian ---------------------------------------------------------------------------------------


def spoiled(gaussian: SubnetworkGaussian) -> SubnetworkGaussian:
    """What is left of client 1 where its precision has no factor."""
    factor = gaussian.factor.clone()
    factor[1] = torch.nan
    return gaussian._replace(factor=factor)


@pytest.mark.parametrize("predictive", ["probit", "monte-carlo", "draws"])
@pytest.mark.parametrize("likelihood", [Categorical(3), Gaussian(0.3)], ids=["labels", "numbers"])
def test_a_client_whose_precision_has_no_factor_is_predicted_with_its_estimate_and_named(
    likelihood: Any, predictive: Any
) -> None:
    model = BayesianMLP((2, 6, likelihood.outputs), likelihood, torch.float64)
    gaussian, x, batch = some_gaussian(model), randn(5, K, N, 2), laplace.clients(model, 6, 2, 4)
    batch = replace(batch, names=("a", "b", "c"))
    with pytest.warns(UserWarning, match="posterior of 'b' gives no finite predictions.*with the estimate alone"):
        result = posterior(model, spoiled(gaussian), predictive, reference=batch).predict(x)
    plain, own = posterior(model, gaussian, "map").predict(x), posterior(model, gaussian, predictive).predict(x)
    for k, expected in enumerate((own, plain, own)):
        if isinstance(result, ClassMixture):
            torch.testing.assert_close(result.probs[k], expected.probs[k], rtol=1e-10, atol=1e-12)
        else:
            torch.testing.assert_close(result.mean[k], expected.mean[k], rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(result.variance[k], expected.variance[k], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("predictive", ["probit", "monte-carlo", "draws"])
def test_a_device_is_asked_for_such_clients_after_its_predictions(
    predictive: Any, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """Predictions read nothing there; they are what a host makes of them."""
    gaussian, x = some_gaussian(MODEL), randn(5, K, N, 2)
    with pytest.warns(UserWarning, match="client 1"):
        expected = posterior(MODEL, spoiled(gaussian), predictive).predict(x).probs
    sound = posterior(MODEL, gaussian, predictive).predict(x).probs
    recwarn.clear()
    monkeypatch.setattr(linearised.tensors, "on_host", lambda _: False)  # type: ignore[attr-defined]
    one, other = posterior(MODEL, spoiled(gaussian), predictive), posterior(MODEL, gaussian, predictive)
    one.tell()
    assert torch.equal(one.predict(x).probs, expected) and torch.equal(other.predict(x).probs, sound)
    other.tell()
    assert not recwarn.list
    with pytest.warns(UserWarning, match="posterior of client 1 gives no finite predictions"):
        one.tell()


def test_variances_that_overflow_are_left_out_too() -> None:
    model = BayesianMLP((2, 6, 3), Categorical(3))
    loc, variance = (0.7 * randn(1, K, model.dim)).float(), torch.full((K, model.dim), 1e-2)
    variance[2] = torch.inf
    with pytest.warns(UserWarning, match="posterior of client 2 gives no finite predictions in float32"):
        result = posterior(model, DiagonalGaussian(loc, variance), "monte-carlo").predict(randn(5, K, N, 2).float())
    assert result.probs.isfinite().all()


def test_an_estimate_that_is_not_finite_is_not_called_a_fallback(recwarn: pytest.WarningsRecorder) -> None:
    """Nothing can be predicted with it either: whoever scores it has NaN, by name."""
    gaussian = some_gaussian(MODEL)
    loc = gaussian.loc.clone()
    loc[1] = torch.nan
    result = posterior(MODEL, gaussian._replace(loc=loc), "probit").predict(randn(5, K, N, 2)).probs
    assert result[1].isnan().all() and result[[0, 2]].isfinite().all() and not recwarn.list


def test_other_observations_of_such_a_client_are_the_estimate_s() -> None:
    """Their means need not exist, so that the weights say which clients are meant."""

    class Heavy(Program):
        def observation(self, weights: Tensor, batch: Any, reference: Any = None) -> Any:
            return Cauchy(super().observation(weights, batch).mean, 1.0, validate_args=False)

    model, x = Heavy(laplace.TanhNetwork((2, 4, 1), Gaussian())), randn(5, K, N, 2)
    loc, variance = randn(1, K, model.dim), torch.ones(K, model.dim, dtype=torch.float64)
    plain = posterior(model, DiagonalGaussian(loc, variance), "draws").predict(x)
    variance = variance.clone()
    variance[1] = torch.nan
    with pytest.warns(UserWarning, match="posterior of client 1 gives"):
        result = posterior(model, DiagonalGaussian(loc, variance), "draws").predict(x)
    y = randn(6, K, N)
    at_mean = posterior(model, DiagonalGaussian(loc, variance), "map").predict(x)
    torch.testing.assert_close(result.log_prob(y)[[0, 2]], plain.log_prob(y)[[0, 2]])
    torch.testing.assert_close(result.log_prob(y)[1], at_mean.log_prob(y)[1])


# numbers ----------------------------------------------------------------------------------------------------------


@pytest.mark.quick
def test_a_linear_model_is_bayesian_linear_regression() -> None:
    """Where the network is linear, the posterior and eq. 18 are exact: N(x'm, x'Vx + noise variance)."""
    model, noise_std, prior = BayesianMLP((2, 1), Gaussian(0.3), torch.float64), 0.3, float64([0.5, 2.0, 1.0])
    batch, x = laplace.clients(model, 6, 2, 4), randn(5, K, N, 2)
    exact = []
    for k in range(K):
        rows, y = laplace.own(batch, k)
        design = torch.cat((rows, torch.ones(len(y), 1, dtype=torch.float64)), 1)
        covariance = torch.linalg.inv(design.T @ design / noise_std**2 + torch.diag(1 / prior))
        exact.append((covariance @ design.T @ y / noise_std**2, covariance))
    loc = torch.stack([mean for mean, _ in exact])
    result = curvature.precision(model, loc, batch, torch.arange(3).expand(K, -1), prior.expand(K, -1))
    gaussian = SubnetworkGaussian(loc, *result, torch.zeros_like(loc))
    predicted = posterior(model, gaussian, "probit").predict(x)  # the word is about labels
    assert isinstance(predicted, NormalMixture) and predicted.means.shape == (K, 1, N)
    for k, (mean, covariance) in enumerate(exact):
        at = torch.cat((x[k], torch.ones(N, 1, dtype=torch.float64)), 1)
        torch.testing.assert_close(predicted.mean[k], at @ mean, rtol=1e-12, atol=1e-12)
        variance = torch.einsum("nd,de,ne->n", at, covariance, at) + noise_std**2
        torch.testing.assert_close(predicted.variance[k], variance, rtol=1e-11, atol=0)
    drawn = posterior(model, gaussian, "draws", 300).predict(x)
    torch.testing.assert_close(drawn.mean, predicted.mean, rtol=0, atol=0.2)
    torch.testing.assert_close(drawn.variance, predicted.variance, rtol=0.3, atol=0)
    assert posterior(model, gaussian, "map").predict(x).variance.unique().tolist() == pytest.approx([0.09])


def test_a_program_with_its_own_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = NoisyCurve(), randn(5, K, N, 1)
    gaussian = some_gaussian(model, size=6)
    outputs, covariance = moments(gaussian, model, x)
    std = torch.stack([torch.as_tensor(laplace.noise_std(model, gaussian.loc[k], x[k])) for k in range(K)])
    for numbers in (2**25, 40):
        monkeypatch.setattr(linearised, "_NUMBERS", numbers)
        result = posterior(model, gaussian, "monte-carlo").predict(x)
        torch.testing.assert_close(result.mean, outputs[..., 0], rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(result.variance, covariance[..., 0, 0] + std.square(), rtol=1e-10, atol=0)


def test_independent_weights_are_spread_too() -> None:
    model, x = BayesianMLP((2, 6, 1), Gaussian(0.3), torch.float64), randn(5, K, N, 2)
    gaussian = DiagonalGaussian(randn(1, K, model.dim), 0.1 * randn(2, K, model.dim).square())
    result = posterior(model, gaussian, "monte-carlo").predict(x)
    for k in range(K):
        entries = laplace.jacobian(laplace.plain(model), gaussian.loc[k], x[k])[:, 0]
        variance = entries.square() @ gaussian.variance[k] + 0.09
        torch.testing.assert_close(result.variance[k], variance, rtol=1e-11, atol=0)


def test_other_observations_are_not_linearised() -> None:
    class Counts(Program):
        def observation(self, weights: Tensor, batch: Any, reference: Any = None) -> Any:
            return Poisson(super().observation(weights, batch).mean.exp())

    model = Counts(laplace.TanhNetwork((2, 4, 1), Gaussian()))
    gaussian = DiagonalGaussian(randn(1, K, model.dim), torch.ones(K, model.dim, dtype=torch.float64))
    x = randn(5, K, N, 2)
    with pytest.raises(StudyError, match=r"need.? a Categorical or Normal observation, got Poisson"):
        posterior(model, gaussian, "probit").predict(x)
    for predictive, draws in (("draws", 16), ("map", 1)):
        result = posterior(model, gaussian, predictive).predict(x)
        assert isinstance(result, SampledMixture) and result.kind == "Poisson" and len(result.components) == draws


# networks that are drawn ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("predictive", ["probit", "map"])
def test_networks_are_drawn_from_the_gaussian_and_are_not_linear(predictive: Any) -> None:
    model = BayesianMLP((2, 6, 3), Categorical(3), torch.float64)
    gaussian, x, given = some_gaussian(model), randn(5, K, N, 2), Noise(7, 1, range(K))
    result = list(posterior(model, gaussian, predictive).sample_hypotheses(x, 3, given))
    noise, network = given.copy(), laplace.plain(model)
    for one in result:
        theta = gaussian.weights(gaussian.draw(noise))
        logits = torch.stack([network(theta[k], x[k]) for k in range(K)])
        torch.testing.assert_close(one.logits, logits.log_softmax(-1), rtol=1e-11, atol=1e-12)  # type: ignore[attr-defined]
    again = list(posterior(model, gaussian, predictive).sample_hypotheses(x[:, 2:], 3, given))
    for one, other in zip(result, again, strict=True):
        torch.testing.assert_close(one.logits[:, 2:], other.logits, rtol=1e-12, atol=1e-13)  # type: ignore[attr-defined]


def test_a_linear_model_s_drawn_outputs_have_the_covariance_of_its_weights() -> None:
    model, many = BayesianMLP((3, 1), Gaussian(0.3), torch.float64), 400
    factor = randn(2, 2, 2).tril() + 2 * torch.eye(2, dtype=torch.float64)
    loc, chosen, variance = randn(1, 4), torch.tensor([3, 1]), float64([0.4, 0.0, 0.0, 0.0])
    covariance = torch.diag(variance)
    covariance[chosen[:, None], chosen] = torch.linalg.inv(factor @ factor.T)
    gaussian = SubnetworkGaussian(*(leaf.expand(many, *leaf.shape) for leaf in (loc, chosen, factor, variance)))
    x = randn(6, 2, 3)
    inputs = torch.cat((x, torch.ones(2, 1, dtype=torch.float64)), 1)
    drawn = posterior(model, gaussian, "probit").sample_hypotheses(x.expand(many, 2, 3), 50, Noise(7, 1, range(many)))
    result, expected = torch.cat([one.mean for one in drawn]), inputs @ covariance @ inputs.T
    assert ((result.mean(0) - inputs @ loc).abs() < 4 * (expected.diagonal() / len(result)).sqrt()).all()
    torch.testing.assert_close(result.T.cov(), expected, rtol=0.05, atol=0.05 * float(expected.abs().max()))
