"""Transforms of targets against scikit-learn, scipy and autograd."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from pacbayes_fl.data.batch import ClientBatch
from pacbayes_fl.data.transforms import TRANSFORMS, Transform
from pacbayes_fl.errors import DataError

F64 = torch.float64

EACH = [Transform("log1p"), Transform("logit", -2.0, 5.0)]
EACH += [Transform("yeo-johnson", power=power) for power in (0.0, 0.3, 0.5, 1.0, 1.7, 2.0)]
"""Transforms of every family."""


def inside(of: Transform) -> torch.Tensor:
    """Give targets in the domain, from its one end to the other."""
    low, high = of.domain
    y = torch.tensor([-1e3, -30.0, -1.9, -0.999, -0.4, -1e-9, 0.0, 1e-9, 0.7, 1.0, 4.9, 30.0, 1e3], dtype=F64)
    return y[(y > low) & (y < high)]


def test_every_family_is_tried() -> None:
    assert {of.name for of in EACH} == {*TRANSFORMS}
    assert all(kind.name == name for name, kind in TRANSFORMS.items())


@pytest.mark.parametrize("of", EACH, ids=str)
def test_maps_increase_and_are_undone_and_slopes_are_those_of_autograd(of: Transform) -> None:
    y = inside(of).requires_grad_()
    t = of.forward(y)
    assert (t.diff() > 0).all() and t.isfinite().all()
    torch.testing.assert_close(of.inverse(t), y, rtol=1e-11, atol=1e-12)
    (slope,) = torch.autograd.grad(t.sum(), y)
    torch.testing.assert_close(of.log_slope(y).exp(), slope, rtol=1e-9, atol=0)
    assert "{" not in of.title


def test_they_are_those_of_other_libraries() -> None:
    y = np.array([-30.0, -1.9, -0.4, 0.0, 0.7, 4.9, 30.0])
    for power in (0.0, 0.3, 0.5, 1.0, 1.7, 2.0):
        known = torch.tensor(stats.yeojohnson(y, lmbda=power))
        torch.testing.assert_close(Transform("yeo-johnson", power=power).forward(torch.tensor(y)), known)
    share = np.array([1e-9, 0.2, 0.5, 0.99])
    known = torch.tensor(special.logit(share))
    torch.testing.assert_close(Transform("logit", 0.0, 1.0).forward(torch.tensor(share)), known)


@pytest.mark.parametrize("of", EACH, ids=str)
def test_an_end_of_the_domain_goes_to_infinity_and_back(of: Transform) -> None:
    low, high = of.domain
    ends = of.forward(torch.tensor([low, high, low - 1.0, high + 1.0], dtype=F64))
    assert ends.tolist() == [-math.inf, math.inf, -math.inf, math.inf]
    assert of.inverse(ends).tolist() == [low, high, low, high]


@pytest.mark.parametrize(("of", "bad"), [(EACH[0], -1.0), (EACH[1], 5.0), (EACH[1], -2.5)], ids=str)
def test_targets_outside_are_refused_by_client_and_value(of: Transform, bad: float) -> None:
    rows = [(torch.zeros(n, 1, dtype=F64), torch.tensor(y, dtype=F64)) for n, y in ((1, [0.0]), (2, [0.3, bad]))]
    batch = ClientBatch.pad(rows, ["a", "b"])
    with pytest.raises(DataError, match=rf"'b': has a target of {bad:g} \(row 1\), and data.transform = '{of.name}'"):
        of.check(batch)
    of.check(batch.select(torch.tensor([0])))
    out = of.apply(batch.select(torch.tensor([0])))
    assert out.y[~out.mask].eq(0).all()


@pytest.mark.parametrize("large", [1e80, 1e160])
def test_targets_whose_transform_cannot_be_squared_are_refused(large: float) -> None:
    of = Transform("yeo-johnson", power=2.0)
    batch = ClientBatch.pad([(torch.zeros(2, 1, dtype=F64), torch.tensor([1e70, large], dtype=F64))], ["a"])
    with pytest.raises(
        DataError, match=rf"'a': has a target of 1e\+{math.log10(large):.0f} \(row 1\), .* is too large to be squared"
    ):
        of.check(batch)


@pytest.mark.parametrize("of", EACH, ids=str)
def test_targets_grow_as_the_power_of_the_transform_that_is_said(of: Transform) -> None:
    """The slope of ln |y| over ln |t| far out, which doubles with t where y grows as its exponential."""
    for sign, said in zip((-1.0, 1.0), of.growth, strict=True):
        far = sign * torch.tensor([150.0, 300.0, 600.0], dtype=F64)
        slope = of.inverse(far).abs().log().diff() / far.abs().log().diff()
        if math.isinf(said):
            assert slope[0] > 50 and slope[1] > 1.9 * slope[0]
        else:
            assert slope.tolist() == pytest.approx([said, said], abs=0.1)
