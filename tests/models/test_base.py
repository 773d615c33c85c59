"""What every prior over functions gives, with GPyTorch's distribution as the definition; and users' Pyro programs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pyro
import pytest
import torch
from pyro import distributions, poutine
from scipy import stats
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.federation import engine, personalisation
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.methods.baselines.local import LocalOnly
from pacbayes_fl.methods.variational.bpfed import BPFed
from pacbayes_fl.methods.variational.cfedbayes import CFedBayes
from pacbayes_fl.methods.variational.pfedbayes import PFedBayes
from pacbayes_fl.methods.variational.sfedbayes import SFedBayes
from pacbayes_fl.models.base import FunctionModel, WeightModel, WeightPrior
from pacbayes_fl.models.fixed_weights import FixedWeights
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.models.prior_values import PriorGradients
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from tests.laws import cases
from tests.laws.cases import CLASSES, assert_close, numbers


class Line(FunctionModel):
    """f(x) = theta_0 + a x with a ~ N(0, theta_1^2) and noise variance theta_2^2: the least a user has to write."""

    @property
    def dim(self) -> int:
        return 3

    @property
    def input_dim(self) -> int:
        return 1

    def location(self) -> Tensor:
        return torch.zeros(3, dtype=torch.float64)

    def noise(self, theta: Tensor, x: Tensor) -> Tensor:
        return theta[..., 2:].square().expand(-1, -1, x.shape[1])

    def mean(self, theta: Tensor, x: Tensor) -> Tensor:
        return theta[..., :1].expand(-1, -1, x.shape[1])

    def covariance(self, theta: Tensor, x: Tensor, other: Tensor | None = None) -> Tensor:
        other = x if other is None else other
        return theta[..., 1, None, None].square() * (x @ other.mT).unsqueeze(1)

    def variance(self, theta: Tensor, x: Tensor) -> Tensor:
        return theta[..., 1:2].square() * x.square().mT

    def embedding(self, theta: Tensor, x: Tensor) -> Tensor | None:
        return None


THETA = torch.tensor([[[1.0, 2.0, 0.5], [-3.0, 0.1, 2.0]], [[0.0, 1.0, 1.0], [5.0, 3.0, 0.2]]], dtype=torch.float64)
X = torch.tensor([[[0.3], [-1.0], [2.0]], [[1.0], [0.0], [-0.7]]], dtype=torch.float64)


def test_the_prior_is_a_distribution_over_the_rows_of_each_client_and_particle() -> None:
    prior, noise = Line().prior(THETA, X)
    assert prior.batch_shape == (2, 2) and prior.event_shape == (3,) and noise.shape == (2, 2, 3)
    torch.testing.assert_close(noise, (THETA[..., 2:] ** 2).expand(2, 2, 3))
    y = torch.tensor([0.4, 1.0, -2.0], dtype=torch.float64)
    with_noise = type(prior)(prior.mean, prior.covariance_matrix + torch.diag_embed(noise))
    value = with_noise.log_prob(y.expand(2, 2, 3))
    for k in range(2):
        for p in range(2):
            x, (level, slope, sigma) = X[k, :, 0].numpy(), THETA[k, p].tolist()
            covariance = [
                [slope**2 * a * b + (sigma**2 if i == j else 0) for j, b in enumerate(x)] for i, a in enumerate(x)
            ]
            expected = stats.multivariate_normal([level] * 3, covariance).logpdf(y.numpy())
            assert float(value[k, p]) == pytest.approx(float(expected), rel=1e-10)


def test_one_client_s_broken_covariance_stops_no_other() -> None:
    broken = THETA.clone()
    broken[0, 1, 1] = math.nan
    prior, noise = Line().prior(broken, X)
    assert prior.covariance_matrix[0, 0].isfinite().all() and prior.covariance_matrix[1].isfinite().all()
    assert prior.covariance_matrix[0, 1].isnan().all() and noise.isfinite().all()
    indefinite, _ = Line().prior(torch.zeros(2, 1, 3, dtype=torch.float64), X)  # of rank 0
    assert not indefinite.covariance_matrix.any()


class Slope(Line):
    """The same line seen as an embedding z = theta_1 x, with a mean that no hyper-parameter moves."""

    def mean(self, theta: Tensor, x: Tensor) -> Tensor:
        return x.mT.expand(-1, theta.shape[1], -1)

    def embedding(self, theta: Tensor, x: Tensor) -> Tensor | None:
        return theta[..., 1, None, None] * x.unsqueeze(1)


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("model", [Line(), Slope()], ids=["covariance", "embedding"])
@pytest.mark.parametrize("shared", [False, True])
def test_the_way_back_to_the_hyper_parameters_is_autograd_s_for_every_client(model: Line, shared: bool) -> None:
    theta = THETA[0] if shared else THETA
    embedded = isinstance(model, Slope)
    with torch.no_grad():
        values, vjp = model.with_vjp(theta, X)
    assert values.embedded is embedded and not any(part.requires_grad for part in values[:3])
    grad_mean, grad_noise, grad_kernel = (
        draw(2, 2, 3, seed=0),
        draw(2, 2, 3, seed=1),
        draw(*values.kernel.shape, seed=2),
    )
    gradient = vjp(PriorGradients(grad_mean, grad_noise, grad_kernel))
    assert gradient.shape == (2, 2, 3)
    for k in range(2):
        for p in range(2):
            own = (theta[p] if shared else theta[k, p]).clone().view(1, 1, 3).requires_grad_(True)
            x = X[k : k + 1]
            kernel = model.embedding(own, x) if embedded else model.covariance(own, x)
            assert kernel is not None
            mean, noise = model.mean(own, x), model.noise(own, x)
            for batched, single in ((values.mean, mean), (values.noise, noise), (values.kernel, kernel)):
                torch.testing.assert_close(batched[k, p], single.detach()[0, 0], rtol=1e-14, atol=0)
            inner = (
                (mean * grad_mean[k, p]).sum() + (noise * grad_noise[k, p]).sum() + (kernel * grad_kernel[k, p]).sum()
            )
            (expected,) = torch.autograd.grad(inner, own)
            torch.testing.assert_close(gradient[k, p], expected[0, 0], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("model", [Line(), Slope()], ids=["covariance", "embedding"])
def test_bound_hyper_parameters_give_mean_and_embedding_anywhere(model: Line) -> None:
    at = model.bind(THETA)
    for x in (X, X[:, :1] + 3):
        mean, embedding = at(x)
        expected = model.embedding(THETA, x)
        assert torch.equal(mean, model.mean(THETA, x))
        assert (embedding is None) == (expected is None)
        assert embedding is None or expected is None or torch.equal(embedding, expected)


def test_a_prior_that_lacks_a_part_cannot_be_made() -> None:
    assert FunctionModel.__abstractmethods__ == {
        "dim",
        "input_dim",
        "location",
        "noise",
        "mean",
        "covariance",
        "variance",
        "embedding",
    }
    with pytest.raises(TypeError, match="abstract"):
        FunctionModel()  # type: ignore[abstract]


# users' Pyro programs -------------------------------------------------------------------------------------------


class Straight(WeightModel):
    """y ~ N(x a + b, 0.4^2): the least a user has to write."""

    dtype = torch.float64

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"a": (3,), "b": ()}

    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        with pyro.plate("clients", batch.clients, dim=-1):
            with poutine.scale(scale=zeta):
                a, b = (pyro.sample(name, prior.site(name)) for name in self.shapes)
            mean = (batch.x * a.unsqueeze(-2)).sum(-1) + b.unsqueeze(-1)
            with poutine.scale(scale=scale):
                pyro.sample("y", distributions.Normal(mean, 0.4).mask(batch.mask).to_event(1), obs=batch.y)


class Softmax(WeightModel):
    """Labels by multinomial logistic regression."""

    dtype = torch.float64

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"a": (3, CLASSES), "b": (CLASSES,)}

    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        with pyro.plate("clients", batch.clients, dim=-1):
            with poutine.scale(scale=zeta):
                a, b = (pyro.sample(name, prior.site(name)) for name in self.shapes)
            labels = distributions.Categorical(logits=batch.x @ a + b.unsqueeze(-2))
            with poutine.scale(scale=scale):
                pyro.sample("label", labels.mask(batch.mask).to_event(1), obs=batch.y)


LOCAL = LocalInference(steps=2, inner=2, minibatch=4, draws=2, rate=0.02, zeta=0.5)
DESCENT = LocalDescent(steps=2, minibatch=4, rate=0.02)
EVERY_METHOD: dict[str, Any] = {
    "pfedbayes": lambda model: PFedBayes(model, LOCAL, draws=3, join_passes=1),
    "sfedbayes": lambda model: SFedBayes(model, LOCAL, draws=3, join_passes=1, inclusion=0.6),
    "cfedbayes": lambda model: CFedBayes(model, LOCAL, draws=3, join_passes=1, assign_draws=2),
    "bpfed": lambda model: BPFed(model, LOCAL, draws=3, join_passes=1, personal_sites=1),
    "fedavg": lambda model: FedAvg(model, DESCENT, finetune=1),
    "local": lambda model: LocalOnly(model, DESCENT, join_passes=1),
}
TASKS: dict[str, tuple[WeightModel, BayesianMLP]] = {
    "numbers": (Straight(), BayesianMLP((3, 1), Gaussian(0.4), torch.float64)),
    "labels": (Softmax(), BayesianMLP((3, CLASSES), Categorical(CLASSES), torch.float64)),
}


@pytest.mark.law
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("name", EVERY_METHOD)
def test_a_user_s_program_goes_through_every_method_as_the_library_s_own_network_does(name: str, task: str) -> None:
    """Own network: written-out slopes. User's program: Pyro's traces. The same numbers, also for clients that join."""
    batch, new = (made(3, task == "labels") for made in (cases.federation, cases.strangers))
    result = []
    for model in TASKS[task]:
        method = EVERY_METHOD[name](model)
        plan = FederationPlan(rounds=2, seed=4, on_bad_client="stop")
        state = engine.run_rounds(method, batch, plan)
        message = method.broadcast(state.server)
        noise = Noise(4, 0, batch.ids)
        personal = method.personalise(message, state.clients, batch, noise).predict(batch.x)
        joined = personalisation.join(method, state.server, new, 5).predict(new.x)
        values = {"server": state.server, "personal": numbers(personal), "joined": numbers(joined)}
        assert all(leaf.isfinite().all() for leaf in tensors.leaves(values).values())
        result.append(values)
    assert_close(*result)
    assert not pyro.get_param_store().keys()


@pytest.mark.parametrize("task", TASKS)
def test_what_a_program_observes_is_found_by_tracing_it(task: str) -> None:
    theirs, own = TASKS[task]
    batch = cases.federation(3, task == "labels")
    theta = draw(batch.clients, theirs.dim, seed=3)
    got, expected = (model.observation(theta, batch) for model in (theirs, own))
    assert type(got) is type(expected) and got.batch_shape == batch.y.shape
    torch.testing.assert_close(got.log_prob(batch.y), expected.log_prob(batch.y), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(
        theirs.log_likelihood(theta, batch), own.log_likelihood(theta, batch), rtol=1e-12, atol=0
    )
    blank = replace(batch, y=torch.zeros_like(batch.y, dtype=torch.int64))  # as a prediction has it
    assert torch.equal(theirs.observation(theta, blank).log_prob(batch.y), got.log_prob(batch.y))


def test_what_is_observed_alike_in_all_rows_predicts_every_row() -> None:
    class Level(Straight):
        def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
            with pyro.plate("clients", batch.clients, dim=-1), poutine.scale(scale=zeta):
                _, b = (pyro.sample(name, prior.site(name)) for name in self.shapes)
                with poutine.scale(scale=scale):
                    rows = distributions.Normal(b.unsqueeze(-1), 0.4).mask(batch.mask).to_event(1)
                    pyro.sample("y", rows, obs=batch.y)

    batch = cases.federation(3)
    theta = draw(batch.clients, 4, seed=3)
    result = Level().observation(theta, batch)
    assert result.batch_shape == batch.y.shape
    assert torch.equal(result.mean, theta[:, 3:].expand(batch.y.shape))


class Observing(Straight):
    """Observes a given number of sites."""

    def __init__(self, sites: int) -> None:
        self.sites = sites

    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        with pyro.plate("clients", batch.clients, dim=-1):
            for site in range(self.sites):
                pyro.sample(f"y_{site}", distributions.Normal(batch.y * 0.0, 1.0).to_event(1), obs=batch.y)


@pytest.mark.parametrize("sites", [0, 2])
def test_a_program_that_does_not_observe_one_site_is_refused(sites: int) -> None:
    batch = cases.federation(3)
    with pytest.raises(StudyError, match=f"must observe one site, found {sites}"):
        Observing(sites).observation(draw(batch.clients, 4, seed=0), batch)


def test_flat_weights_are_cut_into_sites_without_a_copy() -> None:
    model = Straight()
    assert (model.dim, model.span("a"), model.span("b")) == (4, slice(0, 3), slice(3, 4))
    for shape in ((4,), (2, 4), (5, 2, 4)):
        flat = draw(*shape, seed=1)
        sites = model.unflatten(flat)
        assert {name: site.shape for name, site in sites.items()} == {"a": (*shape[:-1], 3), "b": shape[:-1]}
        assert torch.equal(torch.cat((sites["a"], sites["b"].unsqueeze(-1)), -1), flat)
        assert sites["a"].data_ptr() == flat.data_ptr()


def test_sites_without_uncertainty_are_marked_and_drawn_outside_of_any_divergence() -> None:
    class Half(Straight):
        deterministic = frozenset({"b"})

    model = Half()
    assert model.stochastic_columns().tolist() == [True, True, True, False]
    assert Straight().stochastic_columns().all() and not Straight().centre().any()
    weights = {"a": draw(2, 3, seed=1), "b": draw(2, seed=2)}
    with pyro.plate("clients", 2, dim=-1):
        drawn = model.draw_weights(FixedWeights(weights))
    assert all(torch.equal(drawn[name], weights[name]) for name in weights)


def test_a_program_that_lacks_a_part_cannot_be_made() -> None:
    assert WeightModel.__abstractmethods__ == {"shapes", "model"}
