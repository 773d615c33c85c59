"""pFedBayes against plain torch: two rounds of the algorithm box, client by client, and what is made of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyro
import pytest
import torch
from torch import Tensor
from torch.distributions import Cauchy, MultivariateNormal
from torch.nn.functional import softplus

from pacbayes_fl import bounds, tensors
from pacbayes_fl.bounds.risk import gibbs_risk
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.federation import engine, federation_state
from pacbayes_fl.federation.federation_state import FederationState
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods.variational.pfedbayes import Client, PFedBayes, PriorTracking, Server
from pacbayes_fl.models.base import WeightModel
from pacbayes_fl.models.likelihoods import Categorical
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.models.weights.convolutional import BayesianVGG
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.weights.families import Family
from pacbayes_fl.posteriors.weights.full_rank import FullRankNormal
from pacbayes_fl.posteriors.weights.low_rank import LowRankNormal
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from tests import laplace
from tests.methods import by_hand, refining
from tests.methods.by_hand import CLASSES, MODEL, SIZES, D, K, clients, close, randn

LOCAL = LocalInference(steps=2, inner=2, minibatch=4, draws=2, rate=0.03, zeta=0.7)
RATE = 0.05


def method(local: LocalInference = LOCAL, **options: Any) -> PFedBayes:
    tracking = PriorTracking(
        RATE, **{name: options.pop(name) for name in ("keep_moments", "restart") if name in options}
    )
    return PFedBayes(MODEL, local, tracking, **({"draws": 3, "join_passes": 1} | options))


def server(seed: int = 20) -> Server:
    return Server(MeanField(by_hand.alive(0.5 * randn(seed, D)), 0.1 * randn(seed + 1, D) - 2.0))


# rounds ---------------------------------------------------------------------------------------------------------

FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "moments anew": {"keep_moments": False},
    "restart": {"restart": True},
    "restart, moments anew": {"restart": True, "keep_moments": False},
    "beta 0.5, by rows": {"beta": 0.5, "weighting": "rows"},
    "beta 2": {"beta": 2.0},
    "reverse": {"local": {"divergence": "reverse"}},
    "public code": {"local": {"noise_std": 1e-3, "data_scale": "sum"}, "weighting": "rows"},
    "mean": {"local": {"data_scale": "mean"}},
}


@pytest.mark.law
@pytest.mark.quick
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("noise", ["philox", "generators"])
def test_two_rounds_are_the_algorithm_box_in_plain_torch(form: str, noise: Any) -> None:
    options = dict(FORMS[form])
    values = {name: getattr(LOCAL, name) for name in LocalInference.__dataclass_fields__} | options.pop("local", {})
    local = LocalInference(**values)
    algorithm, batch, state = method(local, **options), clients(*SIZES), server()
    kept = algorithm.init_clients(algorithm.broadcast(state), batch)
    expected, v = [by_hand.Client(state.w, state.w, (0.03, RATE)) for _ in range(K)], list(state.w)
    weight = torch.tensor(SIZES if algorithm.weighting == "rows" else (1,) * K, dtype=torch.float64)
    for t in (1, 2):
        update, kept = algorithm.client(algorithm.broadcast(state), kept, batch, Noise(3, t, batch.ids, engine=noise))
        state = algorithm.server(state, algorithm.reduce(update), K)
        for k, (one, m) in enumerate(zip(expected, SIZES, strict=True)):
            one.get(v)
            if algorithm.tracking.restart:
                one.start(v)
            if not algorithm.tracking.keep_moments:
                one.rest()
            alone = Noise(3, t, batch.ids[k : k + 1], engine=noise)
            fit, kl = one.play(local, batch.x[k, :m], batch.y[k, :m], alone)
            close([leaf[k] for leaf in kept.q], one.q)
            close([leaf[k] for leaf in update.w], one.w)
            assert update.fit.log_likelihood[k].item() == pytest.approx(fit, rel=1e-9)
            assert update.fit.kl[k].item() == pytest.approx(kl, rel=1e-8)
            bound = (
                fit - local.zeta * by_hand.divergence(one.q, v).item()
            )  # v, which all clients got, and not their own w
            assert update.fit.elbo[k].item() == pytest.approx(bound, rel=1e-8)
        for at, old in enumerate(v):
            mean = sum(float(weight[k]) * expected[k].w[at].detach() for k in range(K)) / float(weight.sum())
            v[at] = (1 - algorithm.beta) * old + algorithm.beta * mean
        close(state.w, v)
    assert kept.adam_w.steps.tolist() == [2 * (1 if form.endswith("anew") else 2)] * K
    assert not pyro.get_param_store().keys()


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_both_slopes_have_their_size_and_not_only_their_direction(direction: Any) -> None:
    """Adam hides a factor; the first moment after one step is a tenth of the slope."""
    local = LocalInference(steps=1, inner=1, minibatch=50, rate=0.03, zeta=0.7, divergence=direction)
    algorithm, batch = method(local), clients(*SIZES)
    start = algorithm.init_clients(algorithm.broadcast(server(40)), batch)
    _, new = algorithm.client(server(), start, batch, Noise(3, 1, batch.ids))
    for k, m in enumerate(SIZES):
        one = by_hand.Client([leaf[k] for leaf in start.q], server().w, (0.03, RATE))
        one.play(local, batch.x[k, :m], batch.y[k, :m], Noise(3, 1, batch.ids[k : k + 1]))
        for parameters, moments in ((one.q, new.adam_q), (one.w, new.adam_w)):
            close([leaf[k] for leaf in moments.first], [0.1 * p.grad for p in parameters if p.grad is not None], 1e-10)


def test_moments_that_are_sent_are_those_of_q_whether_w_follows_or_not() -> None:
    """The same steps on q where w follows; other ones where it stays, and then nothing is kept of steps on w."""
    batch = clients(*SIZES)
    result = {}
    for aggregation in ("tracked", "tracked-moments", "moments"):
        algorithm = method(aggregation=aggregation)
        kept = algorithm.init_clients(server(), batch)
        update, new = algorithm.client(server(), kept, batch, Noise(3, 1, batch.ids))
        result[aggregation] = (update, new)
        if aggregation != "tracked":
            close(update.w, [new.q.loc, softplus(new.q.rho) ** 2], 1e-12)
            w = algorithm.server(server(), update, K).w
            mean = new.q.loc.mean(0)
            close(
                [w.loc, softplus(w.rho) ** 2],
                [mean, (softplus(new.q.rho) ** 2 + (new.q.loc - mean) ** 2).mean(0)],
                1e-10,
            )
    for mine, theirs in zip(result["tracked"][1].q, result["tracked-moments"][1].q, strict=True):
        assert torch.equal(mine, theirs)
    assert not torch.equal(result["moments"][1].q.loc, result["tracked"][1].q.loc)
    update, new = result["moments"]
    assert new.adam_w.first.loc.shape == (K, 0) and not new.adam_w.steps.any()
    torch.testing.assert_close(update.fit.kl, new.q.kl(server().w), rtol=1e-12, atol=0)
    torch.testing.assert_close(update.fit.elbo, update.fit.log_likelihood - LOCAL.zeta * update.fit.kl)


class Program(WeightModel):
    """The network of these tests as a user would write it: nothing but a Pyro program is known of it."""

    dtype = torch.float64
    shapes = MODEL.shapes

    def model(self, batch: Any, prior: Any, zeta: float, scale: Tensor) -> None:
        MODEL.model(batch, prior, zeta, scale)


def test_a_program_s_record_says_what_a_network_s_does() -> None:
    """The same weights and draws: log likelihood, KL divergence and bound have the same names and numbers."""
    batch, records = clients(*SIZES), []
    for model in (MODEL, Program()):
        algorithm = PFedBayes(model, LOCAL, PriorTracking(RATE))
        state = FederationState(server(), algorithm.init_clients(server(40), batch), 0)
        ((record, _),) = engine.rounds(algorithm, batch, FederationPlan(rounds=1), state)
        records.append({name: value for name, value in record.values.items() if name != "seconds"})
    assert records[1] == pytest.approx(records[0], rel=1e-9)
    assert records[0].keys() == {"log_likelihood", "kl", "elbo"}


def test_a_record_says_the_means_over_clients() -> None:
    algorithm, batch = method(), clients(*SIZES)
    kept = algorithm.init_clients(server(), batch)
    update, _ = algorithm.client(server(), kept, batch, Noise(3, 1, batch.ids))
    for form in (update, algorithm.reduce(update)):
        report = algorithm.report(server(), form)
        assert report["log_likelihood"].item() == pytest.approx(update.fit.log_likelihood.mean().item(), rel=1e-12)
        assert report["kl"].item() == pytest.approx(update.fit.kl.mean().item(), rel=1e-12)
        assert report["elbo"].item() == pytest.approx(update.fit.elbo.mean().item(), rel=1e-12)


def test_the_start_is_the_same_for_the_server_and_all_clients() -> None:
    algorithm, batch = method(init_std=0.3, init_rho=-3.0), clients(*SIZES)
    start = federation_state.start(algorithm, batch, FederationPlan(seed=2))
    assert (start.server.w.rho == -3.0).all() and 0.2 < start.server.w.loc.std() < 0.4
    for leaf, shared in zip(start.clients.q, start.server.w, strict=True):
        assert torch.equal(leaf, shared.expand(K, D))
    assert algorithm.is_new(start.clients).all()
    other = federation_state.start(algorithm, batch, FederationPlan(seed=3))
    assert not torch.equal(other.server.w.loc, start.server.w.loc)


# predictions ----------------------------------------------------------------------------------------------------


def trained(**options: Any) -> tuple[PFedBayes, Any, Client, Any]:
    algorithm, batch = method(**options), clients(*SIZES)
    kept = algorithm.init_clients(server(), batch)
    update, kept = algorithm.client(server(), kept, batch, Noise(3, 1, batch.ids))
    return algorithm, algorithm.server(server(), update, K), kept, batch


def averaged(q: Any, k: int, x: Tensor, noise: Noise, draws: int, std: float = 1.0) -> Tensor:
    own = [leaf[k] for leaf in q]
    thetas = [by_hand.drawn(own, noise, std, 0.5) for _ in range(draws)]
    return torch.stack([torch.softmax(by_hand.logits(theta, x), -1) for theta in thetas]).mean(0)


@pytest.mark.parametrize("std", [1.0, 0.3])
def test_predictions_average_the_probabilities_of_draws(std: float) -> None:
    local = LocalInference(steps=2, inner=1, minibatch=4, rate=0.03, zeta=0.7, noise_std=std)
    algorithm, state, kept, batch = trained(local=local)
    noise, x = Noise(3, 0, batch.ids), randn(70, K, 4, 2)
    personal = algorithm.personalise(state, kept, batch, noise)
    shared = algorithm.global_model(state, kept, batch, Noise(3, 0, batch.ids))
    everywhere = MeanField(*(leaf.expand(K, D) for leaf in state.w))
    for posterior, family in ((personal, kept.q), (shared, everywhere)):
        probs = posterior.predict(x).probs
        assert torch.equal(probs, posterior.predict(x).probs)  # the same draws every time
        for k in range(K):
            alone = Noise(3, 0, batch.ids[k : k + 1])
            torch.testing.assert_close(probs[k], averaged(family, k, x[k], alone, 3, std), rtol=1e-11, atol=1e-13)
            plain = torch.softmax(by_hand.logits(family.loc[k], x[k]), -1)
            torch.testing.assert_close(posterior.predict_at_mean(x).probs[k], plain, rtol=1e-11, atol=1e-13)


def test_more_draws_come_closer_to_the_integral() -> None:
    algorithm, state, kept, batch = trained()
    x = randn(70, K, 4, 2)

    def predict(draws: int, seed: int) -> Tensor:
        posterior = algorithm.__class__(MODEL, draws=draws).personalise(state, kept, batch, Noise(seed, 0, batch.ids))
        probs: Tensor = posterior.predict(x).probs
        return probs

    exact = predict(1000, 99)
    errors = [torch.stack([(predict(s, seed) - exact).abs().mean() for seed in range(5)]).mean() for s in (1, 7, 49)]
    assert errors[0] > 1.8 * errors[1] > 1.8**2 * errors[2]


def test_a_client_that_never_trained_fits_against_the_global_distribution_and_others_do_not() -> None:
    algorithm, state, kept, batch = trained()
    fresh = algorithm.init_clients(state, batch)
    mixed = tensors.where(torch.tensor([True, False, True]), kept, fresh)
    posterior = algorithm.personalise(state, mixed, batch, Noise(3, 0, batch.ids))
    assert all(torch.equal(a[[0, 2]], b[[0, 2]]) for a, b in zip(posterior.family, kept.q, strict=True))
    one = by_hand.Client(state.w, state.w, (0.03, 0.0))  # the global distribution does not move
    one.play(LOCAL, batch.x[1, :2], batch.y[1, :2], Noise(3, 0, batch.ids[1:2]).fork())
    close([leaf[1] for leaf in posterior.family], one.q)


def test_a_client_without_rows_keeps_the_prior() -> None:
    algorithm, state, _, _ = trained(join_passes=10)
    batch = clients(5, 0)
    posterior = algorithm.personalise(state, algorithm.init_clients(state, batch), batch, Noise(3, 0, batch.ids))
    for leaf, shared in zip(posterior.family, state.w, strict=True):
        assert torch.equal(leaf[1], shared) and not torch.equal(leaf[0], shared)
    x = randn(70, 2, 4, 2)
    prior = algorithm.global_model(state, algorithm.init_clients(state, batch), batch, Noise(3, 0, batch.ids))
    assert torch.equal(posterior.predict(x).probs[1], prior.predict(x).probs[1])


# posteriors that have seen more ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["plain", "reverse", "public code"])
def test_more_rows_move_the_posterior_and_the_divergence_is_the_oracle_s(form: str) -> None:
    values = {name: getattr(LOCAL, name) for name in LocalInference.__dataclass_fields__} | FORMS[form].get("local", {})
    refining.check(method(LocalInference(**values)), server(), refining.gaussian_oracle)


def test_more_rows_are_fitted_against_the_prior_in_plain_torch() -> None:
    algorithm = method()
    prior, seen = refining.priors(algorithm, server())
    rows = refining.more(*refining.NEW)
    refined = algorithm.refine(prior, seen, rows, Noise(3, 0, rows.ids))
    for k in (0, 1):
        p = [leaf[k] for leaf in prior.family]
        one = by_hand.Client(p, p, (0.03, 0.0))  # the prior does not move
        x, y = rows.x[k][rows.mask[k]], rows.y[k][rows.mask[k]]
        _, kl = one.play(LOCAL, x, y, Noise(3, 0, rows.ids[k : k + 1]).fork())
        close([leaf[k] for leaf in refined.posterior.family], one.q)  # type: ignore[attr-defined]
        assert refined.kl[k].item() == pytest.approx(kl, rel=1e-8)


def test_draws_of_a_preset_that_shrinks_them_are_those_of_q_where_a_bound_needs_them() -> None:
    whole, shrunk = (method(LocalInference(2, 2, 4, 2, 0.03, 0.7, noise_std=std)) for std in (1.0, 1e-3))
    prior, seen = refining.priors(whole, server())
    rows = refining.more(*refining.NEW)
    first, second = (
        algorithm.refine(replace(prior, noise_std=std), seen, rows, Noise(3, 0, rows.ids))
        for algorithm, std in ((whole, 1.0), (shrunk, 1e-3))
    )
    for mine, theirs in zip(first.posterior.family, second.posterior.family, strict=True):  # type: ignore[attr-defined]
        assert torch.equal(mine, theirs)
    assert torch.equal(first.kl, second.kl)


def test_new_rows_become_likelier() -> None:
    long = method(LocalInference(steps=100, minibatch=50, rate=0.03, zeta=0.1))
    prior, seen = refining.priors(method(), server())
    rows = refining.learnable(8, 20, 5)
    refined = long.refine(prior, seen, rows, Noise(3, 0, rows.ids))
    gained = refining.likelihoods(refined.posterior, rows) - refining.likelihoods(prior, rows)  # type: ignore[arg-type]
    assert (gained > 1.0).all() and (refined.kl > 1.0).all()


def test_a_fit_that_diverges_is_not_taken() -> None:
    algorithm = method()
    prior, seen = refining.priors(algorithm, server())
    rows = refining.more(4, 6, 5)
    rows.x[1] = torch.nan
    refined = algorithm.refine(prior, seen, rows, Noise(3, 0, rows.ids))
    for now, was in zip(refined.posterior.family, prior.family, strict=True):  # type: ignore[attr-defined]
        assert now.isfinite().all() and torch.equal(now[1], was[1]) and not torch.equal(now[0], was[0])
    assert refined.kl[1] == 0.0 and (refined.kl[[0, 2]] > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_that_are_numbers_stay_those_of_the_prior(dtype: torch.dtype) -> None:
    model = BayesianVGG((1, 8, 8), Categorical(3), dtype)
    algorithm = PFedBayes(model, LocalInference(steps=2, minibatch=4, rate=0.01), join_passes=1)
    batch = laplace.clients(model, 3, 2, feature=(1, 8, 8)).to(dtype=dtype)
    state = algorithm.init_server(torch.Generator().manual_seed(1))
    _, kept = algorithm.client(state, algorithm.init_clients(state, batch), batch, Noise(3, 1, batch.ids))
    prior = algorithm.personalise(state, kept, batch, Noise(3, 0, batch.ids))
    refined = algorithm.refine(prior, batch, batch, Noise(4, 0, batch.ids))
    q, number = refined.posterior.family, ~model.stochastic_columns()  # type: ignore[attr-defined]
    for mine, theirs in zip(q, prior.family, strict=True):
        assert number.any() and torch.equal(mine[:, number], theirs[:, number])
    torch.testing.assert_close(refined.kl, refining.gaussian_oracle(q, prior.family), rtol=1e-9, atol=0)
    assert (refined.kl > 0.1).all() and (refined.kl < 1e6).all()


def test_what_is_known_of_a_client_without_rows_is_the_server_s_distribution() -> None:
    algorithm, batch = method(join_passes=5), clients(0, 0, 0)
    assert batch.mask.shape == (K, 1) and not batch.mask.any()
    posterior = algorithm.personalise(server(), algorithm.init_clients(server(), batch), batch, Noise(3, 0, batch.ids))
    for leaf, shared in zip(posterior.family, server().w, strict=True):
        assert torch.equal(leaf, shared.expand(K, D))


# sizes and checks -----------------------------------------------------------------------------------------------


def test_what_a_client_keeps_is_small() -> None:
    """The papers' network in float32: ten numbers a weight, 3.2 MB."""
    model = BayesianMLP((784, 100, 10), Categorical(10))
    algorithm = PFedBayes(model)
    state = algorithm.init_clients(algorithm.init_server(torch.Generator()), clients(3))
    kept = sum(leaf.numel() * leaf.element_size() for leaf in tensors.leaves(state).values())
    assert 10 * 4 * model.dim <= kept <= 3.5e6


@pytest.mark.parametrize("name", ["beta", "init_std", "draws", "join_passes"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_hyper_parameters_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(StudyError, match=rf"{name} must be (positive and finite|at least 1), got"):
        PFedBayes(MODEL, **{name: value})  # type: ignore[arg-type]


def test_it_learns() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = []
    for k in range(4):  # every client has labels of its own kind
        x = torch.randn(60, 2, generator=generator, dtype=torch.float64)
        rows.append((x, (torch.atan2(x[:, 0], x[:, 1]) + 3.2 + k).floor().long() % CLASSES))
    batch = ClientBatch.pad(rows, classes=CLASSES)
    algorithm = PFedBayes(
        BayesianMLP((2, 16, CLASSES), Categorical(CLASSES), torch.float64),
        LocalInference(steps=10, inner=2, minibatch=30, rate=0.02, zeta=0.1),
        PriorTracking(0.02),
        init_std=0.3,
    )
    state = engine.run_rounds(algorithm, batch, FederationPlan(rounds=15))
    accuracy = {}
    for name in ("personalise", "global_model"):
        posterior = getattr(algorithm, name)(state.server, state.clients, batch, Noise(0, 0, batch.ids))
        accuracy[name] = (posterior.predict(batch.x).probs.argmax(-1) == batch.y).double().mean().item()
    assert accuracy["personalise"] > 0.85
    assert accuracy["personalise"] > accuracy["global_model"] + 0.2  # clients disagree about labels


# other families -------------------------------------------------------------------------------------------------

FAMILIES: dict[str, dict[str, Any]] = {
    "full-rank": {"family": "full-rank"},
    "low-rank": {"family": "low-rank", "rank": 2},
    "a user's": {
        "family": Family.from_distribution(
            MultivariateNormal, {"loc": lambda start: start.loc, "scale_tril": lambda start: start.scale.diag()}
        )
    },
}
every_family = pytest.mark.parametrize("name", FAMILIES)


def correlated(algorithm: PFedBayes) -> Server:
    """Return a global distribution of the method's family, with correlations."""
    w = algorithm.init_server(torch.Generator().manual_seed(4)).w
    spread = tensors.tree_map(lambda leaf: leaf + 0.01 * randn(50, *leaf.shape), w)
    return Server(spread._replace(loc=server().w.loc))


def gaussian(q: Any) -> tuple[Tensor, Tensor]:
    """Return means and covariances [K, D, D]."""
    if isinstance(q, FullRankNormal):
        return q.loc, q.factor @ q.factor.mT
    if isinstance(q, LowRankNormal):
        return q.loc, torch.diag_embed(q.scale.square()) + q.factor @ q.factor.mT
    return q.loc, q.distribution().covariance_matrix


def full_oracle(q: Any, p: Any) -> Tensor:
    """KL divergence [K] by the certificates' own formula."""
    return bounds.full_gaussian_kl(*gaussian(q), *gaussian(p))


@every_family
def test_more_rows_move_a_correlated_posterior_and_the_divergence_is_the_oracle_s(name: str) -> None:
    algorithm = method(**FAMILIES[name])
    refining.check(algorithm, correlated(algorithm), full_oracle)


@every_family
def test_a_correlated_posterior_is_certified(name: str) -> None:
    """The Gibbs risk is the mean loss of drawn networks, and the bound holds what its numbers say."""
    algorithm = method(**FAMILIES[name])
    prior, seen = refining.priors(algorithm, correlated(algorithm))
    rows = refining.more(4, 6, 3)
    refined = algorithm.refine(prior, seen, rows, Noise(3, 0, rows.ids))
    q: Any = refined.posterior
    result = gibbs_risk(q, rows, bounds.ZeroOne(), 40, Noise(5, 0, rows.ids))
    wrong, noise = torch.zeros(K, dtype=torch.float64), Noise(5, 0, rows.ids)
    for _ in range(40):
        theta = q.family.weights(q.family.draw(noise))
        for k in range(K):
            labels = by_hand.logits(theta[k], rows.x[k][rows.mask[k]]).argmax(-1)
            wrong[k] += (labels != rows.y[k][rows.mask[k]]).double().mean() / 40
    torch.testing.assert_close(result.risk, wrong, rtol=1e-12, atol=1e-12)
    premises = bounds.Premises(bounds.Provenance("split"), independent=True)
    monte_carlo = bounds.MonteCarlo(40, 0.01)
    certificate = bounds.seeger(result.risk, refined.kl, rows.size, 0.05, premises, monte_carlo=monte_carlo)
    assert certificate.valid and (certificate.value >= result.risk).all()
    again = bounds.seeger(
        result.risk, full_oracle(q.family, prior.family), rows.size, 0.05, premises, monte_carlo=monte_carlo
    )
    torch.testing.assert_close(certificate.value, again.value, rtol=1e-9, atol=1e-9)


@every_family
def test_the_server_averages_unconstrained_parameters(name: str) -> None:
    algorithm, batch = method(beta=0.5, **FAMILIES[name]), clients(*SIZES)
    start = correlated(algorithm)
    update, new = algorithm.client(start, algorithm.init_clients(start, batch), batch, Noise(3, 1, batch.ids))
    for leaf, old in zip(new.q, start.w, strict=True):
        assert not torch.equal(leaf, old.expand_as(leaf))
    w = algorithm.server(start, update, K).w
    for result, sent, old in zip(w, update.w, start.w, strict=True):
        torch.testing.assert_close(result, 0.5 * old + 0.5 * sent.mean(0), rtol=1e-12, atol=1e-14)
    torch.linalg.cholesky(gaussian(w)[1])  # a covariance again


@every_family
def test_a_program_gives_the_numbers_of_a_network(name: str) -> None:
    """Sites of a user's program are not independent under these families: it is asked for its log likelihood."""
    batch, records = clients(*SIZES), []
    for model in (MODEL, Program()):
        algorithm = replace(method(**FAMILIES[name]), model=model)
        state = FederationState(correlated(algorithm), algorithm.init_clients(correlated(algorithm), batch), 0)
        ((record, _),) = engine.rounds(algorithm, batch, FederationPlan(rounds=1), state)
        records.append({key: value for key, value in record.values.items() if key != "seconds"})
    assert records[1] == pytest.approx(records[0], rel=1e-9)


def test_a_family_says_its_name_and_counts_its_numbers() -> None:
    assert "family" not in method().about() and method().footprint(5) == MODEL.footprint(5)
    full, low = (method(**FAMILIES[name]) for name in ("full-rank", "low-rank"))
    assert full.about()["family"] == "FullRank()" and low.about()["family"] == "LowRank(rank=2)"
    assert full.about()["inference"] == "KL and gradients by autograd"
    assert full.footprint(5) == MODEL.footprint(5) + D * (D - 1) // 2
    assert low.footprint(5) == MODEL.footprint(5) + 2 * D


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"family": "full"}, "family must be one of 'mean-field', 'full-rank', 'low-rank', got 'full'"),
        ({"family": "low-rank", "rank": 0}, "rank must be at least 1, got 0"),
        ({"family": "low-rank", "rank": 100}, "rank must be at most the 21 weights"),
        ({"family": "full-rank", "aggregation": "moments"}, "'moments' and noise_std = 1 are of a mean field, and the"),
        ({"family": "full-rank", "local": replace(LOCAL, noise_std=0.1)}, "noise_std = 0.1 are of a mean field"),
        ({"family": Family.from_distribution(Cauchy)}, "draws by 'cauchy_'"),
    ],
)
def test_families_that_do_not_go_with_the_rest_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(StudyError, match=said):
        method(**options)


def test_weights_without_uncertainty_need_the_mean_field() -> None:
    network = BayesianVGG((1, 16, 16), Categorical(CLASSES))
    with pytest.raises(StudyError, match=r"FullRank makes all weights uncertain, and .* are numbers"):
        PFedBayes(network, LOCAL, family="full-rank")
