"""Sites of Pyro guides beside those of their programs, by closed forms of single sites."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro import poutine
from torch import Tensor
from torch.distributions import AffineTransform, kl_divergence

from pacbayes_fl.certificates.guides import agree, draws_of, is_plate, kl_of, log_ratio_of, played, require_prior_alone
from pacbayes_fl.certificates.model import certify_model
from pacbayes_fl.certificates.outputs import outputs_of
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
    assert len(traces) == 13  # three draws, and the first with both values of the discrete site and eight of the other
    assert traces[3].nodes["w"]["value"].tolist() == pytest.approx([1.0 - 0.3719] * 2, abs=1e-4)  # quantile 1e-4
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
    with pytest.raises(AssumptionError, match="sites depend on its inputs, and a prior must not have seen the rows"):
        certify_model(guide, scaled, (x, x[:, 0]), source="data-free", independent=True)


def apart(x: Tensor) -> None:
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("rows", len(x)):
        pyro.sample("y", dist.Normal(x @ w + a, 0.3))


@pytest.mark.parametrize(
    "shift",
    [
        pytest.param(lambda a: 4 * torch.relu(-a), id="below the middle"),  # the first draws of all seeds are above
        pytest.param(lambda a: 9.0 * (a < -2.0), id="in a tail"),
        pytest.param(lambda a: 9.0 * (torch.sin(1000 * a) > 0.9), id="at no quantile, on a tenth of the draws"),
    ],
)
def test_sites_that_depend_on_each_other_anywhere_are_no_sum(shift: Callable[[Tensor], Tensor]) -> None:
    def dependent(x: Tensor) -> None:
        a = pyro.sample("a", dist.Normal(0.0, 1.0))
        pyro.sample("w", dist.Normal(shift(a) * torch.ones(2), 1.0).to_event(1))

    with pytest.raises(AssumptionError, match="depend on each other: their KL divergences vary from draw to draw"):
        certify_model(dependent, apart, (X, X[:, 0]), source="data-free", independent=True, draws=100)


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [4, 0, 1, 2, 3]])
def test_a_prior_by_any_of_the_rows_is_refused_in_whatever_order_they_come(order: list[int]) -> None:
    x, trace = torch.arange(10.0).reshape(5, 2)[order], poutine.trace(guide).get_trace(X)

    def largest(x: Tensor) -> None:
        pyro.sample("w", dist.Normal(torch.zeros(2) + x.max(), 1.0).to_event(1))
        pyro.sample("kind", dist.Bernoulli(0.5))

    with pytest.raises(AssumptionError, match="must not have seen the rows"):
        require_prior_alone(largest, x, trace)


def test_predictions_are_the_mean_of_what_is_observed() -> None:
    def observed(kind: Callable[[Tensor], Any]) -> Callable[[Tensor], None]:
        def model(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(2), 1.0).to_event(1))
            pyro.sample("kind", dist.Bernoulli(0.5))
            with pyro.plate("rows", len(x)):
                pyro.sample("y", kind(x @ w))

        return model

    trace = poutine.trace(guide).get_trace(X)
    eta = X @ trace.nodes["w"]["value"]
    skewed = played(observed(lambda mean: dist.LogNormal(mean, 0.1)), trace, X)
    assert outputs_of(skewed).tolist() == pytest.approx((eta + 0.005).exp().tolist())
    masked = played(observed(lambda mean: dist.Normal(mean, 0.1).mask(torch.ones(3, dtype=torch.bool))), trace, X)
    assert outputs_of(masked).tolist() == pytest.approx(eta.tolist())
    shifted = observed(lambda mean: dist.TransformedDistribution(dist.Normal(0.0, 0.1), [AffineTransform(mean, 1.0)]))
    with pytest.raises(AssumptionError, match="the mean of a TransformedDistribution, which has no formula"):
        outputs_of(played(shifted, trace, X))


def test_a_whole_plate_of_a_guide_is_a_sum_over_its_places() -> None:
    def within(mean: Tensor, std: float) -> Callable[[Tensor], None]:
        def sites(x: Tensor) -> None:
            with pyro.plate("weights", 2):
                w = pyro.sample("w", dist.Normal(mean, std))
            if std == 1.0:
                with pyro.plate("rows", len(x)):
                    pyro.sample("y", dist.Normal(x @ w, 0.3))

        return sites

    q, p = within(torch.tensor([1.0, 2.0]), 0.1), within(torch.zeros(2), 1.0)
    kl = kl_divergence(dist.Normal(torch.tensor([1.0, 2.0]), 0.1), dist.Normal(torch.zeros(2), 1.0)).sum().item()
    assert kl_of(p, X, poutine.trace(q).get_trace(X)) == pytest.approx(kl, rel=1e-6)
    rows = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    found = certify_model(q, p, (rows, rows[:, 0]), source="data-free", independent=True, draws=50)
    assert found.terms["kl"].item() == pytest.approx(kl, rel=1e-6)

    def partly(x: Tensor) -> None:
        with pyro.plate("weights", 2, subsample_size=1):
            pyro.sample("w", dist.Normal(0.0, 1.0))

    with pytest.raises(AssumptionError, match="the plate 'weights' of the guide is a part of its rows"):
        kl_of(p, X, poutine.trace(partly).get_trace(X))


def test_a_prior_by_the_number_of_rows_is_certified_and_one_without_a_divergence_is_not() -> None:
    def counted(std: float) -> Callable[[Tensor], None]:
        def model(x: Tensor) -> None:
            w = pyro.sample("w", dist.Normal(torch.zeros(2), std or float(len(x))).to_event(1))
            kind = pyro.sample("kind", dist.Bernoulli(0.5))
            with pyro.plate("rows", len(x)):
                pyro.sample("y", dist.Normal(x @ w + kind, 0.3))

        return model

    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    found, other = (
        certify_model(guide, counted(std), (x, x[:, 0]), source="data-free", independent=True, draws=20)
        for std in (0.0, 60.0)
    )
    assert found.valid and torch.equal(found.value, other.value)
    assert agree(1.0, 1.0 + 1e-8) and agree(math.inf, math.inf)
    assert not agree(1.0, math.nan) and not agree(math.nan, math.nan) and not agree(1.0, math.inf)
