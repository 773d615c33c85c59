"""Convolutional networks of many clients: those of `torch.nn`, client by client, with statistics of real rows alone."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pyro
import pytest
import torch
from pyro import poutine
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import ShapeError, StudyError
from pacbayes_fl.models.fixed_weights import FixedWeights
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.models.weights.convolutional import (
    BayesianCNN,
    BayesianFedAvgCNN,
    BayesianVGG,
    ImageNetwork,
    ImageShape,
    convolved,
    halved,
    moments,
    normalised,
)

CLASSES = 4
SIDES = (32, 16, 8, 4, 2)  # of the images that each batch norm of the VGG sees


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(kind: str, shape: ImageShape, dtype: torch.dtype = torch.float64) -> ImageNetwork:
    return {"cnn": BayesianCNN, "fedavg-cnn": BayesianFedAvgCNN, "vgg": BayesianVGG}[kind](
        shape, Categorical(CLASSES), dtype
    )


def weights_of(model: ImageNetwork, clients: int, seed: int = 0) -> Tensor:
    return (model.centre() + 0.1 * draw(clients, model.dim, seed=seed)).to(model.dtype)


def batch_of(shape: ImageShape, sizes: tuple[int, ...], seed: int = 1, garbage: float = 0.0) -> ClientBatch:
    """Random rows of clients; padding holds numbers where a test wants to see that nobody looks at them."""
    x = draw(len(sizes), max(sizes), *shape, seed=seed)
    y = torch.arange(len(sizes) * max(sizes)).view(len(sizes), -1) % CLASSES
    mask = torch.arange(max(sizes)) < torch.tensor(sizes).unsqueeze(-1)
    x[~mask] *= garbage
    ids = tuple(range(len(sizes)))
    return ClientBatch(x, y, mask, ids, tuple(map(str, ids)))


def torch_network(model: ImageNetwork, weights: dict[str, Tensor], client: int) -> tuple[nn.Sequential, dict[str, str]]:
    """Write the same network in `torch.nn`, and the name there of every site."""
    vgg = isinstance(model, BayesianVGG)
    layers: list[nn.Module] = []
    names: dict[str, str] = {}
    if vgg:
        height, width = (max(0, 32 - side) for side in model.input_shape[1:])
        assert height % 2 == width % 2 == 0
        layers.append(nn.ZeroPad2d((width // 2, width // 2, height // 2, height // 2)))
    for i, (n_out, n_in, size, _) in enumerate(model.kernels):
        names |= {f"conv_{i}": f"{len(layers)}.weight", f"conv_bias_{i}": f"{len(layers)}.bias"}
        layers.append(nn.Conv2d(n_in, n_out, size, padding=1 if vgg else 0))
        if vgg:
            names |= {f"gamma_{i}": f"{len(layers)}.weight", f"beta_{i}": f"{len(layers)}.bias"}
            layers.append(nn.BatchNorm2d(n_out, momentum=1.0))
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
    layers.append(nn.Flatten())
    for i, pair in enumerate(pairwise(model.head)):
        layers += [nn.ReLU()] if i else []
        names |= {f"weight_{i}": f"{len(layers)}.weight", f"bias_{i}": f"{len(layers)}.bias"}
        layers.append(nn.Linear(*pair))
    module = nn.Sequential(*layers).double()
    with torch.no_grad():
        for site, name in names.items():
            value = weights[site][client].detach()
            module.get_parameter(name).copy_(value.T if site.startswith("weight") else value)
    return module, names


@pytest.mark.parametrize(
    ("model", "count"),
    [
        (BayesianCNN((3, 32, 32), Categorical(10)), 62_006),
        (BayesianCNN((1, 28, 28), Categorical(10)), 44_426),
        (BayesianFedAvgCNN((1, 28, 28), Categorical(10)), 582_026),
        (BayesianFedAvgCNN((1, 28, 28), Categorical(62)), 582_026 + 52 * 513),
        (BayesianFedAvgCNN((3, 32, 32), Categorical(10)), 582_026 + 32 * 2 * 25 + 64 * 9 * 512),
        (BayesianVGG((3, 32, 32), Categorical(10)), 280_074),
        (BayesianVGG((1, 28, 28), Categorical(10)), 280_074 - 2 * 16 * 9),
        (BayesianVGG((3, 64, 40), Categorical(10)), 280_074 + 128 * 128),
    ],
    ids=["cnn", "cnn-28", "fedavg-cnn-28", "fedavg-cnn-62", "fedavg-cnn", "vgg", "vgg-28", "vgg-64"],
)
def test_numbers_of_parameters_are_the_published_ones(model: ImageNetwork, count: int) -> None:
    assert model.dim == count == sum(math.prod(shape) for shape in model.shapes.values())
    module, names = torch_network(model, model.unflatten(torch.zeros(1, model.dim)), 0)
    assert sum(parameter.numel() for parameter in module.parameters()) == count
    assert sorted(names) == sorted(model.shapes)


def test_sites_stand_in_the_order_of_the_layers() -> None:
    head = ["weight_0", "bias_0", "weight_1", "bias_1", "weight_2", "bias_2"]
    cnn, vgg = network("cnn", (3, 32, 32)), network("vgg", (3, 32, 32))
    assert list(cnn.shapes) == ["conv_0", "conv_bias_0", "conv_1", "conv_bias_1", *head]
    convolutions = [f"{site}_{i}" for i in range(5) for site in ("conv", "conv_bias", "gamma", "beta")]
    assert list(vgg.shapes) == [*convolutions, *head]
    assert cnn.shapes["weight_2"] == (84, CLASSES) and vgg.shapes["weight_2"] == (128, CLASSES)
    with pytest.raises(TypeError):
        cnn.shapes["conv_0"] = ()  # type: ignore[index]


def test_only_the_affine_part_of_batch_norm_is_without_uncertainty() -> None:
    cnn, vgg = network("cnn", (3, 32, 32)), network("vgg", (3, 32, 32))
    assert cnn.deterministic == frozenset() and bool(cnn.stochastic_columns().all())
    assert torch.equal(cnn.centre(), torch.zeros(cnn.dim, dtype=torch.float64))
    assert vgg.deterministic == {f"{site}_{i}" for i in range(5) for site in ("gamma", "beta")}
    centre, stochastic = vgg.unflatten(vgg.centre()), vgg.unflatten(vgg.stochastic_columns())
    assert vgg.stochastic_columns().shape == vgg.centre().shape == (vgg.dim,)
    for site in vgg.shapes:
        assert bool((centre[site] == (1.0 if site.startswith("gamma") else 0.0)).all()), site
        assert bool((stochastic[site] == (not site.startswith(("gamma", "beta")))).all()), site


@pytest.mark.parametrize("sizes", [(4,), (2, 5, 3)], ids=["one client", "ragged"])
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28)], ids=str)
@pytest.mark.parametrize("kind", ["cnn", "fedavg-cnn", "vgg"])
def test_outputs_and_gradients_are_those_of_torch_client_by_client(
    kind: str, shape: ImageShape, sizes: tuple[int, ...]
) -> None:
    model, batch = network(kind, shape), batch_of(shape, sizes, garbage=100.0)
    flat = weights_of(model, len(sizes)).requires_grad_(True)
    sites = model.unflatten(flat)
    outputs, log_likelihood = model.forward(sites, batch), model.log_likelihood(flat, batch)
    (gradient,) = torch.autograd.grad(log_likelihood.sum(), flat)
    by_site = model.unflatten(gradient)
    for k, size in enumerate(sizes):
        module, names = torch_network(model, sites, k)
        expected = module(batch.x[k, :size])
        assert_same(outputs[k, :size], expected)
        loss = cross_entropy(expected, batch.y[k, :size], reduction="sum")
        assert_same(log_likelihood[k], -loss)
        loss.backward()
        for site, name in names.items():
            slope = module.get_parameter(name).grad
            assert slope is not None
            assert_same(-by_site[site][k], slope.T if site.startswith("weight") else slope)


def test_a_prediction_is_normalised_by_the_statistics_of_the_clients_training_rows() -> None:
    model, rows = network("vgg", (3, 32, 32)), batch_of((3, 32, 32), (3, 3, 3))
    reference = batch_of((3, 32, 32), (4, 1, 6), seed=2, garbage=100.0)
    sites = model.unflatten(weights_of(model, 3))
    outputs = model.forward(sites, rows, reference)
    for k, size in enumerate((4, 1, 6)):
        module, _ = torch_network(model, sites, k)
        module(reference.x[k, :size])  # with momentum 1 the running statistics are the batch's
        norms = [layer for layer in module if isinstance(layer, nn.BatchNorm2d)]
        for layer, side in zip(norms, SIDES, strict=True):
            values = size * side * side
            assert layer.running_var is not None
            layer.running_var *= (values - 1) / values  # torch stores the unbiased variance
        assert_same(outputs[k], module.eval()(rows.x[k]))
    one = replace(rows, x=rows.x[:, :1], y=rows.y[:, :1], mask=rows.mask[:, :1])
    assert_same(model.forward(sites, one, reference), outputs[:, :1])
    assert not torch.allclose(model.forward(sites, one), outputs[:, :1], atol=1e-3)


def test_the_training_rows_predict_themselves_as_they_were_trained() -> None:
    model, batch = network("vgg", (1, 28, 28)), batch_of((1, 28, 28), (3, 5))
    flat = weights_of(model, 2)
    trained = model.forward(model.unflatten(flat), batch)
    assert_same(model.forward(model.unflatten(flat), batch, batch), trained)
    predicted = model.observation(flat, batch, batch)
    assert_same(predicted.logits, trained.log_softmax(-1))


def test_a_client_without_training_rows_is_normalised_by_its_own_rows() -> None:
    model, rows = network("vgg", (3, 32, 32)), batch_of((3, 32, 32), (3, 2))
    reference = batch_of((3, 32, 32), (5, 0), seed=2)
    sites = model.unflatten(weights_of(model, 2))
    mixed, alone = model.forward(sites, rows, reference), model.forward(sites, rows)
    assert_same(mixed[1, :2], alone[1, :2])
    assert not torch.allclose(mixed[0], alone[0], atol=1e-3)


def test_statistics_that_were_taken_before_give_the_same_outputs() -> None:
    model, rows = network("vgg", (3, 32, 32)), batch_of((3, 32, 32), (3, 2, 2))
    flat, reference = weights_of(model, 3), batch_of((3, 32, 32), (4, 0, 6), seed=2)
    fixed, sites = model.with_statistics(flat, reference), model.unflatten(flat)
    expected = model.forward(sites, rows, reference)
    for given in (None, rows, reference):  # the statistics are settled
        assert torch.equal(fixed.forward(sites, rows, given), expected)
    assert not torch.allclose(model.forward(sites, rows), expected, atol=1e-3)  # the model itself is as it was
    plain = network("cnn", (1, 16, 16))
    assert plain.with_statistics(weights_of(plain, 2), batch_of((1, 16, 16), (2, 2))) is plain


def test_a_network_without_statistics_ignores_the_training_rows() -> None:
    model, rows = network("cnn", (1, 16, 16)), batch_of((1, 16, 16), (3, 2))
    sites = model.unflatten(weights_of(model, 2))
    reference = batch_of((1, 16, 16), (2, 2), seed=2)
    assert torch.equal(model.forward(sites, rows, reference), model.forward(sites, rows))


@pytest.mark.parametrize("kind", ["cnn", "fedavg-cnn", "vgg"])
def test_the_program_observes_the_same_log_likelihood(kind: str) -> None:
    model, batch = network(kind, (1, 16, 16)), batch_of((1, 16, 16), (2, 3))
    flat, scale = weights_of(model, 2), torch.tensor([2.0, 0.5], dtype=torch.float64)
    with pyro.validation_enabled(False):
        trace = poutine.trace(model.model).get_trace(batch, FixedWeights(model.unflatten(flat)), 1.0, scale)
    trace.compute_log_prob()
    drawn = [name for name in trace.stochastic_nodes if name != "clients"]
    assert drawn == list(model.shapes) and trace.observation_nodes == ["y"]
    expected = scale * model.log_likelihood(flat, batch)
    torch.testing.assert_close(trace.nodes["y"]["log_prob"], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["cnn", "fedavg-cnn", "vgg"])
def test_clients_are_alone(kind: str) -> None:
    model, batch = network(kind, (1, 16, 16)), batch_of((1, 16, 16), (2, 4, 3))
    flat = weights_of(model, 3).requires_grad_(True)
    outputs = model.forward(model.unflatten(flat), batch)
    (gradient,) = torch.autograd.grad(outputs[1].sum(), flat)
    assert bool(gradient[1].any()) and not bool(gradient[[0, 2]].any())
    one = model.forward(model.unflatten(flat[1:2]), batch.select(torch.tensor([1])))
    assert_same(one[0], outputs[1])


@pytest.mark.parametrize("kind", ["cnn", "fedavg-cnn", "vgg"])
def test_more_padding_changes_neither_likelihood_nor_gradient(kind: str) -> None:
    model, batch = network(kind, (1, 16, 16)), batch_of((1, 16, 16), (2, 3))
    more = 7
    wide = replace(
        batch,
        x=torch.cat((batch.x, draw(2, more, 1, 16, 16, seed=5)), 1),
        y=torch.cat((batch.y, batch.y.new_zeros(2, more)), 1),
        mask=torch.cat((batch.mask, batch.mask.new_zeros(2, more)), 1),
    )
    flat = weights_of(model, 2).requires_grad_(True)
    for rows in (wide, wide.rows(torch.arange(3 + more).flip(0).expand(2, -1))):  # real rows last, as in a minibatch
        values = [model.log_likelihood(flat, one) for one in (batch, rows)]
        slopes = [torch.autograd.grad(value.sum(), flat)[0] for value in values]
        assert_same(values[1], values[0])
        assert_same(slopes[1], slopes[0])


@pytest.mark.parametrize("kind", ["cnn", "fedavg-cnn", "vgg"])
def test_single_precision_is_near_double_precision(kind: str) -> None:
    batch = batch_of((3, 32, 32), (4, 3))
    double, single = network(kind, (3, 32, 32)), network(kind, (3, 32, 32), torch.float32)
    flat = weights_of(double, 2).requires_grad_(True)
    small = flat.detach().float().requires_grad_(True)
    assert single.centre().dtype == torch.float32
    result, expected = single.log_likelihood(small, batch), double.log_likelihood(flat, batch)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-4)
    slopes = [torch.autograd.grad(value.sum(), leaf)[0] for value, leaf in ((result, small), (expected, flat))]
    assert float((slopes[0] - slopes[1]).norm() / slopes[1].norm()) < 0.01  # a ReLU near 0 may open in one of them


def test_images_of_one_colour_and_padding_stay_finite_in_single_precision() -> None:
    model = network("vgg", (3, 32, 32), torch.float32)
    batch = batch_of((3, 32, 32), (1, 4, 0))
    batch = replace(batch, x=torch.zeros_like(batch.x))  # every channel's variance is that of the borders alone, or 0
    flat = weights_of(model, 3).requires_grad_(True)
    outputs = model.forward(model.unflatten(flat), batch)
    value = model.log_likelihood(flat, batch)
    (gradient,) = torch.autograd.grad(value.sum(), flat)
    assert bool(outputs.isfinite().all()) and bool(gradient.isfinite().all())
    assert not bool(value[2].any()) and not bool(gradient[2].any())


@pytest.mark.parametrize("kind", ["cnn", "fedavg-cnn", "vgg"])
def test_flattened_images_are_the_same_images(kind: str) -> None:
    model, batch = network(kind, (3, 16, 20)), batch_of((3, 16, 20), (2, 3))
    sites = model.unflatten(weights_of(model, 2))
    flattened = replace(batch, x=batch.x.flatten(2))
    assert torch.equal(model.forward(sites, flattened), model.forward(sites, batch))


def test_regression_has_one_output() -> None:
    model = BayesianCNN((1, 16, 16), Gaussian(), torch.float64)
    batch = batch_of((1, 16, 16), (2, 3))
    assert model.forward(model.unflatten(weights_of(model, 2)), batch).shape == (2, 3, 1)


@pytest.mark.parametrize("feature", [(16, 16, 3), (767,), (3, 256), (1, 3, 16, 16)], ids=str)
def test_images_of_another_shape_are_refused(feature: tuple[int, ...]) -> None:
    model, batch = network("cnn", (3, 16, 16)), batch_of((3, 16, 16), (2,))
    other = replace(batch, x=torch.zeros(1, 2, *feature, dtype=torch.float64))
    with pytest.raises(ShapeError, match=r"client '0': x must hold images \[3, 16, 16\] or 768 features, got \["):
        model.log_likelihood(weights_of(model, 1), other)


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("cnn", (3, 15, 32)),
        ("cnn", (0, 32, 32)),
        ("fedavg-cnn", (1, 28, 15)),
        ("vgg", (3, 0, 32)),
        ("vgg", (0, 32, 32)),
    ],
)
def test_networks_that_no_image_fits_are_refused(kind: str, shape: ImageShape) -> None:
    with pytest.raises(StudyError, match="input_shape must be"):
        network(kind, shape)
    network(kind, (1, 16, 16))


def test_statistics_are_those_of_real_rows() -> None:
    x, mask = draw(4, 2, 3, 5, 6, seed=3) + 1e3, torch.tensor([[True, True, False, True], [False] * 4])
    result = moments(x, mask)
    values = x[mask[0], 0].transpose(0, 1).flatten(1)
    torch.testing.assert_close(result.mean[0], values.mean(1), rtol=1e-14, atol=0)
    torch.testing.assert_close(result.variance[0], values.var(1, correction=0), rtol=1e-10, atol=0)
    assert not bool(result.mean[1].any()) and bool((result.variance[1] >= 0).all()) and not result.variance[1].any()
    scale, shift = draw(2, 3, seed=4), draw(2, 3, seed=5)
    out = normalised(x, result, scale, shift, mask)
    expected = scale[0, :, None] * (values - values.mean(1, keepdim=True))
    expected = expected / (values.var(1, correction=0, keepdim=True) + 1e-5).sqrt() + shift[0, :, None]
    torch.testing.assert_close(out[mask[0], 0].transpose(0, 1).flatten(1), expected, rtol=1e-9, atol=1e-9)
    assert not bool(out[2, 0].any()) and not bool(out[:, 1].any())


def test_convolution_and_pooling_keep_clients_and_channels_apart() -> None:
    x, weight, bias = draw(2, 3, 2, 7, 6, seed=6), draw(3, 4, 2, 3, 3, seed=7), draw(3, 4, seed=8)
    for padding, (height, width) in ((0, (5, 4)), (1, (7, 6))):
        out = convolved(x, weight, bias, padding)
        assert out.shape == (2, 3, 4, height, width)
        small = halved(out)
        for k in range(3):
            expected = torch.conv2d(x[:, k], weight[k], bias[k], padding=padding)
            assert_same(out[:, k], expected)
            assert_same(small[:, k], torch.max_pool2d(expected, 2))
