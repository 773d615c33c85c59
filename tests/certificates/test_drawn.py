"""The drawn network of a bound on one draw: its weights, its density ratio by dense Gaussians, and what is shipped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

import pacbayes_fl as fl
from pacbayes_fl.certificates.choice import Candidate
from pacbayes_fl.certificates.drawn import draw, networks_of
from pacbayes_fl.certificates.measure import SHIPPED
from pacbayes_fl.errors import AssumptionError
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.tempered import TemperedPosterior, tempered
from pacbayes_fl.posteriors.weights.laplace import DiagonalGaussian, SubnetworkGaussian
from pacbayes_fl.posteriors.weights.linearised import LinearisedPosterior
from pacbayes_fl.study.run import Trained
from tests.tiny import quick
from tests.tiny_images import tiny_images, write_root


def dense(family: Any, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Uncertain weights [B] of client k, their means and their covariance, by the definition of the family."""
    variance = family.variance[k].double().clone()
    covariance = torch.diag(variance)
    if isinstance(family, SubnetworkGaussian):
        at, factor = family.chosen[k], family.factor[k].double()
        covariance[at.unsqueeze(1), at] = torch.linalg.inv(factor @ factor.mT)
    free = covariance.diagonal().nonzero().squeeze(1)
    return free, family.loc[k].double()[free], covariance[free.unsqueeze(1), free]


def ratio_of(q: Any, p: Any, theta: Tensor) -> list[float]:
    """ln dQ/dP at theta [K, D] by densities of torch; weights that are known are the same in both."""
    result = []
    for k, own in enumerate(theta.double()):
        (free, *of_q), (also, *of_p) = dense(q, k), dense(p, k)
        assert torch.equal(free, also)
        fixed = torch.ones_like(own, dtype=torch.bool).index_fill(0, free, False)
        assert torch.equal(own[fixed], q.loc[k][fixed].double()) and torch.equal(q.loc[k][fixed], p.loc[k][fixed])
        each = [MultivariateNormal(*known).log_prob(own[free]) for known in (of_q, of_p)]
        result.append((each[0] - each[1]).item())
    return result


def linearised(family: Any) -> LinearisedPosterior:
    return LinearisedPosterior(None, family.loc, lambda: family, "probit", 3, Noise(0, 0, (1, 2)))  # type: ignore[arg-type]


def gaussians() -> dict[str, tuple[Any, Any]]:
    """P and Q of two clients with five weights, the last one known; a weight that P has apart is correlated in Q."""
    torch.manual_seed(0)
    loc, factor = torch.randn(2, 5).double(), torch.randn(2, 3, 3).double().tril() + 3 * torch.eye(3).double()
    apart = torch.tensor([0.0, 0.5, 0.0, 0.3, 0.0]).double().expand(2, -1)
    two = torch.tensor([[2, 0]] * 2)
    p = SubnetworkGaussian(loc, two, 0.5 * factor[:, :2, :2], apart)
    q = SubnetworkGaussian(
        loc, torch.cat((two, torch.tensor([[1]] * 2)), 1), factor, apart.clone().index_fill(1, torch.tensor([1]), 0)
    )
    wide = apart + torch.tensor([0.4, 0.0, 0.7, 0.0, 0.0]).double()
    return {"full": (q, p), "diagonal": (DiagonalGaussian(loc, 0.3 * wide), DiagonalGaussian(loc, wide))}


@pytest.mark.parametrize("name", ["full", "diagonal"])
def test_each_client_s_network_and_ratio_are_of_the_gaussian_that_was_chosen_for_it(name: str) -> None:
    q, p = gaussians()[name]
    kl = torch.tensor([2.0, 3.0])
    among = [Candidate(1.0, tempered(linearised(q), 2.0), kl), Candidate(0.0, tempered(linearised(p), 2.0), 0 * kl)]
    noise = Noise(4, SHIPPED, (1, 2))
    made = draw(among, torch.tensor([0, 1]), tempered(linearised(p), 2.0), "one-draw", noise)
    eps = noise.copy().weights(p.loc)
    assert torch.equal(made.weights, torch.stack((q.weights(eps)[0], p.weights(eps)[1])))
    assert made.log_ratio.tolist() == pytest.approx([ratio_of(q, p, made.weights)[0], 0.0], rel=1e-9, abs=1e-12)
    assert abs(made.log_ratio[0]) > 1e-3 and made.kl.tolist() == [2.0, 0.0]
    assert isinstance(made.network, TemperedPosterior) and isinstance(made.network.inner.family, PointMass)
    assert torch.equal(made.network.inner.family.loc, made.weights) and made.network.temperature == 2.0


def test_a_posterior_over_no_weights_has_no_network() -> None:
    with pytest.raises(AssumptionError, match="drawn from a posterior over weights, got a PointMass"):
        networks_of(PointMass(torch.zeros(1, 2)), "one-draw")


@pytest.mark.parametrize("name", ["fedsi", "fedsi-fac"])
def test_the_network_of_a_laplace_posterior_that_is_shipped_is_the_one_that_is_certified(
    name: str, tmp_path: Path
) -> None:
    sets = [
        "report.certify.scheme=split",
        *quick(name),
        "model.dtype=float64",
        "federation.rounds=2",
        "model.temperature=1.5",
    ]
    fl.run(tiny_images(write_root(tmp_path / "root"), *sets), tmp_path / "run")
    trained = fl.open_run(tmp_path / "run")
    table = fl.certify(trained, fl.Request("one-draw", posterior="refined", holdout=0.0), ship=tmp_path / "ship")
    assert table.reasons == {"existing": [], "new": []} and len(table.clients) == 6
    q, p = ends(trained)
    held = trained.bound_rows
    assert held is not None
    noise = Noise(trained.study.plan.seed, SHIPPED, held.ids, None, trained.study.plan.noise)
    theta = q.weights(q.draw(noise))
    expected = dict(zip(held.names, zip(ratio_of(q, p, theta), theta, strict=True), strict=True))
    where = {json.loads((each / "network.json").read_text())["client"]: each for each in (tmp_path / "ship").iterdir()}
    assert where.keys() == {line.name for line in table.clients}
    for line in table.clients:
        one, known = fl.load_network(where[line.name]), line.group == "existing"
        rows = held if known else trained.groups["new"].raw.train
        k = rows.names.index(line.name)
        x, y = rows.x[k][rows.mask[k]], rows.y[k][rows.mask[k]]
        assert len(y) == line.rows and int((one.predict(x).label != y).sum()) / len(y) == line.risk
        assert one.certificate["bound"] == line.bound
        if known:
            ratio, weights = expected[line.name]
            assert torch.equal(one.weights[0], weights) and not torch.equal(one.weights[0], p.loc[k])
            assert line.kl == pytest.approx(ratio, rel=1e-9)
    assert len({line.kl for line in table.clients}) == 6
    best = fl.certify(trained, fl.Request("one-draw", holdout=0.0))
    assert best.reasons == {"existing": [], "new": []} and {line.share for line in best.clients} <= {0.0, 1.0}


def ends(trained: Trained) -> tuple[Any, Any]:
    """Gaussians Q and P of the existing clients, by the calls of the method alone."""
    held, seen, plan, method = trained.bound_rows, trained.groups["existing"].train, trained.study.plan, trained.method
    assert held is not None
    noises = [Noise(plan.seed, at, held.ids, None, plan.noise) for at in (0, 2**32 - 4)]
    message = method.broadcast(trained.state.server)
    prior = method.personalise(message, trained.state.clients, seen, noises[0])
    used = trained.groups["existing"].used.apply(held).to(dtype=seen.x.dtype)
    refined = method.refine(prior, seen, used, noises[1])
    return networks_of(refined.posterior, "").family, networks_of(prior, "").family
