"""FedSI against plain torch: two rounds of the algorithm box, client by client, and what is made of them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import pyro
import pytest
import torch
from torch import Tensor
from torch.distributions import Normal
from torch.nn.functional import cross_entropy

from pacbayes_fl import bounds, tensors
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.federation import engine, federation_state, personalisation
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.laplace import candidates
from pacbayes_fl.inference.map_estimate import LocalDescent
from pacbayes_fl.inference.subnetwork import (
    Candidates,
    LargestCurvature,
    LargestMagnitude,
    LargestVariance,
    LastLayer,
    Mask,
    RandomShare,
)
from pacbayes_fl.methods.fedsi import (
    Client,
    FedSI,
    Message,
    Server,
)
from pacbayes_fl.models.likelihoods import Categorical, Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.models.weights.convolutional import BayesianVGG
from pacbayes_fl.models.weights.jacobian import linearise
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.predictive import NormalMixture
from pacbayes_fl.posteriors.weights.laplace import DiagonalGaussian, SubnetworkGaussian
from pacbayes_fl.posteriors.weights.linearised import probit_log_probs
from pacbayes_fl.posteriors.weights.posterior import rows_of
from pacbayes_fl.server.moments import Moments
from tests import laplace
from tests.laplace import NoisyCurve, float64, randn

SIZES = (5, 2, 7)
K = len(SIZES)
LOCAL = LocalDescent(steps=3, minibatch=4, rate=0.02)
LABELS = BayesianMLP((2, 6, 3), Categorical(3), torch.float64)
NUMBERS = BayesianMLP((2, 6, 1), Gaussian(0.3), torch.float64)
MODELS: dict[str, Any] = {"labels": LABELS, "numbers": NUMBERS, "program": NoisyCurve()}
PAPER: dict[str, Any] = {"personal_subnetwork": "same", "personal_alpha": "round"}
USUAL: dict[str, Any] = {
    "alpha": 0.3,
    "finetune": 2,
    "subnetwork": LargestVariance(0.4),
    "predictive": "probit",
} | PAPER


def method(model: Any = LABELS, **options: Any) -> FedSI:
    return FedSI(model, **({"local": LOCAL} | USUAL | options))


def clients(model: Any = LABELS, *sizes: int) -> ClientBatch:
    return laplace.clients(model, *(sizes or SIZES), feature=(1 if isinstance(model, NoisyCurve) else 2,))


def server(model: Any = LABELS, seed: int = 20) -> Server:
    """Begin in the middle: some weights have a variance already; no unit is dead, so that no two scores are equal."""
    variance = randn(seed + 1, model.dim).square() * (torch.arange(model.dim) % 3 == 0)
    first = method(model).shared
    variance[first:] = 0.0
    mean = 0.7 * randn(seed, model.dim)
    if isinstance(model, BayesianMLP):
        mean[model.span("bias_0")] += 2.5
    return Server(Moments(mean, variance))


# rounds ---------------------------------------------------------------------------------------------------------


class ByHand(NamedTuple):
    """What a client found: weights, sent variances, its subnetwork and loss."""

    theta: Tensor
    variance: Tensor
    chosen: Tensor
    loss: float


def plain_loss(model: Any, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
    out = laplace.plain(model)(theta, x)
    std = laplace.noise_std(model, theta, x)
    return cross_entropy(out, y) if std is None else -Normal(out[:, 0], std).log_prob(y).mean()


def descend(algorithm: FedSI, theta: Tensor, x: Tensor, y: Tensor, noise: Noise, free: Tensor, prior: Any) -> Any:
    """Train one client by torch's optimiser on the loss with the prior's density."""
    own = torch.nn.Parameter(theta.clone())
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[algorithm.local.optimiser]
    optimiser, total = kind([own], lr=algorithm.local.rate), 0.0
    steps = algorithm.local.steps * (1 if prior is not None else algorithm.finetune)
    for _ in range(steps):
        at = noise.rows(torch.ones(1, len(y), dtype=torch.bool), algorithm.local.minibatch)[0]
        optimiser.zero_grad()
        loss = plain_loss(algorithm.model, own, x[at], y[at])
        total += loss.item() / steps
        if prior is not None:
            share = 1 / len(y) if algorithm.prior_weight is None else algorithm.prior_weight
            shared = slice(0, algorithm.shared)
            loss = loss - share * Normal(prior.mean[shared], prior.variance[shared].sqrt()).log_prob(own[shared]).sum()
        loss.backward()
        own.grad[~free] = 0.0  # type: ignore[index]
        optimiser.step()
    return own.data, total


def laplace_by_hand(
    algorithm: FedSI, theta: Tensor, x: Tensor, prior: Tensor, forked: Noise
) -> tuple[Tensor, Tensor, Tensor]:
    """Choose the subnetwork of one client; return it with its covariance [B, B] and the diagonal of the GGN [D]."""
    model, shared = algorithm.model, algorithm.shared
    ggn = laplace.ggn_diagonal(model, theta, x)
    score = {
        LargestVariance: lambda: 1 / (ggn + 1 / prior),
        LargestMagnitude: theta.abs,
        LargestCurvature: lambda: ggn,
        RandomShare: lambda: forked.weights(theta[None], "uniform")[0],
        LastLayer: lambda: torch.arange(model.dim) >= shared,
    }[type(algorithm.choice)]()
    size = model.dim - shared
    if not isinstance(algorithm.choice, LastLayer):
        size = math.floor(algorithm.choice.fraction * shared + 1e-9)  # type: ignore[attr-defined]
        score = score[:shared]
    chosen = score.double().argsort(descending=True, stable=True)[:size].sort().values
    if algorithm.covariance == "diagonal":
        return chosen, torch.diag(1 / (ggn + 1 / prior)[chosen]), ggn
    return chosen, laplace.posterior(model, theta, x, prior, chosen), ggn


def client_by_hand(algorithm: FedSI, prior: Moments, head: Tensor, x: Tensor, y: Tensor, noise: Noise) -> ByHand:
    shared, forked = algorithm.shared, noise.fork()
    free = torch.arange(algorithm.model.dim) < (algorithm.model.dim if algorithm.train_head else shared)
    theta, loss = descend(algorithm, torch.cat((prior.mean[:shared], head)), x, y, noise, free, prior)
    chosen, covariance, ggn = laplace_by_hand(algorithm, theta, x, prior.variance, forked)
    variance = torch.zeros_like(theta)
    variance[chosen] = ggn[chosen] if algorithm.upload == "curvature" else covariance.diagonal()
    return ByHand(theta, variance[:shared], chosen, loss)


CODE: dict[str, Any] = {"train_head": True, "upload": "curvature", "prior_weight": 0.01, "floor": 0.05}
FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "numbers": {"model": "numbers"},
    "program": {"model": "program", "personal_sites": 1},
    "factorised": {"covariance": "diagonal", "subnetwork": LargestVariance(1.0)},
    "factorised program": {"model": "program", "personal_sites": 1, "covariance": "diagonal"},
    "few weights": {"subnetwork": LargestVariance(0.12)},
    "magnitude": {"subnetwork": LargestMagnitude(0.4)},
    "random": {"subnetwork": RandomShare(0.4)},
    "last layer": {"subnetwork": LastLayer(), "train_head": True},
    "head trained, by rows": {"train_head": True, "weighting": "rows"},
    "public code": {**CODE, "local": LocalDescent(3, 4, 0.05, "sgd"), "weighting": "rows"},
    "paper's alpha": {"alpha": 1e-4},
    "curvature": {"subnetwork": LargestCurvature(0.4)},
}


@pytest.mark.law
@pytest.mark.quick
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("noise", ["philox", "generators"])
def test_two_rounds_are_the_algorithm_box_in_plain_torch(form: str, noise: Any) -> None:
    options = dict(FORMS[form])
    model = MODELS[options.pop("model", "labels")]
    algorithm, batch, state = method(model, **options), clients(model), server(model)
    kept = algorithm.init_clients(algorithm.broadcast(state), batch)
    heads, (mean, variance) = list(kept.head), state.moments
    weight = float64(SIZES if algorithm.weighting == "rows" else (1,) * K)
    for t in (1, 2):
        update, kept = algorithm.client(algorithm.broadcast(state), kept, batch, Noise(3, t, batch.ids, engine=noise))
        state = algorithm.server(state, algorithm.reduce(update), K)
        prior = Moments(mean, torch.where(variance > 0, variance.clamp_min(algorithm.floor), algorithm.alpha))
        result = []
        for k in range(K):
            alone = Noise(3, t, batch.ids[k : k + 1], engine=noise)
            result.append(client_by_hand(algorithm, prior, heads[k], *laplace.own(batch, k), alone))
            heads[k] = result[k].theta[algorithm.shared :]
            torch.testing.assert_close(
                update.moments.mean[k], result[k].theta[: algorithm.shared], rtol=1e-9, atol=1e-10
            )
            torch.testing.assert_close(update.moments.variance[k], result[k].variance, rtol=1e-8, atol=1e-11)
            torch.testing.assert_close(kept.head[k], heads[k], rtol=1e-9, atol=1e-10)
            assert update.loss[k].item() == pytest.approx(result[k].loss, rel=1e-9)
        if not algorithm.train_head:
            assert torch.equal(kept.head, mean[algorithm.shared :].expand(K, -1))
        mean, variance = mean.clone(), variance.clone()
        for name, leaf in (("theta", mean), ("variance", variance)):
            rows = torch.stack([getattr(one, name)[: algorithm.shared] for one in result])
            leaf[: algorithm.shared] = (weight[:, None] * rows).sum(0) / weight.sum()
        torch.testing.assert_close(state.moments.mean, mean, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(state.moments.variance, variance, rtol=1e-8, atol=1e-11)
    assert not pyro.get_param_store().keys()


def test_chunks_reduce_to_the_same_average() -> None:
    algorithm, batch, state = method(weighting="rows"), clients(), server()
    kept = algorithm.init_clients(algorithm.broadcast(state), batch)
    update, _ = algorithm.client(algorithm.broadcast(state), kept, batch, Noise(3, 1, batch.ids))
    whole, reduced = (algorithm.server(state, form, K) for form in (update, algorithm.reduce(update)))
    for mine, theirs in zip(whole.moments, reduced.moments, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-14)
    for form in (update, algorithm.reduce(update)):
        report = algorithm.report(whole, form)
        assert report["loss"].item() == pytest.approx(update.loss.mean().item(), rel=1e-12)
        assert report["without_curvature"].item() == pytest.approx(update.flat.mean().item(), rel=1e-12)
        assert report["uncertain"] == (update.moments.variance > 0).any(0).sum() > 0


def test_the_next_prior_is_the_average_or_alpha() -> None:
    algorithm, variance = method(alpha=0.3, floor=0.1), torch.zeros(LABELS.dim, dtype=torch.float64)
    variance[:3] = float64([0.5, 0.02, 0.0])
    message = algorithm.broadcast(Server(Moments(randn(1, LABELS.dim), variance)))
    assert message.prior.variance[:4].tolist() == [0.5, 0.1, 0.3, 0.3] and (message.prior.variance[4:] == 0.3).all()
    assert torch.equal(message.prior.mean, randn(1, LABELS.dim))


def test_the_start_is_the_same_for_all_and_nothing_is_uncertain() -> None:
    algorithm, batch = method(init_std=0.3), clients()
    start = federation_state.start(algorithm, batch, FederationPlan(seed=2))
    mean, variance = start.server.moments
    assert not variance.any() and 0.2 < mean.std() < 0.4 and algorithm.shared == 2 * 6 + 6
    assert torch.equal(start.clients.head, mean[18:].expand(K, -1)) and not start.clients.flat.any()
    other = federation_state.start(algorithm, batch, FederationPlan(seed=3))
    assert not torch.equal(other.server.moments.mean, mean)


def test_weights_on_which_no_row_depends_win_and_are_counted() -> None:
    """An input that is 0 at every row of a client, as pixels at the border are, leaves its weights at the prior."""
    rows = []
    for k in range(2):
        x = randn(k, 6, 4)
        x[:, [0, 2] if k == 0 else [3]] = 0.0
        rows.append((x, torch.tensor([0, 1, 2, 0, 1, 2])))
    batch, model = ClientBatch.pad(rows, classes=3), BayesianMLP((4, 6, 3), Categorical(3), torch.float64)
    algorithm = method(model, subnetwork=LargestVariance(0.5))
    lifted = randn(5, model.dim)
    lifted[24:30] += 4.0  # no unit is dead
    state = Server(Moments(lifted, torch.zeros_like(lifted)))
    kept = algorithm.init_clients(algorithm.broadcast(state), batch)
    update, after = algorithm.client(algorithm.broadcast(state), kept, batch, Noise(3, 1, batch.ids))
    assert update.flat.tolist() == after.flat.tolist() == [12.0, 6.0]
    assert torch.equal(algorithm.describe(after)["without_curvature"], after.flat)
    uncertain = update.moments.variance > 0
    assert uncertain.sum(1).tolist() == [15, 15]
    for k, inputs in enumerate(([0, 2], [3])):
        dead = torch.zeros(4, 6, dtype=torch.bool)
        dead[inputs] = True
        assert uncertain[k, :24][dead.flatten()].all()
        assert (update.moments.variance[k, :24][dead.flatten()] - algorithm.alpha).abs().max() < 1e-15
    assert (update.moments.variance[uncertain] <= algorithm.alpha * (1 + 1e-12)).all()


# how often a row counts ------------------------------------------------------------------------------------------

ALPHA = 0.5
FORMS_OF_PRIOR: dict[str, dict[str, Any]] = {
    "diagonal": {"covariance": "diagonal", "subnetwork": LargestVariance(1.0)},
    "full": {"covariance": "full", "subnetwork": LargestVariance(1.0)},
}


def linear(inputs: int, *seeds: int) -> tuple[BayesianMLP, ClientBatch, list[Tensor]]:
    """Return a linear model whose bias is the head, clients whose rows differ in scale, and their curvatures H."""
    model = BayesianMLP((inputs, 1), Gaussian(0.5), torch.float64)
    rows = [(randn(seed, 30, inputs) * (0.4 + 0.2 * seed), 2.0 * randn(seed + 9, 30)) for seed in seeds]
    return model, ClientBatch.pad(rows), [x.T @ x / 0.25 for x, _ in rows]


def rounds_of(model: BayesianMLP, batch: ClientBatch, rounds: int, steps: int = 300, **options: Any) -> Any:
    """Run rounds whose descents come to the MAP estimates, if they have the steps; curvatures are the same anywhere."""
    local = LocalDescent(steps, minibatch=1_000, rate=0.02, optimiser="sgd")
    algorithm = FedSI(model, local, alpha=ALPHA, personal_sites=1, finetune=0, **(PAPER | options))
    return algorithm, engine.run_rounds(algorithm, batch, FederationPlan(rounds=rounds, seed=2))


@pytest.mark.law
@pytest.mark.parametrize("form", FORMS_OF_PRIOR)
@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_rows_of_one_client_count_once_a_round_or_once(form: str, rounds: int) -> None:
    """Precisions 1 / alpha + T H of the paper, and 1 / alpha + H; in one dimension the estimates are Bayes' too."""
    model, batch, (ggn,) = linear(1, 3)
    x, y = laplace.own(batch, 0)
    start = federation_state.start(FedSI(model, personal_sites=1), batch, FederationPlan(seed=2)).server.moments.mean
    for prior, times in (("cumulative", rounds), ("divide", 1)):
        algorithm, state = rounds_of(model, batch, rounds, prior=prior, **FORMS_OF_PRIOR[form])
        precision = 1 / ALPHA + times * float(ggn)
        result = state.server.moments
        assert 1 / result.variance[0].item() == pytest.approx(precision, rel=1e-9)
        linear_part = start[0] / ALPHA + times * float(x[:, 0] @ (y - start[1])) / 0.25
        assert result.mean[0].item() == pytest.approx(float(linear_part) / precision, rel=1e-6)
        (_, personal), *_ = personalisation.personalise(algorithm, state, batch, FederationPlan(seed=2))
        spread = personal.gaussian.output_covariance(linearised(model, personal, torch.ones(1, 1, 1)))
        assert 1 / spread.item() == pytest.approx(precision + (float(ggn) if prior == "cumulative" else 0.0), rel=1e-9)


def linearised(model: Any, posterior: Any, x: Tensor) -> Any:
    return linearise(model, posterior.loc, rows_of(x.double(), posterior.noise)).jacobian


@pytest.mark.parametrize("form", FORMS_OF_PRIOR)
def test_marginal_variances_of_several_weights_count_rows_once(form: str) -> None:
    model, batch, (ggn,) = linear(3, 3)
    before = torch.eye(3, dtype=torch.float64) / ALPHA
    exact = (before + (torch.diag(ggn.diagonal()) if form == "diagonal" else ggn)).inverse().diagonal()
    for rounds in (1, 3):
        _, state = rounds_of(model, batch, rounds, 2, prior="divide", **FORMS_OF_PRIOR[form])
        torch.testing.assert_close(state.server.moments.variance[:3], exact, rtol=1e-9, atol=0)
    _, state = rounds_of(model, batch, 3, 2, **FORMS_OF_PRIOR[form])
    assert (state.server.moments.variance[:3] < 0.7 * exact).all()


def test_no_row_of_several_clients_counts_twice_after_any_number_of_rounds() -> None:
    """The averaged precision comes to 1 / alpha + max_k H_k and stays; the paper's grows without end."""
    model, batch, ggn = linear(2, 1, 3, 4)
    most = 1 / ALPHA + torch.stack([one.diagonal() for one in ggn]).amax(0)
    options, precision = FORMS_OF_PRIOR["diagonal"], {}
    for rounds in (1, 3, 40):
        _, state = rounds_of(model, batch, rounds, 2, prior="divide", **options)
        precision[rounds] = state.server.moments.variance[:2].reciprocal()
        assert (precision[rounds] <= most * (1 + 1e-9)).all() and state.server.moments.mean.isfinite().all()
    assert (precision[1] < precision[3]).all() and (precision[40] > 0.95 * most).all()
    _, state = rounds_of(model, batch, 4, 2, **options)
    assert (state.server.moments.variance[:2].reciprocal() > 1.5 * most).all()


def test_a_prior_is_divided_by_a_posterior_alone() -> None:
    with pytest.raises(StudyError, match="a curvature is no posterior"):
        method(prior="divide", upload="curvature")
    assert "count once for every round" in method().about()["prior"]
    assert method(prior="divide").about()["prior"].endswith("count once")


def test_a_personal_model_has_a_rule_and_a_variance_of_its_own() -> None:
    """The rounds do not depend on them; the Gaussian is the Laplace approximation under that prior, by hand."""
    plain, message, kept, batch = trained()
    own = replace(plain, personal_subnetwork=LargestCurvature(0.4), personal_alpha=2.5)
    _, other_message, other_kept, _ = trained(personal_subnetwork=LargestCurvature(0.4), personal_alpha=2.5)
    assert torch.equal(message.prior.mean, other_message.prior.mean) and torch.equal(kept.head, other_kept.head)
    assert torch.equal(message.prior.variance, other_message.prior.variance)
    posterior = own.personalise(message, kept, batch, Noise(3, 0, batch.ids))
    q = posterior.gaussian
    assert isinstance(q, SubnetworkGaussian)
    for k in range(K):
        rows, _ = laplace.own(batch, k)
        ggn = laplace.ggn_diagonal(LABELS, posterior.loc[k], rows)[: own.shared]
        size = math.floor(0.4 * own.shared + 1e-9)
        chosen = ggn.argsort(descending=True, stable=True)[:size].sort().values
        exact = laplace.posterior(LABELS, posterior.loc[k], rows, torch.full((LABELS.dim,), 2.5).double(), chosen)
        order = q.chosen[k].argsort()
        assert torch.equal(q.chosen[k][order], chosen)
        torch.testing.assert_close(q.covariance()[k][order][:, order], exact, rtol=1e-8, atol=1e-11)
    for value in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(StudyError, match="personal_alpha must be positive and finite"):
            method(personal_alpha=value)


def test_a_rule_of_the_user_s_own_sees_curvature_and_prior() -> None:
    class Gain:
        """Share of the prior's variance that the rows leave, the least first."""

        def size(self, candidates: Candidates) -> int:
            return 3

        def scores(self, candidates: Candidates, noise: Noise) -> Tensor:
            exact = candidates.prior / (1 + candidates.prior * candidates.curvature)
            torch.testing.assert_close(candidates.variance, exact)
            return torch.where(candidates.representation, candidates.curvature * candidates.prior, -torch.inf)

    algorithm, message, kept, batch = trained(subnetwork=Gain())
    q = algorithm.personalise(message, kept, batch, Noise(3, 0, batch.ids)).gaussian
    assert isinstance(q, SubnetworkGaussian) and q.chosen.shape == (K, 3)


# predictions ----------------------------------------------------------------------------------------------------


def trained(model: Any = LABELS, **options: Any) -> tuple[FedSI, Message, Client, ClientBatch]:
    algorithm, batch, state = method(model, **options), clients(model), server(model)
    kept = algorithm.init_clients(algorithm.broadcast(state), batch)
    update, kept = algorithm.client(algorithm.broadcast(state), kept, batch, Noise(3, 1, batch.ids))
    return algorithm, algorithm.broadcast(algorithm.server(state, update, K)), kept, batch


PERSONAL: dict[str, dict[str, Any]] = {
    "plain": {},
    "numbers": {"model": "numbers"},
    "program": {"model": "program", "personal_sites": 1},
    "factorised": {"covariance": "diagonal", "subnetwork": LargestVariance(1.0)},
    "not tuned": {"finetune": 0},
    "last layer": {"subnetwork": LastLayer()},
    "random": {"subnetwork": RandomShare(0.4)},
    "head trained": {"train_head": True},
}


@pytest.mark.parametrize("form", PERSONAL)
def test_a_personal_model_is_tuned_at_its_head_and_inferred_around_the_global_means(form: str) -> None:
    options = dict(PERSONAL[form])
    model = MODELS[options.pop("model", "labels")]
    algorithm, message, kept, batch = trained(model, **options)
    posterior = algorithm.personalise(message, kept, batch, Noise(3, 0, batch.ids))
    x, shared = randn(70, K, 4, *batch.x.shape[2:]), algorithm.shared
    predictive = posterior.predict(x)
    q = posterior.gaussian
    assert isinstance(q, DiagonalGaussian if algorithm.covariance == "diagonal" else SubnetworkGaussian)
    head = torch.arange(model.dim) >= shared
    for k in range(K):
        rows, y = laplace.own(batch, k)
        alone = Noise(3, 0, batch.ids[k : k + 1])
        forked, theta = alone.fork(), torch.cat((message.prior.mean[:shared], kept.head[k]))
        if algorithm.finetune:
            theta, _ = descend(algorithm, theta, rows, y, forked.copy(), head, None)
        torch.testing.assert_close(posterior.loc[k], theta, rtol=1e-9, atol=1e-10)
        assert torch.equal(posterior.loc[k, :shared], message.prior.mean[:shared])
        chosen, covariance, _ = laplace_by_hand(algorithm, theta, rows, message.prior.variance, forked)
        entries = laplace.jacobian(laplace.plain(model), theta, x[k])[..., chosen]
        spread = torch.einsum("ncd,de,nfe->ncf", entries, covariance, entries)
        outputs = laplace.plain(model)(theta, x[k])
        std = laplace.noise_std(model, theta, x[k])
        if std is None:
            expected = probit_log_probs(outputs, spread.diagonal(dim1=1, dim2=2))
            torch.testing.assert_close(predictive.log_probs[k], expected, rtol=1e-8, atol=1e-9)  # type: ignore[union-attr]
        else:
            assert isinstance(predictive, NormalMixture)
            torch.testing.assert_close(predictive.mean[k], outputs[:, 0], rtol=1e-9, atol=1e-10)
            variance = spread[:, 0, 0] + torch.as_tensor(std, dtype=torch.float64) ** 2
            torch.testing.assert_close(predictive.variance[k], variance, rtol=1e-8, atol=1e-11)
    moved = q.weights(q.draw(Noise(3, 0, batch.ids))) != posterior.loc
    uncertain = head if form == "last layer" else ~head
    assert moved.any(1).all() and not moved[:, ~uncertain].any()


@pytest.mark.parametrize("predictive", ["probit", "monte-carlo", "draws", "map"])
def test_each_predictive_is_what_the_option_says(predictive: Any) -> None:
    algorithm, message, kept, batch = trained(predictive=predictive, draws=7)
    posterior = algorithm.personalise(message, kept, batch, Noise(3, 0, batch.ids))
    assert (posterior.predictive, posterior.draws, posterior.uncertain) == (predictive, 7, predictive != "map")
    probs = posterior.predict(randn(70, K, 4, 2)).probs  # type: ignore[union-attr]
    assert torch.allclose(probs.sum(-1), torch.ones(K, 4, dtype=torch.float64))


def test_a_client_that_never_trained_begins_at_the_common_head() -> None:
    algorithm, message, _, _ = trained()
    batch = clients(LABELS, 4, 0)
    fresh = algorithm.init_clients(message, batch)
    posterior = algorithm.personalise(message, fresh, batch, Noise(3, 0, batch.ids))
    shared = algorithm.shared
    assert torch.equal(posterior.loc[1], message.prior.mean)  # no rows, nothing to tune on
    assert torch.equal(posterior.loc[0, :shared], message.prior.mean[:shared])
    assert not torch.equal(posterior.loc[0, shared:], message.prior.mean[shared:])
    q = posterior.gaussian
    assert isinstance(q, SubnetworkGaussian)
    variance = q.variance.scatter_add(1, q.chosen, q.covariance().diagonal(dim1=-2, dim2=-1))
    inside = variance[1] > 0
    torch.testing.assert_close(variance[1, inside], message.prior.variance[inside], rtol=1e-12, atol=0)
    assert (variance[0] < message.prior.variance)[variance[0] > 0].any()


def test_a_diverged_client_spoils_no_other() -> None:
    algorithm, batch, state = method(), clients(), server()
    kept = algorithm.init_clients(algorithm.broadcast(state), batch)
    kept.head[1] = torch.nan
    update, _ = algorithm.client(algorithm.broadcast(state), kept, batch, Noise(3, 1, batch.ids))
    assert update.loss.isnan().tolist() == [False, True, False]
    assert update.moments.variance.isfinite().all(1).tolist()[::2] == [True, True]


def test_batch_norms_are_learned_as_numbers() -> None:
    model = BayesianVGG((1, 8, 8), Categorical(3), torch.float64)
    algorithm = method(model, subnetwork=LargestVariance(0.0001), local=LocalDescent(1, 4, 1e-3))
    batch = laplace.clients(model, 3, 2, feature=(1, 8, 8))
    start = federation_state.start(algorithm, batch, FederationPlan(seed=2))
    update, _ = algorithm.client(algorithm.broadcast(start.server), start.clients, batch, Noise(3, 1, batch.ids))
    shared = algorithm.shared
    number = ~model.stochastic_columns()[:shared]
    assert number.any() and not update.moments.variance[:, number].any()
    assert (update.moments.variance > 0).sum(1).tolist() == [math.floor(0.0001 * int((~number).sum()))] * 2
    assert (update.moments.mean[:, number] != start.server.moments.mean[:shared][number]).any()


# posteriors that have seen more ---------------------------------------------------------------------------------

SEEN, NEW = (5, 0, 7), (4, 6, 0)  # the second client never trained, the third has no new rows


def prior_and_rows(model: Any, sizes: Any = SEEN, **options: Any) -> tuple[FedSI, Any, ClientBatch, ClientBatch]:
    algorithm, state = method(model, **options), server(model)
    seen, rows = clients(model, *sizes), clients(model, *NEW)
    rows = replace(rows, x=torch.where(rows.mask.unsqueeze(-1), rows.x.flip(-1) + 0.3, 0.0))
    message = algorithm.broadcast(state)
    fresh = algorithm.init_clients(message, seen)
    _, kept = algorithm.client(message, fresh, seen, Noise(3, 1, seen.ids))
    kept = tensors.where(seen.size > 0, kept, fresh)
    return algorithm, algorithm.personalise(message, kept, seen, Noise(3, 0, seen.ids)), seen, rows


def dense_covariance(q: Any, k: int) -> Tensor:
    """Covariance of all weights of a client [D, D]."""
    whole = torch.diag(q.variance[k])
    if isinstance(q, SubnetworkGaussian):
        at = q.chosen[k]
        whole[at[:, None], at] += torch.linalg.inv(q.factor[k] @ q.factor[k].T)
    return whole


REFINED: dict[str, dict[str, Any]] = {
    "plain": {},
    "numbers": {"model": "numbers"},
    "program": {"model": "program", "personal_sites": 1},
    "last layer": {"subnetwork": LastLayer()},
    "map": {"predictive": "map", "finetune": 0},
    "nobody trained": {"sizes": (0, 0, 0)},
    "nobody trained, program": {"sizes": (0, 0, 0), "model": "program", "personal_sites": 1},
    "nobody trained, factorised": {"sizes": (0, 0, 0), "covariance": "diagonal"},
    "factorised": {"covariance": "diagonal", "subnetwork": LargestVariance(1.0)},
    "factorised program": {"model": "program", "personal_sites": 1, "covariance": "diagonal"},
}


@pytest.mark.parametrize("form", REFINED)
def test_more_rows_sharpen_the_gaussian_around_the_same_estimate(form: str) -> None:
    options = dict(REFINED[form])
    model = MODELS[options.pop("model", "labels")]
    algorithm, prior, seen, rows = prior_and_rows(model, **options)
    p = prior.gaussian
    before = tensors.tree_map(torch.clone, p)
    refined = algorithm.refine(prior, seen, rows, Noise(3, 0, rows.ids))
    posterior: Any = refined.posterior
    q = posterior.gaussian
    assert type(q) is type(p) and posterior.gaussian is q and posterior.reference is prior.reference
    assert torch.equal(q.mean(), p.mean()) and posterior.predictive == prior.predictive
    assert all(torch.equal(now, was) for now, was in zip(p, before, strict=True))
    assert refined.kl.dtype == torch.float64
    for k in range(K):
        first, second = dense_covariance(p, k), dense_covariance(q, k)
        inside = first.diagonal() > 0
        assert torch.equal(second.diagonal() > 0, inside) and 0 < inside.sum() < model.dim
        index = inside.nonzero().flatten()
        first, second = first[index[:, None], index], second[index[:, None], index]
        result = laplace.ggn(model, p.loc[k], laplace.own(rows, k)[0], index) if NEW[k] else torch.zeros_like(first)
        if algorithm.covariance == "diagonal":
            result = torch.diag(result.diagonal())
        torch.testing.assert_close(second, torch.linalg.inv(torch.linalg.inv(first) + result), rtol=1e-8, atol=1e-10)
        zero = torch.zeros(len(index), dtype=torch.float64)
        oracle = bounds.full_gaussian_kl(zero, second, zero, first)
        torch.testing.assert_close(refined.kl[k], oracle, rtol=1e-8, atol=1e-11)
        assert (refined.kl[k] > 1e-3) if NEW[k] else (refined.kl[k] < 1e-12)
    assert (
        posterior.predict(rows.x) is not None
        and next(posterior.sample_hypotheses(rows.x, 1, Noise(9, 0, rows.ids))) is not None
    )


@pytest.mark.parametrize("form", ["plain", "program", "factorised"])
def test_clients_are_sharpened_each_for_itself_and_padding_has_no_say(form: str) -> None:
    options = dict(REFINED[form])
    model = MODELS[options.pop("model", "labels")]
    algorithm, prior, seen, rows = prior_and_rows(model, **options)
    refined = algorithm.refine(prior, seen, rows, Noise(3, 0, rows.ids))
    x, y, mask = torch.cat((rows.x, 3 * rows.x + 1), 1), torch.cat((rows.y, rows.y), 1), rows.mask
    wide = replace(rows, x=x, y=y, mask=torch.cat((mask, torch.zeros_like(mask)), 1))
    padded = algorithm.refine(prior, seen, wide, Noise(3, 0, rows.ids))
    torch.testing.assert_close(padded.kl, refined.kl, rtol=1e-9, atol=1e-12)
    for k in range(K):
        one = torch.tensor([k])
        gaussian = tensors.select(prior.gaussian, one)
        alone = replace(prior, loc=prior.loc[one], infer=lambda gaussian=gaussian: gaussian)  # type: ignore[misc]
        own = rows.select(one).trim()
        single = algorithm.refine(alone, seen.select(one).trim(), own, Noise(3, 0, own.ids))
        torch.testing.assert_close(single.kl[0], refined.kl[k], rtol=1e-9, atol=1e-12)
        mine, theirs = (result.posterior.gaussian for result in (single, refined))  # type: ignore[attr-defined]
        torch.testing.assert_close(dense_covariance(mine, 0), dense_covariance(theirs, k), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_single_precision_gives_the_divergence_of_what_is_drawn(covariance: Any) -> None:
    """The factors are rounded; the divergence is that of the rounded ones."""
    model = BayesianMLP((2, 12, 3), Categorical(3))
    algorithm = method(model, covariance=covariance, subnetwork=LargestVariance(1.0))
    seen, rows = (laplace.clients(model, *sizes).to(dtype=torch.float32) for sizes in (SEEN, NEW))
    mean = (0.7 * randn(20, model.dim)).float()
    message = algorithm.broadcast(Server(Moments(mean, torch.zeros_like(mean))))
    prior = algorithm.personalise(message, algorithm.init_clients(message, seen), seen, Noise(3, 0, seen.ids))
    refined = algorithm.refine(prior, seen, rows, Noise(3, 0, rows.ids))
    for k in range(K):
        pair = (tensors.tree_map(double, one.gaussian) for one in (refined.posterior, prior))  # type: ignore[attr-defined]
        second, first = (dense_covariance(one, k) for one in pair)
        index = (first.diagonal() > 0).nonzero().flatten()
        zero = torch.zeros(len(index), dtype=torch.float64)
        oracle = bounds.full_gaussian_kl(zero, second[index[:, None], index], zero, first[index[:, None], index])
        torch.testing.assert_close(refined.kl[k], oracle, rtol=1e-9, atol=1e-10)


def double(leaf: Tensor) -> Tensor:
    return leaf.double() if leaf.is_floating_point() else leaf


@pytest.mark.parametrize("model", [*MODELS, "vgg"])
def test_what_is_known_of_a_client_without_rows_is_the_server_s_distribution(model: str) -> None:
    network = BayesianVGG((1, 8, 8), Categorical(3), torch.float64) if model == "vgg" else MODELS[model]
    share = LargestVariance(0.0001) if model == "vgg" else LargestVariance(0.4)
    algorithm = method(network, subnetwork=share, personal_sites=1 if model == "program" else 2)
    feature = {"vgg": (1, 8, 8), "program": (1,)}.get(model, (2,))
    batch = laplace.clients(network, 0, 0, feature=feature)
    mean = network.centre() + 0.3 * randn(20, network.dim)
    variance = torch.zeros_like(mean)
    variance[:4] = 0.5
    message = algorithm.broadcast(Server(Moments(mean, variance)))
    posterior = algorithm.personalise(message, algorithm.init_clients(message, batch), batch, Noise(3, 0, batch.ids))
    q: Any = posterior.gaussian
    assert torch.equal(q.loc, mean.expand(2, -1))
    result = q.covariance()[1]
    spread = q.variance[1].scatter_add(0, q.chosen[1], result.diagonal())
    inside = spread > 0
    assert inside.sum() == algorithm.choice.size(
        candidates(algorithm.model, mean, variance, variance, algorithm.shared)
    )
    torch.testing.assert_close(spread, message.prior.variance * inside, rtol=1e-12, atol=0)
    assert result.equal(torch.diag(result.diagonal()))


def test_a_diverged_prior_spoils_no_other_client() -> None:
    algorithm, prior, seen, rows = prior_and_rows(LABELS)
    prior.gaussian.loc[1] = torch.nan
    kl = algorithm.refine(prior, seen, rows, Noise(3, 0, rows.ids)).kl
    assert kl.isnan().tolist() == [False, True, False]


# the network of two units ---------------------------------------------------------------------------------------


def two_units(**options: Any) -> tuple[FedSI, Server, Client, ClientBatch]:
    """The published setting, at a MAP estimate that does not move."""
    model = laplace.TanhNetwork((2, 2, 2), Categorical(2))
    theta = float64(laplace.THETA)[list(laplace.OURS)]
    batch = ClientBatch.pad([(float64(laplace.X), torch.tensor(laplace.LABELS))], classes=2)
    still = {
        "local": LocalDescent(1, 50, 1e-300, "sgd"),
        "finetune": 0,
        "alpha": 1.0,
        "subnetwork": LargestVariance(1 / 3),
    }
    algorithm, state = method(model, **(still | options)), Server(Moments(theta, torch.zeros_like(theta)))
    return algorithm, state, algorithm.init_clients(algorithm.broadcast(state), batch), batch


def sent(**options: Any) -> list[float]:
    algorithm, state, kept, batch = two_units(**options)
    update, _ = algorithm.client(algorithm.broadcast(state), kept, batch, Noise(3, 1, batch.ids))
    result: list[float] = update.moments.variance[0, list(laplace.OURS)[:6]].tolist()
    return result


def test_what_a_client_sends_is_a_variance_and_not_the_curvature_of_the_public_code() -> None:
    variances, curvatures = [0.0] * 6, [0.0] * 6
    variances[1], variances[4] = 0.966759134068431, 0.9457096168073899
    curvatures[1], curvatures[4] = 0.034617, 0.057646
    assert sent() == pytest.approx(variances, rel=1e-12)
    assert sent(upload="curvature") == pytest.approx(curvatures, abs=5e-7)
    assert sent() != pytest.approx(curvatures, abs=0.5)
    diagonals = [0.9296256971, 0.9665408139, 0.6310063502, 0.7108496784, 0.9454960502, 0.6051310385]
    assert sent(covariance="diagonal", subnetwork=LargestVariance(1.0)) == pytest.approx(diagonals, abs=6e-11)
    drowned = sent(alpha=1e-4, subnetwork=LargestVariance(1.0))
    assert all(9.999e-5 <= one <= 1e-4 for one in drowned)


def test_published_predictions_by_the_method() -> None:
    algorithm, state, kept, batch = two_units()
    posterior = algorithm.personalise(algorithm.broadcast(state), kept, batch, Noise(3, 0, batch.ids))
    probs = posterior.predict(float64([[[0.5, -1.0]]])).probs.flatten()  # type: ignore[union-attr]
    assert probs.tolist() == pytest.approx([0.7552489816, 0.2447510184], abs=6e-11)


# sizes and checks -----------------------------------------------------------------------------------------------


def test_a_call_is_as_large_as_the_precision() -> None:
    model = BayesianMLP((784, 100, 10), Categorical(10))
    assert FedSI(model, **PAPER).footprint(50) == 785**2 == FedSI(model).footprint(50)
    assert FedSI(model, subnetwork=LargestVariance(0.05), **PAPER).footprint(50) == 3_925**2
    assert FedSI(model, covariance="diagonal", subnetwork=LargestVariance(1.0)).footprint(50) == model.footprint(50)
    assert FedSI(model, subnetwork=LastLayer(), **PAPER).footprint(50) == 1_010**2
    assert FedSI(LABELS, subnetwork=LargestVariance(0.1), **PAPER).footprint(5) == LABELS.footprint(5)


@pytest.mark.parametrize("name", ["alpha", "draws", "init_std"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_hyper_parameters_out_of_range_are_refused(name: str, value: float) -> None:
    with pytest.raises(StudyError, match=f"{name} must be (positive|at least 1)"):
        FedSI(LABELS, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"finetune": -1}, {"floor": -0.1}])
def test_negative_numbers_are_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(StudyError, match=f"{name} must be at least 0, got"):
        FedSI(LABELS, **options)


@pytest.mark.parametrize("sites", [0, 4, 5])
def test_there_must_be_a_representation_and_a_head(sites: int) -> None:
    with pytest.raises(StudyError, match=f"personal_sites must be (at least 1|between 1 and 3), got {sites}"):
        FedSI(LABELS, personal_sites=sites)


def test_a_mask_of_the_user_s_own() -> None:
    keep = torch.zeros(LABELS.dim, dtype=torch.bool)
    keep[[1, 8]] = True
    algorithm, batch, state = method(subnetwork=Mask(keep)), clients(), server()
    kept = algorithm.init_clients(algorithm.broadcast(state), batch)
    update, _ = algorithm.client(algorithm.broadcast(state), kept, batch, Noise(3, 1, batch.ids))
    assert (update.moments.variance > 0).nonzero()[:, 1].tolist() == [1, 8] * K


def test_it_learns_and_knows_where_it_does_not_know() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = []
    for k in range(4):  # every client has labels of its own kind
        x = torch.randn(60, 2, generator=generator, dtype=torch.float64)
        rows.append((x, (torch.atan2(x[:, 0], x[:, 1]) + 3.2 + k).floor().long() % 3))
    batch = ClientBatch.pad(rows, classes=3)
    algorithm = FedSI(
        BayesianMLP((2, 16, 3), Categorical(3), torch.float64),
        LocalDescent(steps=20, minibatch=30, rate=0.02),
        LargestVariance(0.5),
        alpha=1.0,
        finetune=10,
        init_std=0.5,
        **PAPER,
    )
    state = engine.run_rounds(algorithm, batch, FederationPlan(rounds=10))
    message = algorithm.broadcast(state.server)
    posterior = algorithm.personalise(message, state.clients, batch, Noise(0, 0, batch.ids))
    predicted = posterior.predict(batch.x)
    assert (predicted.probs.argmax(-1) == batch.y).double().mean() > 0.8  # type: ignore[union-attr]
    entropy = [float((way(8.0 * batch.x)).entropy.mean()) for way in (posterior.predict, posterior.predict_at_mean)]
    assert entropy[0] > 1.5 * entropy[1]
