"""A family cut into the sites of a model, and what one of a user's own must have."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.errors import StudyError
from pacbayes_fl.federation.engine import run_rounds
from pacbayes_fl.federation.plan import FederationPlan
from pacbayes_fl.methods.variational import pfedbayes
from pacbayes_fl.methods.variational.pfedbayes import PFedBayes
from pacbayes_fl.models.base import WeightModel, WeightPrior
from pacbayes_fl.models.likelihoods import Gaussian
from pacbayes_fl.models.weights.bayesian_network import BayesianMLP
from pacbayes_fl.noise import Noise
from pacbayes_fl.posteriors.point import PointMass
from pacbayes_fl.posteriors.weights.family import Sites, WeightDistribution, check_families, site_view
from pacbayes_fl.posteriors.weights.mean_field import MeanField
from pacbayes_fl.posteriors.weights.spike_slab import SpikeSlab

K = 2


class Shaped(WeightModel):
    """Sites of every kind of shape, and nothing else."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return MappingProxyType({"matrix": (2, 3), "scalar": (), "vector": (4,)})

    def model(self, batch: ClientBatch, prior: WeightPrior, zeta: float, scale: Tensor) -> None:
        raise NotImplementedError


def leaf(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def families(*shape: int) -> list[Any]:
    loc, rho, logit = (leaf(seed, *shape) for seed in range(3))
    return [MeanField(loc, rho), SpikeSlab(loc, rho, logit)]


@pytest.mark.parametrize("kind", [0, 1], ids=["mean-field", "spike-slab"])
def test_sites_of_a_family_are_all_of_it_and_nothing_twice(kind: int) -> None:
    model, q, w = Shaped(), families(K, 11)[kind], families(11)[kind]
    w = type(w)(*(part.flip(0) for part in w))
    draw = q.draw(Noise(0, 1, (4, 5)))
    mine, theirs = Sites(q, model, draw), Sites(w, model)
    drawn, total = {}, torch.zeros(K, dtype=torch.float64)
    for name, shape in model.shapes.items():
        site = mine.site(name)
        assert site.batch_shape == (K,) and site.event_shape == shape
        assert theirs.site(name).batch_shape == ()  # a prior that clients share has no client dimension
        drawn[name] = site.rsample()
        total = total + kl_divergence(site, theirs.site(name))
    expected = model.unflatten(q.weights(draw))
    assert drawn.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(drawn[name], value, rtol=1e-14, atol=1e-15)
    torch.testing.assert_close(total, q.kl(w), rtol=1e-12, atol=0)


def test_cutting_a_site_out() -> None:
    flat = torch.arange(22.0).view(2, 11)
    assert torch.equal(site_view(flat, slice(0, 6), (2, 3)), flat[:, :6].view(2, 2, 3))
    assert torch.equal(site_view(flat, slice(6, 7), ()), flat[:, 6])
    assert torch.equal(site_view(flat[0], slice(7, 11), (4,)), flat[0, 7:])


def test_both_families_are_families() -> None:
    for made in families(K, 3):
        family: WeightDistribution = made  # the protocol's names, all there
        assert all(hasattr(family, name) for name in dir(WeightDistribution) if not name.startswith("_"))
        precomputed = family.precompute()
        assert all(
            hasattr(precomputed, name) for name in ("weights", "vjp", "kl", "kl_gradient", "kl_gradient_wrt_prior")
        )


class Slopeless(NamedTuple):
    """A mean field whose slopes nobody wrote."""

    loc: Tensor
    rho: Tensor

    draw, weights, mean = MeanField.draw, MeanField.weights, MeanField.mean
    kl, bounded, site, scale = MeanField.kl, MeanField.bounded, MeanField.site, MeanField.scale

    def precompute(self) -> Any:
        class Half(NamedTuple):
            loc: Tensor
            weights = vjp = kl = kl_gradient_wrt_prior = MeanField.mean

        return Half(self.loc)


class Closed(NamedTuple):
    loc: Tensor

    draw, kl = MeanField.draw, MeanField.kl


def test_a_family_that_lacks_a_part_is_refused_by_name() -> None:
    zero = torch.zeros(4)
    with pytest.raises(StudyError, match=r"Half, lacks kl_gradient \(.*Precomputed"):
        check_families(pfedbayes.Server(Slopeless(zero, zero)))  # type: ignore[arg-type]
    with pytest.raises(StudyError, match=r"Closed, lacks weights, mean, precompute, bounded, site \("):
        check_families((zero, {"w": zero}, Closed(zero)))
    check_families(pfedbayes.Server(MeanField(zero, zero)))
    check_families(SpikeSlab(zero, zero, zero))
    check_families(PointMass(zero))  # draws nothing that a divergence is taken of


def test_a_federation_of_it_does_not_begin() -> None:
    class Own(PFedBayes):  # type: ignore[misc]
        def init_server(self, generator: torch.Generator) -> Any:
            w = super().init_server(generator).w
            return pfedbayes.Server(Slopeless(*w))  # type: ignore[arg-type]

    method = Own(BayesianMLP((1, 3, 1), Gaussian(), torch.float64))
    batch = ClientBatch.pad([(torch.ones(3, 1).double(), torch.ones(3).double())])
    with pytest.raises(StudyError, match="lacks kl_gradient"):
        run_rounds(method, batch, FederationPlan(rounds=1))
