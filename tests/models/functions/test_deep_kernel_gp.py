"""The paper's prior: its size, and the closed form beside the GPyTorch modules that define it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import softplus

from pacbayes_fl.data.linear_start import LinearStart
from pacbayes_fl.errors import ShapeError
from pacbayes_fl.models.base import FunctionModel
from pacbayes_fl.models.functions.deep_kernel_gp import LINEAR, OUTPUTSCALE, SLOPES, DeepKernelGP
from pacbayes_fl.models.likelihoods import inverse_softplus
from pacbayes_fl.models.prior_values import PriorGradients

START = LinearStart(torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64), 0.25, 0.7)
MODELS: dict[str, Callable[[], DeepKernelGP]] = {
    "paper": lambda: DeepKernelGP(3),
    "zero mean": lambda: DeepKernelGP(3, mean_widths=None, kernel_widths=(4,)),
    "linear": lambda: DeepKernelGP(3, mean_widths=(), kernel_widths=(), feature_dim=1),
    "learned outputscale": lambda: DeepKernelGP(3, (4,), (4,), learn_outputscale=True),
    "learned lengthscale": lambda: DeepKernelGP(3, (4,), (4,), learn_lengthscale=True),
    "learned scales": lambda: DeepKernelGP(3, (4,), (4,), learn_lengthscale=True, learn_outputscale=True),
    "linear start": lambda: DeepKernelGP(3, (4,), (4,), linear=START),
    "linear term alone": lambda: DeepKernelGP(3, None, (4,), linear=START),
    "noise network": lambda: DeepKernelGP(3, (4,), (4,), noise_widths=(5,)),
    "linear noise and start": lambda: DeepKernelGP(3, None, (4,), linear=START, noise_widths=()),
    "linear kernel": lambda: DeepKernelGP(3, (4,), (4,), linear_kernel=True),
    "everything": lambda: DeepKernelGP(3, (4,), (4,), linear=START, noise_widths=(2,), linear_kernel=True),
    "no networks": lambda: DeepKernelGP(3, None, None, linear=START, linear_kernel=True),
    "slopes alone": lambda: DeepKernelGP(3, None, None, learn_lengthscale=True, linear_kernel=True),
    "learned tails": lambda: DeepKernelGP(3, (4,), (4,), noise_widths=(2,), dof="learned"),
    "uneven": lambda: DeepKernelGP(3, mean_widths=(5,), kernel_widths=(7, 4, 3), feature_dim=3),
}
every_model = pytest.mark.parametrize("name", MODELS)


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def particles(model: FunctionModel, *shape: int) -> Tensor:
    return model.location() + draw(*shape, model.dim, scale=0.5)


@pytest.mark.parametrize(("features", "count"), [(15, 3236), (1, 2340)])
def test_the_paper_s_prior_has_the_paper_s_size(features: int, count: int) -> None:
    model = DeepKernelGP(features)
    assert model.dim == count and model.input_dim == features
    assert model.location().count_nonzero() == 1  # the raw noise


@every_model
def test_mean_and_covariance_are_the_paper_s(name: str) -> None:
    model = MODELS[name]()
    theta, x, other = particles(model, 2, 2), draw(2, 5, 3, seed=1), draw(2, 4, 3, seed=2)

    def network(prefix: str, at: Tensor) -> Tensor:
        named = {n: v for n, v in model.unflatten(theta[1, 0]).items() if n.startswith(f"{prefix}.network.")}
        depth = len(named) // 2
        if not depth:
            return torch.zeros_like(at[:, :1])
        for i in range(depth):
            weight, bias = (named[f"{prefix}.network.{part}.{i}"] for part in ("weights", "biases"))
            at = (at.tanh() if i else at) @ weight + bias
        return at

    named = model.unflatten(theta[1, 0])
    length = next((softplus(raw).squeeze() for name, raw in named.items() if name.endswith("raw_lengthscale")), 1.0)
    z, z_other = network("kernel", x[1]) / length, network("kernel", other[1]) / length
    scale = softplus(named[OUTPUTSCALE]) if OUTPUTSCALE in named else torch.ones((), dtype=z.dtype)
    kernel = scale * torch.exp(-0.5 * (z.unsqueeze(1) - z_other).square().sum(-1))
    variance = scale.expand(5)
    if SLOPES in named:
        kernel = kernel + named[SLOPES].square() * (x[1] @ other[1].mT + 1.0)
        variance = variance + named[SLOPES].square() * (x[1].square().sum(-1) + 1.0)
    torch.testing.assert_close(model.covariance(theta, x, other)[1, 0], kernel, rtol=1e-11, atol=1e-12)
    mean = network("mean", x[1]).squeeze(-1) if "mean.network.weights.0" in named else torch.zeros(5, dtype=z.dtype)
    if LINEAR in named:
        mean = mean + x[1] @ named[LINEAR][:3] + named[LINEAR][3]
    torch.testing.assert_close(model.mean(theta, x)[1, 0], mean, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(model.variance(theta, x)[1, 0], variance)


@every_model
def test_the_noise_is_one_variance_or_that_of_a_network_as_gpytorch_s_likelihood_has_it(name: str) -> None:
    model = MODELS[name]()
    theta, x = particles(model, 2, 2), draw(2, 5, 3, seed=1)
    noise, named = model.noise(theta, x), model.unflatten(theta[1, 0])
    assert noise.shape == (2, 2, 5)
    raw, at = named[next(iter(named))], x[1]
    layers = sorted(n for n in named if n.startswith("likelihood.network.weights."))
    for i, layer in enumerate(layers):
        at = (at.tanh() if i else at) @ named[layer] + named[layer.replace("weights", "biases")]
    raw = raw + at.squeeze(-1) if layers else raw.expand(5)
    torch.testing.assert_close(noise[1, 0], softplus(raw).square(), rtol=1e-12, atol=0)
    torch.testing.assert_close(model._definition.noise(theta, x), noise, rtol=1e-12, atol=0)
    assert (noise.std(-1).min() > 1e-3) == (noise.stride(-1) != 0) == bool(layers)


@every_model
def test_bound_hyper_parameters_give_the_same(name: str) -> None:
    model = MODELS[name]()
    theta, x = particles(model, 3, 2), draw(3, 5, 3, seed=1)
    mean, embedding = model.bind(theta)(x)
    definition = model.embedding(theta, x)
    assert embedding is not None and definition is not None
    torch.testing.assert_close(mean, model.mean(theta, x), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(embedding, definition, rtol=1e-12, atol=1e-13)


@every_model
@pytest.mark.parametrize("shared", [True, False])
def test_the_pullback_is_that_of_autograd(name: str, shared: bool) -> None:
    model = MODELS[name]()
    theta, x = particles(model, *((2,) if shared else (3, 2))), draw(3, 5, 3, seed=1)
    theta[..., 0, 0] = inverse_softplus(1e-9)  # at the floor of the noise, where it has no slope
    result, vjp = model.with_vjp(theta, x)
    expected, definition = FunctionModel.with_vjp(model, theta, x)
    assert result.embedded and expected.embedded
    assert (result.outputscale is None) == (OUTPUTSCALE not in model.shapes)
    assert (result.linear is None) == (SLOPES not in model.shapes)
    by = dict[str, Tensor | None]()
    for field in PriorGradients._fields:
        part, other = getattr(result, field), getattr(expected, field)
        assert (part is None) == (other is None)
        by[field] = None if part is None else draw(*part.shape, seed=4)
        if part is not None:
            torch.testing.assert_close(part, other, rtol=1e-12, atol=1e-13)
    gradients: Any = by
    score, reference = vjp(PriorGradients(**gradients)), definition(PriorGradients(**gradients))
    assert score.shape == (3, 2, model.dim) and score[:, 0, 0].eq(0).all() and score[:, 1, 0].ne(0).all()
    error = (score - reference).norm(dim=-1) / reference.norm(dim=-1)
    assert float(error.max()) < 1e-12


@pytest.mark.parametrize("learned", ["learn_lengthscale", "learn_outputscale"])
def test_a_learned_scale_of_one_changes_nothing(learned: str) -> None:
    fixed, free = DeepKernelGP(2, (4,), (4,)), DeepKernelGP(2, (4,), (4,), **{learned: True})
    assert free.dim == fixed.dim + 1
    plain, x = particles(fixed, 2, 2), draw(2, 5, 2, seed=1)
    one = torch.tensor(inverse_softplus(1.0), dtype=torch.float64)
    named = fixed.unflatten(plain)
    theta = torch.cat([named.get(n, one.expand(2, 2, *s)).reshape(2, 2, -1) for n, s in free.shapes.items()], -1)
    torch.testing.assert_close(free.covariance(theta, x), fixed.covariance(plain, x), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(free.mean(theta, x), fixed.mean(plain, x), rtol=1e-12, atol=1e-13)
    scale = next(name for name in free.shapes if name not in fixed.shapes)
    free.unflatten(theta)[scale].add_(1.0)
    assert not torch.allclose(free.covariance(theta, x), fixed.covariance(plain, x))


@every_model
def test_theta_of_another_size_is_refused(name: str) -> None:
    model = MODELS[name]()
    x = draw(1, 4, 3)
    for size in (model.dim - 1, model.dim + 1):
        theta = torch.zeros(1, 1, size, dtype=torch.float64)
        for call in (model.mean, model.embedding, model.with_vjp, lambda t, _: model.bind(t)):
            with pytest.raises(ShapeError, match=f"D={model.dim}, got"):
                call(theta, x)


def test_float32_stays_float32() -> None:
    model = DeepKernelGP(3)
    theta, x = particles(model, 2, 2).float(), draw(2, 5, 3, seed=1).float()
    prior, vjp = model.with_vjp(theta, x)
    results = (*prior[:3], vjp(PriorGradients(*prior[:3])), model.covariance(theta, x))
    assert {t.dtype for t in results} == {torch.float32}
    assert {t.dtype for t in model.bind(theta)(x) if t is not None} == {torch.float32}


@every_model
def test_particles_that_clients_share_are_not_copied(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS[name]()
    theta, x = particles(model, 2).expand(3, 2, model.dim), draw(3, 5, 3, seed=1)
    copied = model.bind(theta.contiguous())(x)
    sizes = list[int]()
    networks = DeepKernelGP._networks

    def counted(self: DeepKernelGP, flat: Tensor) -> object:
        sizes.append(len(flat))
        return networks(self, flat)

    monkeypatch.setattr(DeepKernelGP, "_networks", counted)
    for part, other in zip(model.bind(theta)(x), copied, strict=True):
        assert part is not None and other is not None
        torch.testing.assert_close(part, other, rtol=1e-13, atol=1e-13)
    assert sizes == [2]  # and not 3 * 2


def test_a_linear_start_is_the_centre_and_the_first_particles_lie_close_to_it() -> None:
    """Started at rest the mean is the line, the noise what it leaves; the rest has usual networks' spreads."""
    model = MODELS["linear start"]()
    centre, x = model.location(), draw(1, 5, 3, seed=1)
    torch.testing.assert_close(model.mean(centre.view(1, 1, -1), x)[0, 0], x[0] @ START.weight + 0.25)
    torch.testing.assert_close(model.noise(centre.view(1, 1, -1), x).sqrt().squeeze(), centre.new_full((5,), 0.7))
    torch.testing.assert_close(model.outputscale(centre.view(1, 1, -1)).squeeze(), centre.new_tensor(-2.0).exp())
    spreads = model.spreads()
    assert spreads is not None and MODELS["paper"]().spreads() is None
    prior, start = model.unflatten(0.3 * spreads.prior), model.unflatten(0.3 * spreads.start)
    by_name = [prior[name].flatten()[0].item() for name in (LINEAR, "raw_noise", OUTPUTSCALE)]
    assert by_name == pytest.approx([0.1, 0.3, 1.0])
    torch.testing.assert_close(prior["kernel.network.weights.1"], torch.full((4, 2), 0.5, dtype=torch.float64))
    assert start[OUTPUTSCALE] == 0.0 and prior["mean.network.weights.1"].eq(0.5).all()
    for part in ("weights", "biases"):
        last, first = f"mean.network.{part}.1", f"mean.network.{part}.0"
        torch.testing.assert_close(start[last], 0.01 * prior[last])
        torch.testing.assert_close(start[first], prior[first])


@pytest.mark.parametrize("noise_widths", [None, (6,)])
def test_without_networks_learning_starts_at_the_line_in_units_of_spreads(noise_widths: tuple[int, ...] | None) -> None:
    options: dict[str, Any] = {"linear": START, "linear_kernel": True, "noise_widths": noise_widths}
    model, deep = DeepKernelGP(3, None, None, **options), DeepKernelGP(3, (4,), (4,), **options)
    spreads, beside = model.spreads(), deep.spreads()
    assert spreads is not None and beside is not None
    first = model.unflatten(spreads.start)
    assert not any(first[name].any() for name in (LINEAR, OUTPUTSCALE, SLOPES))
    assert all(values.all() for name, values in first.items() if name not in (LINEAR, OUTPUTSCALE, SLOPES))
    assert torch.equal(spreads.units, spreads.prior) and spreads.prior.unique().numel() > 2
    assert beside.units.eq(1.0).all() and deep.unflatten(beside.start)[LINEAR].eq(1 / 3).all()
    centre = model.location()
    torch.testing.assert_close(model.outputscale(centre.view(1, 1, -1)).squeeze(), centre.new_tensor(-4.0).exp())
    assert model.unflatten(centre)[SLOPES] == 0.05
    for widths in ({"mean_widths": None}, {"kernel_widths": None}):  # one network is one
        one = DeepKernelGP(3, **{"mean_widths": (4,), "kernel_widths": (4,)} | widths, **options)
        some = one.spreads()
        assert some is not None and some.units.eq(1.0).all() and one.unflatten(one.location())[SLOPES] == 0.1


def test_slopes_of_clients_own_start_small_and_alike_and_change_nothing_at_0() -> None:
    model, plain = (DeepKernelGP(3, (4,), (4,), linear=START, linear_kernel=own) for own in (True, False))
    spreads, theta, x = model.spreads(), particles(model, 2, 2), draw(2, 5, 3, seed=1)
    assert spreads is not None and model.dim == plain.dim + 1 and model.unflatten(model.location())[SLOPES] == 0.1
    assert model.unflatten(spreads.prior)[SLOPES] == 1.0 and model.unflatten(spreads.start)[SLOPES] == 0.0
    alone = DeepKernelGP(3, (4,), (4,), linear_kernel=True).spreads()
    assert alone is not None and alone.prior.eq(1.0).all() and alone.start.eq(0.0).sum() == 1
    named = model.unflatten(theta)
    named[SLOPES].zero_()
    rest = torch.cat([named[n].reshape(2, 2, -1) for n in plain.shapes], -1)
    assert torch.equal(model.covariance(theta, x), plain.covariance(rest, x))
    named[SLOPES].fill_(0.7)
    there = model.covariance(theta, x)
    named[SLOPES].neg_()
    assert torch.equal(model.covariance(theta, x), there) and not torch.equal(there, plain.covariance(rest, x))


@pytest.mark.parametrize("linear", [None, START])
def test_a_noise_network_starts_close_to_one_noise_and_goes_less_far_than_the_rest(linear: LinearStart | None) -> None:
    model, plain = (DeepKernelGP(3, (4,), (4,), linear=linear, noise_widths=w, noise_spread=0.25) for w in ((6,), None))
    spreads, without = model.spreads(), plain.spreads()
    assert spreads is not None
    ones = torch.ones(plain.dim, dtype=torch.float64)
    for relative, others, last in zip(spreads[:2], (without or (ones, ones))[:2], (1.0, 0.01), strict=True):
        named, expected = model.unflatten(relative), plain.unflatten(others)
        for part in ("weights", "biases"):
            assert named.pop(f"likelihood.network.{part}.0").eq(0.25).all()
            assert named.pop(f"likelihood.network.{part}.1").eq(0.25 * last).all()
        expected["likelihood.raw_noise"] = expected.pop("raw_noise")
        assert named.keys() == expected.keys() and all(torch.equal(named[n], expected[n]) for n in named)
    centre, x = model.location(), draw(1, 5, 3, seed=1)
    std = torch.full((1, 1, 5), 0.4 if linear is None else linear.noise_std, dtype=torch.float64)
    torch.testing.assert_close(model.noise(centre.view(1, 1, -1), x).sqrt(), std)
    start = centre + 0.3 * spreads.start * draw(8, model.dim, seed=2)
    moved = model.noise(start.unsqueeze(0), x).sqrt()
    assert moved.std(-1).max() < 0.01 < moved.std(1).min()  # among inputs, and among particles


@every_model
def test_the_definition_broadcasts_as_it_is_taken_to(name: str) -> None:
    definition = MODELS[name]()._definition
    assert definition.batched and definition._broadcasts()
    if definition._parts.likelihood is not None:
        definition._check_likelihood(definition._parts.likelihood)
