"""Laws of the variational methods in a conjugate world, where all that they seek is known in closed form.

Clients k see y = x theta_k + noise; theta_k ~ N(mu, sigma^2) for a global (mu, sigma). With exact posteriors at zeta 1
a round that matches moments is the EM algorithm for (mu, sigma). The two-point draws eps = -1, +1 integrate the
quadratic log likelihood exactly, so that every client is deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import cycle, pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pacbayes_fl import tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.federation import engine, federation_state
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference import svi
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods import METHODS
from pacbayes_fl.methods.variational import sfedbayes
from pacbayes_fl.methods.variational.bpfed import BPFed
from pacbayes_fl.methods.variational.cfedbayes import CFedBayes
from pacbayes_fl.methods.variational.pfedbayes import Fit, PFedBayes, PriorTracking
from pacbayes_fl.methods.variational.sfedbayes import SFedBayes, SparseUpload
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianNetwork
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.mean_field import MeanField, rho_of
from pacbayes_fl.posteriors.weights.spike_slab import SpikeSlab, SpikeSlabDraw
from pacbayes_fl.server.moments import Moments
from tests.laws import cases
from tests.laws.cases import VARIATIONAL

STD = 0.5


class Line(BayesianNetwork):
    """y = a t + b u on rows (a, b): a shared weight t and a personal one u, which rows of b = 0 say nothing of."""

    shapes = MappingProxyType({"t": (1,), "u": (1,)})

    def forward(self, weights: Any, rows: ClientBatch, reference: Any = None, traces: Any = None) -> Tensor:
        return (rows.x * torch.cat((weights["t"], weights["u"]), -1).unsqueeze(-2)).sum(-1, keepdim=True)


MODEL = Line(Gaussian(STD), torch.float64)
LOCAL = LocalInference(steps=1, inner=60, minibatch=1000, draws=2, rate=2e-2, zeta=1.0, optimiser="sgd")
MOMENTS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "pfedbayes": PFedBayes,
        "sfedbayes": SFedBayes,
        "cfedbayes": lambda *args, **options: CFedBayes(*args, clusters=1, start="random", **options),
        "bpfed": lambda *args, **options: BPFed(*args, personal_sites=1, **options),
    }
)
every_variational = pytest.mark.parametrize("name", MOMENTS)


def rows(estimates: tuple[float, ...], precisions: tuple[float, ...]) -> ClientBatch:
    """Return clients whose data say theta = estimate with a precision, in two rows each, and nothing of u."""
    clients = []
    for estimate, precision in zip(estimates, precisions, strict=True):
        a = torch.full((2, 1), STD * math.sqrt(precision / 2), dtype=torch.float64)
        clients.append((torch.cat((a, 0 * a), 1), a[:, 0] * estimate))
    return ClientBatch.pad(clients)


def exact(w: tuple[float, float], estimates: Any, precisions: Any) -> tuple[Any, Any]:
    """Means and variances of theta_k given (mu, sigma^2)."""
    prior = 1.0 / w[1]
    variance = 1.0 / (precisions + prior)
    return variance * (precisions * estimates + prior * w[0]), variance


def evidence(w: tuple[float, float], estimates: Any, precisions: Any) -> float:
    """Log evidence of the estimates, summed: the federation's ELBO with exact posteriors, up to a constant."""
    spread = w[1] + 1 / precisions
    return float((-0.5 * np.log(2 * math.pi * spread) - 0.5 * (estimates - w[0]) ** 2 / spread).sum())


def em(w: tuple[float, float], estimates: Any, precisions: Any, rounds: int) -> tuple[float, float]:
    for _ in range(rounds):
        mean, variance = exact(w, estimates, precisions)
        w = float(mean.mean()), float((variance + (mean - mean.mean()) ** 2).mean())
    return w


def posterior(mean: Any, variance: Any) -> MeanField:
    """Return q [K, 2]: theta as given, u standard normal."""
    loc, var = torch.zeros(len(mean), 2, dtype=torch.float64), torch.ones(len(mean), 2, dtype=torch.float64)
    loc[:, 0], var[:, 0] = torch.from_numpy(np.asarray(mean)), torch.from_numpy(np.asarray(variance))
    return MeanField(loc, rho_of(var))


def with_gates(name: str, q: MeanField) -> Any:
    return SpikeSlab(*q, torch.full_like(q.loc, 15.0)) if name == "sfedbayes" else q


def start_at(method: Any, name: str, batch: ClientBatch, w: tuple[float, float], q: MeanField) -> FederationState:
    """Begin a federation at a global distribution and posteriors."""
    state = federation_state.start(method, batch, FederationPlan())
    one = with_gates(name, tensors.tree_map(lambda leaf: leaf[0], posterior([w[0]], [w[1]])))
    server = state.server._replace(w=tensors.expand(one, 1) if name == "cfedbayes" else one)
    clients = state.clients
    if name == "bpfed":
        clients = clients._replace(personal=tensors.tree_map(lambda leaf: leaf[:, 1:].clone(), q))
    else:
        clients = clients._replace(q=with_gates(name, q))
        clients = clients._replace(adam_q=clients.adam_q._replace(steps=clients.adam_q.steps + 1))  # they have trained
    return FederationState(server, clients, 0)


def of(server: Any) -> tuple[float, float]:
    """Read (mu, sigma^2) of the shared weight."""
    w = server.w
    return float(w.loc.flatten()[0]), float(torch.nn.functional.softplus(w.rho.flatten()[0]) ** 2)


@pytest.fixture
def two_points(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw eps = -1 and +1 by turns, open gates with them."""
    signs = cycle((-1.0, 1.0))
    monkeypatch.setattr(svi, "draw_of", lambda q, noise, std=1.0: torch.full_like(q.loc, next(signs)))

    def gates(q: SpikeSlab, noise: Noise) -> SpikeSlabDraw:
        return SpikeSlabDraw(torch.full_like(q.loc, next(signs)), torch.full_like(q.loc, 40.0))

    monkeypatch.setattr(SpikeSlab, "draw", gates)


# moments --------------------------------------------------------------------------------------------------------


@pytest.mark.law
@every_variational
@pytest.mark.parametrize("private", [False, True], ids=["plain", "as released"])
@pytest.mark.parametrize("chunks", [1, 3])
def test_moments_of_exact_posteriors_are_em(name: str, private: bool, chunks: int) -> None:
    """Three clients of data precision 5 and estimates 0, 1, 3 from (.5, 1): published rounds and log evidences."""
    estimates, precisions = np.array([0.0, 1.0, 3.0]), np.full(3, 5.0)
    method = MOMENTS[name](MODEL, LOCAL, aggregation="moments")
    batch = rows((0.0, 1.0, 3.0), (5.0, 5.0, 5.0))
    state = start_at(method, name, batch, (0.5, 1.0), posterior(estimates, 1 / precisions))
    template, _ = method.client(method.broadcast(state.server), state.clients, batch, Noise(0, 1, batch.ids))
    server, result = state.server, [(0.5, 1.0)]
    for _ in range(10):
        q = posterior(*exact(result[-1], estimates, precisions))
        slab = Moments(q.loc, q.scale.square())
        slab = tensors.tree_map(lambda leaf: leaf[:, :1], slab) if name == "bpfed" else slab
        update = template._replace(w=template.w._replace(slab=slab) if name == "sfedbayes" else slab)
        if private:
            mean = tensors.tree_map(
                lambda leaf: leaf.mean(0, keepdim=True), method.to_release(method.broadcast(server), update)
            )
            update = method.from_release(method.broadcast(server), mean, 3.0)
        elif chunks > 1:
            update = tensors.cat([method.reduce(tensors.select(update, torch.tensor([k]))) for k in (2, 0, 1)])
        server = method.server(server, update, 3)
        result.append(of(server))
    assert result[1] == pytest.approx((1.194444444444, 1.246913580247), abs=1e-12)
    assert result[2] == pytest.approx((1.314135381115, 1.327597163495), abs=1e-12)
    assert result[10] == pytest.approx((1.333333331865, 1.355555234387), abs=1e-12)
    values = [evidence(w, estimates, precisions) for w in result]
    assert values[1:3] == pytest.approx([-4.943590536562, -4.920174835143], abs=1e-11)
    assert all(after > before for before, after in pairwise(values))


@pytest.mark.law
@every_variational
@pytest.mark.parametrize("zeta", [1.0, 0.01])
def test_batches_of_later_rows_in_any_order_are_one_batch(name: str, zeta: float, two_points: None) -> None:
    """Exact posteriors add precisions: from q0 of variance 1/2 by estimates 2 and -1 of precisions 3 and 5.

    Nor does a zeta below 1, which lets q leave the federation's distribution, let it forget q0.
    """
    at = 1 if name == "bpfed" else 0  # of whom the personal part alone learns
    batches = [rows((one,), (precision,)) for one, precision in ((2.0, 3.0), (-1.0, 5.0))]
    early, late = (replace(batch, x=batch.x.roll(at, -1)) for batch in batches)
    method = MOMENTS[name](MODEL, replace(LOCAL, rate=0.08, zeta=zeta), join_passes=4)
    begun = start_at(method, name, early, (0.5, 1.0), posterior([0.4], [0.5]))
    message, first, result = method.broadcast(begun.server), begun.clients, []
    if name == "bpfed":
        q = MeanField(torch.tensor([[0.4]], dtype=torch.float64), rho_of(torch.tensor([[0.5]], dtype=torch.float64)))
        first = first._replace(personal=q)
    for order in ((early, late), (late, early), (early.extend(late),)):
        state = first
        for batch in order:
            state = method.absorb(message, state, early, batch, Noise(0, 1, early.ids))
        q = state.personal if name == "bpfed" else state.q
        result.append((float(q.loc[0, 0]), float(torch.nn.functional.softplus(q.rho[0, 0]) ** 2)))
    variance = 1 / (1 / 0.5 + 3.0 + 5.0)
    for mean, spread in result:
        assert mean == pytest.approx(variance * (0.4 / 0.5 + 3.0 * 2.0 - 5.0 * 1.0), abs=1e-6)
        assert spread == pytest.approx(variance, rel=1e-6)


@every_variational
def test_the_bound_of_the_federation_never_falls(name: str, two_points: None) -> None:
    """Sum over clients of E_q ln p - KL(q || w), by few deterministic steps on q and matched moments in turn."""
    estimates, precisions = np.array([0.3, -2.0, 1.0, 4.0]), np.array([0.5, 3.0, 8.0, 1.5])
    batch = rows(tuple(estimates), tuple(precisions))
    method = MOMENTS[name](MODEL, replace(LOCAL, inner=15), aggregation="moments")
    w = 1.5, 0.2
    state = start_at(method, name, batch, w, posterior(*exact(w, estimates, precisions)))
    bounds = []
    for _ in range(12):
        message = method.broadcast(state.server)
        update, clients = method.client(message, state.clients, batch, Noise(0, 1, batch.ids))
        sent = update.w.slab if name == "sfedbayes" else update.w
        mean, variance = sent.mean[:, 0].numpy(), sent.variance[:, 0].numpy()
        for server in (state.server, method.server(state.server, update, 4)):
            (mu, spread) = of(server)
            apart = (variance + (mean - mu) ** 2) / spread
            divergence = 0.5 * (np.log(spread / variance) + apart - 1)
            bounds.append(float((-0.5 * precisions * (variance + (mean - estimates) ** 2) - divergence).sum()))
        state = FederationState(server, clients, 0)
    if name == "bpfed":  # whose fits begin at the shared part anew: of a round, the server's half alone
        assert all(after >= before - 1e-9 for before, after in zip(bounds[::2], bounds[1::2], strict=True))
    else:
        assert all(after >= before - 1e-9 for before, after in pairwise(bounds))
    assert bounds[-1] - bounds[0] > 1.0
    assert evidence(of(state.server), estimates, precisions) > evidence(w, estimates, precisions) + 1.0


def test_the_record_s_bound_is_the_closed_form(two_points: None) -> None:
    """At exact posteriors E_q ln p - KL(q || w) is the log evidence, here of the rows themselves."""
    estimates, precisions = np.array([0.0, 1.0, 3.0]), np.array([5.0, 2.0, 1.0])
    batch, w = rows(tuple(estimates), tuple(precisions)), (0.5, 1.3)
    method = PFedBayes(MODEL, LOCAL, aggregation="moments")
    state = start_at(method, "pfedbayes", batch, w, posterior(*exact(w, estimates, precisions)))
    ((record, _),) = engine.rounds(method, batch, FederationPlan(rounds=1), state)
    total = 0.0
    for k in range(3):
        x = batch.x[k, :, 0]
        covariance = STD**2 * torch.eye(2) + w[1] * torch.outer(x, x)
        density = torch.distributions.MultivariateNormal(w[0] * x, covariance.double())
        total += float(density.log_prob(batch.y[k])) / 3  # the mean over clients
    assert record.values["elbo"] == pytest.approx(total, abs=1e-9)


@pytest.mark.slow
@every_variational
def test_one_plain_step_on_w_rests_where_moments_rest(name: str, two_points: None) -> None:
    """Tracking by gradient descent with one step a round has the fixed point of EM; with Adam it has another one."""
    options = {"upload": "tracked"} if name == "bpfed" else {}
    inner = 130 if name == "bpfed" else 40  # its fits begin at the shared part anew
    estimates, precisions = np.array([0.0, 1.0, 3.0]), np.array([5.0, 2.0, 8.0])
    batch = rows(tuple(estimates), tuple(precisions))
    fixed = em((1.0, 1.0), estimates, precisions, 4000)
    tracking = PriorTracking(rate=1.0, optimiser="sgd")
    method = MOMENTS[name](MODEL, replace(LOCAL, inner=inner, rate=0.12), tracking, **options)
    state = start_at(method, name, batch, fixed, posterior(*exact(fixed, estimates, precisions)))
    away = start_at(
        method, name, batch, (fixed[0] + 1e-3, 1.001 * fixed[1]), posterior(*exact(fixed, estimates, precisions))
    )
    *_, (_, last) = engine.rounds(method, batch, FederationPlan(rounds=1), state)
    assert of(last.server) == pytest.approx(fixed, rel=1e-6)
    *_, (_, near) = engine.rounds(method, batch, FederationPlan(rounds=24), away)
    assert of(near.server) == pytest.approx(fixed, rel=1e-6)
    adam = replace(method, tracking=replace(tracking, optimiser="adam", rate=0.05))
    *_, (_, gone) = engine.rounds(adam, batch, FederationPlan(rounds=2), state)
    assert of(gone.server) != pytest.approx(fixed, rel=1e-2)


# three unlike clients, with noise -------------------------------------------------------------------------------


def three_clients() -> tuple[ClientBatch, Any, Any]:
    """Return 30 rows each of theta = 0, 0, 3, with estimates and precisions."""
    generator = torch.Generator().manual_seed(1)
    clients, estimates, precisions = [], [], []
    for theta in (0.0, 0.0, 3.0):
        a = torch.randn(30, 1, generator=generator, dtype=torch.float64)
        y = a[:, 0] * theta + STD * torch.randn(30, generator=generator, dtype=torch.float64)
        clients.append((torch.cat((a, 0 * a), 1), y))
        precisions.append(float((a**2).sum()) / STD**2)
        estimates.append(float((a[:, 0] * y).sum() / (a**2).sum()))
    return ClientBatch.pad(clients), np.array(estimates), np.array(precisions)


@pytest.mark.law
@pytest.mark.parametrize(
    ("aggregation", "optimiser", "slack"),
    [("moments", "adam", 0.03), ("moments", "sgd", 0.03), ("tracked", "sgd", 0.1)],
)
def test_a_federation_of_unlike_clients_that_begins_at_its_optimum_stays_there(
    aggregation: Any, optimiser: Any, slack: float
) -> None:
    batch, estimates, precisions = three_clients()
    optimum = em((1.0, 1.0), estimates, precisions, 2000)
    assert (optimum[0], math.sqrt(optimum[1])) == pytest.approx((0.978, 1.363), abs=1e-3)
    local = LocalInference(steps=10, minibatch=1000, draws=2, rate=2e-2, zeta=1.0)
    method = PFedBayes(MODEL, local, PriorTracking(2e-2, optimiser=optimiser), aggregation=aggregation)
    state = start_at(method, "pfedbayes", batch, optimum, posterior(*exact(optimum, estimates, precisions)))
    *_, (_, last) = engine.rounds(method, batch, FederationPlan(rounds=50, seed=3), state)
    result, wanted = of(last.server), optimum
    assert result[0] == pytest.approx(wanted[0], rel=slack)
    assert math.sqrt(result[1]) == pytest.approx(math.sqrt(wanted[1]), rel=slack)


def test_adam_on_w_walks_away_from_the_optimum() -> None:
    """What the option is for: a mean of steps of one size is a median, and loses the spread."""
    batch, estimates, precisions = three_clients()
    optimum = em((1.0, 1.0), estimates, precisions, 500)
    local = LocalInference(steps=10, minibatch=1000, draws=2, rate=2e-2, zeta=1.0)
    method = PFedBayes(MODEL, local, PriorTracking(2e-2))
    state = start_at(method, "pfedbayes", batch, optimum, posterior(*exact(optimum, estimates, precisions)))
    *_, (_, last) = engine.rounds(method, batch, FederationPlan(rounds=50, seed=3), state)
    assert of(last.server)[0] < 0.4 and math.sqrt(of(last.server)[1]) < 0.5


# the personal part of BPFed -------------------------------------------------------------------------------------


@pytest.mark.law
@pytest.mark.parametrize("aggregation", ["tracked", "moments"])
@pytest.mark.parametrize("prior", ["cumulative", "divide"])
def test_a_personal_part_counts_its_rows_once_per_round_or_once(prior: Any, aggregation: Any, two_points: None) -> None:
    """u with the prior N(0, 1) and rows of precision 3: the precision is 1 + 3 T after T rounds, or 1 + 3."""
    b = torch.full((2, 1), STD * math.sqrt(3 / 2), dtype=torch.float64)
    batch = ClientBatch.pad([(torch.cat((0 * b, b), 1), 0.8 * b[:, 0]), (torch.cat((b, 0 * b), 1), 0.8 * b[:, 0])])
    tracking = PriorTracking(rate=1e-300, optimiser="sgd")  # as good as none
    method = BPFed(
        MODEL, replace(LOCAL, inner=200, rate=0.06), tracking, personal_sites=1, prior=prior, aggregation=aggregation
    )
    state = start_at(method, "bpfed", batch, (0.0, 1.0), posterior([0.0, 0.0], [1.0, 1.0]))
    assert prior in ("cumulative", "divide") and "once" in method.about()["personal_prior"]
    for record, after in engine.rounds(method, batch, FederationPlan(rounds=3), state):
        total = 3.0 * (record.round if prior == "cumulative" else 1)
        own = after.clients.personal
        precision = torch.nn.functional.softplus(own.rho[:, 0]) ** -2
        assert precision.tolist() == pytest.approx([1.0 + total, 1.0], rel=1e-5)  # the second client's rows say nothing
        assert own.loc[:, 0].tolist() == pytest.approx([0.8 * total / (1.0 + total), 0.0], rel=1e-5)


# spike and slab -------------------------------------------------------------------------------------------------


def test_matched_spikes_and_slabs_are_the_minimiser() -> None:
    """No w within reach has a smaller sum of KL(q_k || w)."""
    generator = torch.Generator().manual_seed(4)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    q = SpikeSlab(randn(5, 2), 0.5 * randn(5, 2) - 1.0, randn(5, 2))
    method = SFedBayes(MODEL, aggregation="moments")
    one = torch.ones(5, dtype=torch.float64)
    sent = SparseUpload(Moments(q.loc, q.slab.scale.square()), q.inclusion)
    old = sfedbayes.Server(SpikeSlab(*(leaf[0] for leaf in q)))
    w = method.server(old, sfedbayes.Update(sent, one, one, Fit(one, one, one), one, one), 5).w
    least = q.kl(w).sum()
    leaf = tensors.tree_map(lambda t: t.clone().requires_grad_(True), w)
    slopes = torch.autograd.grad(q.kl(leaf).sum(), list(leaf))
    assert all(slope.abs().max() < 1e-10 for slope in slopes)
    for _ in range(20):
        other = SpikeSlab(*(t + 0.1 * randn(2) for t in w))
        assert q.kl(other).sum() > least


# what nobody's rows touch -----------------------------------------------------------------------------------------


@pytest.mark.law
@pytest.mark.parametrize("aggregation", ["tracked", "moments", "tracked-moments"])
@pytest.mark.parametrize("name", VARIATIONAL)
def test_weights_of_an_input_that_is_always_zero_stay_bit_by_bit(name: str, aggregation: str) -> None:
    """Adam makes a step of its whole rate of the last bit of a mean, and each order of clients has another last bit."""
    federation = cases.federation(3)
    x = federation.x.clone()
    x[..., 1] = 0.0
    more = {"aggregation": aggregation, "weighting": "rows", "inclusion": 0.3, "threshold": 0.2}
    method = cases.from_recipe(METHODS[name], 3, more)
    plan = FederationPlan(rounds=4, seed=3, cohort=3)
    *_, (_, state) = engine.rounds(method, replace(federation, x=x), plan)
    (hidden,) = method.model.shapes["bias_0"]
    first = tensors.leaves(federation_state.start(method, federation, plan).server.w)
    for leaf_name, leaf in tensors.leaves(state.server.w).items():
        still = leaf == first[leaf_name]
        assert still[..., hidden : 2 * hidden].all(), f"{leaf_name} of the weights behind the second input"
        assert not still[..., :hidden].any() and not still[..., 2 * hidden : 3 * hidden].any()
