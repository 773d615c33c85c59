"""PAC-PFL against its formulas, written out in numpy with gradients by complex steps."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import gpytorch
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pacbayes_fl import tensors
from pacbayes_fl.bounds.divergence import gp_posterior_kl
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.linear_start import LinearStart
from pacbayes_fl.errors import AssumptionError, StudyError
from pacbayes_fl.federation import engine, federation_state
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.optim import adam_init
from pacbayes_fl.methods.base import Nothing
from pacbayes_fl.methods.pac_pfl.gp import Message, PacPFL, Server, Update
from pacbayes_fl.models.functions.deep_kernel_gp import DeepKernelGP
from pacbayes_fl.models.functions.gpytorch_prior import GPyTorchPrior
from pacbayes_fl.models.likelihoods import inverse_softplus
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.functions.gaussian_process import GPPosterior
from pacbayes_fl.posteriors.hyper_posterior import DiagonalHyperPrior, FlatHyperPrior, GaussianHyperPrior, gibbs_tau
from tests.laws.cases import assert_close, bits, federation, plain

Array = NDArray[Any]
STD = 0.5
SCALES: tuple[Any, ...] = ("inside", "outside", "none")


def method(d: int = 1, **options: Any) -> PacPFL:
    model = DeepKernelGP(d, (3,), (3,))
    return PacPFL(model, GaussianHyperPrior(model.location(), STD), **({"particles": 3} | options))


def no_noise(batch: ClientBatch) -> Noise:
    return Noise(0, 1, batch.ids)


def server_at(particles: torch.Tensor) -> Server:
    return Server(particles, adam_init(particles))


# numpy ----------------------------------------------------------------------------------------------------------


def log_evidence(model: DeepKernelGP, theta: Array, x: Array, y: Array, power: float = 1.0) -> Any:
    """Eq. 33 for the deep prior of section 8.3.2, entry by entry, analytic in theta; likelihoods to a power."""
    p, at = {}, 0
    for name, shape in model.shapes.items():
        p[name] = theta[at : at + shape.numel()].reshape(shape)
        at += shape.numel()

    def network(part: str) -> Array:
        hidden = np.tanh(x @ p[f"{part}.network.weights.0"] + p[f"{part}.network.biases.0"])
        return np.asarray(hidden @ p[f"{part}.network.weights.1"] + p[f"{part}.network.biases.1"])

    m, f = network("mean")[:, 0], network("kernel")
    matrix = np.empty((len(y), len(y)), dtype=theta.dtype)
    for i in range(len(y)):
        for j in range(len(y)):
            matrix[i, j] = np.exp(-0.5 * np.sum((f[i] - f[j]) ** 2))
    noise = np.log1p(np.exp(p["raw_noise"])) ** 2
    matrix += noise / power * np.eye(len(y))
    r = y - m
    normal = -0.5 * r @ np.linalg.solve(matrix, r) - 0.5 * np.log(np.linalg.det(matrix))
    each = -0.5 * np.log(2 * np.pi) + 0.5 * ((1 - power) * np.log(2 * np.pi * noise) - np.log(power))
    return normal + len(y) * each


def score(model: DeepKernelGP, theta: Array, x: Array, y: Array, power: float = 1.0) -> Array:
    """Gradient of the log evidence, exact to rounding: f'(t) = Im f(t + ih) / h."""
    steps = theta + 1e-30j * np.eye(len(theta))
    return np.array([log_evidence(model, step, x, y, power).imag / 1e-30 for step in steps])


def rows(batch: ClientBatch, k: int) -> tuple[Array, Array]:
    real = batch.mask[k]
    return batch.x[k][real].numpy(), batch.y[k][real].numpy()


def svgd_step(particles: Array, scores: Array, rate: float) -> Array:
    """Eq. 39, with h the median squared distance of different particles / ln(P + 1)."""
    count = len(particles)
    pairs = [np.sum((particles[i] - particles[j]) ** 2) for i in range(count) for j in range(i)]
    h = np.median(pairs) / np.log(count + 1)
    moved = particles.copy()
    for k in range(count):
        for l in range(count):  # noqa: E741
            kernel = np.exp(-np.sum((particles[l] - particles[k]) ** 2) / h)
            moved[k] += rate / count * (kernel * scores[l] - 2 * (particles[l] - particles[k]) / h * kernel)
    return moved


# tau ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lam", "n2", "tau"),
    [
        (10.0, 0, 0.9652509652509653),
        (1.0, 0, 0.7352941176470588),
        (100.0, 24, 0.0011560645527949),
        (1.0001e-4, 0, 2.77728e-4),
    ],
)
def test_tau_is_that_of_corollary_4_4(lam: float, n2: int, tau: float) -> None:
    assert gibbs_tau(lam, 150.0, 24, n2) == pytest.approx(tau, rel=1e-12 if lam >= 1 else 1e-5)


@pytest.mark.parametrize(("lam", "n2", "v"), [(1.5, 1, 0.5), (1e-4, 0, 1e-4), (0.0, 0, 1e-4), (math.nan, 0, 1e-4)])
def test_lambda_must_be_above_n2_plus_v(lam: float, n2: int, v: float) -> None:
    with pytest.raises(AssumptionError, match="lambda must be above n2"):
        gibbs_tau(lam, 150.0, 24, n2, v)
    assert gibbs_tau(n2 + 2 * v, 150.0, 24, n2, v) > 0


def test_the_server_takes_tau_from_lambda_beta_and_the_number_of_clients() -> None:
    batch = federation(1)
    derived = method(tau=None, lam=10.0, beta=20.0, n2=2.0)
    server = derived.init_server(torch.Generator().manual_seed(1))
    update, _ = derived.client(derived.broadcast(server), Nothing(), batch, no_noise(batch))
    for n in (5, 50):
        given = replace(derived, tau=gibbs_tau(10.0, 20.0, n, 2.0), lam=None, beta=None)
        assert bits(derived.server(server, update, n)) == bits(given.server(server, update, n))
    with pytest.raises(AssumptionError):
        method(tau=None, lam=2.0, beta=20.0, n2=2.0)
    with pytest.raises(StudyError, match="tau is given, so lam and beta would not count"):
        method(tau=0.5, lam=10.0)


@pytest.mark.parametrize("name", ["optimiser", "minibatch_scale", "cohort_scale", "weighting"])
def test_a_misspelt_option_is_refused(name: str) -> None:
    with pytest.raises(StudyError, match=f"{name} must be one of .*, got 'asent'"):
        method(**{name: "asent"})


# one round ------------------------------------------------------------------------------------------------------


@pytest.mark.quick
@pytest.mark.parametrize("d", [1, 3])
def test_algorithm_2_sends_evidence_and_score(d: int) -> None:
    batch, m = federation(d), method(d)
    assert isinstance(m.model, DeepKernelGP)
    message = m.broadcast(m.init_server(torch.Generator().manual_seed(2)))
    update, _ = m.client(message, Nothing(), batch, no_noise(batch))
    for k in range(batch.clients):
        for p, theta in enumerate(message.particles.numpy()):
            expected = log_evidence(m.model, theta, *rows(batch, k))
            assert update.log_evidence[k, p].item() == pytest.approx(expected, rel=1e-10)
            np.testing.assert_allclose(update.score[k, p], score(m.model, theta, *rows(batch, k)), rtol=1e-8, atol=1e-9)
    assert update.weight.tolist() == [1.0] * batch.clients


def test_the_score_of_any_prior_is_the_slope_of_its_evidence() -> None:
    batch, model = federation(3), plain(3)
    m = PacPFL(model, GaussianHyperPrior(model.location(), STD), particles=2)
    particles = m.init_server(torch.Generator().manual_seed(3)).particles
    step = 1e-5

    def evidence(at: torch.Tensor) -> torch.Tensor:
        return m.client(Message(at), Nothing(), batch, no_noise(batch))[0].log_evidence

    update, _ = m.client(Message(particles), Nothing(), batch, no_noise(batch))
    for entry in range(model.dim):
        shift = torch.zeros(model.dim, dtype=torch.float64)
        shift[entry] = step
        slope = (evidence(particles + shift) - evidence(particles - shift)) / (2 * step)
        torch.testing.assert_close(update.score[:, :, entry], slope, rtol=1e-6, atol=1e-7)


@pytest.mark.quick
@pytest.mark.parametrize("cohort_scale", ["sum", "mean"])
def test_a_round_of_plain_ascent_is_equations_39_and_40(cohort_scale: Any) -> None:
    batch, tau, rate = federation(3), 0.7, 1e-3
    m = method(3, tau=tau, rate=rate, optimiser="ascent", cohort_scale=cohort_scale)
    assert isinstance(m.model, DeepKernelGP)
    plan = FederationPlan(rounds=1, seed=4)
    before = federation_state.start(m, batch, plan).server.particles.numpy()
    scores = np.zeros_like(before)
    for p, theta in enumerate(before):
        summed = sum(score(m.model, theta, *rows(batch, k)) for k in range(batch.clients))
        scale = 1.0 if cohort_scale == "sum" else 1 / batch.clients
        scores[p] = (m.model.location().numpy() - theta) / STD**2 + tau * scale * summed
    after = engine.run_rounds(m, batch, plan).server.particles
    np.testing.assert_allclose(after, svgd_step(before, scores, rate), rtol=1e-10, atol=1e-12)
    assert np.abs(after.numpy() - before).max() > 1e-4


def test_a_preconditioned_round_is_one_in_units_of_the_spreads() -> None:
    batch, tau, rate = federation(3), 0.7, 1e-3
    start = LinearStart(torch.tensor([0.4, -0.2, 0.1]).double(), 0.3, 0.5)
    model = DeepKernelGP(3, (3,), (3,), linear=start)
    spreads = model.spreads()
    assert spreads is not None and spreads.prior.unique().numel() > 2
    m = PacPFL(model, particles=3, tau=tau, rate=rate, optimiser="ascent", preconditioner="spreads")
    server = m.init_server(torch.Generator().manual_seed(5))
    update, _ = m.client(m.broadcast(server), Nothing(), batch, no_noise(batch))
    before, units = server.particles.numpy(), spreads.prior.numpy()
    prior = DiagonalHyperPrior(model.location(), 0.3 * spreads.prior, 0.3 * spreads.start)
    scores = (prior.score(server.particles) + tau * update.score.sum(0)).numpy()
    expected = svgd_step(before / units, scores * units, rate) * units
    after = m.server(server, update, batch.clients).particles
    np.testing.assert_allclose(after, expected, rtol=1e-10, atol=1e-12)
    plain = replace(m, preconditioner="none").server(server, update, batch.clients).particles
    assert (after - plain).abs().max() > 1e-4
    usual = replace(m, preconditioner="model").server(server, update, batch.clients).particles
    assert torch.equal(usual, plain)  # its networks take steps of one size


def test_a_preconditioned_step_of_adam_is_as_long_as_the_spread() -> None:
    batch = federation(3)
    start = LinearStart(torch.zeros(3).double(), 0.0, 0.5)
    model = DeepKernelGP(3, (3,), (3,), linear=start)
    m = PacPFL(model, particles=1, rate=0.01, preconditioner="spreads")
    server = m.init_server(torch.Generator().manual_seed(5))
    update, _ = m.client(m.broadcast(server), Nothing(), batch, no_noise(batch))
    steps = (m.server(server, update, batch.clients).particles - server.particles).abs()
    spreads = model.spreads()
    assert spreads is not None
    assert_close(steps.squeeze(0), 0.01 * spreads.prior, 1e-5)


def test_without_spreads_nothing_is_preconditioned() -> None:
    batch = federation(3)
    runs = [method(3, preconditioner=one) for one in ("none", "spreads", "model")]
    assert runs[0].model.spreads() is None
    first, *others = (engine.run_rounds(m, batch, FederationPlan(rounds=3)).server for m in runs)
    assert all(bits(one) == bits(first) for one in others)


def test_a_model_of_lines_is_preconditioned_unless_it_is_said_otherwise() -> None:
    batch, start = federation(3), LinearStart(torch.zeros(3).double(), 0.0, 0.5)
    model = DeepKernelGP(3, None, None, linear=start, linear_kernel=True)
    usual, spreads, none = (
        PacPFL(model, particles=2, **one) for one in ({}, {"preconditioner": "spreads"}, {"preconditioner": "none"})
    )
    runs = [bits(engine.run_rounds(m, batch, FederationPlan(rounds=3)).server) for m in (usual, spreads, none)]
    assert runs[0] == runs[1] != runs[2]


def test_adam_sees_the_svgd_direction() -> None:
    batch = federation(1)
    by_adam, by_ascent = method(optimiser="adam", rate=0.01), method(optimiser="ascent", rate=1.0)
    server = by_adam.init_server(torch.Generator().manual_seed(2))
    update, _ = by_adam.client(by_adam.broadcast(server), Nothing(), batch, no_noise(batch))
    direction = by_ascent.server(server, update, 5).particles - server.particles
    first = by_adam.server(server, update, 5)
    assert_close(first.particles, server.particles + 0.01 * direction / (direction.abs() + 1e-8), 1e-12)
    assert int(first.adam.steps) == 1
    assert_close(first.adam.first, -0.1 * direction, 1e-12)
    assert int(by_ascent.server(server, update, 5).adam.steps) == 0


def test_one_particle_is_map_ascent() -> None:
    batch, tau, rate = federation(3), 0.6, 1e-3
    m = method(3, particles=1, tau=tau, rate=rate, optimiser="ascent")
    plan = FederationPlan(rounds=3)
    phi = federation_state.start(m, batch, plan).server.particles
    for _, state in engine.rounds(m, batch, plan):
        update, _ = m.client(Message(phi), Nothing(), batch, no_noise(batch))
        phi = phi + rate * ((m.model.location() - phi) / STD**2 + tau * update.score.sum(0))
        assert_close(state.server.particles, phi, 1e-12)


def test_the_sum_over_all_clients_is_restored_from_a_cohort() -> None:
    particles = torch.zeros(1, 2, dtype=torch.float64)
    model = plain(1)
    update = Update(
        torch.tensor([[[3.0, -1.0]], [[1.0, 5.0]], [[0.0, 0.0]]], dtype=torch.float64),
        torch.zeros(3, 1, dtype=torch.float64),
        torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64),  # the third client was dropped
        torch.zeros(3, dtype=torch.float64),
    )
    flat = PacPFL(model, FlatHyperPrior(torch.zeros(2), 1.0), particles=1, tau=0.5, rate=1.0, optimiser="ascent")
    moved = flat.server(server_at(particles), update, 10).particles
    assert moved.tolist() == [[0.5 * 10 / 2 * 4.0, 0.5 * 10 / 2 * 4.0]]
    mean = replace(flat, cohort_scale="mean")
    assert mean.server(server_at(particles), update, 10).particles.tolist() == [[0.5 / 2 * 4.0, 0.5 / 2 * 4.0]]


def test_on_average_a_cohort_moves_the_server_like_everybody() -> None:
    batch = federation(1)
    m = method(particles=1, optimiser="ascent", rate=1.0)
    server = m.init_server(torch.Generator().manual_seed(5))
    update, _ = m.client(m.broadcast(server), Nothing(), batch, no_noise(batch))
    pairs = [torch.tensor([i, j]) for i in range(5) for j in range(i)]
    by_pair = [m.server(server, tensors.select(update, pair), 5).particles for pair in pairs]
    assert_close(torch.stack(by_pair).mean(0), m.server(server, update, 5).particles, 1e-10)


@pytest.mark.parametrize("optimiser", ["adam", "ascent"])
@pytest.mark.parametrize("cohort_scale", ["sum", "mean"])
def test_updates_add_up(optimiser: Any, cohort_scale: Any) -> None:
    batch, m = federation(1), method(optimiser=optimiser, cohort_scale=cohort_scale)
    server = m.init_server(torch.Generator().manual_seed(5))
    update, _ = m.client(m.broadcast(server), Nothing(), batch, no_noise(batch))
    halves = [tensors.select(update, torch.tensor(part)) for part in ([0, 1, 2], [3, 4])]
    whole = m.server(server, update, 9)
    reduced = m.reduce(update)
    assert {len(leaf) for leaf in tensors.leaves(reduced).values()} == {1} and reduced.weight.item() == 5
    assert_close(m.server(server, reduced, 9), whole, 1e-10)
    joined = tensors.cat([m.reduce(half) for half in halves])
    assert_close(m.server(server, joined, 9), whole, 1e-10)
    assert_close(dict(m.report(server, joined)), dict(m.report(server, update)), 1e-10)


# minibatches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
def test_a_minibatch_counts_as_it_says(scale: Any) -> None:
    batch, b = federation(1), 4  # sizes 7, 1, 4, 12, 5
    m = method(minibatch=b, minibatch_scale=scale)
    assert isinstance(m.model, DeepKernelGP)
    message = m.broadcast(m.init_server(torch.Generator().manual_seed(6)))
    update, _ = m.client(message, Nothing(), batch, no_noise(batch))
    chosen = no_noise(batch).rows(batch.mask, b)
    for k, size in enumerate([7, 1, 4, 12, 5]):
        used = chosen[k][: min(b, size)]
        assert len(set(used.tolist())) == min(b, size) and int(used.max()) < size
        x, y = batch.x[k, used].numpy(), batch.y[k, used].numpy()
        ratio = size / min(b, size)
        factor, power = ratio if scale == "outside" else 1.0, ratio if scale == "inside" else 1.0
        theta = message.particles[1].numpy()
        expected = factor * log_evidence(m.model, theta, x, y, power)
        assert update.log_evidence[k, 1].item() == pytest.approx(expected, rel=1e-10)
        slope = factor * score(m.model, theta, x, y, power)
        np.testing.assert_allclose(update.score[k, 1], slope, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("scale", SCALES)
def test_a_minibatch_of_all_rows_is_no_minibatch(scale: Any) -> None:
    batch, m = federation(1), method()
    message = m.broadcast(m.init_server(torch.Generator()))
    whole, _ = m.client(message, Nothing(), batch, no_noise(batch))
    for b in (12, 50):
        every, _ = replace(m, minibatch=b, minibatch_scale=scale).client(message, Nothing(), batch, no_noise(batch))
        assert_close(every, whole, 1e-9)


def test_a_client_without_rows_sends_nothing_that_matters() -> None:
    none = (torch.zeros(0, 1), torch.zeros(0))
    batch = ClientBatch.pad([(torch.ones(9, 1), torch.ones(9)), none], allow_empty=True)
    for m in (method(), *(method(minibatch=2, minibatch_scale=scale) for scale in SCALES)):
        update, _ = m.client(m.broadcast(m.init_server(torch.Generator())), Nothing(), batch, no_noise(batch))
        assert not update.score[1].any() and not update.log_evidence[1].any()
        assert update.score[0].any()


# learning -------------------------------------------------------------------------------------------------------


def objective(m: PacPFL, particles: torch.Tensor, batch: ClientBatch) -> torch.Tensor:
    """Log density of the optimal hyper-posterior [P], up to its constant."""
    assert isinstance(m.hyper_prior, GaussianHyperPrior) and m.tau is not None
    update, _ = m.client(Message(particles), Nothing(), batch, no_noise(batch))
    return m.hyper_prior.log_prob(particles) + m.tau * update.log_evidence.sum(0)


def test_map_ascent_climbs_every_round() -> None:
    batch, m = federation(1), method(particles=1, optimiser="ascent", rate=2e-3)
    states = [state for _, state in engine.rounds(m, batch, FederationPlan(rounds=40))]
    heights = [objective(m, state.server.particles, batch).item() for state in states]
    assert all(b > a for a, b in pairwise(heights))
    assert heights[-1] > heights[0] + 1.0


@pytest.mark.slow
def test_svgd_finds_a_conjugate_posterior() -> None:
    """A constant mean with kernel and noise held fixed: the hyper-posterior is the textbook normal."""
    random = torch.Generator().manual_seed(8)
    clients = [(torch.rand(6, 1, generator=random), 1.0 + torch.randn(6, generator=random)) for _ in range(4)]
    batch = ClientBatch.pad(clients)
    model = GPyTorchPrior(gpytorch.means.ConstantMean(), gpytorch.kernels.RBFKernel(), 1)
    centre, free = model.location(), torch.tensor([name == "mean.raw_constant" for name in model.shapes])

    class Held(GaussianHyperPrior):
        """A broad normal for the mean; everything else stays where it is."""

        def sample(self, particles: int, generator: torch.Generator) -> torch.Tensor:
            return torch.where(free, super().sample(particles, generator), centre)

        def score(self, particles: torch.Tensor) -> torch.Tensor:
            return torch.where(free, super().score(particles), 1e12 * (centre - particles))

    m = PacPFL(model, Held(centre, 2.0), particles=12, rate=0.05, bandwidth=0.3)
    theta = centre.view(1, 1, -1)
    precision, pulled = 1 / 4.0, 0.0
    for k in range(4):
        x, y = batch.x[k], batch.y[k]
        cov = model.covariance(theta, x[None])[0, 0] + model.noise(theta, x[None])[0, 0].diag()
        ones = torch.linalg.solve(cov, torch.ones(6, dtype=torch.float64))
        precision, pulled = precision + ones.sum().item(), pulled + (ones @ y).item()
    result = engine.run_rounds(m, batch, FederationPlan(rounds=400)).server.particles[:, 1]
    assert result.mean().item() == pytest.approx(pulled / precision, abs=0.005)
    assert result.std().item() == pytest.approx(precision**-0.5, rel=0.02)


def test_particles_climb_and_stay_apart() -> None:
    batch, m = federation(3), method(3, particles=4, rate=1e-2)
    start = federation_state.start(m, batch, FederationPlan()).server.particles
    end = engine.run_rounds(m, batch, FederationPlan(rounds=60)).server.particles
    assert (objective(m, end, batch) > objective(m, start, batch)).all()
    assert torch.pdist(end).min() > 0.1


# personalisation ------------------------------------------------------------------------------------------------


def two_priors() -> tuple[PacPFL, Message, ClientBatch]:
    """Return two particles with known numbers: lengthscale, noise std and mean (1, 0.5, 0) and (0.5, 0.3, 0.2)."""
    model = GPyTorchPrior(gpytorch.means.ConstantMean(), gpytorch.kernels.RBFKernel(), 1)
    assert [*model.shapes] == ["raw_noise", "mean.raw_constant", "kernel.raw_lengthscale"]
    particles = [
        [inverse_softplus(0.5), 0.0, inverse_softplus(1.0)],
        [inverse_softplus(0.3), 0.2, inverse_softplus(0.5)],
    ]
    x, y = np.array([[0.0], [1.0], [2.5]]), np.array([0.3, -0.2, 1.1])
    batch = ClientBatch.pad([(torch.from_numpy(x), torch.from_numpy(y))])
    return (
        PacPFL(model, FlatHyperPrior(model.location(), 1.0)),
        Message(torch.tensor(particles, dtype=torch.float64)),
        batch,
    )


@pytest.mark.parametrize(
    ("weighting", "weights", "mean", "cdf", "log_prob"),
    [
        ("evidence", [0.4251141621, 0.5748858379], 0.30815997887655733, 0.5892967236534183, -0.7610952967261092),
        ("equal", [0.5, 0.5], 0.3124742311172327, 0.589052342775024, -0.7404721006424908),
    ],
)
def test_the_mixture_is_weighted_as_equation_37_says(
    weighting: Any, weights: list[float], mean: float, cdf: float, log_prob: float
) -> None:
    m, message, batch = two_priors()
    posterior = replace(m, weighting=weighting).personalise(message, Nothing(), batch, no_noise(batch))
    assert posterior.log_evidence[0].tolist() == pytest.approx([-3.6390375104233623, -3.3372237817184756], abs=1e-9)
    predictive = posterior.predict(torch.tensor([[[1.7]]], dtype=torch.float64))
    half = torch.tensor([[0.5]], dtype=torch.float64)
    assert predictive.weights[0].tolist() == pytest.approx(weights, abs=1e-9)
    assert predictive.means[0, :, 0].tolist() == pytest.approx([0.341279759386652, 0.28366870284781337], abs=1e-9)
    assert predictive.variances[0, :, 0].tolist() == pytest.approx([0.5161959576354638, 0.8900450512855985], abs=1e-9)
    assert predictive.mean.item() == pytest.approx(mean, abs=1e-9)
    assert predictive.cdf(half).item() == pytest.approx(cdf, abs=1e-9)
    assert predictive.log_prob(half).item() == pytest.approx(log_prob, abs=1e-9)
    if weighting == "evidence":
        assert predictive.variance.item() == pytest.approx(0.7319276527696585, abs=1e-9)
        assert predictive.quantile(torch.tensor([0.1], dtype=torch.float64)).item() == pytest.approx(
            -0.779073626432134, abs=1e-9
        )


# certificates' posteriors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighting", ["evidence", "equal"])
def test_more_rows_condition_the_same_particles(weighting: Any) -> None:
    batch, m = federation(3), method(3, weighting=weighting)
    seen, rows = (batch.rows(torch.arange(at, 9, 2).expand(4, -1)) for at in (0, 1))
    message = m.broadcast(m.init_server(torch.Generator().manual_seed(6)))
    prior = m.personalise(message, Nothing(), seen, no_noise(batch))
    result, kl = m.refine(prior, seen, rows, no_noise(batch))
    whole = m.personalise(message, Nothing(), batch, no_noise(batch))
    assert isinstance(result, GPPosterior) and torch.equal(result.theta, prior.theta)
    mine, theirs = result.function(batch.x), whole.function(batch.x)
    assert_close(mine.means, theirs.means, 1e-9)
    assert_close(mine.log_weights, theirs.log_weights, 1e-9)
    assert kl.dtype == torch.float64 and (kl[rows.mask.any(1)] > 1e-3).all()


def test_a_client_that_never_trained_is_certified_from_the_priors() -> None:
    batch, m = federation(3), method(3)
    none = batch.rows(torch.empty(4, 0, dtype=torch.int64))
    message = m.broadcast(m.init_server(torch.Generator().manual_seed(6)))
    prior = m.personalise(message, Nothing(), none, no_noise(batch))
    assert_close(prior.log_weights.exp(), torch.full((4, 3), 1 / 3, dtype=torch.float64), 1e-12)
    kl = m.refine(prior, none, batch, no_noise(batch)).kl
    assert_close(kl, gp_posterior_kl(m.personalise(message, Nothing(), batch, no_noise(batch))), 1e-9)


# options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"particles": 0},
        {"rate": 0.0},
        {"rate": -1.0},
        {"rate": math.nan},
        {"minibatch": 0},
        {"tau": 0.0},
        {"tau": -1.0},
        {"tau": math.nan},
        {"tau": None},
        {"tau": None, "lam": 10.0},
        {"tau": None, "beta": 10.0},
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match="|".join(options)):
        method(**options)


def test_particles_come_from_the_hyper_prior_and_the_seed() -> None:
    m = method(3, particles=4000)
    first, again, other = (m.init_server(torch.Generator().manual_seed(seed)).particles for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert ((first.mean(0) - m.model.location()).abs() < 5 * STD / 4000**0.5).all()
    assert ((first.std(0) / STD - 1).abs() < 5 / 8000**0.5).all()


def test_the_moments_stay_at_home() -> None:
    m = method()
    server = m.init_server(torch.Generator())
    assert tensors.leaves(m.broadcast(server)).keys() == {"particles"}


def test_chunks_are_sized_by_covariances_of_what_is_used() -> None:
    assert method(particles=4).footprint(100) == 4 * (100 * 100 + method().model.dim)
    assert method(particles=4, minibatch=10).footprint(100) == method(particles=4).footprint(10)
