"""PAC-PFL on networks against Algorithm 1 in plain torch, and personal posteriors against closed forms."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import gpytorch
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from pacbayes_fl import bounds
from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import AssumptionError, ShapeError, StudyError
from pacbayes_fl.federation import engine, federation_state, personalisation
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.inference.svi import LocalInference
from pacbayes_fl.methods.base import Nothing, RefinedPosterior
from pacbayes_fl.methods.pac_pfl.bnn import PacPFLBNN, Tempered
from pacbayes_fl.methods.pac_pfl.gp import Message, PacPFL
from pacbayes_fl.models.functions.gpytorch_prior import GPyTorchPrior
from pacbayes_fl.models.likelihoods import Gaussian, inverse_softplus
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.classes import ClassMixture
from pacbayes_fl.posteriors.hyper_posterior import GaussianHyperPrior, NetworkHyperPrior
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.predictive import FinitePosterior, NormalMixture, SampledPosterior
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.posteriors.weights.mixture import FamilyMixture, WeightedSamples
from pacbayes_fl.server import svgd
from tests.inference.test_sampled_evidence import exact_evidence
from tests.laws.cases import assert_close
from tests.methods.by_hand import MODEL, SIZES, D, K, alive, clients, logits, randn

PARTICLES, DRAWS, STD = 3, 4, 2.0
LINE = BayesianMLP((2, 1), Gaussian(STD), torch.float64)
STEPS = LocalInference(steps=300, rate=0.02, zeta=1.0)


def method(**options: Any) -> PacPFLBNN:
    hyper_prior = NetworkHyperPrior(-2.0, 1.5, 0.7, 0.4)(MODEL)
    usual: dict[str, Any] = {"particles": PARTICLES, "train_draws": DRAWS, "minibatch": 4, "rate": 0.01, "local": STEPS}
    usual["weighting"] = "evidence"
    return PacPFLBNN(MODEL, hyper_prior, **(usual | options))


def lines(**options: Any) -> PacPFLBNN:
    given: dict[str, Any] = {"particles": 2, "posterior": "svi", "importance_draws": 200, "local": STEPS}
    given |= {"weighting": "evidence"} | options
    return PacPFLBNN(LINE, NetworkHyperPrior(0.0, 1.0, 0.2, 0.5)(LINE), **given)


def rows_of_lines(*sizes: int) -> ClientBatch:
    rows = [(randn(k, m, 2), randn(10 + k, m)) for k, m in enumerate(sizes)]
    return ClientBatch.pad(rows, allow_empty=True)


def personal(m: PacPFLBNN, phi: Tensor, batch: ClientBatch, seed: int = 3) -> Any:
    return m.personalise(Message(phi), Nothing(), batch, Noise(seed, 0, batch.ids))


# rounds ---------------------------------------------------------------------------------------------------------


class ByHand:
    """Algorithms 1 and 2 with one tensor per particle, all draws at once, and torch.optim.Adam."""

    def __init__(self, start: Tensor, tau: float, rate: float, beta: float | None) -> None:
        self.phi = torch.nn.Parameter(start.clone())
        self.adam, self.tau, self.beta = torch.optim.Adam([self.phi], rate), tau, beta

    def round(self, batch: ClientBatch, minibatch: int, t: int) -> None:
        scores = torch.zeros_like(self.phi)
        values = []
        for k in range(batch.clients):
            m = SIZES[k]
            noise = Noise(5, t, [batch.ids[k]])
            at = noise.rows(torch.ones(1, m, dtype=torch.bool), minibatch)[0]
            x, y = batch.x[k][at], batch.y[k][at]
            eps = torch.stack([noise.weights(torch.empty(1, D, dtype=torch.float64))[0] for _ in range(DRAWS)])
            for p in range(PARTICLES):
                leaf = self.phi[p].detach().clone().requires_grad_(True)
                mu, rho = leaf.chunk(2)
                temperature = m if self.beta is None else self.beta
                a = [-temperature * cross_entropy(logits(mu + softplus(rho) * e, x), y) for e in eps]
                value = torch.logsumexp(torch.stack(a), 0) - math.log(DRAWS)
                scores[p] += torch.autograd.grad(value, leaf)[0]
                values.append(value.item())
        self.step(scores)

    def step(self, scores: Tensor) -> None:
        phi = self.phi.detach()
        mean, std = (
            torch.cat((torch.zeros(D), torch.full((D,), -2.0))),
            torch.cat((torch.full((D,), 1.5), torch.full((D,), 0.7))),
        )
        target = (mean - phi) / std**2 + self.tau * scores
        pairs = sorted(((phi[i] - phi[j]) ** 2).sum().item() for i in range(PARTICLES) for j in range(i))
        h = pairs[1] / math.log(PARTICLES + 1)
        direction = torch.zeros_like(phi)
        for k in range(PARTICLES):
            for other in range(PARTICLES):
                kernel = math.exp(-((phi[other] - phi[k]) ** 2).sum().item() / h)
                direction[k] += kernel * (target[other] + 2 / h * (phi[k] - phi[other])) / PARTICLES
        self.phi.grad = -direction
        self.adam.step()


@pytest.mark.parametrize("scale", ["inside", "outside", "none"])
@pytest.mark.parametrize("beta", [None, 3.0])
def test_a_minibatch_of_all_rows_is_no_minibatch(scale: Any, beta: float | None) -> None:
    batch, m = clients(*SIZES), method(minibatch=None, beta=beta)
    message = m.broadcast(m.init_server(torch.Generator().manual_seed(6)))
    noise = Noise(0, 1, batch.ids)
    noise.rows(batch.mask, 99)  # what a minibatch takes from the streams
    whole, _ = m.client(message, Nothing(), batch, noise)
    every = replace(m, minibatch=max(SIZES), minibatch_scale=scale)
    result, _ = every.client(message, Nothing(), batch, Noise(0, 1, batch.ids))
    assert_close(result, whole, 1e-12)


@pytest.mark.parametrize("scale", ["inside", "outside", "none"])
def test_a_minibatch_means_the_same_for_functions_and_for_networks(scale: Any) -> None:
    """A linear regression is both: a GP's evidence and score are what the network's estimates have as their mean."""
    many, m, b, rho = 3000, 12, 4, -1.5
    x, y = randn(1, m, 2), randn(2, m)
    batch = ClientBatch.pad([(x, y)] * many)  # every client draws other rows and other weights
    kernel = gpytorch.kernels.LinearKernel(ard_num_dims=2) + gpytorch.kernels.ConstantKernel()
    line = GPyTorchPrior(gpytorch.means.LinearMean(2), kernel, 2)
    mu, variance = randn(3, 3), math.log1p(math.exp(rho)) ** 2
    values = {"raw_noise": inverse_softplus(STD), "mean.weights": mu[:2], "mean.bias": mu[2:]}
    each = [values.get(name, inverse_softplus(variance)) for name in line.shapes]
    theta = torch.cat(
        [torch.as_tensor(v).double().expand(s.numel()) for v, s in zip(each, line.shapes.values(), strict=True)]
    )
    phi = torch.cat((mu, torch.full((3,), rho, dtype=torch.float64))).unsqueeze(0)
    gp = PacPFL(line, GaussianHyperPrior(line.location(), 1.0), particles=1, minibatch=b, minibatch_scale=scale)
    network = lines(particles=1, minibatch=b, minibatch_scale=scale, train_draws=30)
    exact, _ = gp.client(Message(theta.unsqueeze(0)), Nothing(), batch, Noise(0, 1, batch.ids))
    result, _ = network.client(Message(phi), Nothing(), batch, Noise(0, 1, batch.ids))
    factor = m / b if scale == "outside" else 1.0
    ratio = ((result.log_evidence - exact.log_evidence) / factor).exp()
    assert exact.log_evidence.std() > 0.2  # other rows, another evidence

    def near(values: Tensor, expected: Tensor) -> None:
        assert ((values.mean(0) - expected).abs() < 5 * values.std(0) / many**0.5).all()

    near(ratio, torch.ones(1))
    assert ratio.std() < 1.0
    at = [name for name, shape in line.shapes.items() for _ in range(shape.numel())]
    means = torch.tensor([name.startswith("mean.") for name in at])
    near(ratio * result.score[:, 0, :3] - exact.score[:, 0, means], torch.zeros(3))


@pytest.mark.parametrize("beta", [None, 3.0])
def test_rounds_are_algorithms_1_and_2_in_plain_torch(beta: float | None) -> None:
    m, batch = method(tau=0.6, beta=beta), clients(*SIZES)
    state = federation_state.start(m, batch, FederationPlan(rounds=3, seed=5))
    start = torch.cat((alive(state.server.particles[:, :D]), state.server.particles[:, D:]), -1)
    state = state._replace(server=state.server._replace(particles=start))
    hand = ByHand(start, 0.6, 0.01, beta)
    for _, after in engine.rounds(m, batch, FederationPlan(rounds=3, seed=5), state):
        hand.round(batch, 4, after.round)
        torch.testing.assert_close(after.server.particles, hand.phi.detach(), rtol=1e-9, atol=1e-9)
    assert (hand.phi.detach() - start).abs().max() > 0.01


@pytest.mark.slow
def test_rounds_raise_the_evidence_and_say_how_many_draws_carry_it() -> None:
    m, drawn = method(rate=0.05, train_draws=10, minibatch=None), clients(20, 12, 30)
    batch = replace(drawn, y=(drawn.x[..., 0] > 0).long())
    records = []
    engine.run_rounds(m, batch, FederationPlan(rounds=80, seed=5), lambda record: records.append(record.values))
    assert records[-1]["log_evidence"] > records[0]["log_evidence"] + 5
    assert all(1 <= values["effective_samples"] <= 10 for values in records)


def test_particles_start_around_the_centre() -> None:
    start = method(particles=2000).init_server(torch.Generator().manual_seed(1)).particles
    assert start[:, :D].std().item() == pytest.approx(0.4, rel=0.01) and (start[:, D:] == -2.0).all()


def test_a_round_is_remarked_when_one_draw_carries_it() -> None:
    few, enough = {"effective_samples": 1.49}, {"effective_samples": 1.5}
    assert "one of 4 draws carries the evidence" in (method().remark(few) or "")
    assert method().remark(enough) is None and method(train_draws=2).remark(few) is None
    assert method().remark({"effective_samples": math.nan}) is None


def test_the_caller_of_a_run_hears_of_it_once() -> None:
    batch = clients(40, 30)
    with pytest.warns(UserWarning, match=r"carries the evidence of most clients.*\(round 1\)") as caught:
        engine.run_rounds(method(beta=1e4), batch, FederationPlan(rounds=4))
    assert len(caught) == 1 and Path(caught[0].filename).name == Path(__file__).name


# personal posteriors --------------------------------------------------------------------------------------------


def exact(phi: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Posterior mean and covariance of a linear regression's weights and intercept under a prior."""
    mu, rho = phi.chunk(2)
    design = torch.cat((x, torch.ones_like(x[:, :1])), -1)
    precision = torch.diag(1 / softplus(rho).square()) + design.T @ design / STD**2
    mean = torch.linalg.solve(precision, mu / softplus(rho).square() + design.T @ y / STD**2)
    return mean, torch.linalg.inv(precision)


def two_priors() -> Tensor:
    return torch.cat((0.8 * randn(30, 2, LINE.dim), 0.3 * randn(31, 2, LINE.dim)), -1)


def exact_mixture(phi: Tensor, batch: ClientBatch, k: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the predictive of eq. 37 at inputs x [N, 2]."""
    real = batch.mask[k]
    mine, y = batch.x[k][real], batch.y[k][real]
    weight = torch.stack([exact_evidence(one, mine, y, STD) for one in phi]).softmax(0)
    design = torch.cat((x, torch.ones_like(x[:, :1])), -1)
    fits = [exact(one, mine, y) for one in phi]
    means = torch.stack([design @ mean for mean, _ in fits])
    variances = torch.stack([(design @ cov * design).sum(-1) + STD**2 for _, cov in fits])
    mean = (weight.unsqueeze(-1) * means).sum(0)
    return mean, (weight.unsqueeze(-1) * (variances + (means - mean).square())).sum(0)


@pytest.mark.slow
@pytest.mark.parametrize("posterior", ["importance", "svi", "svgd"])
def test_every_posterior_comes_near_the_exact_one(posterior: Any) -> None:
    batch, phi = rows_of_lines(5, 0, 12), two_priors()
    x = randn(40, 3, 4, 2)
    steps = replace(STEPS, draws=4)
    result = personal(
        lines(posterior=posterior, local=steps, draws=100, importance_draws=600, svgd_particles=15), phi, batch
    ).predict(x)
    assert isinstance(result, NormalMixture)
    for k in range(3):
        mean, variance = exact_mixture(phi, batch, k, x[k])
        assert ((result.mean[k] - mean).abs() < 0.12 * variance.sqrt()).all()
        assert ((result.variance[k] / variance - 1).abs() < 0.15).all()


def test_importance_weights_are_those_of_equation_37() -> None:
    batch, phi = rows_of_lines(5, 3), two_priors()
    result = personal(lines(posterior="importance", importance_draws=7), phi, batch)
    equal = personal(lines(posterior="importance", importance_draws=7, weighting="equal"), phi, batch)
    noise = Noise(3, 0, batch.ids)
    eps = torch.stack([noise.weights(torch.empty(2, LINE.dim, dtype=torch.float64)) for _ in range(7)], 1)
    for k, m in enumerate((5, 3)):
        fit = torch.empty(2, 7, dtype=torch.float64)
        for p in range(2):
            mu, rho = phi[p].chunk(2)
            for j in range(7):
                theta = mu + softplus(rho) * eps[k, j]
                mean = batch.x[k, :m] @ theta[:2] + theta[2]
                fit[p, j] = torch.distributions.Normal(mean, STD).log_prob(batch.y[k, :m]).sum()
        torch.testing.assert_close(result.log_weights[k].exp(), (fit - fit.logsumexp((0, 1))).exp(), rtol=1e-10, atol=0)
        within = (fit - fit.logsumexp(1, keepdim=True)).exp()
        torch.testing.assert_close(equal.log_weights[k].exp(), within / 2, rtol=1e-10, atol=0)
        for p in range(2):
            mu, rho = phi[p].chunk(2)
            mean = (within[p].unsqueeze(-1) * (mu + softplus(rho) * eps[k])).sum(0)
            torch.testing.assert_close(result.means[p][k], mean, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("posterior", ["svi", "svgd"])
def test_fits_are_weighted_by_the_evidence_of_their_priors_or_alike(posterior: Any) -> None:
    batch, phi = rows_of_lines(5, 0), two_priors()
    phi[1, :2] -= 3.0
    m = lines(posterior=posterior, local=replace(STEPS, steps=2), draws=3, svgd_particles=3, importance_draws=1000)
    result, alike = (personal(one, phi, batch) for one in (m, replace(m, weighting="equal")))
    expected = torch.stack([exact_evidence(one, batch.x[0], batch.y[0], STD) for one in phi]).softmax(0)
    shares = result.log_weights.exp().sum(-1).view(2, 2, -1).sum(-1)
    torch.testing.assert_close(shares[0], expected, rtol=0, atol=0.03)
    assert shares[1].tolist() == pytest.approx([0.5, 0.5]) and (expected - 0.5).abs().max() > 0.2
    assert alike.log_weights.exp().sum(-1).view(2, 2, -1).sum(-1).flatten().tolist() == pytest.approx([0.5] * 4)
    kinds = {"svi": (MeanField, 2, 3), "svgd": (PointMass, 6, 1)}
    kind, components, draws = kinds[posterior]
    assert all(isinstance(one, kind) for one in result.components)
    assert result.log_weights.shape == (2, components, draws)


def test_beta_tempers_what_clients_do() -> None:
    """beta times the mean log likelihood of m rows is the likelihood of m copies of noise std sqrt(m / beta)."""
    batch, phi, x = rows_of_lines(8), two_priors(), randn(41, 1, 4, 2)
    hot = lines(posterior="importance", beta=2.0)
    model = BayesianMLP((2, 1), Gaussian(STD * 2), torch.float64)  # 8 / 2 = 2^2
    plain = replace(lines(posterior="importance"), model=model)
    weights = [personal(m, phi, batch).log_weights for m in (hot, plain)]
    torch.testing.assert_close(weights[0], weights[1], rtol=1e-9, atol=1e-9)
    local, rows = Tempered(steps=3, minibatch=4, beta=2.0), batch.rows(torch.arange(4).unsqueeze(0))
    assert local.scale(batch, rows).tolist() == [0.5] and replace(local, beta=None).scale(batch, rows).tolist() == [2.0]
    fast = replace(STEPS, steps=100, rate=0.05)
    cold, warm = (
        personal(lines(beta=beta, weighting="equal", local=fast), phi, batch).predict(x) for beta in (1e3, 1e-3)
    )
    prior = personal(lines(weighting="equal", local=fast), phi, rows_of_lines(0)).predict(x)
    torch.testing.assert_close(warm.mean, prior.mean, rtol=0, atol=0.2)
    assert (cold.mean - prior.mean).abs().max() > 0.5


def test_a_new_client_needs_no_training_and_one_without_rows_gets_the_priors() -> None:
    m, batch = method(posterior="importance", importance_draws=6, draws=6), clients(4, 0)
    server = engine.run_rounds(m, clients(*SIZES), FederationPlan(rounds=2)).server
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = personalisation.join(m, server, batch, seed=3)
    again = m.global_model(m.broadcast(server), Nothing(), batch, Noise(3, 0, batch.ids))
    mine, theirs = result.predict(batch.x), again.predict(batch.x)
    assert isinstance(mine, ClassMixture) and isinstance(theirs, ClassMixture)
    torch.testing.assert_close(mine.probs[1], theirs.probs[1], rtol=1e-9, atol=1e-12)
    assert (mine.probs[0] - theirs.probs[0]).abs().max() > 1e-3


def test_the_caller_hears_which_posteriors_stand_on_one_draw() -> None:
    batch, phi = rows_of_lines(4000, 1, 4000, 4000, 4000), two_priors()
    with pytest.warns(
        UserWarning, match=r"posterior of client_00, client_02, client_03 and 1 more stand on one draw of 50"
    ) as caught:
        personal(lines(posterior="importance", importance_draws=50), phi, batch)
    assert len(caught) == 1 and Path(caught[0].filename).name == Path(__file__).name
    with pytest.warns(UserWarning, match="stand on one draw of 50"):
        personal(lines(posterior="importance", importance_draws=50, weighting="equal"), phi, batch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        personal(lines(posterior="importance", importance_draws=2), phi, batch)
        personal(lines(posterior="importance", importance_draws=50), phi, batch.select(torch.tensor([1])).trim())


@pytest.mark.parametrize("posterior", ["svi", "svgd"])
def test_the_caller_hears_that_priors_are_weighed_by_one_draw(posterior: Any) -> None:
    few = lines(posterior=posterior, importance_draws=50, local=replace(STEPS, steps=2), svgd_particles=2)
    with pytest.warns(UserWarning, match="priors' weights of client_00 stand on one draw of 50"):
        personal(few, two_priors(), rows_of_lines(4000))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        personal(replace(few, weighting="equal"), two_priors(), rows_of_lines(4000))


def test_the_caller_hears_of_a_likelihood_of_zero() -> None:
    batch = rows_of_lines(3, 3)
    batch.y[1, 0] = 1e160
    with pytest.warns(UserWarning, match="likelihood of client_01 is zero under every draw") as caught:
        personal(lines(posterior="importance", importance_draws=50), two_priors(), batch)
    assert len(caught) == 1


def test_all_posteriors_are_predicted_by_their_means_too() -> None:
    batch, x = clients(*SIZES), randn(6, K, 5, 2)
    phi = method().init_server(torch.Generator().manual_seed(3)).particles
    for name in ("importance", "svi", "svgd"):
        few = method(posterior=name, local=replace(STEPS, steps=3), importance_draws=5)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = personal(few, phi, batch)
        at_mean, mixture = result.predict_at_mean(x), result.predict(x)
        torch.testing.assert_close(at_mean.probs.sum(-1), torch.ones(K, 5, dtype=torch.float64))
        assert ((at_mean.probs - mixture.probs).abs().max() > 1e-3) == (name != "svgd")  # whose weights are points


# certificates' posteriors ---------------------------------------------------------------------------------------


def halves(*sizes: int) -> tuple[ClientBatch, ClientBatch, ClientBatch]:
    """Return all rows, the first two thirds of every client, and the rest."""
    batch = rows_of_lines(*sizes)
    real = [(batch.x[k][batch.mask[k]], batch.y[k][batch.mask[k]]) for k in range(batch.clients)]
    cuts = [2 * len(y) // 3 for _, y in real]
    seen = [(x[:cut], y[:cut]) for (x, y), cut in zip(real, cuts, strict=True)]
    rows = [(x[cut:], y[cut:]) for (x, y), cut in zip(real, cuts, strict=True)]
    return batch, *(ClientBatch.pad(part, allow_empty=True) for part in (seen, rows))


def quiet(
    m: PacPFLBNN, phi: Tensor, seen: ClientBatch, rows: ClientBatch, seed: int = 4
) -> tuple[Any, RefinedPosterior]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prior = personal(m, phi, seen)
        return prior, m.refine(prior, seen, rows, Noise(seed, 0, rows.ids))


@pytest.mark.parametrize("weighting", ["evidence", "equal"])
def test_refined_importance_weighs_the_same_draws_by_all_rows(weighting: Any) -> None:
    batch, seen, rows = halves(6, 3, 9)
    phi, x = two_priors(), randn(40, 3, 4, 2)
    m = lines(posterior="importance", importance_draws=30, weighting=weighting)
    streams = Noise(3, 0, batch.ids)
    prior = m.personalise(Message(phi), Nothing(), seen, streams)
    streams.normal(torch.empty(3, 5))  # what others draw meanwhile
    result, kl = m.refine(prior, seen, rows, streams)
    whole = personal(m, phi, batch)
    assert (
        isinstance(prior, FinitePosterior)
        and isinstance(result, FinitePosterior)
        and not isinstance(result, SampledPosterior)
    )
    assert isinstance(result, WeightedSamples) and result.reference is seen  # which may normalise: the same networks
    torch.testing.assert_close(result.log_weights, whole.log_weights, rtol=1e-9, atol=1e-9)
    for q, p, w in zip(
        result.enumerate_hypotheses(x), prior.enumerate_hypotheses(x), whole.enumerate_hypotheses(x), strict=True
    ):
        assert torch.equal(q[1].mean, p[1].mean) and torch.equal(q[1].mean, w[1].mean)
    shares = [one.log_weights.flatten(1).exp() for one in (result, prior)]
    torch.testing.assert_close(kl, bounds.discrete_kl(*shares), rtol=1e-9, atol=1e-12)
    assert kl.dtype == torch.float64 and (kl > 1e-3).all()
    close_to = result.predict(x), whole.predict(x)
    torch.testing.assert_close(close_to[0].mean, close_to[1].mean, rtol=1e-9, atol=1e-9)
    for one, other in zip(result.means, whole.means, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_draws_before_all_rows_are_a_prior_and_their_weights_its_gibbs_posterior() -> None:
    batch, none = rows_of_lines(6, 3), rows_of_lines(0, 0)
    m = lines(posterior="importance", importance_draws=25)
    prior, (result, kl) = quiet(m, two_priors(), none, batch)
    torch.testing.assert_close(prior.log_weights, torch.full((2, 2, 25), -math.log(50)).double())
    assert isinstance(result, WeightedSamples)
    for k, m_k in enumerate((6, 3)):
        losses = []
        for _, one in result.enumerate_hypotheses(batch.x):
            losses.append(-one.log_prob(batch.y)[k, :m_k].mean())
        weights, log_z = bounds.gibbs_weights(torch.stack(losses), float(m_k))
        pairs = result.log_weights[k].T.flatten().exp()  # as they are listed: draw by draw
        torch.testing.assert_close(pairs, weights, rtol=1e-9, atol=1e-12)
        gap = -(weights * m_k * torch.stack(losses)).sum() - kl[k]  # ln Z = -beta E L - KL: an exact posterior
        assert gap.item() == pytest.approx(log_z.item(), rel=1e-9)
    assert (kl < math.log(50)).all()


def test_refined_mean_fields_come_near_the_exact_posterior_of_all_rows() -> None:
    batch, seen, rows = halves(9, 0, 12)
    phi = two_priors()
    m = lines(local=replace(STEPS, steps=200, rate=0.03), importance_draws=20, draws=3)
    prior, (result, kl) = quiet(m, phi, seen, rows)
    assert (
        isinstance(result, FamilyMixture)
        and isinstance(result, SampledPosterior)
        and not isinstance(result, FinitePosterior)
    )
    assert torch.equal(result.log_weights, prior.log_weights) and result.reference is prior.reference
    by_family = []
    for q, p in zip(result.components, prior.components, strict=True):
        by_family.append(bounds.diagonal_gaussian_kl(q.loc, q.scale.square(), p.loc, p.scale.square()))
    shares = prior.log_weights.exp().sum(-1)
    torch.testing.assert_close(kl, (shares * torch.stack(by_family, 1)).sum(1), rtol=1e-9, atol=1e-12)
    assert kl.dtype == torch.float64 and kl[1] == 0 and (kl[[0, 2]] > 1e-3).all()

    def likelihood(families: Any) -> Tensor:
        return torch.stack([LINE.log_likelihood(one.loc, rows) for one in families], 1)

    better = likelihood(result.components) > likelihood(prior.components)
    assert better[[0, 2]].all()
    for p in range(2):
        for k in (0, 2):
            mean, covariance = exact(phi[p], batch.x[k][batch.mask[k]], batch.y[k][batch.mask[k]])
            apart = (result.components[p].loc[k] - mean).abs() / covariance.diagonal().sqrt()
            assert (apart < 0.5).all()


@pytest.mark.parametrize("posterior", ["importance", "svi"])
def test_no_more_rows_change_nothing(posterior: Any) -> None:
    seen, none = rows_of_lines(5, 2), rows_of_lines(0, 0)
    prior, (result, kl) = quiet(lines(posterior=posterior, importance_draws=9, draws=3), two_priors(), seen, none)
    x = randn(40, 2, 4, 2)
    torch.testing.assert_close(result.predict(x).mean, prior.predict(x).mean, rtol=1e-10, atol=1e-12)
    assert (kl < 1e-12).all()


@pytest.mark.parametrize("posterior", ["importance", "svi"])
def test_refining_does_not_depend_on_padding_or_on_other_clients(posterior: Any) -> None:
    _, seen, rows = halves(6, 1, 9)
    m = lines(posterior=posterior, importance_draws=9, draws=3, local=replace(STEPS, steps=7, minibatch=2))
    phi, x = two_priors(), randn(40, 3, 4, 2)
    _, (whole, kl) = quiet(m, phi, seen, rows)
    for k in range(3):
        one, more = (batch.select(torch.tensor([k])).trim() for batch in (seen, rows))
        _, (alone, single) = quiet(m, phi, one, more)
        torch.testing.assert_close(single, kl[k : k + 1], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(alone.predict(x[k : k + 1]).mean[0], whole.predict(x).mean[k], rtol=1e-9, atol=1e-9)


class Mixed(BayesianMLP):  # type: ignore[misc]  # final, but here a site becomes a number
    """A line whose intercept is learned as a number."""

    deterministic = frozenset({"bias_0"})


def test_weights_that_are_numbers_stay_what_they_are() -> None:
    model = Mixed((2, 1), Gaussian(STD), torch.float64)
    assert set(model.shapes) >= model.deterministic
    m = PacPFLBNN(model, NetworkHyperPrior(0.0, 1.0, 0.2, 0.5)(model), particles=2, local=replace(STEPS, steps=20))
    _, seen, rows = halves(6, 9)
    phi = m.init_server(torch.Generator().manual_seed(2)).particles
    prior, (result, kl) = quiet(m, phi, seen, rows)
    number = ~model.stochastic_columns()
    assert number.any() and kl.isfinite().all() and (kl < 50).all()
    for q, p in zip(result.components, prior.components, strict=True):
        assert torch.equal(q.loc[:, number], p.loc[:, number]) and torch.equal(q.rho[:, number], p.rho[:, number])
        assert (q.loc[:, ~number] != p.loc[:, ~number]).all()


def test_a_fit_that_diverges_leaves_the_prior() -> None:
    _, seen, rows = halves(6, 9)
    wild = replace(rows, y=torch.where(torch.tensor([[True], [False]]), torch.nan, rows.y))
    prior, (result, kl) = quiet(lines(local=replace(STEPS, steps=5)), two_priors(), seen, wild)
    assert kl[0] == 0 and kl[1] > 0
    for q, p in zip(result.components, prior.components, strict=True):
        assert torch.equal(q.loc[0], p.loc[0])


def test_points_are_infinitely_far_and_other_clients_are_not_these() -> None:
    _, seen, rows = halves(6, 9)
    m = lines(posterior="svgd", local=replace(STEPS, steps=2), importance_draws=3)
    with pytest.raises(AssumptionError, match="posterior = 'importance' or 'svi'"):
        quiet(m, two_priors(), seen, rows)
    with pytest.raises(ShapeError, match="rows must be of clients"):
        quiet(lines(posterior="importance", importance_draws=3), two_priors(), seen, rows.select(torch.tensor([1, 0])))


# options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"train_draws": 0},
        {"draws": 0},
        {"importance_draws": 0},
        {"svgd_particles": 0},
        {"beta": 0.0},
        {"posterior": "mcmc"},
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(StudyError, match="|".join(options)):
        method(**options)


def test_chunks_are_sized_by_what_particles_hold() -> None:
    assert method().footprint(10) == PARTICLES * (MODEL.footprint(4) + D)
    assert method(minibatch=None).footprint(10) == PARTICLES * (MODEL.footprint(10) + D)


def test_the_bandwidth_is_that_of_the_weights_too() -> None:
    batch, phi = rows_of_lines(4), two_priors()
    few = lines(posterior="svgd", local=replace(STEPS, steps=50), importance_draws=3)
    one, other = (personal(replace(few, bandwidth=h), phi, batch).means[0] for h in (1.0, 100.0))
    assert (one - other).abs().max() > 1e-3
    with pytest.raises(StudyError, match="bandwidth"):
        svgd.direction(phi, phi, 0.0)


@pytest.mark.parametrize("posterior", ["importance", "svi", "svgd"])
def test_labels_say_which_posterior_predicts(posterior: Any) -> None:
    said = method(posterior=posterior, draws=7, importance_draws=11, svgd_particles=2).about()
    assert said["draws"] == {"importance": 11, "svi": 7, "svgd": 2}[posterior]
    assert f"averaged over {said['draws']} " in said["average"] and posterior in said["inference"]
