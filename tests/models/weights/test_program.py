"""Programs of users: every slip is refused by name before training, right ones of any likelihood train and predict."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyro
import pytest
import torch
from pyro import distributions as d
from pyro import poutine
from scipy import stats
from torch import Tensor, nn
from torch.nn.functional import softplus

from pacbayes_fl import metrics
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import DataError, StudyError
from pacbayes_fl.federation import engine, personalisation
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods.baselines.fedavg import FedAvg
from pacbayes_fl.methods.pac_pfl.bnn import PacPFLBNN
from pacbayes_fl.methods.tempered import Tempered
from pacbayes_fl.methods.variational.pfedbayes import PFedBayes
from pacbayes_fl.models.base import WeightModel, WeightPrior
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.models.weights import program
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.posteriors.hyper_posterior import NetworkHyperPrior
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.sampled import SampledMixture
from pacbayes_fl.results.metrics import of_task
from tests.models.test_base import EVERY_METHOD

SIZES = (9, 4, 6)
COUNT = itertools.count()


@dataclass(frozen=True)
class Line(WeightModel):
    """Any likelihood of a line, f = x a + b, in the least words."""

    of: Callable[[Tensor], Any] = lambda f: d.Poisson(softplus(f))
    dtype: torch.dtype = torch.float64

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"a": (2,), "b": ()}

    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        with pyro.plate("clients", batch.clients, dim=-1):
            with poutine.scale(scale=zeta):
                weights = {name: pyro.sample(name, prior.site(name)) for name in self.shapes}
            with poutine.scale(scale=scale):
                pyro.sample("y", self.rows(batch, self.outputs(batch, weights)), obs=batch.y)

    def outputs(self, batch: ClientBatch, w: Any) -> Tensor:
        return (batch.x * w["a"].unsqueeze(-2)).sum(-1) + w["b"].unsqueeze(-1)

    def rows(self, batch: ClientBatch, f: Tensor) -> Any:
        return self.of(f).mask(batch.mask).to_event(1)


def clients(of: Callable[[Tensor], Any], sizes: tuple[int, ...] = SIZES, seed: int = 0) -> ClientBatch:
    """Draw ragged clients from the likelihood itself at a = (.8, -.4), b = .3."""
    generator = torch.Generator().manual_seed(seed)
    out = []
    for k, m in enumerate(sizes):
        x = torch.randn(m, 2, generator=generator, dtype=torch.float64)
        with pyro.validation_enabled(False), torch.random.fork_rng():
            torch.manual_seed(seed + k)
            out.append((x, of(x @ torch.tensor([0.8, -0.4]).double() + 0.3).sample().double()))
    return ClientBatch.pad(out)


BATCH = clients(lambda f: d.Poisson(softplus(f)))


# slips ------------------------------------------------------------------------------------------------------------


class NoMask(Line):
    def rows(self, batch: ClientBatch, f: Tensor) -> Any:
        return self.of(f).to_event(1)


class NoEvent(Line):
    def rows(self, batch: ClientBatch, f: Tensor) -> Any:
        return self.of(f).mask(batch.mask)


class NoZeta(Line):
    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        super().model(batch, prior, 1.0, scale)


class NoScale(Line):
    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        super().model(batch, prior, zeta, torch.ones_like(scale))


class ZetaAroundAll(Line):
    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        with poutine.scale(scale=zeta):
            super().model(batch, prior, 1.0, scale)


class Param(Line):
    def outputs(self, batch: ClientBatch, w: Any) -> Tensor:
        return super().outputs(batch, w) * pyro.param("s", torch.tensor(1.0))


class OwnLatent(Line):
    def outputs(self, batch: ClientBatch, w: Any) -> Tensor:
        return super().outputs(batch, w) * pyro.sample("tau", d.HalfNormal(1.0)).unsqueeze(-1)


class Unlisted(Line):
    def outputs(self, batch: ClientBatch, w: Any) -> Tensor:
        raise AssertionError("not reached")

    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        pyro.sample("tau", prior.site("tau"))


class OwnPrior(Line):
    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        class Fixed:
            def site(self, name: str) -> Any:
                return d.Normal(torch.zeros(batch.clients, 2), 1.0).to_event(1) if name == "a" else prior.site(name)

        super().model(batch, Fixed(), zeta, scale)


class Undrawn(Line):
    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"a": (2,), "b": (), "c": (3,)}

    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        Line(self.of).model(batch, prior, zeta, scale)


class WrongShape(Line):
    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"a": (3,), "b": ()}


class Certain(Line):
    deterministic = frozenset({"b"})


class TwoTargets(Line):
    def rows(self, batch: ClientBatch, f: Tensor) -> Any:
        pyro.sample("z", super().rows(batch, f), obs=batch.y)
        return super().rows(batch, f)


class Mixed(Line):
    def outputs(self, batch: ClientBatch, w: Any) -> Tensor:
        f = super().outputs(batch, w)
        return f + batch.x[..., 0].sum(0)


class Chancy(Line):
    def outputs(self, batch: ClientBatch, w: Any) -> Tensor:
        f = super().outputs(batch, w)
        return f + torch.rand(f.shape, generator=torch.Generator().manual_seed(next(COUNT)), dtype=f.dtype)


class Telling(Line):
    def outputs(self, batch: ClientBatch, w: Any) -> Tensor:
        return super().outputs(batch, w) + batch.y


class OutOfRange(Line):
    def rows(self, batch: ClientBatch, f: Tensor) -> Any:
        return d.Poisson(f - 9.0).mask(batch.mask).to_event(1)


class Blind(Line):
    def rows(self, batch: ClientBatch, f: Tensor) -> Any:
        return super().rows(batch, f).mask(False)


class Learner(WeightModel):
    shapes = {"a": (2,), "b": ()}  # noqa: RUF012
    dtype = torch.float64

    def __init__(self) -> None:
        self.stretch = nn.Parameter(torch.ones(()))

    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        Line().model(batch, prior, zeta, scale)


class Layered(Learner):
    def __init__(self) -> None:
        self.layer = nn.Linear(2, 2)


SLIPS: dict[type[Any], str] = {
    NoMask: r"client 'client_0\d': site 'y': rows of padding move its log likelihood.*\.mask\(batch\.mask\)",
    NoEvent: r"fails on x \[2, 9, 2\].*Shape mismatch.*rows are event dimensions",
    NoZeta: r"site 'a' must be scaled by zeta = 0\.5, got 1 .*poutine\.scale\(scale=zeta\)",
    NoScale: r"site 'y' must be scaled by scale = 1\.5, 2\.5, got 1",
    ZetaAroundAll: r"site 'y' must be scaled by scale = 1\.5, 2\.5, got 0\.75, 1\.25",
    Param: r"pyro\.param\('s'\).*put 's' into `shapes`",
    OwnLatent: r"site 'tau' is a latent of the program's own, HalfNormal.*prior\.site\('tau'\).*softplus",
    Unlisted: r"prior\.site\('tau'\): `shapes` has a, b \(add 'tau'",
    OwnPrior: r"site 'a' must be drawn from prior\.site\('a'\), one of shape \[2\] per client, got Normal",
    Undrawn: r"site 'c' of `shapes` is not drawn",
    WrongShape: r"fails on x \[2, 9, 2\]",
    Certain: r"site 'b' must be out of the divergence.*draw_weights",
    TwoTargets: r"must observe one site, found 2 'z' 'y'",
    Mixed: r"other clients of the call move its log likelihood",
    Chancy: r"another log likelihood at every call.*dropout",
    Telling: r"depends on the targets that it is told",
    OutOfRange: r"log likelihood is not finite.*softplus",
    Blind: r"summing real rows one by one moves its log likelihood, 0 to",
    Learner: r"free parameters in 'stretch'",
    Layered: r"free parameters in 'layer'.*requires_grad_\(False\)",
}


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.__name__)
def test_a_slip_is_named_before_anything_is_trained(slip: type[Any]) -> None:
    ran: list[Any] = []
    method, plan = PFedBayes(slip()), FederationPlan(rounds=1, on_bad_client="stop")
    before = torch.random.get_rng_state()
    with pytest.raises(StudyError, match=SLIPS[slip]) as caught:
        engine.run_rounds(method, BATCH, plan, ran.append)
    assert "\n" not in str(caught.value)
    with pytest.raises(StudyError, match=SLIPS[slip]):
        personalisation.join(method, method.init_server(torch.Generator()), BATCH, 1)
    assert not ran and not pyro.get_param_store().keys()
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_slip_is_seen_under_a_temperature() -> None:
    method, plan = Tempered(PFedBayes(NoMask()), 2.0), FederationPlan(rounds=1)
    with pytest.raises(StudyError, match=SLIPS[NoMask]):
        engine.run_rounds(method, BATCH, plan)


def test_a_slip_that_only_padding_shows_is_seen_where_no_client_is_padded() -> None:
    alike = clients(lambda f: d.Poisson(softplus(f)), (5, 5))
    with pytest.raises(StudyError, match="rows of padding"):
        program.check_program(NoMask(), alike)
    with pytest.raises(StudyError, match="rows of padding"):
        program.check_program(NoMask(), alike.select(torch.tensor([1])))


class Crossed(Line):
    """A bias [K] where [K, 1] is meant: client k's goes to row k of everybody, where there are as many rows."""

    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        with pyro.plate("clients", batch.clients, dim=-1):
            with poutine.scale(scale=zeta):
                slope, bias = (pyro.sample(name, prior.site(name)) for name in self.shapes)
            with poutine.scale(scale=scale):
                seen = d.Normal((batch.x * slope.unsqueeze(1)).sum(-1) + bias, 1.0)
                pyro.sample("y", seen.mask(batch.mask).to_event(1), obs=batch.y)


@pytest.mark.parametrize(("count", "rows"), [(5, 5), (2, 1), (3, 7), (1, 4), (1, 1)])
def test_clients_of_one_size_are_not_tried_one_alone(count: int, rows: int) -> None:
    alike = clients(lambda f: d.Normal(f, 1.0), (rows,) * count)
    with pytest.raises(StudyError, match=r"the program fails on x|other clients of the call move"):
        program.check_program(Crossed(), alike)
    program.check_program(Line(lambda f: d.Normal(f, 1.0)), alike)


def test_a_right_program_passes_once_for_all_rounds() -> None:
    calls = []

    class Counting(Line):
        def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
            calls.append(batch.clients)
            super().model(batch, prior, zeta, scale)

    model = Counting()
    program.prepared(model, BATCH)
    first = len(calls)
    assert 0 < first <= 8
    assert program.prepared(model, BATCH) is BATCH and len(calls) == first
    program.prepared(model, BATCH.to(dtype=torch.float32))
    assert len(calls) > first  # rows of another kind
    network = BayesianMLP((2, 3, 1), Gaussian())
    assert program.prepared(network, BATCH) is BATCH and not hasattr(network, "_targets")


def test_notes_and_masks_are_no_slips() -> None:
    class Noting(Line):
        deterministic = frozenset({"b"})

        def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
            with pyro.plate("clients", batch.clients, dim=-1):
                with poutine.scale(scale=zeta):
                    weights = self.draw_weights(prior)
                f = pyro.deterministic("f", self.outputs(batch, weights), event_dim=1)
                with poutine.scale(scale=scale):
                    pyro.sample("y", self.rows(batch, f), obs=batch.y)

    state = engine.run_rounds(PFedBayes(Noting()), BATCH, FederationPlan(rounds=1, on_bad_client="stop"))
    result = personalisation.join(PFedBayes(Noting()), state.server, BATCH, 1).predict(BATCH.x)
    assert isinstance(result, SampledMixture) and result.mean.isfinite().all()


def test_clients_without_rows_are_no_slip() -> None:
    empty = ClientBatch.pad([(torch.zeros(0, 2).double(), torch.zeros(0).double())] * 2, allow_empty=True)
    gamma = Line(lambda f: d.Gamma(2.0, softplus(f)))
    for model in (Line(), gamma):
        passed = program.prepared(model, empty)
        assert not passed.mask.any()
    assert (program.prepared(gamma, empty).y > 0).all()


def test_impossible_targets_are_named_by_client_and_row() -> None:
    spoilt = BATCH.y.clone()
    spoilt[1, 2] = 1.5
    with pytest.raises(
        DataError, match=r"client 'client_01': y is 1\.5 in row 2, and Poisson targets are whole numbers from 0"
    ):
        program.prepared(Line(), replace(BATCH, y=spoilt))
    scaled = replace(BATCH, y=(BATCH.y - BATCH.y.mean()) / BATCH.y.std())
    with pytest.raises(DataError, match="not to be standardised"):
        engine.run_rounds(PFedBayes(Line()), scaled, FederationPlan(rounds=1))
    spoilt = BATCH.y.clone()
    spoilt[0, 8] = -1.0  # beyond the rows that are traced
    with pytest.raises(DataError, match=r"client 'client_00': y is -1 in row 8, and Poisson"):
        program.prepared(Line(), replace(BATCH, y=spoilt))
    bernoulli = Line(lambda f: d.Bernoulli(logits=f))
    with pytest.raises(DataError, match=r"Bernoulli targets are whole numbers from 0 to 1"):
        program.prepared(bernoulli, replace(BATCH, y=torch.full_like(BATCH.y, 2.0)))


def test_padding_holds_targets_that_leave_a_gradient() -> None:
    """A density of 0 in padding is masked, and its slope, infinity times zero, is no number."""
    positive = clients(lambda f: d.Gamma(2.0, softplus(f) + 0.1))
    gamma = Line(lambda f: d.Gamma(softplus(f) + 0.1, 1.0))
    passed = program.prepared(gamma, positive)
    assert torch.equal(passed.y[passed.mask], positive.y[positive.mask]) and (passed.y > 0).all()
    for model, batch in ((gamma, positive), (Line(lambda f: d.LogNormal(f, softplus(f) + 0.1)), positive)):
        plan = FederationPlan(rounds=2, on_bad_client="stop")  # a slope that is no number would stop it
        assert engine.run_rounds(PFedBayes(model), batch, plan).server.w.loc.isfinite().all()


class NoPlate(Line):
    """The same program without a plate, whose distributions look at every target that they are asked about."""

    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        with poutine.scale(scale=zeta):
            weights = {name: pyro.sample(name, prior.site(name)) for name in self.shapes}
        with poutine.scale(scale=scale):
            pyro.sample("y", self.rows(batch, self.outputs(batch, weights)), obs=batch.y)


@pytest.mark.parametrize("of", [lambda f: d.LogNormal(f, 0.5), lambda f: d.Weibull(softplus(f) + 0.1, 2.0)])
def test_padding_that_no_target_could_be_is_no_slip(of: Callable[[Tensor], Any]) -> None:
    batch = clients(of)
    assert (batch.y == 0).any()
    plan = FederationPlan(rounds=1, on_bad_client="stop")
    assert engine.run_rounds(PFedBayes(NoPlate(of)), batch, plan).server.w.loc.isfinite().all()


# every likelihood -------------------------------------------------------------------------------------------------

HALF = math.log(2.0)
KINDS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Any]]] = {
    "poisson": (lambda f: d.Poisson(softplus(f)), lambda c: stats.poisson(c.rate.numpy())),
    "negative-binomial": (
        lambda f: d.NegativeBinomial(3.0, logits=f),
        lambda c: stats.nbinom(3.0, 1 - c.probs.numpy()),
    ),
    "student-t": (
        lambda f: d.StudentT(4.0, f, 0.5),
        lambda c: stats.t(4.0, c.loc.numpy(), 0.5),
    ),
    "bernoulli": (lambda f: d.Bernoulli(logits=f), lambda c: stats.bernoulli(c.probs.numpy())),
    "binomial": (lambda f: d.Binomial(5, logits=f), lambda c: stats.binom(5, c.probs.numpy())),
    "gamma": (lambda f: d.Gamma(2.0, softplus(f) + 0.05), lambda c: stats.gamma(2.0, scale=1 / c.rate.numpy())),
    "log-normal": (
        lambda f: d.LogNormal(f, 0.5),
        lambda c: stats.lognorm(0.5, scale=c.loc.exp().numpy()),
    ),
    "laplace": (lambda f: d.Laplace(f, 0.7), lambda c: stats.laplace(c.loc.numpy(), 0.7)),
    "beta": (
        lambda f: d.Beta(softplus(f) + 0.2, torch.full_like(f, 2.0)),
        lambda c: stats.beta(c.concentration1.numpy(), 2.0),
    ),
    "zero-inflated-poisson": (
        lambda f: d.ZeroInflatedPoisson(softplus(f), gate=torch.full_like(f, 0.3)),
        lambda c: None,
    ),
    "zero-inflated-negative-binomial": (
        lambda f: d.ZeroInflatedNegativeBinomial(torch.full_like(f, 3.0), logits=f, gate=torch.full_like(f, 0.3)),
        lambda c: None,
    ),
    "heteroscedastic": (lambda f: d.Normal(f, 0.1 + softplus(f)), lambda c: None),
}


@pytest.mark.law
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["pfedbayes", "fedavg"])
def test_every_likelihood_trains_predicts_and_is_scored(kind: str, name: str) -> None:
    of, oracle = KINDS[kind]
    batch, new = clients(of, (40, 25, 30)), clients(of, (12, 20), seed=7)
    local = LocalInference(steps=4, minibatch=20, rate=0.05, zeta=0.1)
    method: Any = (
        PFedBayes(Line(of), local, draws=6)
        if name == "pfedbayes"
        else FedAvg(Line(of), LocalDescent(steps=4, rate=0.05))
    )
    state = engine.run_rounds(method, batch, FederationPlan(rounds=2, seed=1, on_bad_client="stop"))
    result: Any = personalisation.join(method, state.server, new, 1).predict(new.x)
    scores = {metric: METRIC(result, new.y, new.mask) for metric, METRIC in of_task("regression").items()}
    assert all(score.isfinite().all() for score in scores.values()), scores
    assert isinstance(result, NormalMixture if kind == "heteroscedastic" else SampledMixture)
    if isinstance(result, SampledMixture):
        draws = 6 if name == "pfedbayes" else 1
        assert result.exact and len(result.components) == draws
        each = [oracle(one) for one in result.components]
        y = new.y.numpy()
        if each[0] is not None:
            density = sum(one.pmf(y) if result.discrete else one.pdf(y) for one in each) / draws
            expected = -torch.as_tensor(density).log()
            nll = torch.where(new.mask, expected, 0.0).sum(1) / new.size
            torch.testing.assert_close(scores["nlpd"], nll, rtol=1e-8, atol=1e-10)
    if kind == "bernoulli":
        accuracy = metrics.accuracy(result, new.y.long(), new.mask)
        hits = ((result.mean > 0.5) == (new.y == 1)).double()
        torch.testing.assert_close(accuracy, torch.where(new.mask, hits, 0.0).sum(1) / new.size)
        torch.testing.assert_close(metrics.nll(result, new.y.long(), new.mask), scores["nlpd"])


@pytest.mark.parametrize("name", [*EVERY_METHOD, "pac-pfl-bnn"])
def test_counts_go_through_every_method(name: str) -> None:
    def own(model: WeightModel) -> PacPFLBNN:
        hyper = NetworkHyperPrior(-2.5, 1.0, 1.0, 0.1)(model)
        return PacPFLBNN(model, hyper, particles=2, draws=3, local=LocalInference(steps=2))

    method: Any = (EVERY_METHOD | {"pac-pfl-bnn": own})[name](Line())
    batch, plan = clients(Line().of, (12, 9)), FederationPlan(rounds=1, seed=4, on_bad_client="stop")
    state = engine.run_rounds(method, batch, plan)
    joined: Any = personalisation.join(method, state.server, batch, 5).predict(batch.x)
    for _, posterior in personalisation.personalise(method, state, batch, plan):
        result: Any = posterior.predict(batch.x[: len(posterior.noise.ids)])
        assert isinstance(result, SampledMixture)
    assert isinstance(joined, SampledMixture) and metrics.nlpd(joined, batch.y, batch.mask).isfinite().all()


def test_what_was_trained_predicts_nearly_as_well_as_what_made_the_rows() -> None:
    of, _ = KINDS["poisson"]
    batch, plan = clients(of, (40, 36, 38)), FederationPlan(rounds=4, seed=1, on_bad_client="stop")
    method = PFedBayes(Line(of), LocalInference(steps=15, minibatch=40, rate=0.1, zeta=0.1), draws=6)
    state = engine.run_rounds(method, batch, plan)
    for index, posterior in personalisation.personalise(method, state, batch, plan):
        rows = batch.select(index)
        result: Any = posterior.predict(rows.x)
        trained = metrics.nlpd(result, rows.y, rows.mask)
        start: Any = personalisation.join(
            method, method.init_server(torch.Generator()), rows.select(torch.arange(len(index))), 3
        )
        del start
        truth = of((rows.x * torch.tensor([0.8, -0.4]).double()).sum(-1) + 0.3)
        best = -torch.where(rows.mask, truth.log_prob(rows.y), 0.0).sum(1) / rows.size
        assert (trained < best + 0.2).all()


class Spread(Line):
    """A scale that is learned with the weights, as a site of its own: softplus(tau)."""

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {"a": (2,), "b": (), "tau": ()}

    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        with pyro.plate("clients", batch.clients, dim=-1):
            with poutine.scale(scale=zeta):
                w = {name: pyro.sample(name, prior.site(name)) for name in self.shapes}
            with poutine.scale(scale=scale):
                rows = d.Laplace(self.outputs(batch, w), softplus(w["tau"]).unsqueeze(-1)).mask(batch.mask).to_event(1)
                pyro.sample("y", rows, obs=batch.y)


def test_a_latent_of_one_s_own_is_a_site_of_the_weights() -> None:
    batch = clients(lambda f: d.Laplace(f, 0.15), (60, 64, 70))
    local = LocalInference(steps=25, minibatch=70, rate=0.1, zeta=0.1)
    method = PFedBayes(Spread(), local, draws=6, join_passes=1)
    state = engine.run_rounds(method, batch, FederationPlan(rounds=4, seed=1, on_bad_client="stop"))
    result: Any = personalisation.join(method, state.server, clients(lambda f: d.Laplace(f, 0.15), (80, 76), seed=5), 1)
    scales = softplus(result.family.loc[:, Spread().span("tau")])
    assert ((scales > 0.1) & (scales < 0.4)).all()  # softplus(0) = .69 at the start
    assert result.predict(batch.x[:2]).mean.isfinite().all()


def test_labels_are_observed_by_a_categorical_alone() -> None:
    x = torch.linspace(-1, 1, 8).double().unsqueeze(1).expand(8, 2)
    labels = ClientBatch.pad([(x, (x[:, 0] > 0).long())], classes=2)
    with pytest.raises(StudyError, match="site 'y': labels are observed by a Bernoulli, which says nothing of classes"):
        program.check_program(Line(lambda f: d.Bernoulli(logits=f)), labels)


@pytest.mark.parametrize(
    ("classes", "said"),
    [
        (None, "client 'client_00': the network predicts one of 2 classes, and targets are numbers of torch.float64"),
        (3, "client 'client_00': y is 2 in row 2, and the network's 2 classes are 0 to 1"),
    ],
)
def test_a_network_of_classes_takes_labels_of_its_own(classes: int | None, said: str) -> None:
    x = torch.linspace(-1, 1, 6).double().unsqueeze(1)
    batch = ClientBatch.pad([(x, torch.arange(6) % 3)], classes=classes)
    method = FedAvg(BayesianMLP((1, 2, 2), Categorical(2), torch.float64))
    with pytest.raises(DataError, match=said):
        engine.run_rounds(method, batch, FederationPlan(rounds=1))
