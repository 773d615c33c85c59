"""Sites of Pyro guides beside those of their programs, by closed forms of single sites."""

from __future__ import annotations

from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import kl_divergence

from pacbayes_fl.certificates.guides import draws_of, is_plate, kl_of, log_ratio_of, played, require_prior_alone
from pacbayes_fl.certificates.model import certify_model
from pacbayes_fl.errors import AssumptionError


def program(x: Tensor) -> None:
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    kind = pyro.sample("kind", dist.Bernoulli(0.5))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(x @ w + kind, 0.3))


def guide(x: Tensor) -> None:
    pyro.sample("w", dist.Normal(torch.ones(2), 0.1).to_event(1))
    pyro.sample("kind", dist.Bernoulli(0.9))


X = torch.ones(3, 2)


def test_divergence_and_ratio_are_sums_over_sites() -> None:
    traces: list[Any] = [*draws_of(guide, X)]
    assert len(traces) == 5  # three draws, and the first with both values of the discrete site
    kl = 2 * kl_divergence(dist.Normal(1.0, 0.1), dist.Normal(0.0, 1.0))
    kl = kl + kl_divergence(dist.Bernoulli(torch.tensor(0.9)), dist.Bernoulli(torch.tensor(0.5)))
    for trace in traces:
        assert kl_of(program, X, trace) == pytest.approx(kl.item(), rel=1e-5)
        w, kind = (trace.nodes[name]["value"] for name in ("w", "kind"))
        ratio = dist.Normal(1.0, 0.1).log_prob(w).sum() - dist.Normal(0.0, 1.0).log_prob(w).sum()
        ratio = ratio + torch.where(kind == 1, 0.9, 0.1).log() - torch.tensor(0.5).log()
        assert log_ratio_of(program, X, trace) == pytest.approx(ratio.item(), rel=1e-5)
        assert played(program, trace, X).mean.tolist() == pytest.approx((X @ w + kind).tolist())


def test_a_site_that_only_the_guide_has_is_refused_and_plates_are_none() -> None:
    def more(x: Tensor) -> None:
        guide(x)
        pyro.sample("other", dist.Normal(0.0, 1.0))

    for measured in (kl_of, log_ratio_of):
        with pytest.raises(AssumptionError, match="the program has no site 'other'"):
            measured(program, X, poutine.trace(more).get_trace(X))
    nodes = poutine.trace(program).get_trace(X).nodes
    assert [name for name, site in nodes.items() if site["type"] == "sample" and is_plate(site)] == ["rows"]


def test_a_guide_that_observes_is_refused() -> None:
    def observing(x: Tensor) -> None:
        guide(x)
        pyro.sample("y", dist.Normal(0.0, 1.0).expand([len(x)]).to_event(1), obs=torch.zeros(len(x)))

    for measured in (kl_of, log_ratio_of):
        with pytest.raises(AssumptionError, match="the guide observes the site 'y', and a guide draws"):
            measured(program, X, poutine.trace(observing).get_trace(X))


def test_a_prior_by_the_rows_inputs_is_refused() -> None:
    """As an empirical prior, or Zellner's, of the rows of the bound; one by their number alone has not seen them."""
    x, trace = torch.arange(10.0).reshape(5, 2), poutine.trace(guide).get_trace(X)

    def scaled(x: Tensor) -> None:
        with poutine.block(hide=["w"]):
            program(x)
        pyro.sample("w", dist.Normal(torch.zeros(2), x.std()).to_event(1))

    def counted(x: Tensor) -> None:
        pyro.sample("w", dist.Normal(torch.zeros(2), float(len(x))).to_event(1))
        pyro.sample("kind", dist.Bernoulli(0.5))

    for fixed, given in ((program, x), (counted, x), (counted, x.numpy()), (scaled, x[:1].repeat(5, 1))):
        require_prior_alone(fixed, given, trace)
    with pytest.raises(AssumptionError, match=r"sites depend on its inputs: .* must not have seen the rows"):
        certify_model(guide, scaled, (x, x[:, 0]), source="data-free", independent=True)
