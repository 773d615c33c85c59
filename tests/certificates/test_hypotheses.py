"""Posteriors of other libraries, measured by closed forms of their Gaussians and drawn from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import BayesianRidge
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
