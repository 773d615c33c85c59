"""Priors that were trained with their posteriors are refused, and whatever is apart is taken."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pyro
import pytest
import torch
from pyro import distributions
from sklearn.linear_model import BayesianRidge
from torch import Tensor, nn

from pacbayes_fl import certify_model
from pacbayes_fl.bounds import diagonal_gaussian_kl
from pacbayes_fl.certificates.aliasing import require_apart
from pacbayes_fl.errors import AssumptionError

FINE: dict[str, Any] = {"source": "split", "independent": True}


class Weights(nn.Module):
    """A linear predictor with normal weights, drawn at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.loc = nn.Parameter(torch.zeros(2).double())

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.loc + 0.1 * torch.randn(2).double())


def divergence(posterior: Any, prior: Any) -> Tensor:
    spread = torch.full((2,), 0.01)
    other = prior["loc"] if isinstance(prior, dict) else prior.loc
    return diagonal_gaussian_kl(posterior.loc, spread, other, spread)


def rows(n: int = 100) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(0)).double()
    return x, x @ torch.tensor([1.0, -1.0]).double()


@pytest.mark.parametrize("kind", ["itself", "its state", "its shallow copy", "its parameters"])
def test_a_prior_that_was_trained_with_its_posterior_is_refused(kind: str) -> None:
    # each had a divergence of 0 nats after training, where the true one is 100
    model = Weights()
    made: dict[str, Any] = {
        "itself": model,
        "its state": model.state_dict(),
        "its shallow copy": copy.copy(model),
        "its parameters": dict(model.named_parameters()),
    }
    kept = copy.deepcopy(made[kind])
    with torch.no_grad():
        model.loc += torch.tensor([1.0, -1.0])
    said = "got one object" if kind == "itself" else r"must not share what is trained, got 1 parameter"
    with pytest.raises(AssumptionError, match=rf"{said}.*copy.deepcopy\(prior\) before"):
        certify_model(model, made[kind], rows(), kl=divergence, draws=20, **FINE)
    got = certify_model(model, kept, rows(), kl=divergence, draws=20, **FINE)
    assert got.valid and got.terms["kl"].item() == pytest.approx(100.0)


def test_an_estimator_that_was_fitted_again_is_no_prior() -> None:
    x, y = (each.numpy() for each in rows())
    prior = BayesianRidge(fit_intercept=False).fit(x[:50], y[:50])
    posterior = prior.fit(x, y)
    with pytest.raises(AssumptionError, match="got one object"):
        certify_model(posterior, prior, (x[50:], y[50:]), **FINE)


def test_weights_that_were_changed_in_place_are_no_prior() -> None:
    x, y = (each.numpy() for each in rows())
    models = [lambda x: x[:, 0] - x[:, 1], lambda x: x[:, 0]]
    weights = prior = np.full(2, 0.5)
    assert certify_model(models, prior, (x, y), weights=weights, **FINE).valid  # of both nothing was learned
    kept = prior.copy()
    weights *= [1.8, 0.2]
    with pytest.raises(AssumptionError, match=r"got one: .*prior=weights.copy\(\)"):
        certify_model(models, prior, (x, y), weights=weights, **FINE)
    assert certify_model(models, kept, (x, y), weights=weights, **FINE).terms["kl"].item() == pytest.approx(
        0.3681, abs=1e-4
    )


def test_a_guide_has_parameters_of_its_own() -> None:
    def made(name: str) -> Any:
        def guide(x: Tensor) -> None:
            pyro.sample("w", distributions.Normal(pyro.param(name, torch.ones(2).double()), 0.1).to_event(1))

        return guide

    def program(x: Tensor) -> None:
        w = pyro.sample("w", distributions.Normal(pyro.param("prior", torch.zeros(2).double()), 0.1).to_event(1))
        with pyro.plate("rows", len(x)):
            pyro.sample("y", distributions.Normal(x @ w, 0.1))

    pyro.clear_param_store()
    with pytest.raises(AssumptionError, match="guide and program share the parameter 'prior'"):
        certify_model(made("prior"), program, rows(), draws=5, **FINE)
    pyro.clear_param_store()
    assert certify_model(made("own"), program, rows(), draws=5, **FINE).terms["kl"].item() == pytest.approx(100.0)
    pyro.clear_param_store()


def test_what_nobody_trains_may_be_shared() -> None:
    layers = nn.Linear(2, 2).double()
    posterior, prior = (nn.Sequential(layers, nn.Linear(2, 1).double()) for _ in range(2))
    with pytest.raises(AssumptionError, match=r"got 2 parameter\(s\) of both.*requires_grad_\(False\) of layers"):
        require_apart(posterior, prior, divergence, None)
    layers.requires_grad_(False)
    require_apart(posterior, prior, divergence, None)
    require_apart(posterior, posterior, 3.0, None)  # which has no use for the prior
    spread = torch.ones(2)
    require_apart({"loc": torch.zeros(2), "scale": spread}, {"loc": torch.ones(2), "scale": spread}, divergence, None)
    apart = distributions.Normal(torch.zeros(2, requires_grad=True), spread)
    require_apart(apart, distributions.Normal(torch.zeros(2), spread), divergence, None)
    with pytest.raises(AssumptionError, match="must not share what is trained"):
        require_apart(apart, [distributions.Normal(apart.loc.detach(), spread)], divergence, None)
