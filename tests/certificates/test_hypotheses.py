"""Posteriors of other libraries, measured by closed forms of their Gaussians and drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)
from sklearn.linear_model import ARDRegression, BayesianRidge, LogisticRegression
from sklearn.model_selection import FixedThresholdClassifier
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence
from torch.utils.data import DataLoader, TensorDataset

from pacbayes_fl import certify_model
from pacbayes_fl.bounds import SaturatingSquare
from pacbayes_fl.data.torchvision_ops import ensure_importable
from pacbayes_fl.errors import AssumptionError

FINE: dict[str, Any] = {"source": "split", "independent": True}


def data(n: int, seed: int = 0) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 2))
    return x, (x[:, 0] + 0.5 * random.normal(size=n) > 0).astype(int)


def gaussian_kl(q: tuple[Any, Any], p: tuple[Any, Any]) -> float:
    normals = [MultivariateNormal(*(torch.as_tensor(part).double() for part in each)) for each in (q, p)]
    return float(kl_divergence(*normals))


def test_a_bayesian_ridge_is_drawn_from_and_measured_by_its_gaussians() -> None:
    (x, _), (more, _) = data(50), data(70, 3)

    def target(x: Any, seed: int) -> Any:
        return x @ [1.0, -2.0] + 0.3 * np.random.default_rng(seed).normal(size=len(x))

    prior = BayesianRidge(fit_intercept=False).fit(x, target(x, 0))
    both = np.concatenate([x, more]), np.concatenate([target(x, 0), target(more, 1)])
    posterior = BayesianRidge(fit_intercept=False).fit(*both)
    got = certify_model(posterior, prior, (more, target(more, 1)), draws=400, **FINE)
    kl = gaussian_kl(*((one.coef_, one.sigma_) for one in (posterior, prior)))
    assert got.terms["kl"].item() == pytest.approx(kl, rel=1e-9)
    mean, spread = torch.from_numpy(more @ posterior.coef_), np.einsum("nd,de,ne->n", more, posterior.sigma_, more)
    exact = SaturatingSquare().expected(mean, torch.from_numpy(spread), torch.from_numpy(target(more, 1))).mean()
    assert got.terms["risk"].item() == pytest.approx(exact.item(), abs=0.01) and got.valid
    again = certify_model(posterior, prior, (more, target(more, 1)), draws=400, **FINE)
    assert torch.equal(again.value, got.value)
    fixed = certify_model(
        prior, rows=(more, target(more, 1)), **FINE
    )  # of one predictor, whose coefficients are a mean
    assert fixed.valid and "betting" in fixed.theorem
    for wrong in (more[:, :1], more[:, 0], np.hstack([more, more])):
        with pytest.raises(
            AssumptionError, match=r"inputs of a BayesianRidge must be \[n, 2\], as .* fitted, got \[70"
        ):
            certify_model(posterior, prior, (wrong, target(more, 1)), **FINE)
    shifted = BayesianRidge().fit(*both)
    with pytest.raises(AssumptionError, match="the intercepts differ"):
        certify_model(shifted, prior, (more, target(more, 1)), **FINE)


def test_laplace_posteriors_are_measured_by_their_gaussians() -> None:
    ensure_importable()
    from laplace import Laplace

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
    (x, y), (more, z) = ([torch.from_numpy(each) for each in data(n, seed)] for n, seed in ((40, 0), (30, 5)))
    loaders = [
        DataLoader(TensorDataset(a.float(), b), 99) for a, b in ((x, y), (torch.cat([x, more]), torch.cat([y, z])))
    ]
    for subset, structure in (("all", "full"), ("all", "kron"), ("last_layer", "full")):
        prior, posterior = (Laplace(network, "classification", subset, structure) for _ in range(2))
        for one, loader in zip((prior, posterior), loaders, strict=True):
            one.fit(loader)
        got = certify_model(posterior, prior, (more.float(), z), draws=10, **FINE)
        assert got.valid and 0 < got.terms["kl"].item() < 50
        if structure == "full":
            q, p = ((one.mean, one.posterior_covariance) for one in (posterior, prior))
            assert got.terms["kl"].item() == pytest.approx(gaussian_kl(q, p), rel=1e-4)
        if (subset, structure) == ("all", "full"):
            own = certify_model(posterior, "own", (more.float(), z), draws=10, source="data-free", independent=True)
            d = len(posterior.mean)
            assert own.terms["kl"].item() == pytest.approx(gaussian_kl(q, (torch.zeros(d), torch.eye(d))), rel=1e-4)
    with pytest.raises(AssumptionError, match="is measured against a prior"):
        certify_model(posterior, None, (more.float(), z), **FINE)
    with pytest.raises(AssumptionError, match="'own' is for posteriors of all weights"):
        certify_model(posterior, "own", (more.float(), z), **FINE)
    prior.model.model[0].weight.data += 1.0  # of the layers before the last
    with pytest.raises(AssumptionError, match="weights without uncertainty differ"):
        certify_model(posterior, prior, (more.float(), z), **FINE)


def test_a_pyro_guide_is_measured_site_by_site() -> None:
    import pyro
    from pyro.distributions import Categorical, Normal
    from pyro.infer.autoguide import AutoNormal

    x, y = (torch.from_numpy(each) for each in data(60, 7))

    def program(x: Tensor, y: Tensor | None = None) -> None:
        w = pyro.sample("w", Normal(torch.zeros(2).double(), 2.0).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", Categorical(logits=torch.stack([torch.zeros(len(x)).double(), x @ w], -1)), obs=y)

    def guide(x: Tensor, y: Tensor | None = None) -> None:
        pyro.sample("w", Normal(torch.tensor([3.0, 0.0]).double(), 0.5).to_event(1))

    got = certify_model(guide, program, (x, y), draws=200, source="data-free", independent=True)
    by_hand = sum(kl_divergence(Normal(m, 0.5), Normal(0.0, 2.0)).item() for m in (3.0, 0.0))
    assert got.valid and got.terms["kl"].item() == pytest.approx(by_hand, rel=1e-6)
    assert got.terms["risk"].item() == pytest.approx(((x[:, 0] > 0).long() != y).double().mean().item(), abs=0.05)
    pyro.clear_param_store()
    auto = AutoNormal(program, init_scale=0.5)
    auto(x, y)
    locs = auto.median()["w"].detach()
    kl = sum(kl_divergence(Normal(float(m), 0.5), Normal(0.0, 2.0)).item() for m in locs.tolist())
    assert certify_model(auto, program, (x, y), draws=5, **FINE).terms["kl"].item() == pytest.approx(kl, rel=1e-5)
    pyro.clear_param_store()


@pytest.fixture
def parameters() -> Iterator[None]:
    """Leave Pyro's store of parameters, one of the process, as it was."""
    with pyro.get_param_store().scope():
        yield


def program(x: Tensor, y: Tensor | None = None) -> Tensor:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("rows", len(x)):
        return pyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)


def hierarchy(x: Tensor, y: Tensor | None = None) -> Tensor:
    level = pyro.sample("level", dist.Normal(0.0, 1.0))
    w = pyro.sample("w", dist.Normal(level * torch.ones(2), 0.1).to_event(1))
    with pyro.plate("rows", len(x)):
        return pyro.sample("y", dist.Normal(x @ w, 0.3), obs=y)


def apart(x: Tensor, y: Tensor | None = None) -> None:
    pyro.sample("level", dist.Normal(0.0, 1.0))
    pyro.sample("w", dist.Normal(torch.tensor([1.0, -0.5]), 0.1).to_event(1))


def leaning(x: Tensor, y: Tensor | None = None) -> None:
    level = pyro.sample("level", dist.Normal(1.0, 2.0))
    pyro.sample("w", dist.Normal(5 * level * torch.ones(2), 0.1).to_event(1))


def mixture(x: Tensor, y: Tensor | None = None) -> Tensor:
    kind = pyro.sample("kind", dist.Bernoulli(0.5))
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("rows", len(x)):
        return pyro.sample("y", dist.Normal(x @ w + kind, 0.3), obs=y)


def seldom(x: Tensor, y: Tensor | None = None) -> None:
    kind = pyro.sample("kind", dist.Bernoulli(0.001))
    pyro.sample("w", dist.Normal(1e3 * kind * torch.ones(2), 0.1).to_event(1))


def masked(x: Tensor, y: Tensor | None = None) -> None:
    pyro.sample("w", dist.Normal(torch.ones(2), 0.1).mask(torch.tensor([True, False])).to_event(1))


@pytest.mark.parametrize(
    ("guide", "model", "said"),
    [
        (AutoDelta(program), program, "'w' is of kind Delta"),
        (AutoDiagonalNormal(program), program, "the program has no site"),
        (AutoMultivariateNormal(program), program, "the program has no site"),
        (AutoLowRankMultivariateNormal(program), program, "the program has no site"),
        (apart, hierarchy, "vary from draw to draw"),
        (leaning, hierarchy, "vary from draw to draw"),
        (seldom, mixture, "vary from draw to draw"),
        (masked, program, "'w' is of kind MaskedDistribution"),
    ],
    ids=["delta", "diagonal", "full", "low rank", "hierarchy", "dependent", "seldom", "masked"],
)
@pytest.mark.usefixtures("parameters")
def test_a_guide_whose_divergence_is_no_sum_over_its_sites_is_refused(guide: Any, model: Any, said: str) -> None:
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    guide(x, x[:, 0])
    with pytest.raises(AssumptionError, match=said):
        certify_model(guide, model, (x, x[:, 0]), draws=5, source="data-free", independent=True)


@pytest.mark.usefixtures("parameters")
def test_a_guide_of_independent_sites_has_one_divergence_whatever_torch_has_drawn() -> None:
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    guide = AutoNormal(program, init_scale=0.3)
    guide(x, x[:, 0])
    results = []
    for seed in range(3):
        torch.manual_seed(seed)
        results.append(certify_model(guide, program, (x, x[:, 0]), draws=5, source="data-free", independent=True))
    loc = pyro.get_param_store()["AutoNormal.locs.w"].detach().double()
    kl = gaussian_kl((loc, 0.09 * torch.eye(2)), (torch.zeros(2), torch.eye(2)))
    assert all(one.valid and one.terms["kl"].item() == pytest.approx(kl, rel=1e-6) for one in results)
    assert len({one.value.item() for one in results}) == 1


def step(x: Any) -> Any:
    return (x[:, 0] > 0).astype(int)


@pytest.mark.parametrize("kind", [int, str])
def test_classifiers_of_a_list_have_labels_of_their_own(kind: Any) -> None:
    (x, _), (more, _) = data(200), data(200, 1)
    right, wrong = (LogisticRegression().fit(x, (step(x) + by).astype(kind)) for by in (0, 1))
    rows = more, step(more).astype(kind)
    errors = np.mean([(one.predict(more) != rows[1]).mean() for one in (right, wrong)])
    assert errors > 0.45
    for models in ([right, wrong], [wrong, right]):
        got = certify_model(models, rows=rows, **FINE)
        assert got.terms["risk"].item() == pytest.approx(errors)
        assert certify_model(models, rows=rows, loss="clipped-nll=0.01", **FINE).terms["risk"] > 0.4


def test_drawn_classifiers_are_scored_by_their_labels() -> None:
    (x, _), (more, _) = data(200), data(200, 1)
    wrong = LogisticRegression().fit(x, step(x) + 1)
    rows: Any = more, step(more)

    def drawn(*models: Any) -> Any:
        return lambda generator: models[int(torch.randint(len(models), (), generator=generator))]

    got = certify_model(None, rows=rows, sample=drawn(wrong, wrong), kl=0.0, draws=5, **FINE)
    assert got.terms["risk"].item() == pytest.approx((wrong.predict(more) != rows[1]).mean())
    words = LogisticRegression().fit(x, np.array(["a", "b"])[step(x)])
    with pytest.raises(AssumptionError, match=r"must have labels 0, 1, \.\.\., got 'a'"):
        certify_model(None, rows=rows, sample=drawn(words, words), kl=0.0, draws=5, **FINE)
    rows = more, np.array(["a", "b"])[step(more)]
    got = certify_model(words, rows=rows, sample=drawn(words, words), kl=0.0, draws=5, **FINE)
    assert got.terms["risk"].item() == pytest.approx((words.predict(more) != rows[1]).mean())


def test_an_estimator_is_certified_by_the_labels_that_it_gives() -> None:
    (x, _), (more, _) = data(200), data(200, 1)
    careful = FixedThresholdClassifier(LogisticRegression(), threshold=0.99).fit(x, step(x))
    errors = (careful.predict(more) != step(more)).mean()
    assert errors > 0.1
    for models in (careful, [careful, careful]):
        got = certify_model(models, rows=(more, step(more)), **FINE)
        assert got.terms["risk"].item() == pytest.approx(errors) and got.value > errors


def test_pruned_features_are_known_to_both_regressions_or_apart() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(600, 5))
    y = x[:, :2] @ [1, -1] + 0.1 * random.normal(size=600)
    prior, posterior = (ARDRegression(fit_intercept=False).fit(x[:n], y[:n]) for n in (300, 600))
    assert len(prior.sigma_) == len(posterior.sigma_) == 2
    got = certify_model(posterior, prior, (x[300:], y[300:]), draws=20, **FINE)
    kl = gaussian_kl(*((one.coef_[:2], one.sigma_) for one in (posterior, prior)))
    assert got.valid and got.terms["kl"].item() == pytest.approx(kl, rel=1e-9)
    plain = BayesianRidge(fit_intercept=False).fit(x[:300], y[:300])
    for one, other in ((posterior, plain), (BayesianRidge(fit_intercept=False).fit(x[:300, :2], y[:300]), plain)):
        with pytest.raises(AssumptionError, match="pruned others"):
            certify_model(one, other, (x[300:], y[300:]), **FINE)


def test_a_batch_norm_in_training_is_no_predictor_of_rows() -> None:
    network = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 2))
    x, y = data(50)
    with pytest.raises(AssumptionError, match="'1' normalises by the rows"):
        certify_model(network, rows=(x, y), kl=1.0, draws=5, **FINE)
    network[1].eval()
    before = network[1].running_mean.clone()
    assert certify_model(network, rows=(x, y), kl=1.0, draws=5, **FINE).valid
    assert torch.equal(network[1].running_mean, before)


def test_laplace_posteriors_of_networks_that_are_partly_frozen() -> None:
    ensure_importable()
    from laplace import Laplace

    def fitted(seed: int, n: int, buffer: float = 0.0) -> Any:
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2))
        network[0].requires_grad_(False)
        network.register_buffer("shift", torch.tensor(buffer))
        x, y = data(n, seed)
        loader = DataLoader(TensorDataset(torch.tensor(x).float(), torch.tensor(y)), 50)
        result = Laplace(network, "classification", subset_of_weights="all", hessian_structure="diag")
        result.fit(loader)
        return result

    x, y = data(60, 3)
    prior, posterior = fitted(0, 50), fitted(3, 60)
    got = certify_model(posterior, prior, (x, y), draws=5, **FINE)
    assert got.valid and len(posterior.mean) == 8
    with pytest.raises(AssumptionError, match="without uncertainty differ"):
        certify_model(fitted(3, 60, 1.0), prior, (x, y), draws=5, **FINE)


def test_tensors_of_another_precision_are_given_to_a_module_in_its_own() -> None:
    x = torch.randn(60, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows, module = (x, (x[:, 0] > 0).long()), nn.Linear(2, 2)
    known = certify_model(module, rows=rows, source="data-free", independent=True)
    assert known.value == certify_model(module, rows=(x.numpy(), rows[1]), source="data-free", independent=True).value
    kinds = list[torch.dtype]()

    def bare(asked: Tensor) -> Tensor:
        kinds.append(asked.dtype)
        return asked

    certify_model(bare, rows=rows, source="data-free", independent=True)
    assert set(kinds) == {torch.float64}  # whatever a function makes of them
