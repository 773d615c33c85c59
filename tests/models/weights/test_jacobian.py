"""Jacobians by layer factors and entry by entry, against torch.func on networks that were written anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pyro import distributions
from torch import Tensor
from torch.distributions import Poisson
from torch.nn.functional import softplus

from pacbayes_fl.errors import StudyError
from pacbayes_fl.models.likelihoods import Categorical, Gaussian, HeteroscedasticGaussian
from pacbayes_fl.models.weights import jacobian as jacobians
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.models.weights.convolutional import BayesianCNN, BayesianVGG
from pacbayes_fl.models.weights.jacobian import DenseJacobian, LayerJacobian, curvature_root, linearise
from tests import laplace
from tests.laplace import NoisyCurve, Program, TanhNetwork, randn

LABELS, NUMBERS = Categorical(3), Gaussian(0.3)
NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "1 layer": (lambda y: BayesianMLP((2, y.outputs), y, torch.float64), (2,)),
    "2 layers": (lambda y: BayesianMLP((2, 5, y.outputs), y, torch.float64), (2,)),
    "3 layers": (lambda y: BayesianMLP((2, 5, 4, y.outputs), y, torch.float64), (2,)),
    "tanh": (lambda y: TanhNetwork((2, 5, y.outputs), y), (2,)),
    "cnn": (lambda y: BayesianCNN((1, 16, 16), y, torch.float64), (1, 16, 16)),
    "vgg": (lambda y: BayesianVGG((1, 16, 16), y, torch.float64), (1, 16, 16)),
}
SIZES = (4, 2)
K = len(SIZES)


def close(mine: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-10 * float(theirs.abs().max()))


def scene(name: str, likelihood: Any) -> tuple[Any, Tensor, Any]:
    """Return a network, weights and clients; VGG's batch norms scale by about 1."""
    build, feature = NETWORKS[name]
    model = build(likelihood)
    spread = 0.2 if len(feature) == 3 else 0.7
    return model, model.centre() + spread * randn(3, K, model.dim), laplace.clients(model, *SIZES, feature=feature)


def layered(model: Any) -> Tensor:
    """Positions of the weights of layers: a VGG's batch norms are none."""
    norms = [model.span(name) for name in model.shapes if name.startswith(("gamma", "beta"))]
    inside = torch.ones(model.dim, dtype=torch.bool)
    for span in norms:
        inside[span] = False
    return inside.nonzero().flatten()


def some(positions: Tensor, count: int = 40) -> Tensor:
    """Every so many of the positions, other ones for every client, in no order."""
    chosen = positions[torch.randperm(len(positions), generator=torch.Generator().manual_seed(5))]
    return torch.stack([chosen[:count], chosen[-count:]]) if len(chosen) > count else chosen.expand(K, -1)


@pytest.mark.law
@pytest.mark.parametrize("likelihood", [LABELS, NUMBERS], ids=["labels", "numbers"])
@pytest.mark.parametrize("name", NETWORKS)
def test_layer_factors_are_the_jacobian(name: str, likelihood: Any) -> None:
    model, theta, batch = scene(name, likelihood)
    result = linearise(model, theta, batch, batch)
    assert isinstance(result.jacobian, LayerJacobian) and not result.outputs.requires_grad
    index = some(layered(model))
    mine, squares, variance = result.jacobian.columns(index), result.jacobian.squares(), randn(4, K, model.dim).square()
    spread, step = result.jacobian.spread(variance), randn(6, K, model.dim)
    moved = result.jacobian.moved(step)
    expected_squares = torch.zeros_like(squares)
    inside = layered(model)
    for k, m in enumerate(SIZES):
        x, _ = laplace.own(batch, k)
        network = laplace.plain(model, x, theta[k])
        exact = laplace.jacobian(network, theta[k], x)
        close(result.outputs[k, :m], network(theta[k], x))
        close(mine[k, :m], exact[..., index[k]])
        close(moved[k, :m], exact[..., inside] @ step[k, inside])
        close(
            spread[k, :m],
            torch.einsum("ncd,d,ned->nce", *(exact[..., inside], variance[k, inside]), exact[..., inside]),
        )
        expected_squares[k, inside] = exact.square().sum((0, 1))[inside]
    rows = result.jacobian.combined(batch.mask[..., None, None] * torch.eye(likelihood.outputs, dtype=torch.float64))
    close(rows.squares(), expected_squares)


@pytest.mark.parametrize("build", [NoisyCurve, lambda: Program(TanhNetwork((2, 4, 1), NUMBERS))], ids=["curve", "tanh"])
def test_a_program_whose_layers_are_not_known_is_differentiated_entry_by_entry(build: Any) -> None:
    model = build()
    batch = laplace.clients(model, *SIZES, feature=(1 if isinstance(model, NoisyCurve) else 2,))
    theta = randn(3, K, model.dim)
    for result in (linearise(model, theta, batch), jacobians.dense(model, theta, batch)):
        assert isinstance(result.jacobian, DenseJacobian) and not result.outputs.requires_grad
        for k, m in enumerate(SIZES):
            x, _ = laplace.own(batch, k)
            close(result.jacobian.entries[k, :m], laplace.jacobian(laplace.plain(model), theta[k], x))
            close(result.jacobian.moved(theta)[k], result.jacobian.entries[k] @ theta[k])
            close(result.outputs[k, :m], laplace.plain(model)(theta[k], x))


def test_a_network_that_does_not_record_its_layers_is_one_of_these() -> None:
    recorded, silent = (TanhNetwork((2, 4, 3), LABELS, recorded) for recorded in (True, False))
    batch, theta = laplace.clients(recorded, *SIZES), randn(3, K, recorded.dim)
    mine, theirs = linearise(recorded, theta, batch).jacobian, linearise(silent, theta, batch).jacobian
    assert isinstance(mine, LayerJacobian) and isinstance(theirs, DenseJacobian)
    close(mine.columns(torch.arange(recorded.dim).expand(K, -1)), theirs.entries)


def test_a_network_that_records_some_of_its_layers_is_refused() -> None:
    class Forgetful(TanhNetwork):
        def forward(self, *given: Any, traces: Any = None) -> Tensor:
            *given, traces = given
            result = super().forward(*given, traces)
            traces.pop()
            return result

    model = Forgetful((2, 4, 3), LABELS)
    with pytest.raises(StudyError, match="records some of its layers only"):
        linearise(model, randn(3, K, model.dim), laplace.clients(model, *SIZES))


def test_the_definition_of_labels_differentiates_normalised_logits() -> None:
    """Pyro normalises logits, which no probability depends on: ln p_c, and its Jacobian."""
    model = BayesianMLP((2, 4, 3), LABELS, torch.float64)
    batch, theta = laplace.clients(model, *SIZES), randn(3, K, model.dim)
    result = jacobians.dense(model, theta, batch)
    for k, m in enumerate(SIZES):
        x, _ = laplace.own(batch, k)

        def normalised(at: Tensor, rows: Tensor) -> Tensor:
            return laplace.plain(model)(at, rows).log_softmax(-1)

        close(result.jacobian.entries[k, :m], laplace.jacobian(normalised, theta[k], x))
        close(result.outputs[k, :m], normalised(theta[k], x))


@pytest.mark.parametrize("name", ["2 layers", "cnn"])
def test_both_forms_do_the_same(name: str) -> None:
    model, theta, batch = scene(name, LABELS)
    layers, everything = linearise(model, theta, batch, batch).jacobian, torch.arange(model.dim).expand(K, -1)
    assert isinstance(layers, LayerJacobian)
    entries, factor, variance = DenseJacobian(layers.columns(everything)), randn(6, K, 4, 3, 2), randn(7, K, model.dim)
    index = some(torch.arange(model.dim))
    for mine, theirs in ((layers, entries), (layers.combined(factor), entries.combined(factor))):
        close(mine.columns(index), theirs.columns(index))
        close(mine.squares(), theirs.squares())
        close(mine.spread(variance.square()), theirs.spread(variance.square()))
    assert entries.numel() == K * 4 * 3 * model.dim
    if name == "2 layers":
        assert layers.numel() == K * 4 * (2 + 5 + 1) + K * 4 * 3 * (5 + 3)  # inputs and a 1, sensitivities of units


def test_weights_without_a_layer_have_no_columns() -> None:
    model, theta, batch = scene("vgg", LABELS)
    result = linearise(model, theta, batch, batch).jacobian
    outside = torch.tensor(
        [i for name in model.shapes if name[:4] in ("gamm", "beta") for i in range(model.dim)[model.span(name)]]
    )
    assert len(outside) == model.dim - len(layered(model)) > 0
    mixed = torch.cat((outside[:3], layered(model)[:3], layered(model)[-3:])).expand(K, -1)
    columns = result.columns(mixed)
    assert not columns[..., :3].any() and columns[..., 3:].any(1).any(1).all()
    assert not result.squares()[:, outside].any()


def test_statistics_of_a_batch_norm_are_constants_of_the_training_rows() -> None:
    model, theta, batch = scene("vgg", LABELS)
    reference, one = laplace.clients(model, 3, 3, feature=(1, 16, 16)), batch.rows(torch.zeros(K, 1, dtype=torch.int64))
    result = linearise(model, theta, one, reference)
    assert isinstance(result.jacobian, LayerJacobian)
    index = some(layered(model))
    for k in range(K):
        network = laplace.plain(model, laplace.own(reference, k)[0], theta[k])
        close(result.jacobian.columns(index)[k], laplace.jacobian(network, theta[k], one.x[k])[..., index[k]])


# curvature of the loss --------------------------------------------------------------------------------------------


def test_the_root_of_a_label_s_curvature() -> None:
    logits = 3 * randn(1, K, 4, 5)
    root = curvature_root(distributions.Categorical(logits=logits))
    assert root.shape == (K, 4, 5, 5)
    for k in range(K):
        close((root @ root.mT)[k], laplace.loss_curvature(logits[k], None))


def test_the_root_of_a_number_s_curvature() -> None:
    std = softplus(randn(2, K, 4))
    root = curvature_root(distributions.Normal(randn(1, K, 4), std))
    close((root @ root.mT).flatten(), std.flatten() ** -2)


def test_other_observations_are_refused() -> None:
    with pytest.raises(StudyError, match="needs a Categorical or Normal observation, got Poisson"):
        curvature_root(Poisson(torch.ones(2, 3)))

    class Counts(Program):
        def observation(self, weights: Tensor, batch: Any, reference: Any = None) -> Any:
            return Poisson(super().observation(weights, batch).mean.exp())

    model = Counts(TanhNetwork((2, 4, 1), NUMBERS))
    batch = laplace.clients(model, *SIZES)
    for way in (linearise, jacobians.dense):
        with pytest.raises(StudyError, match="got Poisson"):
            way(model, randn(3, K, model.dim), batch)


@pytest.mark.parametrize("likelihood", [LABELS, NUMBERS], ids=["labels", "numbers"])
def test_squares_of_the_weighted_jacobian_are_the_matrix(likelihood: Any) -> None:
    model, theta, batch = scene("2 layers", likelihood)
    weighted = linearise(model, theta, batch).weighted(batch.mask)
    columns = weighted.columns(torch.arange(model.dim).expand(K, -1)).flatten(1, 2)
    for k in range(K):
        x, _ = laplace.own(batch, k)
        close((columns.mT @ columns)[k], laplace.ggn(model, theta[k], x))
    assert not columns[1].unflatten(0, (4, -1))[SIZES[1] :].any()  # padding


def test_a_noise_that_an_output_decides_is_refused() -> None:
    model = BayesianMLP((2, 3, 2), HeteroscedasticGaussian(), torch.float64)
    with pytest.raises(StudyError, match=r"takes the noise of numbers as known.*likelihood = 'gaussian'"):
        linearise(model, randn(3, K, model.dim), laplace.clients(TanhNetwork((2, 5, 1), NUMBERS), *SIZES, feature=(2,)))
